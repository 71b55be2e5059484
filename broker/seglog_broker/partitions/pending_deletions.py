"""Files that have left a log or the registry and are removed from the disk later."""

import heapq
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import trio

from seglog_broker.partitions.partition import Partition


class ExpiredSegment(NamedTuple):
    """A segment that has left its log by a rule of retention and is still on the disk."""

    base_offset: int
    next_offset: int
    size: int
    rule: str


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """Something to be removed; ``remove`` runs in a thread, and again after an OSError."""

    what: str  # for the log
    remove: Callable[[], int | None]  # returns the bytes that were in it, if it knows
    partition: Partition | None  # whose directory it is in; None for a whole directory that is no partition any more
    segments: tuple[ExpiredSegment, ...] = ()
    is_logged: bool = True  # False: an empty directory whose content was logged before


class PendingDeletions:
    """What is to be removed, and when. Times are those of the loop, which no clock that is set can move."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, PendingDeletion]] = []
        self._failed: set[PendingDeletion] = set()  # of those that wait
        self._numbers = itertools.count()  # equal times keep their order, and deletions are never compared
        self._changed = trio.Event()
        self._nothing_due = trio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, deletion: PendingDeletion, delay_seconds: float, *, has_failed: bool = False) -> None:
        """Have it removed when that time has passed."""
        due = trio.current_time() + delay_seconds
        if has_failed:
            self._failed.add(deletion)
        heapq.heappush(self._waiting, (due, next(self._numbers), deletion))
        self._note_change()

    def hasten(self) -> None:
        """There is no room on the disk: what waits for nothing but its time is removed now."""
        now = trio.current_time()
        if any(due > now and deletion not in self._failed for due, _, deletion in self._waiting):
            self._waiting = [(due if d in self._failed else min(due, now), n, d) for due, n, d in self._waiting]
            heapq.heapify(self._waiting)
            self._note_change()

    async def wait_removed(self) -> None:
        """Return when nothing is left whose time has come."""
        await self._nothing_due.wait()

    def _note_change(self) -> None:
        self._changed.set()
        if self._waiting[0][0] <= trio.current_time() and self._nothing_due.is_set():
            self._nothing_due = trio.Event()

    def waiting_in(self, partition: Partition) -> list[tuple[float, PendingDeletion]]:
        """What waits in a partition's directory, and the time of the loop when it goes."""
        return [(due, deletion) for due, _, deletion in self._waiting if deletion.partition is partition]

    def forget(self, partitions: "Collection[Partition]") -> None:
        """Whole directories go: nothing in them needs to be removed by name, which may soon be another file's."""
        gone = set(partitions)
        self._waiting = [entry for entry in self._waiting if entry[2].partition not in gone]
        self._failed = {deletion for deletion in self._failed if deletion.partition not in gone}
        heapq.heapify(self._waiting)

    async def next_due(self) -> PendingDeletion:
        """Wait for the next one whose time has come, and take it."""
        await trio.lowlevel.checkpoint()  # before it is chosen: while others have their turn it may be forgotten
        while True:
            if self._waiting and self._waiting[0][0] <= trio.current_time():
                deletion = heapq.heappop(self._waiting)[2]
                self._failed.discard(deletion)
                return deletion
            self._changed = trio.Event()
            self._nothing_due.set()
            with trio.move_on_at(self._waiting[0][0] if self._waiting else float("inf")):
                await self._changed.wait()
