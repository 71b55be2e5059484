"""The use of quotas: a bucket for each client, or for all that share one."""

from collections import OrderedDict
from collections.abc import Callable
from time import thread_time
from typing import Final

from seglog_broker.config.client_quotas import CONTROLLER_MUTATION_RATE, NAME_CHARACTERS_MAX, Limit
from seglog_broker.logger import get_logger
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.rates import Rate, TokenBucket, Windows

BUCKETS_MAX: Final = 10_000
"""Buckets that are kept; for one more, the one that was looked for longest ago is forgotten."""

LINES_AN_HOUR: Final = 100
"""Lines in the log about clients that are throttled; each has one an hour."""

LINE_SECONDS: Final = 3_600.0

log = get_logger()


class Bucket:
    """The use of one quota."""

    __slots__ = ("key", "limit", "rate", "times", "tokens", "told_at")

    def __init__(self, key: str, limit: Limit) -> None:
        self.key = key
        self.limit = limit
        self.rate = Rate()
        self.tokens = TokenBucket()
        """Instead of the rate, of what changes topics."""
        self.times = 0
        """That a client was throttled since the log was told."""
        self.told_at: float | None = None


class LoopTime:
    """Processor time of the loop, given to who causes it: one at a time, but for what has no owner."""

    def __init__(self, seconds: Callable[[], float] = thread_time) -> None:
        self._seconds = seconds
        self._owner: Worked | None = None
        self._since = 0.0

    def give_to(self, owner: "Worked | None") -> "Worked | None":
        """Give what is spent from now on to an owner; returns the one before."""
        now, before = self._seconds(), self._owner
        if before is not None:
            before.seconds += now - self._since
        self._owner, self._since = owner, now
        return before


class Worked:
    """An owner of the loop's time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of processor time that are not counted yet."""


class UsageBuckets:
    """The buckets of a broker."""

    def __init__(self, live: LiveConfig, metrics: Metrics) -> None:
        self._live = live
        self._metrics = metrics
        self._buckets: OrderedDict[tuple[str, str, str], Bucket] = OrderedDict()
        self._lines = 0
        self._lines_since = 0.0
        self.loop_time = LoopTime()

    def windows(self, key: str) -> Windows:
        """The time that is looked back at for a quota."""
        config = self._live.current
        if key == CONTROLLER_MUTATION_RATE:
            return Windows(config.controller_quota_window_num, config.controller_quota_window_size_seconds)
        return Windows(config.quota_window_num, config.quota_window_size_seconds)

    def bucket(self, key: str, user: str, client_id: str | None) -> Bucket | None:
        """The bucket in which a client's use is counted; None if it has no such quota."""
        limit = self._live.quotas.limit(key, user, client_id)
        if limit is None:
            return None
        shown = limit.client_id[:NAME_CHARACTERS_MAX]  # as many as one with a quota may have; a client may send 32 KiB
        return self.bucket_with(key, limit._replace(client_id=shown))

    def bucket_with(self, key: str, limit: Limit) -> Bucket:
        """The bucket of a quota."""
        name = key, limit.user, limit.client_id
        found = self._buckets.get(name)
        if found is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.popitem(last=False)
            found = self._buckets[name] = Bucket(key, limit)
        self._buckets.move_to_end(name)
        found.limit = limit
        return found

    def note_throttled(self, bucket: Bucket, seconds: float, now: float) -> None:
        """Count that a client is throttled, and tell the log from time to time."""
        counts = self._metrics.quota_throttles
        counts[bucket.key] += 1
        self._metrics.quota_throttle_seconds[bucket.key] += seconds
        bucket.times += 1
        if bucket.told_at is not None and now - bucket.told_at < LINE_SECONDS:
            return
        if now - self._lines_since >= LINE_SECONDS:
            self._lines, self._lines_since = 0, now
        if self._lines < LINES_AN_HOUR:
            self._lines += 1
            log.info(
                "client_throttled",
                quota=bucket.key,
                limit=bucket.limit.value,
                user=bucket.limit.user,
                client_id=bucket.limit.client_id,
                seconds=round(seconds, 3),
                times=bucket.times,
            )
            bucket.told_at, bucket.times = now, 0
