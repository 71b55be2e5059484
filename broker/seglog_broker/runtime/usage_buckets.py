"""The use of quotas: a bucket of tokens for each client, or for all that share one."""

from collections import OrderedDict
from collections.abc import Callable
from time import thread_time
from typing import Final

from seglog_broker.config.client_quotas import Limit
from seglog_broker.logger import get_logger
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_protocol.quotas import CONNECTION_CREATION_RATE, CONTROLLER_MUTATION_RATE, REQUEST_PERCENTAGE

BUCKETS_MAX: Final = 10_000
"""Buckets that are kept; for one more, the one that was looked for longest ago is forgotten."""

LINES_AN_HOUR: Final = 100
"""Lines in the log about clients that are throttled; each has one an hour."""

LINE_SECONDS: Final = 3_600.0

log = get_logger()

Name = tuple[str, str, str]
"""A quota, and the user and client id whose use is counted together."""


class Bucket:
    """Tokens of which ``limit`` come each second. At first, and at most, there are those of so many ``seconds``.

    No wait is longer than these. What is owed beyond them is forgotten, as by Kafka's windows, but for changes of
    topics, where Kafka has a bucket. Moments are seconds of a clock that never goes back.
    """

    __slots__ = ("_latest", "_seconds", "_tokens", "limit", "name", "times")

    def __init__(self, name: Name, limit: float, seconds: float, now: float) -> None:
        self.name = name
        self.limit = limit
        self._seconds = seconds
        self._tokens = limit * seconds
        self._latest = now
        self.times = 0
        """That a client was throttled since the log was told."""

    @property
    def most(self) -> float:
        """The most tokens there can be."""
        return self.limit * self._seconds

    def take(self, amount: float, now: float) -> None:
        """Take tokens, whether there are so many or not."""
        self._tokens = self._filled(now) - amount
        if self.name[0] != CONTROLLER_MUTATION_RATE:
            self._tokens = max(self._tokens, -self.most)

    def wait(self, now: float, amount: float = 0.0) -> float:
        """The seconds, to a microsecond, until so many tokens, or the most, are there and none is owed."""
        missing = min(amount, self.most) - self._filled(now)
        return min(max(0.0, round(missing / self.limit, 6)), self._seconds)

    def _filled(self, now: float) -> float:
        self._tokens = min(self._tokens + self.limit * (now - self._latest), self.most)
        self._latest = now
        return self._tokens


class Worked:
    """An owner of the loop's time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Of processor time that are not counted yet."""


class LoopTime:
    """Processor time of the loop, given to who causes it: one at a time, but for what has no owner."""

    def __init__(self, seconds: Callable[[], float] = thread_time) -> None:
        self._seconds = seconds
        self._owner: Worked | None = None
        self._since = 0.0

    def give_to(self, owner: Worked | None) -> Worked | None:
        """Give what is spent from now on to an owner; returns the one before."""
        now, before = self._seconds(), self._owner
        if before is not None:
            before.seconds += now - self._since
        self._owner, self._since = owner, now
        return before


class UsageBuckets:
    """The buckets of a broker."""

    def __init__(self, live: LiveConfig, metrics: Metrics) -> None:
        self._live = live
        self._metrics = metrics
        self._buckets: OrderedDict[Name, Bucket] = OrderedDict()
        self._told: dict[Name, float] = {}  # when the log was told of a bucket; the oldest first
        self.loop_time = LoopTime()

    def bucket(self, limit: Limit | None, now: float) -> Bucket | None:
        """The bucket in which the use of a quota is counted; None if there is no such quota."""
        if limit is None:
            return None
        name = limit.key, limit.user, limit.client_id
        found = self._buckets.get(name)
        if found is None:
            config = self._live.current
            seconds = config.quota_window_num * config.quota_window_size_seconds
            if limit.key == CONTROLLER_MUTATION_RATE:
                seconds = config.controller_quota_window_num * config.controller_quota_window_size_seconds
            if len(self._buckets) >= BUCKETS_MAX:
                self._buckets.popitem(last=False)
            found = self._buckets[name] = Bucket(name, limit.value, seconds, now)
        self._buckets.move_to_end(name)
        found.limit = limit.value
        return found

    def throttle(self, bucket: Bucket, now: float, amount: float = 0.0) -> float:
        """The seconds that a client is to wait for so much, which is counted and, at times, logged; 0 if it need not.

        For the loop's time, and to connect, nobody waits longer than a window, as in Kafka.
        """
        key, user, client_id = bucket.name
        seconds = bucket.wait(now, amount)
        if key in (REQUEST_PERCENTAGE, CONNECTION_CREATION_RATE):
            seconds = min(seconds, self._live.current.quota_window_size_seconds)
        if not seconds:
            return 0.0
        self._metrics.quota_throttles[key] += 1
        self._metrics.quota_throttle_seconds[key] += seconds
        bucket.times += 1
        told = self._told
        while told and now - next(iter(told.values())) >= LINE_SECONDS:
            del told[next(iter(told))]
        if bucket.name not in told and len(told) < LINES_AN_HOUR:
            told[bucket.name] = now
            log.info(
                "client_throttled",
                quota=key,
                limit=bucket.limit,
                user=user,
                client_id=client_id,
                seconds=round(seconds, 3),
                times=bucket.times,
            )
            bucket.times = 0
        return seconds
