"""One budget of memory for the large requests of all connections.

A request that announces more than 64 KiB gets a buffer of its own, and only when the budget has room for it: until then
its connection is not read, and the peer waits. First come, first served: a large request is not overtaken for ever by
small ones. Spare buffers, kept for the next request, count too, and are dropped before anybody has to wait.
"""

from collections import deque

import trio

from seglog_protocol.frames import BufferPool


class RequestMemory:
    """``limit`` bytes. A request that is larger than that must be refused by whoever asks."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.pool = BufferPool()
        self.used = 0  # bytes of buffers that are being filled or served
        self.waits = 0  # requests that had to wait, since the start
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._waiting)

    async def take(self, size: int) -> None:
        """Return when ``size`` bytes may be used; a checkpoint only if that has to wait. May be cancelled."""
        if not self._waiting and self._take_now(size):
            return
        self.waits += 1
        mine = (size, trio.Event())
        self._waiting.append(mine)
        try:
            await mine[1].wait()
        except trio.Cancelled:
            if mine[1].is_set():
                self.give_back(size)  # it came too late
            else:
                self._waiting.remove(mine)
                self._serve()  # those behind may be smaller
            raise

    def correct(self, taken: int, used: int) -> None:
        """Of ``taken`` bytes really ``used`` are in use: a spare buffer may be larger than what was asked for."""
        self.used += used - taken

    def give_back(self, size: int) -> None:
        """``size`` bytes are not used any more."""
        self.used -= size
        self._serve()

    def _take_now(self, size: int) -> bool:
        if self.used + size + self.pool.spare_bytes > self.limit:
            self.pool.clear()
            if self.used + size > self.limit:
                return False
        self.used += size
        return True

    def _serve(self) -> None:
        while self._waiting and self._take_now(self._waiting[0][0]):
            self._waiting.popleft()[1].set()
