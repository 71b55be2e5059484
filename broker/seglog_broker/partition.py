"""A partition in service: its log, who waits for records, and who waits for the disk.

Lives on the loop; the log itself knows nothing of waiting. Flushes of one log never overlap: the first who needs one
runs it, everybody who comes meanwhile shares the next.
"""

import trio

from seglog_broker.answers import RecentAnswer
from seglog_broker.metrics import Metrics
from seglog_broker.offload import Offload
from seglog_broker.storage.partition_log import Flush, PartitionLog
from seglog_broker.waiting import Waiter
from seglog_protocol.errors import PartitionReadOnlyError, SeglogError, StorageError, UnknownTopicError


class Partition:
    """One partition of a topic, while the topic exists."""

    def __init__(self, topic: str, number: int, log: PartitionLog, offload: Offload, metrics: Metrics) -> None:
        self.topic = topic
        self.number = number
        self.log = log
        self.waiters: set[Waiter] = set()
        self.recent_answer: RecentAnswer | None = None
        self.append_failure: str | None = None  # why the last append could not be written, None if it could
        self._offload = offload
        self._metrics = metrics
        self._flushed: trio.Event | None = None  # set when the flush under way has ended
        self._is_deleted = False

    def note_append(self, size: int) -> None:
        """Wake the fetches that now have enough."""
        for waiter in self.waiters:
            waiter.bytes_wanted -= size
            if waiter.bytes_wanted <= 0:
                waiter.serve()

    def note_deleted(self) -> None:
        """Wake everybody: there is nothing to wait for any more."""
        self._is_deleted = True
        for waiter in self.waiters:
            waiter.wake()

    async def wait_durable(self, offset: int) -> None:
        """Return when every record below ``offset`` survives a power cut.

        May be cancelled; a flush that has begun goes on and is taken note of. Raises PartitionReadOnlyError when the
        disk failed, UnknownTopicError when the topic was deleted meanwhile.
        """
        while self.log.durable_end_offset < offset:
            if self._is_deleted:
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
        """Sync closed segments and their indexes; return the offset below which no start need read, None: it failed."""
        while self._flushed is not None:
            await self._flushed.wait()
        flush = self.log.prepare_checkpoint()
        await self._run(flush)
        return None if self.log.state.read_only else flush.end_offset

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
                if self._is_deleted:
                    flush.release()
                else:
                    self.log.finish_flush(flush, error)
                self._flushed.set()
                self._flushed = None
        if error is not None and self.log.state.read_only is None and not self._is_deleted:
            failed = StorageError(f"{self.topic}-{self.number} could not be synced now: {error}; try again")
            failed.retriable = True
            raise failed from error

    def placed(self, error: SeglogError) -> SeglogError:
        """The error with topic and partition among its facts, for whoever reads it far from here."""
        placed = type(error)(error.message, **({"topic": self.topic, "partition": self.number} | error.facts))
        placed.retriable = error.retriable
        return placed
