"""One budget of memory for the large requests of all connections, granted for bytes as they arrive.

A request of more than 64 KiB gets a buffer of its own, and of that only what it needs for the bytes that have come, and
as much again. Announcing a large request costs nothing; where there is no room to go on, its connection is not read.

So that half-arrived requests cannot fill the budget and wait for each other, a part of it, as large as the largest
request there may be, is kept for one request at a time: the oldest of those that wait. It can always be received to its
end; then comes the next. The other rule it takes is about time: while others wait, a request that holds memory and
comes too slowly is cut off (``is_too_slow``).
"""

import math
from bisect import insort
from typing import Final

import trio

from seglog_protocol.frames import BufferPool, Memory

GRACE_SECONDS: Final = 5.0
PACE_BYTES: Final = 1024 * 1024
"""While others wait for memory a request must have come at this many bytes a second, after so many seconds."""


class RequestMemory:
    """``limit`` bytes, never exceeded. A request larger than ``request_bytes_max`` must be refused by the caller."""

    def __init__(self, limit: int, request_bytes_max: int | None = None) -> None:
        """``request_bytes_max`` is at most half of ``limit``, which it is by default."""
        self.limit = limit
        self.request_bytes_max = min(limit // 2, limit if request_bytes_max is None else request_bytes_max)
        self.pool = BufferPool()
        self.used = 0  # bytes of buffers that are being filled or served
        self.waits = 0  # how often a request had to wait, since the start
        self._begun = 0  # requests
        self._finishing: Share | None = None  # the one that may use what is kept for it
        self._waiting: list[Share] = []  # the oldest first

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._waiting)

    def begin(self) -> "Share":
        """The share of one more large request, which has no memory yet."""
        self._begun += 1
        return Share(self, self._begun)

    def take_now(self, share: "Share", size: int) -> bool:
        """Give ``share`` so many bytes more, if that is possible now; it is the oldest that wants any."""
        if self._finishing is None and not self._fits(size, self.limit - self.request_bytes_max):
            self._finishing = share
        limit = self.limit if share is self._finishing else self.limit - self.request_bytes_max
        if not self._fits(size, limit):
            return False
        self.used += size
        share.size += size
        return True

    def take_spare(self, share: "Share", size: int) -> Memory | None:
        """A spare buffer for a whole request of ``size`` bytes, where there is one and no other request waits."""
        if self._waiting or self._finishing is not None:
            return None
        buffer = self.pool.take(size, self.limit - self.request_bytes_max - self.used)
        if buffer is not None:
            self.used += len(buffer)
            share.size += len(buffer)
        return buffer

    def add_waiting(self, share: "Share") -> None:
        """``share`` waits for room."""
        self.waits += 1
        insort(self._waiting, share, key=lambda waiting: waiting.number)

    def forget_waiting(self, share: "Share") -> None:
        """``share`` waits no more."""
        self._waiting.remove(share)
        self.serve()

    def may_take(self, share: "Share") -> bool:
        """Whether ``share`` need not wait behind others."""
        return not self._waiting or share is self._finishing

    def give_back(self, share: "Share") -> None:
        """What ``share`` has is not used any more."""
        self.used -= share.size
        share.size = 0
        if self._finishing is share:
            self._finishing = None
        self.serve()

    def serve(self) -> None:
        """Give those who wait what there is, the oldest first, and nothing to a younger one before."""
        while self._waiting:
            finishing = self._finishing
            first = finishing if finishing is not None and finishing.is_waiting else self._waiting[0]
            if not self.take_now(first, first.wanted):
                return
            self._waiting.remove(first)
            first.served.set()

    def _fits(self, size: int, limit: int) -> bool:
        """Whether there is room below ``limit``, without the spare buffers if need be."""
        if self.used + size + self.pool.spare_bytes > limit:
            self.pool.clear()
        return self.used + size <= limit


class Share:
    """What one large request has of the memory: ``size`` bytes. ``close`` it when the request is served, or lost."""

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
        """Whether it waits for room."""
        return self._waiting_since < math.inf and not self.served.is_set()

    async def take(self, size: int) -> None:
        """Return when it has ``size`` bytes more; a checkpoint only if that has to wait. May be cancelled."""
        memory = self._memory
        if memory.may_take(self) and memory.take_now(self, size):
            return
        self.wanted, self.served = size, trio.Event()
        self._waiting_since = trio.current_time()
        memory.add_waiting(self)
        try:
            await self.served.wait()
        finally:
            self._waited_seconds += trio.current_time() - self._waiting_since
            self._waiting_since = math.inf
            if not self.served.is_set():
                memory.forget_waiting(self)

    def take_spare(self, size: int) -> Memory | None:
        """A spare buffer for all of a request of ``size`` bytes, None where there is none to be had now."""
        return self._memory.take_spare(self, size)

    def is_too_slow(self, received: int) -> bool:
        """Whether the request, of which so many bytes have come, holds memory that others wait for, for too long."""
        if not self._memory.waiting or not self.size or self.is_waiting:
            return False
        seconds = trio.current_time() - self._began - self._waited_seconds
        return seconds > GRACE_SECONDS + received / PACE_BYTES

    def close(self) -> None:
        """Give everything back."""
        self._memory.give_back(self)
