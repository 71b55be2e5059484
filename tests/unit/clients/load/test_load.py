"""A load, part by part: what was typed, when batches are due, the batches, what is counted, and its report."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.dispatch import parse
from seglog.cli.load import _plan
from seglog.load.measurement import Latencies, Measurement
from seglog.load.plan import (
    CATCH_UP_SECONDS,
    COUNT_MAX,
    COUNT_SECONDS_MAX,
    DURATION_SECONDS,
    Batches,
    Loop,
    Plan,
    Ticket,
    Verb,
    make_plan,
)
from seglog.load.report import Report
from seglog_protocol.compression import Codec
from seglog_protocol.messages import TopicDescription
from seglog_protocol.record_batch import parse_header, verify_crc
from seglog_protocol.records import decode_records
from tests.support import each_case


def typed(*arguments: str) -> Plan:
    return _plan(parse(["load", *arguments]))


@each_case(
    ("arguments", "bounds"),
    [
        ((), (DURATION_SECONDS, COUNT_MAX)),
        (("--duration", "60"), (60.0, None)),
        (("--count", "5"), (COUNT_SECONDS_MAX, 5)),
        (("--count", "5", "--duration", "2"), (2.0, 5)),
    ],
)
def test_every_run_is_bounded(arguments: tuple[str, ...], bounds: tuple[float, int | None]) -> None:
    plan = typed("produce", *arguments)
    assert (plan.duration, plan.count) == bounds


def test_at_a_rate_a_batch_is_what_falls_due_in_5_ms_unless_it_is_given() -> None:
    assert typed("produce", "--rate", "100").batch_records == 1
    assert typed("produce", "--rate", "20000").batch_records == 100
    assert typed("produce", "--rate", "20000", "--batch-records", "7").batch_records == 7
    by_bytes = typed("produce", "--rate", "20000", "--batch-bytes", "5000")
    assert (by_bytes.batch_records, by_bytes.batch_bytes) == (None, 5000)


def test_a_round_trip_has_a_rate_of_its_own_and_0_is_none() -> None:
    assert typed("roundtrip").rate == 1000
    assert typed("roundtrip", "--rate", "0").rate is None
    assert typed("produce").rate is None


def test_reading_fills_a_topic_of_its_own_with_what_it_will_count() -> None:
    assert typed("consume").fill == 1_000_000
    assert typed("consume", "--count", "50").fill == 50
    assert typed("consume", "t").pipeline == 1


@each_case(
    ("verb", "options", "said"),
    [("consume", {"follow": True}, "name the topic"), ("roundtrip", {"ack": "none"}, "counts acknowledged records")],
)
def test_a_plan_that_cannot_be_meant_is_refused(verb: Verb, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_plan(verb, **options)


# --- When batches are due: open and closed loops, bounds, and what a stall does to latencies --------------------------


def loop_of(*, began: float, batch_records: int, **bounds: Any) -> Loop:
    return Loop(Plan(verb="produce", **bounds), began=began, batch_records=batch_records)


def taken(loop: Loop, *, step: float = 0.0, now: float = 0.0) -> list[Ticket]:
    """All tickets, to somebody who is ready again ``step`` seconds after each is due."""
    tickets = []
    while (ticket := loop.take(now)) is not None:
        tickets.append(ticket)
        now = max(now, ticket.due) + step
    return tickets


def test_at_a_rate_batches_fall_due_at_equal_distances_however_late_they_are_taken() -> None:
    loop = loop_of(began=100.0, batch_records=10, rate=1000, duration=0.1)
    assert loop.take(100.0) == Ticket(0, 10, 100.0)
    late = loop.take(100.055)
    assert late is not None
    assert late.due == pytest.approx(100.01)
    rest = taken(loop, now=100.055)
    assert [ticket.due for ticket in rest] == pytest.approx([100.02 + 0.01 * number for number in range(8)])
    assert (loop.ended_by, loop.unsent) == ("duration", 0)


def test_without_a_rate_a_batch_is_due_when_somebody_can_send_it() -> None:
    loop = loop_of(began=0.0, batch_records=7, duration=1.0)
    tickets = taken(loop, step=0.25)
    assert [ticket.due for ticket in tickets] == [0.0, 0.25, 0.5, 0.75]
    assert (loop.ended_by, loop.unsent) == ("duration", 0)


def test_the_last_batch_is_as_small_as_the_count_wants_it() -> None:
    assert [ticket.records for ticket in taken(loop_of(began=0.0, batch_records=4, count=10))] == [4, 4, 2]


def test_what_fell_due_is_sent_a_while_later_and_what_is_left_then_is_told() -> None:
    loop = loop_of(began=0.0, batch_records=10, rate=100, duration=10.0)
    assert loop.take(0.0) is not None
    behind = loop.take(10.0 + CATCH_UP_SECONDS / 2)
    assert behind is not None
    assert behind.due == pytest.approx(0.1)
    assert loop.take(10.0 + CATCH_UP_SECONDS) is None
    assert loop.unsent == 1000 - 20


def test_a_run_that_was_stopped_for_another_reason_owes_nothing() -> None:
    loop = loop_of(began=0.0, batch_records=10, rate=100, duration=10.0)
    loop.take(0.0)
    loop.stop("interrupt")
    loop.stop("error")
    assert loop.take(5.0) is None
    assert (loop.ended_by, loop.unsent) == ("interrupt", 0)


@given(
    rate=st.none() | st.floats(0.5, 1e6),
    batch=st.integers(1, 500),
    count=st.integers(1, 3000),
)
def test_a_count_is_met_exactly_and_times_never_run_backwards(rate: float | None, batch: int, count: int) -> None:
    loop = loop_of(began=3.0, batch_records=batch, rate=rate, count=count)
    tickets = taken(loop, step=0.002, now=3.0)
    assert sum(ticket.records for ticket in tickets) == count
    assert [ticket.number for ticket in tickets] == list(range(len(tickets)))
    assert [ticket.due for ticket in tickets] == sorted(ticket.due for ticket in tickets)


# --- The batches of a load: what a broker takes, of the size asked for, the same for the same seed --------------------

TOPIC = TopicDescription("t", "id", 1, 1_000_000, 1_000_000)


def batches(**options: Any) -> Batches:
    return Batches(Plan(verb="produce", **options), TOPIC)


@each_case("codec", list(Codec))
def test_every_batch_is_one_that_a_broker_takes(codec: Codec) -> None:
    made = batches(record_size=40, batch_bytes=5000, compression=codec.name.lower())
    assert made.records_max > 50
    for records in (made.records_max, made.records_max, 3):
        data = made.make(records, 1_000)
        header = parse_header(data)
        assert verify_crc(data, 0, header)
        assert header.size == len(data) <= (5000 if codec is Codec.NONE else 6000)
        assert header.codec == codec
        found = decode_records(header, data)
        assert [record.offset for record in found] == list(range(records))
        assert {record.timestamp for record in found} == {1_000}
        assert {len(record.value or b"") for record in found} == {40}


@each_case(
    ("options", "records"),
    [
        ({"record_size": 100, "batch_bytes": 10}, 1),
        ({"record_size": 16, "batch_bytes": 20_000, "batch_records": 333}, 333),
        ({"record_size": 16, "batch_bytes": 2_000, "batch_records": 333}, 83),
        ({"record_size": 100_000, "batch_bytes": 2**31}, 9),
    ],
)
def test_a_batch_holds_what_is_asked_for_as_far_as_its_bytes_allow(options: dict[str, Any], records: int) -> None:
    assert batches(**options).records_max == records


def test_a_seed_makes_the_same_records_and_another_one_others() -> None:
    first, again, other = (batches(record_size=50, batch_bytes=2000, seed=seed).make(7, 5) for seed in (1, 1, 2))
    assert first == again != other


# --- What is measured ------------------------------------------------------------------------------------------------


def test_percentiles_are_within_three_digits_and_what_is_out_of_range_counts_as_its_edge() -> None:
    latencies = Latencies()
    assert set(latencies.in_ms().values()) == {0.0}
    latencies.add(0.123457)
    shown = latencies.in_ms()
    assert shown["p50"] == shown["p99.9"] == shown["max"] == 123.457, "no percentile is above the maximum"
    assert shown["mean"] == pytest.approx(123.457, rel=1e-3)
    latencies.add(-5.0)
    latencies.add(1e9, 8)
    assert (latencies.count, latencies.in_ms()["max"]) == (10, 3_600_000.0)
    assert latencies.in_ms()["p50"] == pytest.approx(3_600_000, rel=1e-3)


# --- What a report says, and when it says that something was wrong ----------------------------------------------------


def measurement(*, cpu: float = 0.5) -> Measurement:
    """A thousand records of 100,000 bytes in two seconds, of a run that ends after four."""
    times = iter([10.0, 12.0, 14.0])
    used = iter([1.0, 1.0 + 4.0 * cpu])
    made = Measurement(lambda: next(times), lambda: next(used))
    made.begin()
    made.touch()
    made.end()
    made.sent.add(1000, 100_000, 10)
    made.latencies.add(0.0015, 990)
    made.latencies.add(0.25, 10)
    return made


def report(plan: Plan | None = None, of: Measurement | None = None, **more: Any) -> Report:
    plan = plan or Plan(verb="produce")
    loop = Loop(plan, began=0.0, batch_records=100)
    values: dict[str, Any] = {"topic": "t", "partitions": 2, "loop": loop, "ended_by": "duration"} | more
    return Report(plan=plan, measurement=of or measurement(), **values)


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
    made = report(Plan(verb="produce", rate=1000.0, duration=0.04))
    assert made.loop is not None
    made.loop.stop("duration")
    text = " ".join(made.remarks())
    assert "latency counts from when a record was due" in text
    assert "40 records fell due and could not be sent" in text
