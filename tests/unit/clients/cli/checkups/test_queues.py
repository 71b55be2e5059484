"""How ``seglog doctor`` and ``seglog explain delivery`` show what a broker tells of share groups."""

from collections.abc import Iterator
from datetime import UTC
from typing import Any, Final

from seglog import connect
from seglog.cli.checkups.told import QUEUES_ASKED_MAX, queue_checks
from seglog.cli.explain import delivery_lines
from seglog_protocol.errors import CoordinatorLoadingError
from seglog_protocol.frames import encode_value
from seglog_protocol.messages import (
    Advice,
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
from tests.unit.clients.fake_broker import Answer, FakeBroker

NOW: Final = 1_700_000_000_000
HOLDERS: Final = [RecordHolder("m2", 1_990, 10, NOW + 10_000), RecordHolder("m1", 10, 0, NOW + 29_000)]


def delivery(**changes: Any) -> ExplainedDelivery:
    told: dict[str, Any] = {"now_ms": NOW, "acquired": 2, "archiving": 0, "waiting": 3, "start_offset": 12}
    return ExplainedDelivery(**(told | changes))


class Told:
    """What a fake broker answers: most deliveries of the group ``workers`` in ``jobs``, by partition; those warn."""

    def __init__(self, *deliveries: int) -> None:
        self.deliveries = deliveries
        self.asked: list[ExplainRequest] = []

    def answer(self, request: Request, _: memoryview) -> Answer | None:
        match request:
            case SamplesRequest():
                return SamplesReply(), encode_value([family.to_wire() for family in self._families()])
            case ExplainRequest():
                self.asked.append(request)
                if request.partition == 0:
                    return CoordinatorLoadingError("loading")
                warnings = [Advice(f"{request.partition} is wrong", "mend it")] if request.partition == 1 else []
                return ExplainReply(request.topic, request.partition, 1, "", delivery=delivery(warnings=warnings))
        return None

    def _families(self) -> Iterator[MetricFamily]:
        of_places = {"records_waiting": 3, "records_in_flight": 2, "deliveries_max": None}
        for name, value in of_places.items():
            samples = [
                MetricSample(["workers", "jobs", str(number)], count if value is None else value)
                for number, count in enumerate(self.deliveries)
            ]
            yield MetricFamily(f"seglog_share_{name}", "gauge", "", ["group", "topic", "partition"], samples)


def found(broker: FakeBroker, told: Told) -> list[tuple[str, str, str]]:
    broker.script = told.answer
    with connect(broker.address) as client:
        return [(check.name, check.verdict, check.found) for check in queue_checks(client)]


def test_what_is_wrong_with_share_groups_is_shown_beside_how_much_there_is(broker: FakeBroker) -> None:
    assert found(broker, Told()) == []
    assert found(broker, Told(1, 1)) == [
        ("queues", "ok", "1 share group: 6 records waiting, 4 in flight"),
        ("queues", "warning", "1 is wrong"),
    ]


def test_of_many_partitions_those_with_the_most_deliveries_are_asked_about(broker: FakeBroker) -> None:
    told = Told(*range(QUEUES_ASKED_MAX + 5))
    assert found(broker, told)[-1] == ("queues", "unknown", "5 more partitions of share groups were not looked at")
    assert [request.partition for request in told.asked] == list(range(QUEUES_ASKED_MAX + 4, 4, -1))
    assert {(request.topic, request.group, request.offset) for request in told.asked} == {("jobs", "workers", None)}


def test_a_delivery_is_shown_with_the_members_that_have_records_and_what_is_wrong() -> None:
    told = delivery(holders=HOLDERS, archiving=1, warnings=[Advice("it goes round", "mend it")])
    assert list(delivery_lines(ExplainReply("jobs", 0, 1, "it waits", delivery=told), "workers", 17, UTC)) == [
        "jobs-0, offset 17, as share group workers has it",
        "  record       it waits",
        "  records      from offset 12 on: 2 in flight, 3 waiting, 1 dead letter to be written",
        "  member       m2: 1,990 records from 10 on, until 2023-11-14T22:13:30.000Z",
        "  member       m1: 10 records from 0 on, until 2023-11-14T22:13:49.000Z",
        "  warning      it goes round",
        "  ->           mend it",
    ]
    told = delivery(start_offset=None, waiting=0, acquired=0)
    assert list(delivery_lines(ExplainReply("jobs", 0, 1, "", delivery=told), "\x1b", None, UTC)) == [
        "jobs-0, as share group \\x1b has it",
        "  records      its members have not fetched yet: 0 in flight, 0 waiting",
    ]
