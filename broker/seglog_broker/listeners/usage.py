"""The use of its quotas by the client of one connection, and until when the connection is not read for that."""

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, TypeVar, cast

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    KEYS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaTable,
)
from seglog_broker.listeners.session import Session
from seglog_broker.runtime.usage_buckets import Bucket, LoopTime, Worked

ResultT = TypeVar("ResultT")

PERCENT: Final = 100.0
"""Of the loop's time are all of it."""


class Usage(Worked):
    """The use of quotas by one connection. While no client has a quota, it counts nothing."""

    def __init__(self, broker: Broker, session: Session) -> None:
        super().__init__()
        self._broker = broker
        self._session = session
        self.client_id: str | None = None
        """Of the latest request; the wire says it."""
        self.muted_until = 0.0
        """By trio's clock; 0 while the connection is read."""
        self._known: tuple[QuotaTable, str, str | None] | None = None  # for what the buckets are
        self._buckets: dict[str, Bucket | None] = {}

    @property
    def is_counted(self) -> bool:
        """True if any client has a quota."""
        return self._broker.live_config.quotas.has_any

    @property
    def is_timed(self) -> bool:
        """True if any client has a quota of the loop's time."""
        return self._broker.live_config.quotas.has_times

    def _bucket(self, key: str) -> Bucket | None:
        """The client's bucket, as long as neither the quotas nor the client change."""
        known = self._broker.live_config.quotas, self._session.principal, self.client_id
        if self._known is None or self._known[0] is not known[0] or self._known != known:
            _, _, user = known[1].partition(":")
            self._known = known
            self._buckets = {each: self._broker.usage_buckets.bucket(each, user, self.client_id) for each in KEYS}
        return self._buckets[key]

    # --- What is used -------------------------------------------------------------------------------------------------

    def note_produced(self, size: int) -> None:
        """Count a request to append, of ``size`` bytes."""
        self._use(PRODUCER_BYTE_RATE, size)

    def note_fetched(self, size: int) -> None:
        """Count an answer with ``size`` bytes of records."""
        self._broker.metrics.fetch_bytes += size
        if self.is_counted:
            self._use(CONSUMER_BYTE_RATE, size)

    def note_time(self) -> None:
        """Count the loop's time that was spent on this connection."""
        if not self.is_timed:
            return
        loop_time = self._broker.usage_buckets.loop_time
        loop_time.give_to(loop_time.give_to(None))  # what was spent up to now
        seconds, self.seconds = self.seconds, 0.0
        window = self._broker.usage_buckets.windows(REQUEST_PERCENTAGE).seconds
        self._use(REQUEST_PERCENTAGE, PERCENT * seconds, window)

    def _use(self, key: str, amount: float, longest: float = math.inf) -> None:
        bucket = self._bucket(key)
        if bucket is None:
            return
        now, windows = trio.current_time(), self._broker.usage_buckets.windows(key)
        bucket.rate.add(amount, now, windows)
        self._mute(bucket, min(longest, bucket.rate.wait(bucket.limit.value, now, windows)), now)

    def may_change(self, partitions: int, *, is_strict: bool = False) -> bool:
        """Count partitions that are to be created or deleted.

        With ``is_strict`` they may not be while the client is above its quota: False, and they are not counted.
        """
        bucket = self._bucket(CONTROLLER_MUTATION_RATE) if partitions and self.is_counted else None
        if bucket is None:
            return True
        now, windows, limit = trio.current_time(), self._broker.usage_buckets.windows(bucket.key), bucket.limit.value
        if is_strict and (missing := bucket.tokens.wait(limit, now, windows)):
            self._mute(bucket, missing, now)
            return False
        bucket.tokens.take(partitions, limit, now, windows)
        if not is_strict:
            self._mute(bucket, bucket.tokens.wait(limit, now, windows), now)
        return True

    def fetched_bytes_max(self) -> int:
        """The most bytes that one fetch may bring: what the quota gives in the windows that are over."""
        if not self.is_counted:
            return _UNLIMITED
        bucket = self._bucket(CONSUMER_BYTE_RATE)
        if bucket is None:
            return _UNLIMITED
        windows = self._broker.usage_buckets.windows(CONSUMER_BYTE_RATE)
        return int(min(bucket.limit.value * (windows.number - 1) * windows.seconds, _UNLIMITED))

    # --- Time ---------------------------------------------------------------------------------------------------------

    def during(self, work: Callable[..., ResultT], *args: Any) -> ResultT:
        """Call what is for this connection, though it may be called by the work of another one."""
        if not self.is_timed:
            return work(*args)
        loop_time = self._broker.usage_buckets.loop_time
        before = loop_time.give_to(self)
        try:
            return work(*args)
        finally:
            loop_time.give_to(before)

    def timed(self, work: Awaitable[ResultT]) -> Awaitable[ResultT]:
        """Work that a task does for this connection, with its steps counted."""
        if not self.is_timed:
            return work
        return _in_steps(cast("Coroutine[Any, Any, ResultT]", work), self, self._broker.usage_buckets.loop_time)

    # --- Waiting ------------------------------------------------------------------------------------------------------

    def _mute(self, bucket: Bucket, seconds: float, now: float) -> None:
        if seconds <= 0:
            return
        self._broker.usage_buckets.note_throttled(bucket, seconds, now)
        self.muted_until = self._broker.metrics.muted[self] = max(self.muted_until, now + seconds)

    @property
    def throttle_ms(self) -> int:
        """How long the connection is not read from now on, as an answer tells it."""
        return max(0, math.ceil((self.muted_until - trio.current_time()) * 1000)) if self.muted_until else 0

    def unmute(self) -> None:
        """The connection is read again, or has ended."""
        self.muted_until = 0.0
        self._broker.metrics.muted.pop(self, None)


_UNLIMITED: Final = 2**31 - 1


@coroutine
def _in_steps(work: Coroutine[Any, Any, ResultT], owner: Worked, loop_time: LoopTime) -> Generator[Any, Any, ResultT]:
    """Run a coroutine to its end; each of its steps is its owner's time."""
    step: Any = work.send
    value: Any = None
    while True:
        before = loop_time.give_to(owner)
        try:
            wanted = step(value)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        finally:
            loop_time.give_to(before)
        try:
            step, value = work.send, (yield wanted)
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - the coroutine raises it, or handles it
            step, value = work.throw, error
