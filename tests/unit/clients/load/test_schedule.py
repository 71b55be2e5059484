"""When batches are due: open and closed loops, warm-up, bounds, and what a stall does to latencies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.load.measurement import Latencies
from seglog.load.plan import CATCH_UP_SECONDS, Schedule, Ticket


def taken(schedule: Schedule, *, step: float = 0.0, now: float = 0.0) -> list[Ticket]:
    """All tickets, to somebody who is ready again ``step`` seconds after each is due."""
    tickets = []
    while (ticket := schedule.take(now)) is not None:
        tickets.append(ticket)
        now = max(now, ticket.due) + step
    return tickets


def test_at_a_rate_batches_fall_due_at_equal_distances_however_late_they_are_taken() -> None:
    schedule = Schedule(began=100.0, batch_records=10, rate=1000, duration=0.1)
    assert schedule.take(100.0) == Ticket(0, 10, 100.0, is_measured=True)
    late = schedule.take(100.055)
    assert late is not None
    assert late.due == pytest.approx(100.01)
    rest = taken(schedule, now=100.055)
    assert [ticket.due for ticket in rest] == pytest.approx([100.02 + 0.01 * number for number in range(8)])
    assert (schedule.ended_by, schedule.unsent) == ("duration", 0)


def test_without_a_rate_a_batch_is_due_when_somebody_can_send_it() -> None:
    schedule = Schedule(began=0.0, batch_records=7, duration=1.0)
    tickets = taken(schedule, step=0.25)
    assert [ticket.due for ticket in tickets] == [0.0, 0.25, 0.5, 0.75]
    assert (schedule.ended_by, schedule.unsent) == ("duration", 0)


def test_the_warm_up_is_not_measured_and_does_not_count() -> None:
    schedule = Schedule(began=0.0, batch_records=1, rate=10, warmup=0.5, count=3)
    tickets = taken(schedule)
    assert [ticket.is_measured for ticket in tickets] == [False] * 5 + [True] * 3
    assert (schedule.measured_from, schedule.ended_by) == (0.5, "count")


def test_the_last_batch_is_as_small_as_the_count_wants_it() -> None:
    assert [ticket.records for ticket in taken(Schedule(began=0.0, batch_records=4, count=10))] == [4, 4, 2]


def test_what_fell_due_is_sent_a_while_later_and_what_is_left_then_is_told() -> None:
    schedule = Schedule(began=0.0, batch_records=10, rate=100, duration=10.0)
    assert schedule.take(0.0) is not None
    behind = schedule.take(10.0 + CATCH_UP_SECONDS / 2)
    assert behind is not None
    assert behind.due == pytest.approx(0.1)
    assert schedule.take(10.0 + CATCH_UP_SECONDS) is None
    assert schedule.unsent == 1000 - 20


def test_a_run_that_was_stopped_for_another_reason_owes_nothing() -> None:
    schedule = Schedule(began=0.0, batch_records=10, rate=100, duration=10.0)
    schedule.take(0.0)
    schedule.stop("interrupt")
    schedule.stop("error")
    assert schedule.take(5.0) is None
    assert (schedule.ended_by, schedule.unsent) == ("interrupt", 0)


def test_a_stall_shows_in_every_record_that_fell_due_in_it() -> None:
    """One second in ten without answers: a closed loop meets it once, an open one in a tenth of its records."""

    def p99(rate: float | None) -> float:
        schedule, latencies, now = Schedule(began=0.0, batch_records=1, rate=rate, duration=10.0), Latencies(), 0.0
        while (ticket := schedule.take(now)) is not None:
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
    warmup=st.sampled_from([0.0, 0.01]),
)
def test_a_count_is_met_exactly_and_times_never_run_backwards(
    rate: float | None, batch: int, count: int, warmup: float
) -> None:
    schedule = Schedule(began=3.0, batch_records=batch, rate=rate, count=count, warmup=warmup)
    tickets = taken(schedule, step=0.002, now=3.0)
    assert sum(ticket.records for ticket in tickets if ticket.is_measured) == count
    assert [ticket.number for ticket in tickets] == list(range(len(tickets)))
    assert [ticket.due for ticket in tickets] == sorted(ticket.due for ticket in tickets)
