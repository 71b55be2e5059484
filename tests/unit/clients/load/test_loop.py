"""When batches are due: open and closed loops, bounds, and what a stall does to latencies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.load.measurement import Latencies
from seglog.load.plan import CATCH_UP_SECONDS, Loop, Ticket


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
