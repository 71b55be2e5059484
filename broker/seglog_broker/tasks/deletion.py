"""Delayed deletion: what has left a log or the registry stays on the disk for ``file.delete.delay.ms``, then goes.

Whoever still reads from such a file holds it open and finishes, however long that takes, for only its name is gone;
but while the disk is full it is cut, see ``free_space``. What is still waiting when the broker stops is removed by the
next start.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
import trio

if TYPE_CHECKING:
    from seglog_broker.broker import Broker
    from seglog_broker.partition import Partition

log = structlog.get_logger()

RETRY_SECONDS: Final = 60.0
"""After which a deletion that failed is tried again."""


class GoneSegment(NamedTuple):
    """A segment that has left its log by a rule of retention and is still on the disk."""

    base_offset: int
    next_offset: int
    size: int
    rule: str


@dataclass(frozen=True, slots=True)
class Deletion:
    """Something to be removed; ``remove`` runs in a thread, and again after an OSError."""

    what: str  # for the log
    remove: Callable[[], int | None]  # returns the bytes that were in it, if it knows
    partition: "Partition | None"  # whose directory it is in; None for a whole directory that is no partition any more
    segments: tuple[GoneSegment, ...] = ()


class Deletions:
    """What is to be removed, and when. Times are those of the loop, which no clock that is set can move."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Deletion]] = []
        self._numbers = itertools.count()  # equal times keep their order, and deletions are never compared
        self._changed = trio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, deletion: Deletion, delay_seconds: float) -> None:
        """Have it removed when that time has passed."""
        due = trio.current_time() + delay_seconds
        heapq.heappush(self._waiting, (due, next(self._numbers), deletion))
        self._changed.set()

    def waiting_in(self, partition: "Partition") -> list[tuple[float, Deletion]]:
        """What waits in a partition's directory, and the time of the loop when it goes."""
        return [(due, deletion) for due, _, deletion in self._waiting if deletion.partition is partition]

    def forget(self, partition: "Partition") -> None:
        """Its whole directory goes: nothing in it needs to be removed by name, which may soon be another file's."""
        self._waiting = [entry for entry in self._waiting if entry[2].partition is not partition]
        heapq.heapify(self._waiting)

    async def next_due(self) -> Deletion:
        """Wait for the next one whose time has come, and take it."""
        while True:
            if self._waiting and self._waiting[0][0] <= trio.current_time():
                await trio.lowlevel.checkpoint()
                return heapq.heappop(self._waiting)[2]
            self._changed = trio.Event()
            with trio.move_on_at(self._waiting[0][0] if self._waiting else float("inf")):
                await self._changed.wait()


async def run_deletions(broker: "Broker") -> None:
    """Remove what is due, one after the other; what an earlier run left is put off once more."""
    broker.remove_later(broker.directory.report.doomed)
    while True:
        deletion = await broker.deletions.next_due()
        try:
            if deletion.partition is None:
                await _remove(broker, deletion)
            else:
                async with deletion.partition.maintenance:  # the directory keeps its name as long as this is held
                    if not deletion.partition.is_deleted:
                        await _remove(broker, deletion)
        except OSError as error:
            log.warning("deletion_postponed", what=deletion.what, reason=str(error), seconds=RETRY_SECONDS)
            broker.deletions.add(deletion, RETRY_SECONDS)
        except Exception:
            log.exception("deletion_failed", what=deletion.what, until="the next start")


async def _remove(broker: "Broker", deletion: Deletion) -> None:
    freed = await broker.offload.maintenance(broker.directory.space.with_ballast, deletion.remove)
    log.info("files_removed", what=deletion.what, **({} if freed is None else {"bytes": freed}))
