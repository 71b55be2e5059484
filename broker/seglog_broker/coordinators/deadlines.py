"""Deadlines of many things, of which most are put off again and again before they come."""

import heapq
from typing import Final

_STALE_MIN: Final = 64
"""Entries of a heap that may be stale before it is worth making a new one."""


class Deadlines:
    """A deadline for each key. To put one off costs no more than a dictionary does.

    The heap has an entry for each key at its deadline or before it. An entry that turns out to be too early, or of a
    key that is gone, is corrected when it is the next.
    """

    __slots__ = ("_due", "_entries", "_heap")

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._entries: dict[str, int] = {}  # key -> the time of its one entry that counts
        self._heap: list[tuple[int, str]] = []

    def __contains__(self, key: object) -> bool:
        return key in self._due

    def set(self, key: str, due: int) -> None:
        """Make ``due`` the deadline of ``key``, sooner or later than it was."""
        self._due[key] = due
        entry = self._entries.get(key)
        if entry is None or due < entry:
            self._entries[key] = due
            heapq.heappush(self._heap, (due, key))
            if len(self._heap) > 2 * len(self._due) + _STALE_MIN:
                self._entries = dict(self._due)
                self._heap = [(due, key) for key, due in self._due.items()]
                heapq.heapify(self._heap)

    def discard(self, key: str) -> None:
        """Remove the deadline of ``key``, if there is one."""
        self._due.pop(key, None)

    def earliest(self) -> int | None:
        """The next deadline; None if there is none."""
        heap, entries = self._heap, self._entries
        while heap:
            entry, key = heap[0]
            due = self._due.get(key)
            if entries.get(key) != entry:
                heapq.heappop(heap)
            elif due is None:
                heapq.heappop(heap)
                del entries[key]
            elif due > entry:
                heapq.heapreplace(heap, (due, key))
                entries[key] = due
            else:
                return due
        return None

    def pop_due(self, now: int) -> str | None:
        """The key of the next deadline, which it loses, if that is at ``now`` or before; None if there is none."""
        due = self.earliest()
        if due is None or due > now:
            return None
        _, key = heapq.heappop(self._heap)
        del self._entries[key], self._due[key]
        return key
