"""What a report says, and when it says that something was wrong."""

import json
from collections import Counter
from typing import Any

from seglog.load.measurement import Measurement
from seglog.load.plan import Plan
from seglog.load.report import Report


def measurement(*, cpu: float = 0.5) -> Measurement:
    """A thousand records of 100,000 bytes in two seconds."""
    times = iter([0.0, 2.0, 2.0])
    used = iter([0.0, 2.0 * cpu])
    made = Measurement(lambda: next(times), lambda: next(used))
    made.begin()
    made.touch()
    made.end()
    made.sent.add(1000, 100_000, 10)
    made.latencies.add(0.0015, 990)
    made.latencies.add(0.25, 10)
    return made


def report(plan: Plan | None = None, of: Measurement | None = None, **more: Any) -> Report:
    values: dict[str, Any] = {"topic": "t", "partitions": 2, "batch_records": 100, "ended_by": "duration"} | more
    return Report(plan=plan or Plan(verb="produce"), measurement=of or measurement(), **values)


def test_the_json_has_every_number_with_its_unit_in_its_name() -> None:
    shown = json.loads(json.dumps(report().to_json()))
    assert shown["records"] == 1000
    assert shown["records_per_second"] == 500.0
    assert shown["mb_per_second"] == 0.05
    assert shown["cpu_share"] == 0.5
    assert shown["latency_ms"] == {
        "acknowledged": {
            "p50": 1.5,
            "p90": 1.5,
            "p99": 1.5,
            "p99.9": 250.0,
            "max": 250.0,
            "mean": shown["latency_ms"]["acknowledged"]["mean"],
            "count": 1000,
        }
    }
    assert set(shown) == {
        *("verb", "topic", "partitions", "connections", "pipeline", "record_size", "batch_records", "compression"),
        *("ack", "target_rate", "ended_by", "seconds", "records", "bytes", "requests"),
        *("records_per_second", "mb_per_second", "received_records", "missing_records", "unsent_records"),
        *("unanswered_requests", "errors", "latency_ms", "cpu_share", "is_generator_busy", "notes"),
    }


def test_the_table_has_the_same_numbers() -> None:
    made = report()
    assert made.totals()[1] == [("1,000", "2.00", "500", "0.1", "10", "0", "50%")]
    titles, rows = made.latency_rows()
    assert titles == ("LATENCY ms", "p50", "p90", "p99", "p99.9", "max")
    assert rows == [("acknowledged", "1.500", "1.500", "1.500", "250.0", "250.0")]
    assert made.heading().startswith("produce t (2 partitions), records of 100 B in batches of 100")


def test_a_busy_generator_is_told_of() -> None:
    busy = report(of=measurement(cpu=0.95))
    assert any("WARNING: this load generator used 95% of a core" in remark for remark in busy.remarks())
    assert busy.to_json()["is_generator_busy"]
    assert not any("WARNING" in remark for remark in report().remarks())


def test_errors_and_what_nobody_answered_are_failures_but_an_interrupt_is_not() -> None:
    assert not report().has_failed
    with_errors = measurement()
    with_errors.errors = Counter({"BROKER_STOPPING": 3, "NotReachableError": 1})
    assert report(of=with_errors).has_failed
    assert "error: BROKER_STOPPING, 3 times" in report(of=with_errors).remarks()
    silent = measurement()
    silent.in_flight = 2
    assert report(of=silent).has_failed
    assert "not answered: 2 requests" in report(of=silent).remarks()
    assert not report(of=silent, ended_by="interrupt").has_failed


def test_a_round_trip_that_lost_a_record_has_failed() -> None:
    trip = measurement()
    trip.received.add(999, 0)
    made = report(Plan(verb="roundtrip"), of=trip)
    assert (made.missing, made.has_failed) == (1, True)
    assert "arrived: 999 records, 1 missing" in made.remarks()
    trip.received.add(1, 0)
    assert (made.missing, made.has_failed) == (0, False)


def test_a_rate_that_was_not_reached_is_told_with_what_the_latencies_do_not_know() -> None:
    made = report(Plan(verb="produce", rate=1000.0), unsent=40)
    text = " ".join(made.remarks())
    assert "latency counts from when a record was due" in text
    assert "40 records fell due and could not be sent" in text
