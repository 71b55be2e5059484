"""What metrics, problems and ``explain`` tell of share groups, from brokers in which members have records."""

import math
from typing import Any

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.api.explain_delivery import HOLDERS_MAX, DeliveryExplanation
from seglog_broker.coordinators.share.in_flight import ACCEPT, GAP, REJECT, RELEASE, RENEW
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.errors import UnknownGroupError
from seglog_protocol.messages import (
    DeleteTopicRequest,
    ExplainReply,
    ExplainRequest,
    TruncatePartition,
    TruncateRequest,
)
from tests.appends import append_batch
from tests.logs import ManualClock, batch
from tests.support import each_case
from tests.unit.broker.api.monitoring.test_topic_sources import samples
from tests.unit.broker.coordinators.groups.service.running import NOW
from tests.unit.broker.coordinators.share.service.sharing import (
    GROUP,
    MEMBER,
    acknowledged,
    begun,
    key_of,
    log_of,
    sharing,
    taken,
)
from tests.unit.broker.listeners.kafka.test_share import shared

LOCK_MS = 30_000
DEAD: dict[str, Any] = {"of_group": {"errors.deadletterqueue.topic.name": "dlq.t"}}


def told(broker: Broker, name: str, partition: int = 0, group: str = GROUP) -> float | None:
    """The value of a family for a partition of ``t``."""
    labels = (group, "t", str(partition))
    found = {sample.labels: sample.value for sample in samples(broker, f"seglog_share_{name}")}
    value = found.get(labels)
    assert value is None or isinstance(value, int | float)
    return value


def of_broker(broker: Broker, name: str) -> object:
    (sample,) = samples(broker, name)
    return sample.value


async def explained(broker: Broker, offset: int | None = None) -> ExplainReply:
    reply, _ = await broker.answer(ExplainRequest("t", 0, offset=offset, group=GROUP))
    assert isinstance(reply, ExplainReply)
    assert reply.delivery is not None
    return reply


# --- Metrics ----------------------------------------------------------------------------------------------------------


async def test_records_are_counted_where_they_are_and_by_what_became_of_them() -> None:
    async with sharing(ForgetfulFileSystem(), **DEAD) as broker:
        machine, other = await begun(broker, 0, 1)
        taken(broker, machine, 8)
        for first, last, kind in [(0, 0, ACCEPT), (1, 2, RELEASE), (3, 3, REJECT), (4, 4, GAP), (5, 5, RENEW)]:
            await acknowledged(broker, machine, first, last, kind)
        assert [told(broker, f"records_{name}") for name in ("waiting", "in_flight", "archiving")] == [4, 3, 1]
        assert [told(broker, f"records_{name}", 1) for name in ("waiting", "in_flight", "archiving")] == [10, 0, 0]
        counters = ("accepted", "released", "rejected", "expired", "exceeded", "redelivered")
        assert [told(broker, f"{name}_total") for name in counters] == [1, 2, 1, 0, 0, 0]
        taken(broker, machine, 2)
        assert told(broker, "redelivered_total") == 2
        machine.release(MEMBER, broker.share.runtime.now())
        assert told(broker, "released_total") == 2 + 5
        other.initialize(3, 2, broker.share.runtime.now())
        broker.share.runtime.carry_out(other.key)
        assert told(broker, "records_waiting", 1) == 7


async def test_locks_that_run_out_are_counted_until_the_record_is_given_up(autojump_clock: object) -> None:
    del autojump_clock
    async with sharing(ForgetfulFileSystem(), "group.share.delivery.count.limit=2") as broker:
        [machine] = await begun(broker)
        for number in 1, 2:
            taken(broker, machine, 1)
            broker.share.runtime.carry_out(machine.key)
            await broker.measurements.measure()
            assert told(broker, "deliveries_max") == number
            await trio.sleep(LOCK_MS / 1000 + 1)
            assert told(broker, "expired_total") == number
        assert told(broker, "exceeded_total") == 1
        assert told(broker, "records_waiting") == 9
        await broker.measurements.measure()
        assert told(broker, "deliveries_max") == 0


async def test_the_age_and_the_end_of_the_oldest_record_that_is_not_done_with() -> None:
    clock = ManualClock(NOW)
    async with sharing(ForgetfulFileSystem(), clock=clock) as broker:
        [machine, _] = await begun(broker, 0, 1, offset=10)
        for minutes in 9, 2:
            data = batch(b"v", timestamp=NOW - minutes * 60_000)
            await append_batch(broker, data, "t", 0, ack="disk").wait()
        assert told(broker, "oldest_seconds") is None, "it is not measured yet"
        await broker.measurements.measure()
        assert told(broker, "oldest_seconds") == 9 * 60
        left = told(broker, "time_to_loss_seconds")
        assert left is not None
        assert 0 < left < math.inf
        assert told(broker, "oldest_seconds", 1) == 0
        assert told(broker, "time_to_loss_seconds", 1) == math.inf
        taken(broker, machine, 1)
        await acknowledged(broker, machine, 10, 10)
        await broker.measurements.measure()
        assert told(broker, "oldest_seconds") == 2 * 60
        await broker.truncate(TruncateRequest([TruncatePartition("t", 0, 12)]))
        assert told(broker, "oldest_seconds") == 0
        assert told(broker, "records_waiting") == 0


async def test_where_it_is_not_chosen_where_to_begin_nothing_is_known_to_wait() -> None:
    async with sharing(ForgetfulFileSystem()) as broker:
        await begun(broker, offset=-1)
        await broker.measurements.measure()
        assert told(broker, "records_waiting") is None
        assert told(broker, "oldest_seconds") is None
        assert told(broker, "records_in_flight") == 0
        assert (await explained(broker, 3)).why.startswith("no member has fetched yet")


async def test_beyond_the_limit_the_groups_with_the_most_records_are_shown_and_the_others_counted() -> None:
    async with sharing(ForgetfulFileSystem(), "seglog.metrics.groups.max=2") as broker:
        for number, group in enumerate(("a", "b", "c")):
            await begun(broker, offset=number, group=group)
        assert samples(broker, "seglog_share_records_waiting") == []
        await broker.measurements.measure()
        assert [told(broker, "records_waiting", group=group) for group in ("a", "b", "c")] == [10, 9, None]
        assert of_broker(broker, "seglog_share_groups_left_out") == 1
        await broker.share.delete("a", key_of(broker).topic_id, [0])
        assert told(broker, "records_waiting", group="a") is None
        await broker.delete_topic(DeleteTopicRequest("t"))
        assert samples(broker, "seglog_share_records_waiting") == []


async def test_records_of_state_that_are_pruned_are_counted() -> None:
    async with sharing(ForgetfulFileSystem()) as broker:
        await begun(broker, 0, 1)
        await broker.share.delete(GROUP, key_of(broker).topic_id, [0, 1])
        for _ in range(2):
            await broker.share.pruning.prune()
        assert of_broker(broker, "seglog_share_state_pruned_total") == 4


async def test_sessions_and_fetches_that_wait_are_counted(autojump_clock: object) -> None:
    del autojump_clock
    async with shared(count=1) as (served, member):
        one = await member("one")
        await one.fetch([0])
        await one.send(max_wait_ms=1000)
        await trio.sleep(0.5)
        counted = "seglog_share_sessions", "seglog_share_fetches_waiting"
        assert [of_broker(served.broker, name) for name in counted] == [1, 1]
        await one.receive()
        await one.peer.stream.aclose()
        await trio.sleep(0.5)
        assert [of_broker(served.broker, name) for name in counted] == [0, 0]


async def test_dead_letters_that_cannot_be_written_are_a_problem_until_they_are_given_up(
    autojump_clock: object,
) -> None:
    del autojump_clock
    async with sharing(ForgetfulFileSystem(), "seglog.share.dead.letter.retry.ms=60000", **DEAD) as broker:
        [machine] = await begun(broker)
        taken(broker, machine, 3)
        await acknowledged(broker, machine, 1, 2, REJECT)
        await trio.sleep(10)
        assert of_broker(broker, "seglog_dead_letters_held_up") == 2
        [problem] = [problem for problem in broker.problems if problem.kind == "dead-letter"]
        assert problem.sentence.startswith(
            f"2 dead letters of share group {GROUP}, of t-0 from offset 1 on, could not be written for 10 s: there is "
        )
        assert (await explained(broker, 1)).why.startswith(
            "it was rejected, and its dead letter is not written yet: there is no topic dlq.t: create it"
        )
        await trio.sleep(60)
        assert of_broker(broker, "seglog_dead_letters_given_up_total") == 2
        assert of_broker(broker, "seglog_dead_letters_written_total") == 0
        assert of_broker(broker, "seglog_dead_letters_held_up") == 0
        assert [problem for problem in broker.problems if problem.kind == "dead-letter"] == []


# --- Explanations -----------------------------------------------------------------------------------------------------


@each_case(
    ("offset", "state", "count", "why"),
    [
        (0, None, None, "it is done with"),
        (1, "acquired", 1, "member m1 has it until 2023-11-14T22:13:50.000Z: delivery 1 of 5"),
        (2, "acknowledged", 1, "it was accepted, at delivery 1"),
        (3, "archived", 1, "it was rejected, or the log has it no more"),
        (4, "available", 1, "it waits to be given to a member: it was delivered 1 time, and given back, or its lock"),
        (6, None, None, "it waits: no member was given it yet"),
        (10, None, None, "there is no such record yet"),
    ],
)
async def test_a_record_is_explained_by_its_state(
    offset: int, state: str | None, count: int | None, why: str, autojump_clock: object
) -> None:
    del autojump_clock
    async with sharing(ForgetfulFileSystem()) as broker:
        [machine] = await begun(broker)
        taken(broker, machine, 6)
        for number, kind in [(0, ACCEPT), (2, ACCEPT), (3, REJECT), (4, RELEASE)]:
            await acknowledged(broker, machine, number, number, kind)
        reply = await explained(broker, offset)
        assert reply.why.startswith(why)
        delivery = reply.delivery
        assert delivery is not None
        assert (delivery.state, delivery.delivery_count) == (state, count)
        assert (delivery.member_id, delivery.until_ms) == ((MEMBER, NOW + LOCK_MS) if offset == 1 else (None, None))


async def test_a_partition_is_explained_by_who_has_its_records() -> None:
    async with sharing(ForgetfulFileSystem(), clock=ManualClock(NOW)) as broker:
        [machine] = await begun(broker)
        taken(broker, machine, 3)
        now = broker.share.runtime.now()
        machine.acquire("m2", [(3, 9)], 3, 5, 500, is_record_limit=True, now=now)
        machine.acquire(MEMBER, [(8, 9)], 8, 1, 500, is_record_limit=True, now=now)
        await acknowledged(broker, machine, 0, 0)
        reply = await explained(broker)
        delivery = reply.delivery
        assert delivery is not None
        assert [(each.member_id, each.records, each.first_offset) for each in delivery.holders] == [
            ("m2", 5, 3),
            (MEMBER, 3, 1),
        ]
        assert all(abs(each.until_ms - NOW - LOCK_MS) < 60_000 for each in delivery.holders)
        assert (delivery.start_offset, delivery.acquired, delivery.waiting, delivery.archiving) == (1, 8, 1, 0)
        assert reply.why == ""


async def test_of_very_many_members_those_with_the_most_records_are_named() -> None:
    async with sharing(ForgetfulFileSystem()) as broker:
        [machine] = await begun(broker)
        for number in range(HOLDERS_MAX + 5):
            first = machine.next_offset()
            assert first is not None
            batches = [(first, first + number % 2)]
            now = broker.share.runtime.now()
            machine.acquire(f"m{number}", batches, first, 2, 500, is_record_limit=True, now=now)
        delivery = (await explained(broker)).delivery
        assert delivery is not None
        assert len(delivery.holders) == HOLDERS_MAX
        assert [holder.records for holder in delivery.holders][:13] == [2] * 12 + [1]


async def warned(broker: Broker, members: int = 1) -> list[str]:
    """What is wrong with the group in ``t-0``, which has something that is to be done about it."""
    topic_id = broker.directory.registry.topics["t"].id
    explained = DeliveryExplanation(broker.share, log_of(broker), topic_id, GROUP).reply(None, members)
    assert explained.delivery is not None
    assert all(each.remedy for each in explained.delivery.warnings)
    return [each.found for each in explained.delivery.warnings]


async def test_a_group_without_members_is_wrong_where_records_wait() -> None:
    async with sharing(ForgetfulFileSystem()) as broker:
        [machine] = await begun(broker, offset=-1)
        assert await warned(broker, members=0) == []
        machine.initialize(7, 1, broker.share.runtime.now())
        assert await warned(broker) == []
        assert await warned(broker, members=0) == ["workers has no members for 3 records of t-0"]
        machine.initialize(10, 1, broker.share.runtime.now())
        assert await warned(broker, members=0) == []


@each_case(
    ("letters", "end", "gave_up"),
    [("", "is dropped", ["workers gave up 1 record of t-0 after 5 deliveries"]), ("dlq.t", "goes to dlq.t", [])],
)
async def test_a_record_that_goes_round_is_wrong_from_its_last_delivery_but_one_on(
    letters: str, end: str, gave_up: list[str]
) -> None:
    of_group = {"errors.deadletterqueue.topic.name": letters} if letters else {}
    async with sharing(ForgetfulFileSystem(), of_group=of_group) as broker:
        [machine] = await begun(broker)
        for delivery in range(1, 6):
            taken(broker, machine, 3)
            found = [f"t-0@0 goes round in workers: delivery {delivery} of 5, then it {end}"]
            assert await warned(broker) == (found if delivery >= 4 else [])
            await acknowledged(broker, machine, 0, 0, RELEASE)
            machine.release(MEMBER, broker.share.runtime.now())
        assert [each for each in await warned(broker) if "goes round" not in each] == gave_up


async def test_locks_that_run_out_are_wrong_where_they_are_many(autojump_clock: object) -> None:
    del autojump_clock
    async with sharing(ForgetfulFileSystem()) as broker:
        [machine] = await begun(broker)
        taken(broker, machine, 1)
        broker.share.runtime.carry_out(machine.key)
        await trio.sleep(LOCK_MS / 1000 + 1)
        assert await warned(broker) == ["the locks of 1 record of t-0 ran out before workers acknowledged them"]
        machine.tally.accepted = 18
        assert len(await warned(broker)) == 1
        machine.tally.accepted = 19
        assert await warned(broker) == []


async def test_a_member_that_has_as_much_as_may_be_in_flight_is_named(autojump_clock: object) -> None:
    del autojump_clock
    async with sharing(ForgetfulFileSystem(), "group.share.partition.max.record.locks=100") as broker:
        [machine] = await begun(broker)
        await append_batch(broker, batch(*([b"v"] * 100)), "t", 0, ack="disk").wait()
        taken(broker, machine, 10)
        now = broker.share.runtime.now()
        machine.acquire("m2", [(10, 98)], 10, 89, 500, is_record_limit=True, now=now)
        assert await warned(broker) == []
        machine.acquire("m2", [(99, 99)], 99, 1, 500, is_record_limit=True, now=now)
        assert await warned(broker) == [
            "workers has all 100 records of t-0 in flight that it may: m2 has 90 records, the first for 0 s"
        ]
        await broker.truncate(TruncateRequest([TruncatePartition("t", 0, 110)]))
        assert await warned(broker) == [], "there are no others"


async def test_a_group_that_does_not_read_a_partition_is_unknown() -> None:
    async with sharing(ForgetfulFileSystem()) as broker:
        await begun(broker, 1)
        with pytest.raises(UnknownGroupError, match="no share group workers reads t-0"):
            await explained(broker)
