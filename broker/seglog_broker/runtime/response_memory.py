"""One memory budget for the large responses of all connections.

The memory of a response is counted while it is made (``Room.add``), before its parts exist. Beyond LARGE_BYTES it needs
one of LARGE_MAX places, which it keeps until its peer has taken it; it waits for that without holding up anything else.
Beyond RESPONSE_BYTES_MAX its parts are refused, each with an error. While others wait for a place, a peer that takes a
large response too slowly is cut off.
"""

import math
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
"""While others wait for a place, a response must be taken at PACE_BYTES a second, after GRACE_SECONDS."""

RESPONSES_BYTES_MAX: Final = 2 * LARGE_MAX * RESPONSE_BYTES_MAX
"""Memory of all large responses together: what each is made of, and its bytes."""


class ResponseMemory:
    """The places of large responses."""

    def __init__(self) -> None:
        self._places = trio.Semaphore(LARGE_MAX)

    @property
    def waiting(self) -> int:
        """The number of responses that wait for a place."""
        return self._places.statistics().tasks_waiting

    def room(self) -> "Room":
        """Room for another response. Whoever makes it ends with ``close``."""
        return Room(self._places)


class Room:
    """The memory that one response takes, in bytes, as estimated while it is made."""

    __slots__ = ("_has_place", "_places", "_sent_until", "used")

    def __init__(self, places: trio.Semaphore) -> None:
        self._places = places
        self._has_place = False
        self._sent_until = math.inf  # when its peer should have taken it
        self.used = 0

    def add(self, size: int) -> bool:
        """Count ``size`` bytes that are to be added to the response. False: they do not fit, and are not counted."""
        if self.used + size > RESPONSE_BYTES_MAX:
            return False
        self.used += size
        return True

    async def wait(self) -> None:
        """Wait for a place, if the response has become large. A checkpoint only then."""
        if self.used > LARGE_BYTES and not self._has_place:
            await self._places.acquire()
            self._has_place = True

    def note_sending(self, size: int) -> None:
        """The response is written, ``size`` bytes with its records, and its peer begins to take it."""
        self._sent_until = trio.current_time() + GRACE_SECONDS + size / PACE_BYTES

    @property
    def is_too_slow(self) -> bool:
        """Whether the peer takes a large response too slowly while others wait for its place."""
        if not self._has_place or not self._places.statistics().tasks_waiting:
            return False
        return trio.current_time() > self._sent_until

    def close(self) -> None:
        """The response is sent, or lost; the room is that of another one now."""
        self.used = 0
        self._sent_until = math.inf
        if self._has_place:
            self._has_place = False
            self._places.release()
