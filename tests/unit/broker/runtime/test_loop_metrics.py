"""Turns of the loop: the longest of the last minute, against a list of all."""

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.runtime.metrics import SLOT_SECONDS, SLOTS, LoopMetrics, RecentMax
from tests.support import examples

MINUTE = SLOT_SECONDS * SLOTS


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.floats(0, 200), st.integers(0, 1000)), max_size=60), st.floats(0, 200))
def test_the_largest_of_the_last_minute_is_told(noted: list[tuple[float, int]], wait: float) -> None:
    """All of a minute count, and none that is older than a minute and a slot."""
    recent, now, all_noted = RecentMax(), 0.0, [(0.0, 0.0)]
    for pause, value in noted:
        now += pause
        recent.add(value, now)
        all_noted.append((now, value))
    now += wait
    least = max((value for moment, value in all_noted if now - moment < MINUTE), default=0)
    most = max((value for moment, value in all_noted if now - moment <= MINUTE + SLOT_SECONDS), default=0)
    assert least <= recent.at(now) <= most


def test_turns_are_counted_with_what_they_cost() -> None:
    loop = LoopMetrics()
    loop.add_turn(0.25, 0.5, 1000.0)
    loop.add_turn(0.125, 1.0, 1001.0)
    assert (loop.turns, loop.busy_seconds) == (2, 0.375)
    assert (loop.longest_turn.at(1010), loop.longest_stall.at(1010)) == (0.25, 1.0)
    assert (loop.longest_turn.at(1100), loop.longest_stall.at(1100)) == (0.0, 0.0), "of the last minute"
    assert (loop.busy_seconds_max, loop.stall_seconds_max) == (0.25, 1.0), "of all"
