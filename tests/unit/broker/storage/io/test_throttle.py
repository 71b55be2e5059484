import pytest

from seglog_broker.storage.io.clock import WINDOW_SECONDS, Pace, Throttle


class _Time:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.mark.parametrize("step", [0.0, 0.001, 0.01])
def test_a_stream_goes_at_its_rate_in_the_long_run(step: float) -> None:
    time = _Time()
    throttle = Throttle(1_000_000.0, time.monotonic, time.sleep)
    for _ in range(1000):
        time.now += step + 0.0005
        throttle.note(10_000)
    assert throttle.total == 10_000_000
    unseen = 10_000 * (WINDOW_SECONDS / (step + 0.0005) + 1)  # what came since it last looked
    assert time.now >= (throttle.total - unseen) / 1_000_000


def test_nothing_sleeps_without_a_rate_below_it_or_within_the_window() -> None:
    time = _Time()
    free, fast = Throttle(None, time.monotonic, time.sleep), Throttle(1e12, time.monotonic, time.sleep)
    for _ in range(100):
        free.note(1 << 20)
        fast.note(1 << 20)
        time.now += 0.1
    assert time.now == pytest.approx(10.0)
    within = Throttle(1.0, time.monotonic, time.sleep)
    within.note(1 << 30)
    assert time.now == pytest.approx(10.0)


def test_streams_that_are_too_short_for_a_throttle_go_at_the_rate_together() -> None:
    pace, now = Pace(), 5.0
    for _ in range(100):
        now = max(now, pace.ready_at)
        pace.note(200, now, 1000.0)
        now += 0.001  # that is all it takes
    assert pace.ready_at == pytest.approx(5.0 + 100 * 200 / 1000)


def test_streams_share_the_rate() -> None:
    """Streams side by side share the rate and one that was slow enough owes nothing."""
    pace = Pace()
    pace.note(500, 10.0, 1000.0)
    pace.note(500, 10.0, 1000.0)
    assert pace.ready_at == 11.0
    pace.note(1000, 20.0, 1000.0)
    assert pace.ready_at == 21.0, "a pause before it is no credit"
