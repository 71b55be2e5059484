"""Groups that change from the classic to the consumer protocol, and back, while their members live."""

import errno
from random import Random

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol import errors
from seglog_protocol.internal_topics import OFFSETS_TOPIC
from tests.support import some_seeds
from tests.unit.broker.coordinators.groups.service.running import join_request, running, with_topic
from tests.unit.broker.coordinators.groups.service.simulated_consumers import (
    GROUP,
    TOPIC,
    ClassicConsumer,
    Consumer,
    CooperativeConsumer,
    Kip848Consumer,
    Ownership,
)

JOINS = ConsumerHeartbeat("new", 0, rebalance_timeout_ms=20_000, topics=[TOPIC], owned={})


def kind(broker: Broker) -> str:
    return broker.groups.describe(GROUP)[0].kind


def state(broker: Broker) -> str:
    return broker.groups.describe(GROUP)[0].state


@pytest.mark.parametrize("classic", [ClassicConsumer, CooperativeConsumer])
async def test_a_group_changes_over_one_consumer_at_a_time_and_back(classic: type[Consumer]) -> None:
    fs = ForgetfulFileSystem()
    ownership = Ownership(6)
    async with running(fs) as broker, trio.open_nursery() as nursery:
        await with_topic(broker, TOPIC, 6)
        old = [classic(f"old-{number}", broker, ownership) for number in range(3)]
        for consumer in old:
            nursery.start_soon(consumer.run)
        await trio.sleep(30)
        assert (kind(broker), state(broker), ownership.is_complete) == ("classic", "Stable", True)
        new = []
        for number, leaving in enumerate(old):
            await leaving.leave()
            new.append(Kip848Consumer(f"new-{number}", broker, ownership))
            nursery.start_soon(new[-1].run)
            await trio.sleep(30)
            assert (kind(broker), state(broker), ownership.is_complete) == ("consumer", "Stable", True)
            shown = broker.groups.describe_consumer(GROUP)
            assert sorted(member.is_classic for member in shown.members) == [False] * (number + 1) + [True] * (
                2 - number
            )
        older = []
        for number, replaced in enumerate(new):
            older.append(classic(f"older-{number}", broker, ownership))
            nursery.start_soon(older[-1].run)
            await trio.sleep(15)
            await replaced.leave()
            await trio.sleep(30)
            assert (kind(broker), state(broker), ownership.is_complete) == (
                "consumer" if number < 2 else "classic",
                "Stable",
                True,
            )
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seed", some_seeds(12, quick=3))
async def test_no_partition_has_two_owners_whatever_joins_leaves_and_dies(seed: int) -> None:
    random = Random(seed)
    classic = random.choice([ClassicConsumer, CooperativeConsumer])
    fs = ForgetfulFileSystem()
    ownership = Ownership(7)
    async with running(fs) as broker, trio.open_nursery() as nursery:
        await with_topic(broker, TOPIC, 7)
        living: list[Consumer] = []
        for number in range(40):
            await trio.sleep(random.choice([0, 0.5, 3, 12]))
            if len(living) < 2 or (len(living) < 5 and random.random() < 0.5):
                consumer = random.choice([classic, Kip848Consumer])(f"c-{number}", broker, ownership)
                living.append(consumer)
                nursery.start_soon(consumer.run)
            else:
                consumer = living.pop(random.randrange(len(living)))
                if consumer.member_id and random.random() < 0.6:
                    await consumer.leave()
                else:
                    consumer.die()
        await trio.sleep(120)
        assert ownership.is_complete, ownership.of
        assert state(broker) == "Stable"
        nursery.cancel_scope.cancel()


async def test_classic_members_of_a_consumer_group_go_on_after_a_power_cut() -> None:
    fs = ForgetfulFileSystem()
    ownership = Ownership(4)
    async with running(fs, closes=False) as broker, trio.open_nursery() as nursery:
        await with_topic(broker, TOPIC, 4)
        consumers: list[Consumer] = [
            CooperativeConsumer("old", broker, ownership),
            Kip848Consumer("new", broker, ownership),
        ]
        for consumer in consumers:
            nursery.start_soon(consumer.run)
            await trio.sleep(30)
        assert (kind(broker), ownership.is_complete) == ("consumer", True)
        nursery.cancel_scope.cancel()
    fs = fs.crash(POWER_LOSS)
    async with running(fs) as broker:
        before = broker.groups.describe_consumer(GROUP)
        assert (before.state, sorted(member.is_classic for member in before.members)) == ("Stable", [False, True])
        for member in before.members:
            if member.is_classic:
                broker.groups.heartbeat(GROUP, member.member_id, member.epoch)
            else:
                again = await broker.groups.consumer_heartbeat(GROUP, ConsumerHeartbeat(member.member_id, member.epoch))
                assert (again.member_epoch, again.assignment) == (member.epoch, None)


async def test_a_group_changes_also_where_its_first_records_cannot_be_written(
    fs: ForgetfulFileSystem, broker: Broker
) -> None:
    joined = await ClassicConsumer("old", broker, Ownership(3)).join()
    fs.inject(Fault("pwritev", f"{OFFSETS_TOPIC}-0/00000000000000000000.log", error=errno.ENOSPC, sticky=True))
    with pytest.raises(errors.CoordinatorNotAvailableError):
        await broker.groups.consumer_heartbeat(GROUP, JOINS)
    fs.heal()
    result = await broker.groups.consumer_heartbeat(GROUP, JOINS)
    assert result.member_epoch > joined.generation
    before = broker.groups.describe_consumer(GROUP)
    assert [member.is_classic for member in before.members] == [True, False]
    async with running(fs.found_after(POWER_LOSS)) as again:
        after = again.groups.describe_consumer(GROUP)
        assert after._replace(members=[]) == before._replace(members=[])
        assert {member.member_id for member in after.members} == {joined.member_id, "new"}


@pytest.mark.parametrize(
    ("policy", "upgrades"),
    [("disabled", False), ("upgrade", True), ("downgrade", False), ("bidirectional", True)],
)
async def test_the_policy_decides_what_a_group_with_members_may_become(policy: str, upgrades: bool) -> None:
    async with running(ForgetfulFileSystem(), None, f"group.consumer.migration.policy={policy}") as broker:
        await with_topic(broker)
        await ClassicConsumer("old", broker, Ownership(3)).join()
        if upgrades:
            assert (await broker.groups.consumer_heartbeat(GROUP, JOINS)).member_epoch == 2
        else:
            with pytest.raises(errors.UnknownGroupError, match=f"group.consumer.migration.policy is {policy}"):
                await broker.groups.consumer_heartbeat(GROUP, JOINS)
        assert kind(broker) == ("consumer" if upgrades else "classic")


async def test_a_group_of_unreadable_members_stays_classic(broker: Broker) -> None:
    """A group whose members say nothing that the broker can read stays a classic one."""
    first = await broker.groups.join("connect", join_request(protocol_type="connect"))
    await broker.groups.join("connect", join_request(first.member_id, protocol_type="connect"))
    with pytest.raises(errors.UnknownGroupError, match="of the type 'connect'"):
        await broker.groups.consumer_heartbeat("connect", JOINS)
    first = await broker.groups.join(GROUP, join_request(protocols=[("range", b"\xff")]))
    await broker.groups.join(GROUP, join_request(first.member_id, protocols=[("range", b"\xff")]))
    with pytest.raises(errors.UnknownGroupError, match="is not in Kafka's format"):
        await broker.groups.consumer_heartbeat(GROUP, JOINS)
