"""The use of its quotas by the client of one connection, and until when the connection is not read for that."""

import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar, cast

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.session import Session
from seglog_broker.runtime.awaitables import in_steps, result_after
from seglog_broker.runtime.usage_buckets import Bucket, Worked
from seglog_protocol.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    KEYS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)

ResultT = TypeVar("ResultT")

_INT32_MAX: Final = 2**31 - 1


class Usage(Worked):
    """The use of quotas by one connection. While no client has a quota, it counts nothing."""

    def __init__(self, broker: Broker, session: Session) -> None:
        super().__init__()
        self._broker = broker
        self._session = session
        self._quotas = broker.live_config.quotas
        self.client_id: str | None = None
        """Of the latest request; the wire says it."""
        self.muted_until = 0.0
        """By trio's clock; 0 while the connection is read."""
        self._muted_by = 0  # the epoch of quotas

    @property
    def is_counted(self) -> bool:
        """True if any client has a quota."""
        return self._quotas.has_any

    @property
    def is_timed(self) -> bool:
        """True if any client has a quota of the loop's time."""
        return self._quotas.has_times

    # --- What is used -------------------------------------------------------------------------------------------------

    def note_produced(self, size: int) -> None:
        """Count a request to append, of ``size`` bytes."""
        self._use(PRODUCER_BYTE_RATE, size)

    def note_fetched(self, size: int, *, is_refusable: bool = False) -> bool:
        """Count an answer with ``size`` bytes of records.

        With ``is_refusable`` False, and they are not counted, for a client that is above a quota with them.
        """
        if is_refusable and (self.note_time() or self._use(CONSUMER_BYTE_RATE, size, size)):
            return False
        if not is_refusable:
            self._use(CONSUMER_BYTE_RATE, size)
        self._broker.metrics.fetch_bytes += size
        return True

    def note_time(self) -> float:
        """Count the loop's time that was spent on this connection; the seconds that it is muted for that."""
        if not self.is_timed:
            return 0.0
        loop_time = self._broker.usage_buckets.loop_time
        loop_time.give_to(loop_time.give_to(None))  # what was spent up to now
        seconds, self.seconds = self.seconds, 0.0
        return self._use(REQUEST_PERCENTAGE, 100 * seconds)

    def may_change(self, partitions: int, *, is_strict: bool = False) -> bool:
        """Count partitions that are to be created or deleted.

        With ``is_strict`` they may not be while the client is above its quota: False, and they are not counted.
        """
        seconds = self._use(CONTROLLER_MUTATION_RATE, partitions, 0 if is_strict else None) if partitions else 0.0
        return not (seconds and is_strict)

    def fetched_bytes_max(self) -> int:
        """The most bytes that one fetch may bring: what the quota gives in its windows."""
        bucket = self._bucket(CONSUMER_BYTE_RATE, trio.current_time()) if self.is_counted else None
        return _INT32_MAX if bucket is None else int(min(bucket.most, _INT32_MAX))

    def _use(self, key: str, amount: float, needed: float | None = None) -> float:
        """Count an amount, and mute the connection while its client is above the quota; for how many seconds.

        Where ``needed`` tokens must be there before, nothing is counted without them.
        """
        if not self.is_counted:
            return 0.0
        now = trio.current_time()
        bucket = self._bucket(key, now)
        if bucket is None:
            return 0.0
        if needed is None:
            bucket.take(amount, now)
        seconds = self._broker.usage_buckets.throttle(bucket, now, needed or 0.0)
        if seconds:
            self.muted_until, self._muted_by = max(self.muted_until, now + seconds), self._quotas.epoch
            self._broker.metrics.muted.add(self)
        elif needed is not None:
            bucket.take(amount, now)
        return seconds

    def _bucket(self, key: str, now: float) -> Bucket | None:
        """The bucket of the client's quota; None if it has none."""
        user = self._session.principal.partition(":")[2]
        return self._broker.usage_buckets.bucket(self._quotas.limit(key, user, self.client_id), now)

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
        return in_steps(cast("Coroutine[Any, Any, ResultT]", work), self.during) if self.is_timed else work

    # --- Waiting ------------------------------------------------------------------------------------------------------

    @property
    def throttle_ms(self) -> int:
        """How long the connection is not read from now on, as an answer tells it."""
        if not self.muted_until:
            return 0
        return min(max(0, math.ceil((self.muted_until - trio.current_time()) * 1000)), _INT32_MAX)

    def wait(self) -> Awaitable[None]:
        """Wait while the connection is muted, which ends early when its quotas are raised or taken away."""
        return result_after(self._broker.live_config.sleep_until(self._until), self.unmute)

    def _until(self) -> float:
        if self._muted_by != self._quotas.epoch:  # there are others now
            now = trio.current_time()
            waits = [bucket.wait(now) for key in KEYS if (bucket := self._bucket(key, now)) is not None]
            self.muted_until = min(self.muted_until, now + max(waits, default=0.0))
        return self.muted_until

    def unmute(self) -> None:
        """The connection is read again, or has ended."""
        self.muted_until = 0.0
        self._broker.metrics.muted.discard(self)
