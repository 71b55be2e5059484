"""Files of deleted segments and topics, which are removed from the disk later."""

import heapq
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import trio

from seglog_broker.partitions.partition import Partition


class ExpiredSegment(NamedTuple):
    """A segment that retention has removed from its log, and that is still on the disk."""

    base_offset: int
    next_offset: int
    size: int
    rule: str


@dataclass(frozen=True, slots=True)
class PendingDeletion:
    """Files to be removed by calling ``remove`` in a thread; after an OSError it is called again later."""

    what: str  # the files in words, for the log
    remove: Callable[[], int | None]  # returns the number of removed bytes, if known
    partition: Partition | None  # the partition of the files; None for a whole directory of a deleted topic
    segments: tuple[ExpiredSegment, ...] = ()
    is_logged: bool = True  # False: an empty directory whose content was logged before
    failure: str | None = None  # why the last try failed


class PendingDeletions:
    """The deletions that wait, and their due times. Times are loop time, which setting a clock does not change."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, PendingDeletion]] = []
        self._failed: set[PendingDeletion] = set()  # those that wait after an error
        self._numbers = itertools.count()  # keeps the order of equal times, and deletions from being compared
        self._changed = trio.Event()
        self._nothing_due = trio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, deletion: PendingDeletion, delay_seconds: float, *, has_failed: bool = False) -> None:
        """Queue a deletion, due in ``delay_seconds``. With ``has_failed``, ``hasten`` does not affect it."""
        due = trio.current_time() + delay_seconds
        if has_failed:
            self._failed.add(deletion)
        heapq.heappush(self._waiting, (due, next(self._numbers), deletion))
        self._note_change()

    def hasten(self) -> None:
        """Make all deletions due now, because the disk is full; except those that wait after an error."""
        now = trio.current_time()
        if any(due > now and deletion not in self._failed for due, _, deletion in self._waiting):
            self._waiting = [(due if d in self._failed else min(due, now), n, d) for due, n, d in self._waiting]
            heapq.heapify(self._waiting)
            self._note_change()

    async def wait_removed(self) -> None:
        """Return when no due deletion is left."""
        await self._nothing_due.wait()

    def _note_change(self) -> None:
        self._changed.set()
        if self._waiting[0][0] <= trio.current_time() and self._nothing_due.is_set():
            self._nothing_due = trio.Event()

    def waiting_in(self, partition: Partition) -> list[tuple[float, PendingDeletion]]:
        """(loop time when it is due, deletion) for each deletion in a partition's directory."""
        return [(due, deletion) for due, _, deletion in self._waiting if deletion.partition is partition]

    def forget(self, partitions: "Collection[Partition]") -> None:
        """Drop the deletions in directories that are deleted as a whole: their names may soon be other files'."""
        gone = set(partitions)
        self._waiting = [entry for entry in self._waiting if entry[2].partition not in gone]
        self._failed = {deletion for deletion in self._failed if deletion.partition not in gone}
        heapq.heapify(self._waiting)

    async def next_due(self) -> PendingDeletion:
        """Wait until a deletion is due, and remove it from the queue."""
        await trio.lowlevel.checkpoint()  # before the choice, because other tasks may call ``forget`` meanwhile
        while True:
            if self._waiting and self._waiting[0][0] <= trio.current_time():
                deletion = heapq.heappop(self._waiting)[2]
                self._failed.discard(deletion)
                return deletion
            self._changed = trio.Event()
            self._nothing_due.set()
            with trio.move_on_at(self._waiting[0][0] if self._waiting else float("inf")):
                await self._changed.wait()
