"""A partition in service: its log, who waits for records, and who waits for the disk.

Lives on the loop; the log itself knows nothing of waiting. Flushes of one log never overlap: the first who needs one
runs it, everybody who comes meanwhile shares the next.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import trio

from seglog_broker.answers import RecentAnswer
from seglog_broker.dry_runs import Remembered
from seglog_broker.metrics import Metrics
from seglog_broker.offload import Offload
from seglog_broker.storage.partition_log import Flush, PartitionLog
from seglog_broker.waiting import Waiter
from seglog_protocol.errors import PartitionReadOnlyError, SeglogError, StorageError, UnknownTopicError

log = structlog.get_logger()

DAMAGES_TOLD_MAX: Final = 3
"""Of one partition: enough to make somebody look."""


class Partition:
    """One partition of a topic, while the topic exists."""

    def __init__(self, topic: str, number: int, log: PartitionLog, offload: Offload, metrics: Metrics) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self.waiters: set[Waiter] = set()
        self.recent_answer: RecentAnswer | None = None
        self.dry_run: Remembered | None = None
        self.append_failure: str | None = None  # why the last append could not be written, None if it could
        self.problems: dict[str, str] = {}  # what keeps a background task from its work, by the task's name
        self.maintenance = trio.Lock()  # held while files of the directory change their names off the loop
        self.may_be_cleaned = True
        self.is_deleted = False
        self._offload = offload
        self._metrics = metrics
        self._flushed: trio.Event | None = None  # set when the flush under way has ended
        self._cleaning: tuple[trio.CancelScope, trio.Event] | None = None  # the round under way, and when it has ended

    def note_append(self, size: int) -> None:
        """Wake the fetches that now have enough."""
        for waiter in self.waiters:
            waiter.bytes_wanted -= size
            if waiter.bytes_wanted <= 0:
                waiter.serve()

    def note_deleted(self) -> None:
        """Wake everybody: there is nothing to wait for any more."""
        self.is_deleted = True
        for waiter in self.waiters:
            waiter.wake()

    def note_rolled(self, reason: str) -> None:
        """Count and tell that a new segment was begun."""
        self._metrics.segments_rolled += 1
        base_offset = self.log.active.base_offset
        log.info("segment_rolled", topic=self.topic, partition=self.number, base_offset=base_offset, reason=reason)

    def what_is_wrong(self) -> list[str]:
        """A sentence for an operator about each thing that is wrong here; none when all is well."""
        name, state = f"{self.topic}-{self.number}", self.log.state
        problems = [] if state.read_only is None else [f"{name} is read-only because {state.read_only}"]
        if self.append_failure is not None:
            problems.append(f"{name} takes no records: {self.append_failure}")
        problems += [f"{name}: {task} is held up: {why}" for task, why in self.problems.items()]
        problems += [
            f"{name}: offsets {damage.start_offset} to {damage.end_offset - 1} are {damage.reason}"
            for damage in [d for d in state.damaged if d.end_offset > self.log.log_start_offset][:DAMAGES_TOLD_MAX]
        ]
        return problems

    async def wait_durable(self, offset: int) -> None:
        """Return when every record below ``offset`` survives a power cut.

        May be cancelled; a flush that has begun goes on and is taken note of. Raises PartitionReadOnlyError when the
        disk failed, UnknownTopicError when the topic was deleted meanwhile.
        """
        while self.log.durable_end_offset < offset:
            if self.is_deleted:
                raise UnknownTopicError(f"topic {self.topic} was deleted", topic=self.topic)
            if self.log.state.read_only is not None:
                raise PartitionReadOnlyError(
                    f"it is not known what reached the disk, because {self.log.state.read_only}",
                    topic=self.topic,
                    partition=self.number,
                    reason=self.log.state.read_only,
                )
            if self._flushed is not None:
                await self._flushed.wait()
            else:
                await self._run(self.log.prepare_flush())

    async def checkpoint(self) -> int | None:
        """Sync closed segments and their indexes; return the offset below which no start need read.

        None when that is not known, because the disk failed or the topic is gone.
        """
        wanted = self.log.active.base_offset
        while True:
            while self._flushed is not None:
                await self._flushed.wait()
            if self.is_deleted:
                return None  # its paths may be another topic's by now
            flush = self.log.prepare_checkpoint()
            await self._run(flush)
            if self.log.state.read_only:
                return None
            if flush.end_offset >= wanted:
                return flush.end_offset

    @property
    def can_be_cleaned(self) -> bool:
        """Whether a round of compaction may begin."""
        return (
            self._cleaning is None
            and self.may_be_cleaned
            and not self.is_deleted
            and self.log.state.read_only is None
            and "compact" in self.log.config.cleanup_policy
        )

    @property
    def is_being_cleaned(self) -> bool:
        """Whether a round of compaction is under way; meanwhile the segments below the active one stay as they are."""
        return self._cleaning is not None

    @contextmanager
    def clean(self) -> Iterator[trio.CancelScope]:
        """Mark a round of compaction; the scope is cancelled when it is not wanted any more."""
        scope, ended = trio.CancelScope(), trio.Event()
        self._cleaning = scope, ended
        try:
            yield scope
        finally:
            self._cleaning = None
            ended.set()

    async def stop_cleaning(self) -> None:
        """Let no round of compaction begin, end the one that is under way, and return when it has left."""
        self.may_be_cleaned = False
        if self._cleaning is not None:
            scope, ended = self._cleaning
            scope.cancel()
            await ended.wait()

    async def save_state(self) -> None:
        """Bring what is remembered of this partition to the disk, if it has changed. OSError: it is tried again."""
        async with self.maintenance:
            write = None if self.is_deleted else self.log.prepare_state()
            if write is None:
                return
            written = False
            try:
                await self._offload.maintenance(write.run)
                written = True
            finally:
                self.log.finish_state(written=written)

    async def _run(self, flush: Flush) -> None:
        self._flushed = trio.Event()
        error: OSError | None = None
        began = trio.current_time()
        # Shielded: an fsync whose outcome nobody takes note of would leave pages that are neither dirty nor on disk.
        with trio.CancelScope(shield=True):
            try:
                await self._offload.fsync(flush.run)
            except OSError as failure:
                error = failure
            finally:
                self._metrics.fsyncs += 1
                self._metrics.fsync_seconds_max = max(self._metrics.fsync_seconds_max, trio.current_time() - began)
                if self.is_deleted:
                    flush.release()
                else:
                    self.log.finish_flush(flush, error)
                self._flushed.set()
                self._flushed = None
        if error is not None and self.log.state.read_only is None and not self.is_deleted:
            failed = StorageError(f"{self.topic}-{self.number} could not be synced now: {error}; try again")
            failed.retriable = True
            raise failed from error

    def placed(self, error: SeglogError) -> SeglogError:
        """The error with topic and partition among its facts, for whoever reads it far from here."""
        placed = type(error)(error.message, **({"topic": self.topic, "partition": self.number} | error.facts))
        placed.retriable = error.retriable
        return placed
