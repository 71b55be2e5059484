"""What ``seglog doctor`` and ``seglog explain delivery`` say of share groups, as a broker tells of them."""

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any, Final

import pytest

from seglog import connect
from seglog.cli.checkups.queues import ASKED_MAX, ask_queues, queue_checks
from seglog.cli.explain import delivery_lines
from seglog_protocol.errors import CoordinatorLoadingError
from seglog_protocol.frames import encode_value
from seglog_protocol.messages import (
    ExplainedDelivery,
    ExplainReply,
    ExplainRequest,
    MetricFamily,
    MetricSample,
    RecordHolder,
    Request,
    SamplesReply,
    SamplesRequest,
)
from tests.support import each_case
from tests.unit.clients.fake_broker import Answer, FakeBroker, fake_broker

NOW: Final = 1_700_000_000_000
WELL: Final = {"records_waiting": 3, "records_in_flight": 2, "accepted_total": 1000, "expired_total": 50}
EXCEEDED: Final = WELL | {"exceeded_total": 4}
HOLDERS: Final = [RecordHolder("m2", 1_990, 10, NOW + 10_000), RecordHolder("m1", 10, 0, NOW + 29_000)]


def delivery(**changes: Any) -> ExplainedDelivery:
    told: dict[str, Any] = {"now_ms": NOW, "acquired": 2, "archiving": 0, "waiting": 3, "lock_ms": 30_000}
    told |= {"delivery_count_max": 5, "record_locks_max": 2_000, "dead_letter_topic": "", "start_offset": 12}
    return ExplainedDelivery(**(told | changes))


class Told:
    """What a fake broker answers: metrics of the group ``workers`` in ``jobs``, by partition, and who has what."""

    def __init__(self, *numbers: Mapping[str, float], members: float | None = 2, **explained: Any) -> None:
        self.numbers = numbers
        self.members = members
        self.explained = explained
        self.asked: list[ExplainRequest] = []

    def answer(self, request: Request, _: memoryview) -> Answer | None:
        match request:
            case SamplesRequest():
                return SamplesReply(), encode_value([family.to_wire() for family in self._families(request.families)])
            case ExplainRequest():
                self.asked.append(request)
                if self.explained.get("delivery_count_max") == 0:
                    return CoordinatorLoadingError("loading")
                return ExplainReply(request.topic, request.partition, 1, "", delivery=delivery(**self.explained))
        return None

    def _families(self, names: list[str]) -> Iterator[MetricFamily]:
        for name in names:
            short = name.removeprefix("seglog_share_")
            samples = [
                MetricSample(["workers", "jobs", str(number)], each[short])
                for number, each in enumerate(self.numbers)
                if short in each
            ]
            if name == "seglog_group_members" and self.members is not None:
                samples = [MetricSample(["workers"], self.members), MetricSample(["others"], 1)]
            yield MetricFamily(name, "gauge", "", ["group", "topic", "partition"], samples)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker() as running:
        yield running


def found(broker: FakeBroker, told: Told) -> list[str]:
    broker.script = told.answer
    with connect(broker.address) as client:
        checks = list(queue_checks(ask_queues(client)))
    assert {check.name for check in checks} <= {"queues"}
    assert [check.verdict for check in checks] == ["ok", *["warning"] * (len(checks) - 1)][: len(checks)]
    assert all(check.remedy for check in checks[1:])
    return [check.found for check in checks]


@each_case(
    ("told", "sentences"),
    [
        (Told(), []),
        (Told(WELL), []),
        (Told(WELL, members=None), []),
        (Told(WELL, members=0), ["workers has no members, and 3 records of jobs-0 wait for it"]),
        (Told(WELL | {"records_waiting": 0}, members=0), []),
        (
            Told(WELL | {"expired_total": 53}),
            ["the locks of 53 records of jobs-0 ran out before workers acknowledged them"],
        ),
        (Told(EXCEEDED), ["workers gave up 4 records of jobs-0 after 5 deliveries"]),
        (Told(EXCEEDED, dead_letter_topic="dlq.jobs"), []),
        (Told(EXCEEDED, delivery_count_max=0), []),
        (Told(WELL, most_delivered=17, most_deliveries=3), []),
        (
            Told(WELL, most_delivered=17, most_deliveries=4),
            ["jobs-0@17 goes round in workers: delivery 4 of 5, and after the last it is dropped"],
        ),
        (
            Told(WELL, most_delivered=17, most_deliveries=5, dead_letter_topic="dlq.jobs"),
            ["jobs-0@17 goes round in workers: delivery 5 of 5, and after the last it goes to dlq.jobs"],
        ),
        (Told(WELL, is_full=True, holders=HOLDERS, waiting=0), []),
        (
            Told(WELL, is_full=True, holders=HOLDERS),
            ["workers has all 2,000 records of jobs-0 in flight that it may: m2 has 1,990 records, the first for 20 s"],
        ),
    ],
)
def test_what_is_wrong_with_a_share_group_is_said_with_what_to_do(
    told: Told, sentences: list[str], broker: FakeBroker
) -> None:
    said = found(broker, told)
    assert said[1:] == sentences
    assert len(said) == bool(told.numbers) + len(sentences)


def test_of_many_partitions_those_with_the_most_deliveries_are_asked_about(broker: FakeBroker) -> None:
    told = Told(*(WELL | {"deliveries_max": number} for number in range(ASKED_MAX + 5)))
    assert found(broker, told)[0] == "1 share group: 45 records waiting, 30 in flight"
    assert [request.partition for request in told.asked] == list(range(ASKED_MAX + 4, 4, -1))
    assert {(request.topic, request.group, request.offset) for request in told.asked} == {("jobs", "workers", None)}


def test_a_delivery_is_shown_with_the_members_that_have_records() -> None:
    told = delivery(is_full=True, holders=HOLDERS, most_delivered=17, most_deliveries=4, archiving=1)
    assert list(delivery_lines(ExplainReply("jobs", 0, 1, "it waits", delivery=told), "workers", 17, UTC)) == [
        "jobs-0, offset 17, as share group workers has it",
        "  record       it waits",
        "  records      from offset 12 on: 2 in flight, 3 waiting, 1 dead letter to be written",
        "  full         no more are given: share.partition.max.record.locks is 2,000",
        "  most often   offset 17: delivery 4",
        "  member       m2: 1,990 records from 10 on, until 2023-11-14T22:13:30.000Z",
        "  member       m1: 10 records from 0 on, until 2023-11-14T22:13:49.000Z",
        "  settings     lock 30 s, 5 deliveries, no dead letters",
    ]
    told = delivery(start_offset=None, waiting=0, acquired=0, dead_letter_topic="dlq.jobs")
    assert list(delivery_lines(ExplainReply("jobs", 0, 1, "", delivery=told), "\x1b", None, UTC)) == [
        "jobs-0, as share group \\x1b has it",
        "  records      its members have not fetched yet: 0 in flight, 0 waiting",
        "  settings     lock 30 s, 5 deliveries, dead letters to dlq.jobs",
    ]
