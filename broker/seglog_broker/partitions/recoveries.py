"""Queue and progress of partitions awaiting crash recovery.

The recovery task takes one after the other with ``next``. The partitions of a topic that is being deleted are held back
first.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
import trio

from seglog_broker.storage.io.free_space import Room
from seglog_broker.storage.log.recovery_job import RecoveryJob, RecoveryOutcome
from seglog_protocol.errors import DiskFullError, PartitionRecoveringError

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Recovery:
    """One partition; ``read_bytes`` as its job's ``size``, but of the attempt under way."""

    topic: str
    partition: int
    job: RecoveryJob
    read_bytes: int = 0
    deaths: int = 0  # of processes that worked on it
    told_at: float = 0.0  # when progress was last logged, loop time
    lacked_room: str | None = None  # what an attempt found no room for on the disk; None: none was stopped by that
    is_postponed: bool = False  # until there is some
    scope: trio.CancelScope | None = None  # of the task that recovers it
    ended: trio.Event = field(default_factory=trio.Event)  # when they have left it

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def counted_bytes(self) -> int:
        """What has been read, of its job's ``size`` at most."""
        return min(self.read_bytes, self.job.size)


class Recoveries:
    """Those of one broker, in the order in which they are begun."""

    def __init__(self, jobs: Mapping[tuple[str, int], RecoveryJob]) -> None:
        self.bytes = sum(job.size for job in jobs.values())
        self.partitions = len(jobs)
        self._all = {key: Recovery(*key, job) for key, job in jobs.items()}
        self._waiting = list(self._all.values())
        self._unwanted: set[tuple[str, int]] = set()  # these are not begun,
        self._held: list[Recovery] = []  # and these are being worked on by no task
        self._postponed: list[Recovery] = []  # until there is room on the disk
        self.room: Room | None = None  # that there was, at the least, when these were postponed
        self._changed = trio.Event()
        self._done_bytes = 0  # of partitions that are done with
        self.saved_at = 0.0  # when the checkpoints last said so, loop time

    def __len__(self) -> int:
        return len(self._all)

    @property
    def read_bytes(self) -> int:
        """How much of ``bytes`` has been read."""
        return self._done_bytes + sum(recovery.counted_bytes for recovery in self._all.values())

    @property
    def ratio(self) -> float:
        """How much of it all has been read, from 0 to 1."""
        return round(self.read_bytes / self.bytes, 4) if self._all and self.bytes else 1.0

    def progress(self, read_only: Container[tuple[str, int]] = ()) -> dict[str, int] | None:
        """As ``HelloReply.recovery``; of those that are ``read_only`` until there is room something else is said."""
        waiting = sum(recovery.job.size for recovery in self._all.values() if recovery.key in read_only)
        left = [recovery for recovery in self._all.values() if recovery.key not in read_only]
        if not left:
            return None
        read_bytes = self._done_bytes + sum(recovery.counted_bytes for recovery in left)
        return {"partitions": len(left), "read_bytes": read_bytes, "bytes": self.bytes - waiting}

    @property
    def without_room(self) -> list[Recovery]:
        """Those of which an attempt found no room on the disk, also where another one is under way."""
        return [recovery for recovery in self._all.values() if recovery.lacked_room is not None]

    @property
    def postponed(self) -> int:
        """How many wait until there is room, see ``resume``."""
        return len(self._postponed)

    async def next(self) -> Recovery | None:
        """The next one to work on, None when none is left; the caller calls ``begin`` at once."""
        while not self._waiting:
            if not self._held and not self._postponed:
                return None
            await self._changed.wait()
        return self._waiting.pop(0)

    def resume(self) -> None:
        """There is room now: those that waited for it are to be begun again."""
        self._waiting += self._postponed
        self._postponed.clear()
        self.room = None
        self._tell()

    def postpone(self, recovery: Recovery, reason: str, room: Room) -> None:
        """Its recovery found no room on the disk, when there was ``room``; it is not begun again before ``resume``."""
        recovery.lacked_room, recovery.is_postponed = reason, True
        self.room = room if self.room is None else self.room.least(room)

    def begin(self, recovery: Recovery) -> trio.CancelScope:
        """Work on it begins, until ``leave``. The scope is cancelled when the work is not wanted any more."""
        recovery.scope, recovery.ended = trio.CancelScope(), trio.Event()
        recovery.read_bytes, recovery.is_postponed = 0, False
        return recovery.scope

    def leave(self, recovery: Recovery) -> None:
        """The work on it has ended. Unless it is ``done`` it starts again as soon as nothing holds it.

        One that was postponed waits for ``resume``.
        """
        assert recovery.scope is not None
        if recovery.key in self._unwanted and recovery.key in self._all:
            self._held.append(recovery)
        elif recovery.key in self._all:
            (self._postponed if recovery.is_postponed else self._waiting).append(recovery)
        self._tell()
        recovery.scope = None
        recovery.ended.set()

    def done(self, recovery: Recovery) -> None:
        """It is in service, or offline."""
        self._done_bytes += recovery.job.size
        del self._all[recovery.key]

    async def hold(self, keys: Iterable[tuple[str, int]]) -> None:
        """Keep these from being recovered until ``let_go`` or ``forget``; returns when work on them has ended."""
        keys = list(keys)
        self._unwanted.update(keys)
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
        """They may be worked on again."""
        self._unwanted.difference_update(keys)
        self._waiting += [recovery for recovery in self._held if recovery.key not in self._unwanted]
        self._held = [recovery for recovery in self._held if recovery.key in self._unwanted]
        self._tell()

    def forget(self, keys: Iterable[tuple[str, int]]) -> None:
        """They are deleted."""
        self._unwanted.difference_update(keys)
        for recovery in [recovery for recovery in self._held if recovery.key not in self._unwanted]:
            self._held.remove(recovery)
            self.bytes -= recovery.job.size
            del self._all[recovery.key]
        self._tell()

    def refusal(self, topic: str, partition: int) -> PartitionRecoveringError | DiskFullError | None:
        """The error for requests to a partition that is recovering; None when it is not."""
        recovery = self._all.get((topic, partition))
        if recovery is None:
            return None
        if recovery.lacked_room is not None:
            return DiskFullError(
                f"partition {partition} of topic {topic} is read-only until there is room on the disk, which its "
                f"recovery needs ({recovery.lacked_room.rstrip('.')}). It goes on by itself when something is deleted"
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

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def log_recovered(key: tuple[str, int], outcome: RecoveryOutcome) -> None:
    """Log what the recovery of a partition found."""
    facts = dict(zip(("topic", "partition"), key, strict=True))
    if outcome.rebuilt_indexes:
        log.info("indexes_rebuilt", **facts, segments=outcome.rebuilt_indexes)
    loss = outcome.cut_bytes or outcome.damaged
    (log.warning if loss else log.info)(
        "partition_recovered",
        **facts,
        end_offset=outcome.end_offset,
        scanned_bytes=outcome.scanned_bytes,
        cut_bytes=outcome.cut_bytes,
        damaged=[(d.start_offset, d.end_offset, d.reason) for d in outcome.damaged],
    )
