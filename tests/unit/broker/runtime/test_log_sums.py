"""Lines about events that clients cause are counted once there are many, and the sum is logged."""

from typing import Any

import pytest
import structlog
import trio
from structlog.testing import LogCapture

from seglog_broker.runtime.logs import KINDS_MAX, LINES_MAX, WINDOW_SECONDS, LogSums


class Now:
    """A clock that is set by hand."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def logged(now: Now) -> Any:
    """What passes: ``sums`` and the lines behind it."""
    sums, capture = LogSums(now), LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[sums, capture])
    try:
        yield sums, capture.entries
    finally:
        structlog.configure(**before)


def test_the_first_lines_are_whole_and_the_others_one_sum(now: Now, logged: Any) -> None:
    sums, lines = logged
    for base_offset in range(1_000):
        structlog.get_logger().info("segment_rolled", topic="t", base_offset=base_offset, reason="time")
    structlog.get_logger().info("segment_rolled", topic="u", base_offset=0, reason="time")
    assert [line["base_offset"] for line in lines] == [*range(LINES_MAX), 0]
    sums.log_finished()
    assert len(lines) == LINES_MAX + 1, "the window is not over"
    now.seconds = WINDOW_SECONDS
    sums.log_finished()
    assert lines[LINES_MAX + 1 :] == [
        {
            "event": "segment_rolled",
            "topic": "t",
            "reason": "time",
            "more": 1_000 - LINES_MAX,
            "seconds": WINDOW_SECONDS,
            "log_level": "info",
        }
    ]
    structlog.get_logger().info("segment_rolled", topic="t", base_offset=7, reason="time")
    assert lines[-1]["base_offset"] == 7, "a new window lets lines through"


def test_other_events_are_never_counted(logged: Any) -> None:
    _, lines = logged
    for number in range(100):
        structlog.get_logger().warning("topic_deleted", topic=str(number))
    assert len(lines) == 100


def test_any_number_of_kinds_is_counted_in_bounded_memory(now: Now, logged: Any) -> None:
    sums, lines = logged
    count = 3 * KINDS_MAX
    for number in range(count):
        structlog.get_logger().error("append_failed", topic=f"t{number}")
    assert len(lines) == KINDS_MAX + LINES_MAX
    now.seconds = WINDOW_SECONDS
    sums.log_finished()
    assert lines[-1]["more"] == count - KINDS_MAX - LINES_MAX
    assert "topic" not in lines[-1]


async def test_sums_are_logged_without_further_lines_and_at_the_end(autojump_clock: object, logged: Any) -> None:
    sums, lines = logged
    sums = LogSums(trio.current_time)
    structlog.configure(processors=[sums, *structlog.get_config()["processors"][1:]])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sums.run)
        for expected in (1, 2):
            for number in range(LINES_MAX + 3):
                structlog.get_logger().info("connection_refused", peer=str(number))
            if expected == 1:
                await trio.sleep(2 * WINDOW_SECONDS)
                assert [line["more"] for line in lines if "more" in line] == [3]
        nursery.cancel_scope.cancel()
    assert [line["more"] for line in lines if "more" in line] == [3, 3]
