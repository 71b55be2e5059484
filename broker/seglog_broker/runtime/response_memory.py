"""One memory budget for the large responses of all connections.

The memory of a response is counted while it is made (``Room.add``), before its parts exist. Beyond LARGE_BYTES it needs
one of LARGE_MAX places, which it keeps until its peer has taken it; it waits for that without holding up anything else.
Beyond RESPONSE_BYTES_MAX its parts are refused, each with an error.

A place goes to the oldest response that waits, but first to addresses that hold fewer places. While others wait, a peer
that takes its response too slowly is cut off. The more wait, the sooner: so peers that take nothing, however many they
are, hold up another one for some ten seconds in all, and one of another address for a second.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest response: of what it is made of, and of what it is written to."""

LARGE_BYTES: Final = 64 * 1024
"""A larger response needs a place."""

LARGE_MAX: Final = 4
"""Large responses at a time."""

PART_BYTES: Final = 128
"""Bytes that one element of a response stands for, beside its names and data: more than it takes on the wire."""

GRACE_SECONDS: Final = 5.0
PACE_BYTES: Final = 1024 * 1024
"""A response must be taken at PACE_BYTES a second, after GRACE_SECONDS, once another one waits for a place; both for
each place that there is. When 20 wait for 4 places it must be six times as fast."""

CHECK_SECONDS: Final = 0.25
"""A response that waits looks so often whether a place is held for too long."""

RESPONSES_BYTES_MAX: Final = 2 * LARGE_MAX * RESPONSE_BYTES_MAX
"""Memory of all large responses together: what each is made of, and its bytes."""


class ResponseMemory:
    """The places of large responses."""

    def __init__(self) -> None:
        self.response_bytes_max = RESPONSE_BYTES_MAX
        self.large_max = LARGE_MAX
        self._holding: dict[Room, None] = {}
        self._waiting: dict[Room, trio.Event] = {}  # the oldest first

    @property
    def waiting(self) -> int:
        """The number of responses that wait for a place."""
        return len(self._waiting)

    @property
    def used(self) -> int:
        """Bytes of the large responses that hold a place, as estimated when they were made."""
        return sum(room.used for room in self._holding)

    def room(self, address: str = "") -> "Room":
        """Room for another response, to a peer at ``address``. Whoever makes it ends with ``close``."""
        return Room(self, address)

    async def take_place(self, room: "Room") -> None:
        """Wait for a place for ``room``. A checkpoint only if it has to wait. May be cancelled."""
        if len(self._holding) < self.large_max and not self._waiting:
            self._holding[room] = None
            return
        self._waiting[room] = given = trio.Event()
        try:
            while not given.is_set():
                with trio.move_on_after(CHECK_SECONDS):
                    await given.wait()
                share = self.large_max / (self.large_max + len(self._waiting))
                for holder in self._holding if self._waiting else ():
                    holder.cut_if_slow(share)
        except BaseException:
            if given.is_set():
                self.give_back(room)
            raise
        finally:
            self._waiting.pop(room, None)

    def give_back(self, room: "Room") -> None:
        """``room`` needs no place any more; nothing if it has none."""
        if room not in self._holding:
            return
        del self._holding[room]
        while self._waiting and len(self._holding) < self.large_max:
            held = Counter(holder.address for holder in self._holding)
            following = min(self._waiting, key=lambda waiting: held[waiting.address])
            self._holding[following] = None
            self._waiting.pop(following).set()


class Room:
    """The memory that one response takes, in bytes, as estimated while it is made."""

    __slots__ = ("_began", "_has_place", "_memory", "_sending", "_taken", "address", "used")

    def __init__(self, memory: ResponseMemory, address: str) -> None:
        self._memory = memory
        self._has_place = False
        self._sending: trio.CancelScope | None = None  # while its peer takes it
        self._taken: Callable[[], int] = int  # none
        self._began = 0.0  # when its peer began to take it
        self.address = address
        self.used = 0

    def add(self, size: int) -> bool:
        """Count ``size`` bytes that are to be added to the response. False: they do not fit, and are not counted."""
        if self.used + size > self._memory.response_bytes_max:
            return False
        self.used += size
        return True

    async def wait(self) -> None:
        """Wait for a place, if the response has become large. A checkpoint only then."""
        if self.used > LARGE_BYTES and not self._has_place:
            await self._memory.take_place(self)
            self._has_place = True

    async def wait_after(self, turn: Callable[[], Awaitable[None]]) -> None:
        """Wait for a ``turn`` of the loop, then as ``wait``."""
        await turn()
        await self.wait()

    @contextmanager
    def sending(self, taken: Callable[[], int]) -> Iterator[trio.CancelScope]:
        """The response is written, and sent in this block, which is cancelled if its peer takes it too slowly.

        ``taken`` is the number of bytes that the peer has taken so far, from any number on.
        """
        before = taken()
        self._taken = lambda: taken() - before
        self._began = trio.current_time()
        self._sending = scope = trio.CancelScope()
        with scope:
            try:
                yield scope
            finally:
                self._sending, self._taken = None, int

    def cut_if_slow(self, share: float) -> None:
        """Cancel the sending if it takes longer than ``share`` of the time that it may take when few wait."""
        if self._sending is None:
            return
        if trio.current_time() - self._began > share * (GRACE_SECONDS + self._taken() / PACE_BYTES):
            self._sending.cancel()

    def close(self) -> None:
        """The response is sent, or lost; the room is that of another one now."""
        self.used = 0
        if self._has_place:
            self._has_place = False
            self._memory.give_back(self)
