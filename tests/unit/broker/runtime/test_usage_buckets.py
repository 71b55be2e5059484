"""Buckets of tokens, held against a plain list of what was taken, and how many are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from seglog_broker.config import load_config
from seglog_broker.config.client_quotas import Limit
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.usage_buckets import BUCKETS_MAX, LINE_SECONDS, LINES_AN_HOUR, Bucket, UsageBuckets

SECONDS = 11


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(0, 10_000)), max_size=40),
    st.floats(1.0, 1e6),
    st.integers(0, 10_000),
)
def test_a_bucket_has_what_came_and_was_not_taken_within_its_seconds(
    events: list[tuple[float, int]], limit: float, wanted: int
) -> None:
    bucket, now, most = Bucket(("", "", ""), limit, SECONDS, 0.0), 0.0, limit * SECONDS
    tokens = most
    for passed, amount in events:
        now += passed
        tokens = max(-most, min(most, tokens + limit * passed) - amount)
        bucket.take(amount, now)
        for needed in (0, wanted):
            wait = bucket.wait(now, needed)
            assert 0 <= wait <= SECONDS
            assert wait == pytest.approx(min(SECONDS, max(0.0, min(needed, most) - tokens) / limit), abs=1e-4)


@given(st.integers(1_000, 1_000_000), st.floats(0.001, 8))
def test_who_waits_as_told_has_its_rate(limit: int, share: float) -> None:
    bucket, now, size, used = Bucket(("", "", ""), limit, SECONDS, 0.0), 0.0, limit * share, 0.0
    while now < 100:
        bucket.take(size, now)
        used += size
        now += max(bucket.wait(now), 0.01)
    assert used <= limit * (now + SECONDS) + size


def test_so_many_buckets_are_kept_and_lines_written() -> None:
    buckets, now = UsageBuckets(LiveConfig(load_config(None, "", {}, [])[0]), Metrics()), 0.0

    def throttled(client_id: str) -> Bucket:
        found = buckets.bucket(Limit(9.0, "producer_byte_rate", "", client_id), now)
        assert found is not None
        found.take(2000, now)
        assert buckets.throttle(found, now) == SECONDS
        return found

    with capture_logs() as logs:
        first, *_, last = [throttled(f"{number}") for number in range(BUCKETS_MAX + 1)]
        assert len(logs) == LINES_AN_HOUR
        now += LINE_SECONDS
        assert throttled(f"{BUCKETS_MAX}") is last
        assert throttled("0") is not first, "it was forgotten"
        assert [line["times"] for line in logs[LINES_AN_HOUR:]] == [2, 1]
    assert len(buckets._buckets) == BUCKETS_MAX
