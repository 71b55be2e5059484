"""Appending: one checked batch at the end of a log, under the next offsets."""

from typing import NamedTuple, NoReturn

from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.log.rolling import LogRolling
from seglog_broker.storage.log.state import LogWithState
from seglog_protocol import segment_files as names
from seglog_protocol.errors import PartitionReadOnlyError, RecordListTooLargeError, StorageError
from seglog_protocol.record_batch import NO_PRODUCER_ID, BatchHeader, rewrite_offset_and_epoch


class Appended(NamedTuple):
    """Where a batch is; ``rolled`` says why a new segment was begun for it, None if none was.

    ``duplicate_of`` is None for a batch that was written, else the timestamp (ms) of the one that it repeats.
    """

    base_offset: int
    last_offset: int
    rolled: RollReason | None
    duplicate_of: int | None = None


class LogAppending(LogRolling, LogWithState):
    """A log that is appended to."""

    def append(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Write one checked batch at the end, under the next offsets and the current epoch.

        ``batch`` is changed in place: its base offset and leader epoch, which its checksum does not cover. One that
        repeats a recent batch of its producer is not written again. Nothing is synced; see ``flush``. Raises
        PartitionReadOnlyError, RecordListTooLargeError, what ``ProducerState.check`` raises, or StorageError with the
        log as it was before.
        """
        self._refuse_if_read_only()
        if header.producer_id > NO_PRODUCER_ID:
            repeated = self.producers.check((header,))
            if repeated is not None:
                return Appended(repeated.base_offset, repeated.last_offset, None, repeated.timestamp)
        size = header.size
        if size > self.config.segment_bytes:
            raise RecordListTooLargeError(
                f"the batch has {size} bytes, more than segment.bytes = {self.config.segment_bytes}: send less at once",
                size=size,
                limit=self.config.segment_bytes,
            )
        base = self.log_end_offset
        last_offset = base + header.last_offset_delta
        if last_offset >= names.OFFSET_MAX:  # the next offset has to fit as well
            raise StorageError(f"offset {last_offset} is beyond what a log can hold")
        now = self._clock.now_ms()
        try:
            reason = self._roll_reason(size, last_offset, header.max_timestamp, now)
        except OSError as error:
            raise self._unreadable(self.active, error) from error
        if reason is not None and not self._roll_or_note(base, reason):
            reason = None
        rewrite_offset_and_epoch(batch, 0, base, self.leader_epoch)
        try:
            position = self.active.append(batch, last_offset, header.max_timestamp)
        except OSError as error:
            self._cut_back(error)
        self.active.tail.note(base, last_offset + 1, position, position + size)
        self.log_end_offset = last_offset + 1
        self.producers.apply(header, base, now)
        state = self.state
        if state.first_append_ms is None:
            state.first_append_ms = now
            state.active_segment = self._bases[-1]
            self._state_unsaved = True
        state.last_append_ms = now
        return Appended(base, last_offset, reason)

    def _refuse_if_read_only(self) -> None:
        if self.state.read_only is not None:
            raise PartitionReadOnlyError(
                f"this partition takes no more records because {self.state.read_only}; "
                "stop the broker, look at the disk, and start it again when it is sound",
                reason=self.state.read_only,
            )

    def _cut_back(self, error: OSError) -> NoReturn:
        try:
            self.active.cut_back()
        except OSError as second:
            self.mark_read_only(f"a write failed ({why(error)}) and what it left could not be removed ({why(second)})")
        raise storage_error(f"the batch could not be written to {self.directory}: {why(error)}", error) from error
