"""Members that wait for each other: what their connections do meanwhile, and how their waits end."""

from typing import Any, cast

import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.coordinators.groups.membership import JoinRequest, JoinResult
from seglog_broker.coordinators.groups.service.service import GroupService
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import each_case
from tests.unit.broker.listeners.kafka.group_requests import FakeGroups
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaServed, fetch, kafka

HEARTBEAT = messages.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
WAITING: list[tuple[Any, int, type[Any]]] = [
    *((messages.JoinGroupRequest(group_id="g", member_id="m"), v, messages.JoinGroupResponse) for v in (0, 6, 7, 9)),
    *((messages.SyncGroupRequest(group_id="g", member_id="m"), v, messages.SyncGroupResponse) for v in (0, 4)),
    (
        messages.SyncGroupRequest(group_id="g", member_id="m", protocol_type="consumer", protocol_name="range"),
        5,
        messages.SyncGroupResponse,
    ),
]

waiting = each_case(("request_", "version", "response"), WAITING)


def with_fakes(served: KafkaServed, groups: FakeGroups | None = None) -> FakeGroups:
    groups = groups or FakeGroups()
    served.broker.groups = cast("GroupService", groups)
    return groups


@waiting
async def test_a_member_that_waits_and_leaves_waits_no_longer(request_: Any, version: int, response: type[Any]) -> None:
    async with kafka() as served:
        groups = with_fakes(served)
        peer, other = await served.connect(), await served.connect()
        await peer.send(request_, version)
        await groups.is_waiting.wait()
        with capture_logs() as logged:
            await peer.stream.aclose()
            while served.broker.metrics.connections_open > 1:
                await wait_all_tasks_blocked()
        assert groups.cancelled == 1
        assert [entry for entry in logged if entry["log_level"] != "debug"] == []
        assert (await other.ask(HEARTBEAT, 4)).error_code == 0


@waiting
async def test_a_member_that_waits_when_the_broker_stops_is_told_to_look_again(
    request_: Any, version: int, response: type[Any]
) -> None:
    async with kafka() as served:
        groups = with_fakes(served)
        peer = await served.connect()
        await peer.stream.send_all(peer.frame(request_, version) * 2 + peer.frame(HEARTBEAT, 4))
        await groups.is_waiting.wait()
        served.stop()
        peer._sent.insert(1, peer._sent[0])
        for _ in range(2):
            told = await peer.receive(response)
            assert told.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await peer.receive(messages.HeartbeatResponse)).error_code == 0, "what has come is answered"
        assert await peer.rest() == b""
        await served.ended.wait()
        assert groups.cancelled == 1
        assert len(groups.asked) == 2, "the second one was not asked"


async def test_a_request_may_wait_right_after_one_of_a_member_that_was_answered_at_once() -> None:
    """Who watches for the member's peer begins in the same pass as the wait, before it or behind it."""
    for _ in range(8):
        async with kafka() as served:
            with_fakes(served).joined = JoinResult("m", 1, "consumer", "range", "m")
            peer = await served.connect()
            join = peer.frame(messages.JoinGroupRequest(group_id="g", member_id="m"), 9)
            waits = peer.frame(fetch(("plain", 0, 0), max_wait_ms=60_000), 12)
            with capture_logs() as logged:
                await peer.stream.send_all(join + waits + peer.frame(HEARTBEAT, 4))
                assert (await peer.receive(messages.JoinGroupResponse)).error_code == 0
                await wait_all_tasks_blocked()
            assert [entry for entry in logged if entry["log_level"] == "error"] == []


async def test_a_member_that_waits_is_not_idle(autojump_clock: MockClock) -> None:
    ready = trio.Event()

    class Joining(FakeGroups):
        async def join(self, group: str, request: JoinRequest, /) -> JoinResult:
            await ready.wait()
            return JoinResult("m", 1, "consumer", "range", "m")

    async with kafka("connections.max.idle.ms=10000") as served:
        with_fakes(served, Joining())
        idle, peer = await served.connect(), await served.connect()
        await peer.send(messages.JoinGroupRequest(group_id="g", member_id="m"), 9)
        assert await idle.rest() == b""
        await trio.sleep(600)
        ready.set()
        told = await peer.receive(messages.JoinGroupResponse)
        assert (told.error_code, told.generation_id) == (0, 1)
