"""Partitions that await crash recovery: their queue and progress, and views of those that wait for room on the disk.

The recovery task takes one after the other with ``next``. Before a topic is deleted, the recovery of its partitions is
stopped with ``hold``.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.io.free_space import Room
from seglog_broker.storage.log.recovery_job import ReadOnlyView, RecoveryJob, RecoveryOutcome
from seglog_protocol.errors import DiskFullError, PartitionRecoveringError

log = get_logger()


@dataclass(slots=True, eq=False)
class Recovery:
    """The recovery of one partition; ``read_bytes`` of its job's ``size`` are read by the current attempt."""

    topic: str
    partition: int
    job: RecoveryJob
    read_bytes: int = 0
    deaths: int = 0  # of processes that worked on it
    logged_at: float = 0.0  # when progress was last logged, loop time
    lacked_room: str | None = None  # the error of an attempt that found no room on the disk; None: no attempt did
    is_postponed: bool = False  # until there is room
    scope: trio.CancelScope | None = None  # of the task that recovers it
    ended: trio.Event = field(default_factory=trio.Event)  # set when the task has left it

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def counted_bytes(self) -> int:
        """``read_bytes``, but not more than the job's ``size``."""
        return min(self.read_bytes, self.job.size)


class Recoveries:
    """The recoveries of one broker, in the order in which they begin."""

    def __init__(self, jobs: Mapping[tuple[str, int], RecoveryJob]) -> None:
        self.bytes = sum(job.size for job in jobs.values())
        self.partitions = len(jobs)
        self._all = {key: Recovery(*key, job) for key, job in jobs.items()}
        self._waiting = list(self._all.values())
        self._held_keys: set[tuple[str, int]] = set()  # partitions that must not be recovered for now
        self._held: list[Recovery] = []  # their recoveries, which no task works on
        self._postponed: list[Recovery] = []  # until there is room on the disk
        self.room: Room | None = None  # the least free space at which one of these was postponed
        self._changed = trio.Event()
        self._done_bytes = 0  # sizes of the jobs that are done
        self.saved_at = 0.0  # when the checkpoints were last written, loop time

    def __len__(self) -> int:
        return len(self._all)

    @property
    def read_bytes(self) -> int:
        """How many of ``bytes`` have been read."""
        return self._done_bytes + sum(recovery.counted_bytes for recovery in self._all.values())

    @property
    def ratio(self) -> float:
        """The share of ``bytes`` that has been read, from 0 to 1."""
        return round(self.read_bytes / self.bytes, 4) if self._all and self.bytes else 1.0

    def progress(self, read_only: Container[tuple[str, int]] = ()) -> dict[str, int] | None:
        """The value of ``HelloReply.recovery``; without ``read_only`` partitions, which are reported as problems."""
        waiting = sum(recovery.job.size for recovery in self._all.values() if recovery.key in read_only)
        left = [recovery for recovery in self._all.values() if recovery.key not in read_only]
        if not left:
            return None
        read_bytes = self._done_bytes + sum(recovery.counted_bytes for recovery in left)
        return {"partitions": len(left), "read_bytes": read_bytes, "bytes": self.bytes - waiting}

    @property
    def without_room(self) -> list[Recovery]:
        """Recoveries of which an attempt found no room on the disk, also if another attempt is under way."""
        return [recovery for recovery in self._all.values() if recovery.lacked_room is not None]

    @property
    def postponed(self) -> int:
        """The number of recoveries that wait for room on the disk, see ``resume``."""
        return len(self._postponed)

    async def next(self) -> Recovery | None:
        """Wait for the next recovery; None when none is left. The caller must call ``begin`` at once."""
        while not self._waiting:
            if not self._held and not self._postponed:
                return None
            await self._changed.wait()
        return self._waiting.pop(0)

    def resume(self) -> None:
        """Queue the postponed recoveries again, because there is room now."""
        self._waiting += self._postponed
        self._postponed.clear()
        self.room = None
        self._wake_waiters()

    def postpone(self, recovery: Recovery, reason: str, room: Room) -> None:
        """Make ``recovery``, which found no room, wait for ``resume``; ``room`` was free, ``reason`` is the error."""
        recovery.lacked_room, recovery.is_postponed = reason, True
        self.room = room if self.room is None else self.room.minimum(room)

    def begin(self, recovery: Recovery) -> trio.CancelScope:
        """Begin an attempt, which ends with ``leave``. ``hold`` cancels the scope that is returned."""
        recovery.scope, recovery.ended = trio.CancelScope(), trio.Event()
        recovery.read_bytes, recovery.is_postponed = 0, False
        return recovery.scope

    def leave(self, recovery: Recovery) -> None:
        """End an attempt. Unless the recovery is ``done``, it is queued again.

        If it is held, that happens after ``let_go``; if it was postponed, after ``resume``.
        """
        assert recovery.scope is not None
        if recovery.key in self._held_keys and recovery.key in self._all:
            self._held.append(recovery)
        elif recovery.key in self._all:
            (self._postponed if recovery.is_postponed else self._waiting).append(recovery)
        self._wake_waiters()
        recovery.scope = None
        recovery.ended.set()

    def done(self, recovery: Recovery) -> None:
        """Remove a recovery whose partition is in service now, or offline."""
        self._done_bytes += recovery.job.size
        del self._all[recovery.key]

    async def hold(self, keys: Iterable[tuple[str, int]]) -> None:
        """Stop the recovery of these partitions until ``let_go`` or ``forget``; returns when attempts have ended."""
        keys = list(keys)
        self._held_keys.update(keys)
        for recovery in [self._all[key] for key in keys if key in self._all]:
            if recovery.scope is not None:
                recovery.scope.cancel()
                await recovery.ended.wait()
            else:
                for queue in (self._waiting, self._postponed):
                    if recovery in queue:
                        queue.remove(recovery)
                        self._held.append(recovery)

    def let_go(self, keys: Iterable[tuple[str, int]]) -> None:
        """Let these partitions be recovered again."""
        self._held_keys.difference_update(keys)
        self._waiting += [recovery for recovery in self._held if recovery.key not in self._held_keys]
        self._held = [recovery for recovery in self._held if recovery.key in self._held_keys]
        self._wake_waiters()

    def forget(self, keys: Iterable[tuple[str, int]]) -> None:
        """Remove the recoveries of these partitions, which are deleted."""
        self._held_keys.difference_update(keys)
        for recovery in [recovery for recovery in self._held if recovery.key not in self._held_keys]:
            self._held.remove(recovery)
            self.bytes -= recovery.job.size
            del self._all[recovery.key]
        self._wake_waiters()

    def refusal(self, topic: str, partition: int) -> PartitionRecoveringError | DiskFullError | None:
        """The error for requests to a partition that is recovering; None when it is not."""
        recovery = self._all.get((topic, partition))
        if recovery is None:
            return None
        if recovery.lacked_room is not None:
            return DiskFullError(
                f"partition {partition} of topic {topic} is read-only until there is room on the disk, which its "
                f"recovery needs ({recovery.lacked_room.rstrip('.')}). The recovery continues by itself once files are "
                "deleted"
            )
        read, size = min(recovery.read_bytes, recovery.job.size), recovery.job.size
        return PartitionRecoveringError(
            f"partition {partition} of topic {topic} is being recovered after a stop that was not clean, {read} of "
            f"{size} bytes are read: try again",
            topic=topic,
            partition=partition,
            read_bytes=read,
            bytes=size,
        )

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Views:
    """Read-only views of partitions whose recovery waits for room on the disk. Background tasks skip them."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, int], tuple[Partition, ReadOnlyView]] = {}
        self.changes = 0
        """Grows whenever one begins or ends."""

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, key: object) -> bool:
        return key in self._all

    def get(self, key: tuple[str, int]) -> Partition | None:
        """The partition over the view for ``key``, or None."""
        found = self._all.get(key)
        return None if found is None else found[0]

    def serve(self, partition: Partition, view: ReadOnlyView) -> None:
        """Serve ``partition``, whose log is ``view``, until ``end``."""
        self.changes += 1
        self._all[partition.topic, partition.number] = partition, view

    def end(self, keys: Iterable[tuple[str, int]], *, is_deleted: bool = False) -> None:
        """Close the views of partitions that were recovered or deleted, and wake the fetches that wait there."""
        for key in keys:
            partition, view = self._all.pop(key, (None, None))
            if partition is not None and view is not None:
                self.changes += 1
                view.close()
                if is_deleted:
                    partition.note_deleted()
                else:
                    partition.wake_all()

    def close(self) -> None:
        """Close all views."""
        self.end(list(self._all))


def log_recovered(key: tuple[str, int], outcome: RecoveryOutcome) -> None:
    """Log what the recovery of a partition found."""
    facts = {"topic": key[0], "partition": key[1]}
    if outcome.rebuilt_indexes:
        log.info("indexes_rebuilt", **facts, segments=outcome.rebuilt_indexes)
    loss = outcome.cut_bytes or outcome.damaged
    (log.warning if loss else log.info)(
        "partition_recovered",
        **facts,
        end_offset=outcome.end_offset,
        scanned_bytes=outcome.scanned_bytes,
        cut_bytes=outcome.cut_bytes,
        set_aside=list(outcome.set_aside),
        damaged=[(d.start_offset, d.end_offset, d.reason) for d in outcome.damaged],
    )
