"""One memory budget for the large requests of all connections, granted as their bytes arrive.

A request of more than 64 KiB that does not arrive as a whole gets its own buffer, which grows to at most twice the
bytes received. So announcing a large request costs nothing. While the budget has no room for more, its connection is
not read.

Half-received requests must not fill the budget and wait for each other. So a part of it, as large as the largest
request, is reserved for one request at a time: the oldest that waits. It can always be received to its end; then the
next one gets the reserve. Also, while others wait, a request that holds memory and arrives too slowly is cut off
(``is_too_slow``).
"""

import math
from bisect import insort
from typing import Final

import trio

from seglog_protocol.frame_receiver import RECEIVE_BYTES, BufferPool, Memory

GRACE_SECONDS: Final = 5.0
PACE_BYTES: Final = 1024 * 1024
"""While others wait for memory, a request must arrive at PACE_BYTES a second, after GRACE_SECONDS."""


RECEIVE_BYTES_MAX: Final = 528 * 1024
"""Bytes that a connection receives at a time, into a buffer that all share: two batches of 256 KiB and their heads."""

HELD_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes that all connections together hold of small requests, beyond RECEIVE_BYTES each, before they receive less."""

DECODED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a second budget, for large requests of Kafka's wire as objects: from their reading until they are served."""


class RequestMemory:
    """A budget of ``limit`` bytes, never exceeded. The caller must refuse requests over ``request_bytes_max``."""

    def __init__(self, limit: int, request_bytes_max: int | None = None) -> None:
        """``request_bytes_max`` is at most half of ``limit``, which it is by default."""
        self.limit = limit
        self.request_bytes_max = min(limit // 2, limit if request_bytes_max is None else request_bytes_max)
        self.pool = BufferPool()
        self.used = 0  # bytes of buffers being filled or served
        self.waits = 0  # how often a request had to wait, since the start
        self._begun = 0  # requests
        self._held = 0  # bytes received that are in no share, beyond RECEIVE_BYTES of each connection
        self._finishing: Share | None = None  # the one that may use the reserve
        self._waiting: list[Share] = []  # the oldest first

    @property
    def waiting(self) -> int:
        """The number of requests that wait for memory."""
        return len(self._waiting)

    @property
    def receive_bytes_max(self) -> int:
        """Bytes that a connection may receive at a time: few while memory is short.

        So all connections together hold no more, outside of the budget, than RECEIVE_BYTES each, HELD_BYTES_MAX and
        twice RECEIVE_BYTES_MAX: one may have received much when the memory for it turns out to be short.
        """
        return RECEIVE_BYTES if self._waiting or self._held > HELD_BYTES_MAX else RECEIVE_BYTES_MAX

    def note_held(self, more: int) -> None:
        """A connection holds ``more`` bytes than before, beyond RECEIVE_BYTES, that are in no share."""
        self._held += more

    def begin(self) -> "Share":
        """The share of a new large request, without memory yet."""
        self._begun += 1
        return Share(self, self._begun)

    def take_now(self, share: "Share", size: int) -> bool:
        """Grant ``share``, the oldest that wants memory, ``size`` more bytes if possible now; return whether it was."""
        if self._finishing is None and not self._fits(size, self.limit - self.request_bytes_max):
            self._finishing = share
        limit = self.limit if share is self._finishing else self.limit - self.request_bytes_max
        if not self._fits(size, limit):
            return False
        self.used += size
        share.size += size
        return True

    def take_spare(self, share: "Share", size: int) -> Memory | None:
        """A spare buffer for a whole request of ``size`` bytes, None if there is none or another request waits."""
        if self._waiting or self._finishing is not None:
            return None
        buffer = self.pool.take(size, self.limit - self.request_bytes_max - self.used)
        if buffer is not None:
            self.used += len(buffer)
            share.size += len(buffer)
        return buffer

    def add_waiting(self, share: "Share") -> None:
        """Add ``share`` to those that wait for memory."""
        self.waits += 1
        insort(self._waiting, share, key=lambda waiting: waiting.number)

    def forget_waiting(self, share: "Share") -> None:
        """Remove ``share`` from those that wait."""
        self._waiting.remove(share)
        self.serve()

    def may_take(self, share: "Share") -> bool:
        """Whether no other request must be served before ``share``."""
        return not self._waiting or share is self._finishing

    def give_back(self, share: "Share") -> None:
        """Take back all memory of ``share``."""
        self.used -= share.size
        share.size = 0
        if self._finishing is share:
            self._finishing = None
        self.serve()

    def serve(self) -> None:
        """Grant memory to waiting requests, strictly the oldest first."""
        while self._waiting:
            finishing = self._finishing
            first = finishing if finishing is not None and finishing.is_waiting else self._waiting[0]
            if not self.take_now(first, first.wanted):
                return
            self._waiting.remove(first)
            first.served.set()

    def _fits(self, size: int, limit: int) -> bool:
        """Whether ``size`` more bytes fit in ``limit``; spare buffers are dropped if necessary."""
        if self.used + size + self.pool.spare_bytes > limit:
            self.pool.clear()
        return self.used + size <= limit


class Share:
    """The memory of one large request, ``size`` bytes. ``close`` it when the request is served, or lost."""

    __slots__ = ("_began", "_memory", "_waited_seconds", "_waiting_since", "number", "served", "size", "wanted")

    def __init__(self, memory: RequestMemory, number: int) -> None:
        self._memory = memory
        self.number = number  # the larger, the younger
        self.size = 0
        self.wanted = 0  # while it waits
        self.served = trio.Event()
        self._began = trio.current_time()
        self._waiting_since = math.inf
        self._waited_seconds = 0.0  # for memory

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for memory."""
        return self._waiting_since < math.inf and not self.served.is_set()

    def take_now(self, size: int) -> bool:
        """Take ``size`` more bytes, if they are there and no other request must be served before; whether it did."""
        return self._memory.may_take(self) and self._memory.take_now(self, size)

    def begin_wait(self, size: int) -> None:
        """Wait for ``size`` more bytes, until ``served`` is set or ``end_wait`` is called, which must follow."""
        self.wanted, self.served = size, trio.Event()
        self._waiting_since = trio.current_time()
        self._memory.add_waiting(self)

    def end_wait(self) -> None:
        """Wait no more."""
        self._waited_seconds += trio.current_time() - self._waiting_since
        self._waiting_since = math.inf
        if not self.served.is_set():
            self._memory.forget_waiting(self)

    def take_spare(self, size: int) -> Memory | None:
        """A spare buffer for a whole request of ``size`` bytes, None if none is available now."""
        return self._memory.take_spare(self, size)

    def is_too_slow(self, received: int) -> bool:
        """Whether the request, with ``received`` bytes so far, is too slow while others wait for its memory."""
        if not self._memory.waiting or not self.size or self.is_waiting:
            return False
        seconds = trio.current_time() - self._began - self._waited_seconds
        return seconds > GRACE_SECONDS + received / PACE_BYTES

    def close(self) -> None:
        """Give everything back."""
        self._memory.give_back(self)
