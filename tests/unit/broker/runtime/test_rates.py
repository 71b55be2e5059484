"""Rates over windows, and buckets of tokens, held against Kafka's formulae written down plainly."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.runtime.rates import Rate, TokenBucket, Windows

windows = st.builds(Windows, st.integers(1, 12), st.integers(1, 5), st.floats(0.5, 1e9))
# Since the event before, in 1024ths of a second, which no sum of them rounds; and an amount.
events = st.lists(st.tuples(st.integers(0, 20_000) | st.integers(0, 600), st.integers(0, 10_000)), max_size=40)


@dataclass
class KafkaRate:
    """Samples as [start, latest event, sum]: SampledStat, Rate and QuotaUtils of Kafka 4.4, in seconds."""

    spans: Windows
    kept: list[list[float]] = field(default_factory=list)
    current: int = 0

    def record(self, value: float, now: float) -> None:
        if not self.kept:
            self.kept.append([now, now, 0.0])
        if now - self.kept[self.current][0] >= self.spans.seconds:
            self.current = (self.current + 1) % (self.spans.number + 1)
            if self.current >= len(self.kept):
                self.kept.append([now, now, 0.0])
            self.kept[self.current] = [now, now, 0.0]
        self.kept[self.current][1] = now
        self.kept[self.current][2] += value

    def throttle(self, bound: float, now: float) -> float:
        samples, window, _ = self.spans
        for number, (_, latest, _) in enumerate(self.kept):
            if now - latest >= samples * window:
                self.kept[number] = [now, now, 0.0]
        elapsed = now - min(start for start, _, _ in self.kept)
        full = int(elapsed / window)
        if full < samples - 1:
            elapsed += (samples - 1 - full) * window
        size = max(elapsed, 0.001)
        value = sum(total for _, _, total in self.kept) / size
        return (value - bound) / bound * size if value > bound else 0.0


@given(windows, events, st.integers(1, 20_000))
def test_a_rate_waits_as_long_as_kafkas_up_to_the_longest_wait(
    spans: Windows, events: list[tuple[int, int]], limit: int
) -> None:
    ours, kafkas, now = Rate(spans, limit), KafkaRate(spans), 0.0
    for passed, amount in events:
        now += passed / 1024
        ours.add(amount, now)
        kafkas.record(amount, now)
        assert ours.wait(now) == pytest.approx(min(kafkas.throttle(limit, now), spans.wait_seconds_max), abs=1e-6)


@given(windows, events, st.floats(0.001, 1e6))
def test_a_bucket_has_the_tokens_of_kafkas(spans: Windows, events: list[tuple[int, int]], limit: float) -> None:
    bucket, now = TokenBucket(spans, limit), 1e6
    burst = tokens = limit * spans.number * spans.seconds
    for passed, amount in events:
        now += passed / 1000
        tokens = min(burst, tokens + limit * passed / 1000) - amount
        bucket.add(amount, now)
        expected = min(max(0.0, -tokens / limit), spans.wait_seconds_max)
        assert bucket.wait(now) == pytest.approx(expected, rel=1e-3, abs=1e-3)


@given(st.integers(1_000, 1_000_000), st.floats(0.001, 1))
def test_who_waits_as_told_has_its_rate_in_the_long_run(limit: int, share: float) -> None:
    """With requests of a second's worth at most: by Kafka's windows larger ones may have half as much again."""
    size = max(1, int(limit * share))
    rate, now, used = Rate(Windows(11, 1.0, 11.0), limit), 0.0, 0
    while now < 200.0 and used < 400 * size:
        rate.add(size, now)
        used += size
        now += max(rate.wait(now), 0.001)
    most = limit * 11 + size  # it had used nothing before: so much it may use at once
    assert used <= 1.1 * limit * now + most  # a window that ends is forgotten as a whole
