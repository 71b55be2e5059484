"""The use of its quotas by the client of one connection, and until when the connection is not read for that."""

import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, TypeVar, cast

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config.client_quotas import QuotaTable
from seglog_broker.listeners.session import Session
from seglog_broker.runtime.usage_buckets import Bucket, Worked
from seglog_protocol.quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    KEYS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)

ResultT = TypeVar("ResultT")

PERCENT: Final = 100.0
"""Of the loop's time are all of it."""

_INT32_MAX: Final = 2**31 - 1


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
        """The client's bucket, as long as neither the quotas nor the client change.

        With other quotas a connection is muted as long as it would be by them, if that is shorter.
        """
        known = quotas, principal, client_id = self._broker.live_config.quotas, self._session.principal, self.client_id
        if self._known != known:
            user, find = principal.partition(":")[2], self._broker.usage_buckets.bucket
            self._known = known
            self._buckets = {each: find(each, quotas.limit(each, user, client_id)) for each in KEYS}
            if self.muted_until:
                now = trio.current_time()
                waits = [bucket.meter.wait(now) for bucket in self._buckets.values() if bucket is not None]
                self.muted_until = min(self.muted_until, now + max(waits, default=0.0))
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

    def may_fetch(self, size: int) -> bool:
        """Count as ``note_fetched``; False, and they are not counted, if the client is above a quota with them."""
        if self.is_counted:
            waits = self.note_time() + self._use(CONSUMER_BYTE_RATE, size)
            if waits:
                self._use(CONSUMER_BYTE_RATE, -size)
                return False
        self._broker.metrics.fetch_bytes += size
        return True

    def note_time(self) -> float:
        """Count the loop's time that was spent on this connection; the seconds that it is muted for that."""
        if not self.is_timed:
            return 0.0
        loop_time = self._broker.usage_buckets.loop_time
        loop_time.give_to(loop_time.give_to(None))  # what was spent up to now
        seconds, self.seconds = self.seconds, 0.0
        return self._use(REQUEST_PERCENTAGE, PERCENT * seconds)

    def _use(self, key: str, amount: float) -> float:
        """Count an amount; the seconds that the connection is muted for that."""
        bucket = self._bucket(key)
        if bucket is None:
            return 0.0
        now = trio.current_time()
        bucket.meter.add(amount, now)
        return self._mute(bucket, now) if amount >= 0 else 0.0

    def may_change(self, partitions: int, *, is_strict: bool = False) -> bool:
        """Count partitions that are to be created or deleted.

        With ``is_strict`` they may not be while the client is above its quota: False, and they are not counted.
        """
        bucket = self._bucket(CONTROLLER_MUTATION_RATE) if partitions and self.is_counted else None
        if bucket is None:
            return True
        now = trio.current_time()
        if is_strict and self._mute(bucket, now):
            return False
        bucket.meter.add(partitions, now)
        if not is_strict:
            self._mute(bucket, now)
        return True

    async def wait_to_change(self, partitions: int) -> bool:
        """Count partitions that are to be created or deleted as soon as the client is within its quota; True then."""
        while not self.may_change(partitions, is_strict=True):
            await self.wait()
        return True

    def fetched_bytes_max(self) -> int:
        """The most bytes that one fetch may bring: what the quota gives in the windows that are over."""
        bucket = self._bucket(CONSUMER_BYTE_RATE) if self.is_counted else None
        return _INT32_MAX if bucket is None else int(min(bucket.meter.at_once, _INT32_MAX))

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
        return _in_steps(cast("Coroutine[Any, Any, ResultT]", work), self.during)

    # --- Waiting ------------------------------------------------------------------------------------------------------

    def _mute(self, bucket: Bucket, now: float) -> float:
        """Mute the connection while its client is above a quota; for how many seconds that is."""
        seconds = self._broker.usage_buckets.throttle(bucket, now)
        if seconds:
            self.muted_until = self._broker.metrics.muted[self] = max(self.muted_until, now + seconds)
        return seconds

    @property
    def throttle_ms(self) -> int:
        """How long the connection is not read from now on, as an answer tells it."""
        if not self.muted_until:
            return 0
        return min(max(0, math.ceil((self.muted_until - trio.current_time()) * 1000)), _INT32_MAX)

    async def wait(self) -> None:
        """Wait while the connection is muted, which ends early when its quotas are raised or taken away."""
        await self._broker.live_config.sleep_until(self._until)
        self.unmute()

    def _until(self) -> float:
        self._bucket(REQUEST_PERCENTAGE)  # by the quotas that are in force now
        return self.muted_until

    def unmute(self) -> None:
        """The connection is read again, or has ended."""
        self.muted_until = 0.0
        self._broker.metrics.muted.pop(self, None)


@coroutine
def _in_steps(work: Coroutine[Any, Any, ResultT], during: Callable[..., Any]) -> Generator[Any, Any, ResultT]:
    """Run a coroutine to its end, each of its steps ``during`` its owner's time."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            wanted = during(step, value)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        try:
            step, value = work.send, (yield wanted)
        except BaseException as error:  # noqa: BLE001 - the coroutine raises it, or handles it
            step, value = work.throw, error
