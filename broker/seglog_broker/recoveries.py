"""Partitions that are still to be read after a stop that was not clean: whose turn it is, how far they are.

Whoever recovers asks ``next`` for one after the other; a topic that is being deleted is taken from them first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import trio

from seglog_broker.storage.recovery_job import RecoveryJob
from seglog_protocol.errors import PartitionRecoveringError


@dataclass(slots=True, eq=False)
class Recovery:
    """One partition; ``read_bytes`` as its job's ``size``, but of the attempt under way."""

    topic: str
    partition: int
    job: RecoveryJob
    read_bytes: int = 0
    deaths: int = 0  # of processes that worked on it
    told_at: float = 0.0  # when progress was last logged, loop time
    scope: trio.CancelScope | None = None  # of whoever works on it
    ended: trio.Event = field(default_factory=trio.Event)  # when they have left it

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.topic, self.partition


class Recoveries:
    """Those of one broker, in the order in which they are begun."""

    def __init__(self, jobs: Mapping[tuple[str, int], RecoveryJob]) -> None:
        self.bytes = sum(job.size for job in jobs.values())
        self.partitions = len(jobs)
        self._all = {key: Recovery(*key, job) for key, job in jobs.items()}
        self._waiting = list(self._all.values())
        self._unwanted: set[tuple[str, int]] = set()  # nobody may work on these,
        self._held: list[Recovery] = []  # and nobody does
        self._changed = trio.Event()
        self._done_bytes = 0  # of partitions that are done with
        self.saved_at = 0.0  # when the checkpoints last said so, loop time

    def __len__(self) -> int:
        return len(self._all)

    @property
    def read_bytes(self) -> int:
        """How much of ``bytes`` has been read."""
        return self._done_bytes + sum(min(recovery.read_bytes, recovery.job.size) for recovery in self._all.values())

    @property
    def ratio(self) -> float:
        """How much of it all has been read, from 0 to 1."""
        return round(self.read_bytes / self.bytes, 4) if self._all and self.bytes else 1.0

    def told(self) -> dict[str, int] | None:
        """As ``HelloReply.recovery``."""
        if not self._all:
            return None
        return {"partitions": len(self._all), "read_bytes": self.read_bytes, "bytes": self.bytes}

    async def next(self) -> Recovery | None:
        """The next one to work on, None when none is left; whoever takes it calls ``begin`` at once."""
        while not self._waiting:
            if not self._held:
                return None
            await self._changed.wait()
        return self._waiting.pop(0)

    def begin(self, recovery: Recovery) -> trio.CancelScope:
        """Somebody works on it until ``leave``; the scope is cancelled when that is not wanted any more."""
        recovery.scope, recovery.ended = trio.CancelScope(), trio.Event()
        recovery.read_bytes = 0
        return recovery.scope

    def leave(self, recovery: Recovery) -> None:
        """Nobody works on it any more. Unless it is ``done`` it is to be begun again, when nobody holds it."""
        assert recovery.scope is not None
        if recovery.key in self._all:
            (self._held if recovery.key in self._unwanted else self._waiting).append(recovery)
            self._tell()
        recovery.scope = None
        recovery.ended.set()

    def done(self, recovery: Recovery) -> None:
        """It is in service, or offline."""
        self._done_bytes += recovery.job.size
        del self._all[recovery.key]

    async def hold(self, keys: Iterable[tuple[str, int]]) -> None:
        """Let nobody work on these until ``let_go`` or ``forget``; returns when nobody does."""
        keys = list(keys)
        self._unwanted.update(keys)
        for recovery in [self._all[key] for key in keys if key in self._all]:
            if recovery.scope is not None:
                recovery.scope.cancel()
                await recovery.ended.wait()
            elif recovery in self._waiting:
                self._waiting.remove(recovery)
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

    def refusal(self, topic: str, partition: int) -> PartitionRecoveringError | None:
        """What to tell those who want something of a partition, None when it is not recovering."""
        recovery = self._all.get((topic, partition))
        if recovery is None:
            return None
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
