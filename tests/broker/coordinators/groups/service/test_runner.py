"""What waits for the writes of a group, when some of these fail."""

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any, cast

import pytest

from seglog_broker.config import load_config
from seglog_broker.coordinators.groups.classic import ClassicGroup
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat
from seglog_broker.coordinators.groups.membership import Now, Record
from seglog_broker.coordinators.groups.records import encode_record
from seglog_broker.coordinators.groups.service.offsets_topic import Encoded, OffsetsTopic
from seglog_broker.coordinators.groups.service.runner import GroupRunner, Waiting
from seglog_broker.runtime.live_config import LiveConfig
from seglog_protocol.errors import CoordinatorNotAvailableError, SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.steps import finished
from tests.logs import ManualClock


def encode(records: Iterable[Encoded | Record]) -> list[Encoded]:
    return [finished(encode_record(record)) if isinstance(record, Record) else record for record in records]


class HeldTopic:
    """Keeps what is to be written until the test says what becomes of it."""

    def __init__(self) -> None:
        self.writes: list[Callable[[SeglogError | None], None]] = []
        self.records: list[list[Encoded]] = []
        """Of every write."""

    def write(
        self, group: str, records: Sequence[Encoded | Record], then: Callable[[SeglogError | None], None]
    ) -> None:
        self.writes.append(then)
        self.records.append(encode(records))

    def refuse_too_large(self, group: str, size: int, then: Callable[[SeglogError | None], None]) -> bool:
        return False

    def end(self, error: SeglogError | None = None) -> None:
        self.writes.pop(0)(error)


class RewritingGroup:
    """A group that writes again what could not be written."""

    deadline_ms = None
    size = 1

    def __init__(self, runner: GroupRunner) -> None:
        self.runner = runner

    def write_failed(self, now: Now) -> None:
        self.runner.effects.records.append(A_RECORD)


A_RECORD = Record(messages.GroupMetadataKey(group="g"), 2, None)


def without_groups() -> tuple[GroupRunner, HeldTopic]:
    topic = HeldTopic()
    config, _ = load_config(None, "", {}, ["log.dir=/data"])
    return GroupRunner(cast("OffsetsTopic", topic), NoTopics(), LiveConfig(config), ManualClock(0)), topic


class NoTopics:
    """A broker without topics."""

    version = 0

    def find(self, name: str) -> None: ...

    def name(self, topic_id: bytes) -> None: ...

    def names(self) -> Sequence[str]:
        return ()


def started() -> tuple[GroupRunner, HeldTopic]:
    runner, topic = without_groups()
    runner.groups["g"] = cast("ClassicGroup", RewritingGroup(runner))
    return runner, topic


def decide(runner: GroupRunner) -> Waiting[str]:
    """Have the group write a record and answer when it is durable."""
    answer: Waiting[str] = Waiting()
    runner.effects.records.append(A_RECORD)
    runner.effects.replies.append((answer, "done"))
    runner.carry_out("g")
    return answer


async def outcome(answer: Waiting[Any]) -> str:
    try:
        return cast("str", await answer.wait())
    except CoordinatorNotAvailableError:
        return "failed"


FAILED = CoordinatorNotAvailableError("the disk")


async def test_what_was_decided_on_top_of_a_failed_write_is_not_answered_as_durable() -> None:
    runner, topic = started()
    answers = [decide(runner) for _ in range(3)]
    topic.end(FAILED)
    later = decide(runner)  # after what the group writes again
    assert len(topic.writes) == 4
    for _ in range(4):
        topic.end()
    assert [await outcome(answer) for answer in [*answers, later]] == ["failed", "failed", "failed", "done"]


@pytest.mark.parametrize("second_fails", [False, True])
async def test_a_second_failure_counts_for_what_was_queued_before_it(second_fails: bool) -> None:
    runner, topic = started()
    answers = [decide(runner) for _ in range(2)]
    topic.end(FAILED)
    answers.append(decide(runner))
    topic.end(FAILED if second_fails else None)
    answers.append(decide(runner))
    while topic.writes:
        topic.end()
    assert [await outcome(answer) for answer in answers] == [
        "failed",
        "failed",
        "failed" if second_fails else "done",
        "done",
    ]


CLASSIC_KEY = finished(encode_record(A_RECORD))[0]


def deletes(records: Sequence[Encoded]) -> bool:
    """Whether these delete what a classic group had, before they say anything else."""
    tombstones = list(takewhile(lambda record: record[1] is None, records))
    return (CLASSIC_KEY, None) in tombstones


async def test_what_a_group_was_is_deleted_with_what_it_is_until_that_is_durable() -> None:
    runner, topic = without_groups()
    runner.make("g")
    runner.carry_out("g")
    known = runner.groups["g"]
    assert isinstance(known, ClassicGroup)
    finished(runner.upgrade(known))
    assert deletes(topic.records[-1])
    topic.end(FAILED)
    group = runner.groups["g"]
    assert isinstance(group, ConsumerGroup)
    joins = ConsumerHeartbeat("m", 0, rebalance_timeout_ms=20_000, topics=["t"], owned={})
    finished(group.heartbeat(joins, runner.now()))
    runner.carry_out("g")
    assert deletes(topic.records[-1])
    topic.end(FAILED)
    finished(group.heartbeat(joins, runner.now()))
    runner.carry_out("g")
    assert deletes(topic.records[-1])
    topic.end()
    finished(group.heartbeat(ConsumerHeartbeat("m", -1), runner.now()))
    runner.carry_out("g")
    assert not deletes(topic.records[-1])
    topic.end()
    back = runner.downgrade("g")
    runner.carry_out("g")
    written = dict(topic.records[-1])
    assert written[CLASSIC_KEY] is not None
    assert {value for key, value in written.items() if key != CLASSIC_KEY} == {None}
    topic.end(FAILED)
    assert {key for key, value in encode(runner.remove("g")) if value is None} == set(written)
    assert back.generation == group.group_epoch
