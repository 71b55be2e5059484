"""Sessions that end and groups that rebalance because a test says so: of which member, in a whole broker.

What a group of either protocol does then stands in the tests of ``coordinators.groups``.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.membership import SyncRequest, SyncResult
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.request_faults import RequestFaults
from seglog_protocol.errors import RebalanceInProgressError, UnknownGroupError, UnknownMemberError
from tests.unit.broker.coordinators.groups.service.running import join_request, joined, running

pytestmark = pytest.mark.trio


@asynccontextmanager
async def faulty_groups() -> AsyncIterator[tuple[Broker, RequestFaults]]:
    faults = RequestFaults()
    async with running(ForgetfulFileSystem(), None, "group.initial.rebalance.delay.ms=0") as broker:
        faults.begin(broker)
        yield broker, faults


@pytest.mark.parametrize("by", ["instance id", "member id", "client id"])
async def test_the_session_of_a_member_ends_by_each_of_its_ids(by: str) -> None:
    async with faulty_groups() as (broker, faults):
        member = await broker.groups.join("workers", join_request(instance_id="static"))
        faults.expire_session("workers", {"instance id": "static", "client id": "app"}.get(by, member.member_id))
        with pytest.raises(UnknownGroupError, match="there are none"):
            faults.expire_session("workers", member.member_id)


async def test_members_are_told_of_a_rebalance_and_those_that_there_are_not_of_the_others() -> None:
    async with faulty_groups() as (broker, faults):
        with pytest.raises(UnknownGroupError, match="there are none"):
            faults.rebalance("workers")
        first = await joined(broker, "workers")
        with pytest.raises(UnknownGroupError, match="groups with members: 'workers'"):
            faults.expire_session("worker", first.member_id)
        with pytest.raises(UnknownMemberError, match=rf"no member 'nobody'; .*'{first.member_id}' \(client 'app'\)"):
            faults.expire_session("workers", "nobody")
        results: list[SyncResult] = []

        async def follow() -> None:
            second = await broker.groups.join("workers", join_request(instance_id="static"))
            request = SyncRequest(second.member_id, second.generation, instance_id="static")
            results.append(await broker.groups.sync("workers", request))
            await broker.groups.join("workers", join_request(second.member_id, instance_id="static"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(UnknownMemberError, match="has 2 members 'app'"):
                faults.expire_session("workers", "app")
            await broker.groups.join("workers", join_request(first.member_id))  # it leads, and does not assign
            await trio.testing.wait_all_tasks_blocked()
            faults.rebalance("workers")
            await trio.testing.wait_all_tasks_blocked()
            assert [type(result.error) for result in results] == [RebalanceInProgressError]
            faults.expire_session("workers", first.member_id)  # for which the other one waits
        assert [member.instance_id for member in broker.groups.describe("workers")[0].members] == ["static"]
