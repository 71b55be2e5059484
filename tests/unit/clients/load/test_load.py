"""A load, part by part: what was typed, when batches are due, the batches, what is counted, and its report."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.cli import main
from seglog.cli.dispatch import parse
from seglog.cli.load import _plan
from seglog.load.measurement import Latencies, Measurement
from seglog.load.plan import CATCH_UP_SECONDS, COUNT_MAX, COUNT_SECONDS_MAX, DURATION_SECONDS, Loop, Plan, Ticket
from seglog.load.report import Report
from seglog.load.verbs import BatchMaker, stamp_of
from seglog_protocol.compression import Codec
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
    ("command", "said"),
    [
        ("roundtrip --record-size 15", "must be 16 bytes or more"),
        ("consume --follow", "name the topic"),
        ("produce --rate -1", "--rate: must be"),
        ("produce --duration 0", "--duration: must be"),
        ("produce --record-size 0", "--record-size: must be"),
        ("roundtrip --ack none", "--ack"),
        ("consume --rate 5", "--rate"),
        ("", "seglog load"),
        ("produce --server a:b", "'b' is not a port"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", *command.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_without_an_end_is_none() -> None:
    bounds: dict[str, Any] = {"duration": None, "count": None}
    with pytest.raises(ValueError, match="needs a count or a duration"):
        Plan(verb="produce", **bounds)


# --- When batches are due: open and closed loops, bounds, and what a stall does to latencies --------------------------


def taken(loop: Loop, *, step: float = 0.0, now: float = 0.0) -> list[Ticket]:
    """All tickets, to somebody who is ready again ``step`` seconds after each is due."""
    tickets = []
    while (ticket := loop.take(now)) is not None:
        tickets.append(ticket)
        now = max(now, ticket.due) + step
    return tickets


def test_at_a_rate_batches_fall_due_at_equal_distances_however_late_they_are_taken() -> None:
    loop = Loop(began=100.0, batch_records=10, rate=1000, duration=0.1)
    assert loop.take(100.0) == Ticket(0, 10, 100.0)
    late = loop.take(100.055)
    assert late is not None
    assert late.due == pytest.approx(100.01)
    rest = taken(loop, now=100.055)
    assert [ticket.due for ticket in rest] == pytest.approx([100.02 + 0.01 * number for number in range(8)])
    assert (loop.ended_by, loop.unsent) == ("duration", 0)


def test_without_a_rate_a_batch_is_due_when_somebody_can_send_it() -> None:
    loop = Loop(began=0.0, batch_records=7, duration=1.0)
    tickets = taken(loop, step=0.25)
    assert [ticket.due for ticket in tickets] == [0.0, 0.25, 0.5, 0.75]
    assert (loop.ended_by, loop.unsent) == ("duration", 0)


def test_the_last_batch_is_as_small_as_the_count_wants_it() -> None:
    assert [ticket.records for ticket in taken(Loop(began=0.0, batch_records=4, count=10))] == [4, 4, 2]


def test_what_fell_due_is_sent_a_while_later_and_what_is_left_then_is_told() -> None:
    loop = Loop(began=0.0, batch_records=10, rate=100, duration=10.0)
    assert loop.take(0.0) is not None
    behind = loop.take(10.0 + CATCH_UP_SECONDS / 2)
    assert behind is not None
    assert behind.due == pytest.approx(0.1)
    assert loop.take(10.0 + CATCH_UP_SECONDS) is None
    assert loop.unsent == 1000 - 20


def test_a_run_that_was_stopped_for_another_reason_owes_nothing() -> None:
    loop = Loop(began=0.0, batch_records=10, rate=100, duration=10.0)
    loop.take(0.0)
    loop.stop("interrupt")
    loop.stop("error")
    assert loop.take(5.0) is None
    assert (loop.ended_by, loop.unsent) == ("interrupt", 0)


def test_a_stall_shows_in_every_record_that_fell_due_in_it() -> None:
    """One second in ten without answers: a closed loop meets it once, an open one in a tenth of its records."""

    def p99(rate: float | None) -> float:
        loop, latencies, now = Loop(began=0.0, batch_records=1, rate=rate, duration=10.0), Latencies(), 0.0
        while (ticket := loop.take(now)) is not None:
            answered = max(now, ticket.due) + 0.001
            now = 6.0 if 5.0 <= answered < 6.0 else answered
            latencies.add(now - ticket.due)
        return latencies.percentile(99)

    assert p99(None) == pytest.approx(0.001, rel=0.01)
    assert p99(500) > 0.8


@given(
    rate=st.none() | st.floats(0.5, 1e6),
    batch=st.integers(1, 500),
    count=st.integers(1, 3000),
)
def test_a_count_is_met_exactly_and_times_never_run_backwards(rate: float | None, batch: int, count: int) -> None:
    loop = Loop(began=3.0, batch_records=batch, rate=rate, count=count)
    tickets = taken(loop, step=0.002, now=3.0)
    assert sum(ticket.records for ticket in tickets) == count
    assert [ticket.number for ticket in tickets] == list(range(len(tickets)))
    assert [ticket.due for ticket in tickets] == sorted(ticket.due for ticket in tickets)


# --- The batches of a load: what a broker takes, of the size asked for, the same for the same seed --------------------


@each_case("codec", list(Codec))
@each_case("stamp_id", [None, b"whose it"])
def test_every_batch_is_one_that_a_broker_takes(codec: Codec, stamp_id: bytes | None) -> None:
    maker = BatchMaker(record_size=40, batch_bytes=5000, codec=codec, stamp_id=stamp_id)
    assert maker.records_max > 50
    for number in range(6):
        data = maker.make(number, maker.records_max, 1_000 + number, due=number + 0.25)
        header = parse_header(data)
        assert verify_crc(data, 0, header)
        assert header.size == len(data) <= (5000 if codec is Codec.NONE else 6000)
        assert header.codec == codec
        records = decode_records(header, data)
        assert [record.offset for record in records] == list(range(maker.records_max))
        assert {record.timestamp for record in records} == {1_000 + number}
        assert {len(record.value or b"") for record in records} == {40}
        expected = {None if stamp_id is None else int((number + 0.25) * 1e9)}
        assert {stamp_of(record.value, stamp_id or b"whose it") for record in records} == expected


def test_a_batch_is_as_full_as_its_bytes_allow_and_holds_at_least_one_record() -> None:
    maker = BatchMaker(record_size=100, batch_bytes=10_000)
    assert 9_880 < len(maker.make(0, maker.records_max, 0)) <= 10_000
    assert BatchMaker(record_size=100, batch_bytes=10).records_max == 1


@pytest.mark.parametrize("records", [1, 2, 333])
def test_records_are_counted_where_that_is_asked_for(records: int) -> None:
    maker = BatchMaker(record_size=16, batch_bytes=20_000, batch_records=records)
    assert maker.records_max == records
    assert parse_header(maker.make(0, records, 0)).record_count == records
    assert parse_header(maker.make(1, 1, 0)).record_count == 1


def test_no_more_records_are_in_a_batch_than_its_bytes_allow() -> None:
    maker = BatchMaker(record_size=16, batch_bytes=2_000, batch_records=333)
    assert 1 < maker.records_max < 333
    assert len(maker.make(0, maker.records_max, 0)) <= 2_000


def test_a_seed_makes_the_same_records_and_another_one_others() -> None:
    first, again, other = (BatchMaker(record_size=50, batch_bytes=2000, seed=seed) for seed in (1, 1, 2))
    count = first.records_max
    assert [first.make(n, count, 5) for n in range(8)] == [again.make(n, count, 5) for n in range(8)]
    assert first.make(0, count, 5) != other.make(0, count, 5)
    assert first.make(0, count, 5) != first.make(1, count, 5)


def test_only_our_own_stamp_is_read() -> None:
    value = b"whose it" + (77).to_bytes(8, "big") + b"more"
    assert stamp_of(value, b"whose it") == 77
    for foreign in (None, b"", b"whose it", b"whose is" + value[8:]):
        assert stamp_of(foreign, b"whose it") is None


# --- What is counted, with a clock and a CPU meter of the test's own --------------------------------------------------


class Meter:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self) -> float:
        return self.value


def test_percentiles_are_those_of_the_values_to_three_digits() -> None:
    source = random.Random(7)
    values = [source.lognormvariate(-7, 1.5) for _ in range(20_000)]
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    values.sort()
    for percentile in (50, 90, 99, 99.9):
        exact = values[int(len(values) * percentile / 100) - 1]
        assert latencies.percentile(percentile) == pytest.approx(exact, rel=2e-3, abs=2e-6)
    assert latencies.max == pytest.approx(values[-1], abs=1e-6)
    assert latencies.mean == pytest.approx(sum(values) / len(values), rel=1e-2)
    assert latencies.count == 20_000


def test_nothing_measured_is_zero_and_what_is_out_of_range_counts_as_its_edge() -> None:
    latencies = Latencies()
    assert (latencies.percentile(99), latencies.max, latencies.mean) == (0.0, 0.0, 0.0)
    latencies.add(-5.0)
    latencies.add(1e9)
    assert latencies.count == 2
    assert (latencies.percentile(50), latencies.max) == (1e-6, 3600.0)


def test_no_percentile_is_above_the_maximum() -> None:
    latencies = Latencies()
    latencies.add(0.123457)
    assert latencies.percentile(50) == latencies.percentile(99.9) == latencies.max == 0.123457


def test_a_run_lasts_until_what_was_done_last_and_its_cpu_share_until_its_end() -> None:
    clock, cpu = Meter(10.0), Meter(1.0)
    measurement = Measurement(clock, cpu)
    assert (measurement.seconds, measurement.cpu_share) == (0.0, 0.0)
    measurement.begin()
    clock.value = 12.5
    measurement.touch()
    clock.value, cpu.value = 14.0, 4.6
    measurement.end()
    clock.value, cpu.value = 100.0, 100.0
    assert measurement.seconds == 2.5
    assert measurement.cpu_share == pytest.approx(0.9)


# --- What a report says, and when it says that something was wrong ----------------------------------------------------


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
