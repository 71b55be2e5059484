"""What metrics, problems and ``explain`` tell of share groups, from brokers in which members have records."""

import math
from typing import Any

import pytest
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.share.in_flight import ACCEPT, GAP, REJECT, RELEASE, RENEW
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.errors import UnknownGroupError
from seglog_protocol.messages import (
    DeleteTopicRequest,
    ExplainReply,
    ExplainRequest,
    RecordHolder,
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


async def test_a_partition_is_explained_by_who_has_its_records_and_whether_it_is_full(autojump_clock: object) -> None:
    del autojump_clock
    async with sharing(
        ForgetfulFileSystem(), "group.share.partition.max.record.locks=100", clock=ManualClock(NOW)
    ) as broker:
        [machine] = await begun(broker)
        await append_batch(broker, batch(*([b"v"] * 200)), "t", 0, ack="disk").wait()
        taken(broker, machine, 10)
        now = broker.share.runtime.now()
        machine.acquire("m2", [(10, 99)], 10, 90, 500, is_record_limit=True, now=now)
        await acknowledged(broker, machine, 9, 9, RELEASE)
        taken(broker, machine, 1)
        reply = await explained(broker)
        delivery = reply.delivery
        assert delivery is not None
        assert delivery.holders == [
            RecordHolder("m2", 90, 10, NOW + LOCK_MS),
            RecordHolder(MEMBER, 10, 0, NOW + LOCK_MS),
        ]
        assert (delivery.start_offset, delivery.acquired, delivery.waiting) == (0, 100, 110)
        assert delivery.is_full
        assert (delivery.most_delivered, delivery.most_deliveries) == (9, 2)
        assert (delivery.lock_ms, delivery.delivery_count_max, delivery.record_locks_max) == (LOCK_MS, 5, 100)
        assert reply.why == delivery.dead_letter_topic == ""


async def test_a_group_that_does_not_read_a_partition_is_unknown() -> None:
    async with sharing(ForgetfulFileSystem()) as broker:
        await begun(broker, 1)
        with pytest.raises(UnknownGroupError, match="no share group workers reads t-0"):
            await explained(broker)
