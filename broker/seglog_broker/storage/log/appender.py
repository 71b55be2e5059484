"""Appends one checked batch to the end of a log, at the next offsets."""

from typing import NamedTuple, NoReturn

from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.log_files import LogOffsets, LogSettings, unreadable
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.log.roller import SegmentRoller
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.log.state_file import StateFile
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_protocol import segment_files as names
from seglog_protocol.errors import PartitionReadOnlyError, RecordListTooLargeError, StorageError
from seglog_protocol.record_batch import NO_PRODUCER_ID, BatchHeader, rewrite_offset_and_epoch


class Appended(NamedTuple):
    """Where a batch was appended; ``rolled`` is why a new segment was begun for it, None if none was.

    ``duplicate_of`` is None for a batch that was written, else the timestamp (ms) of the batch that it repeats.
    """

    base_offset: int
    last_offset: int
    rolled: RollReason | None
    duplicate_of: int | None = None


class Appender:
    """Appends to one log, with one leader epoch."""

    __slots__ = (
        "_clock",
        "_directory",
        "_leader_epoch",
        "_offsets",
        "_policy",
        "_producers",
        "_roller",
        "_segments",
        "_settings",
        "_state",
        "_state_file",
    )

    def __init__(
        self,
        directory: str,
        clock: Clock,
        settings: LogSettings,
        offsets: LogOffsets,
        segments: SegmentList,
        state_file: StateFile,
        producers: ProducerState,
        roller: SegmentRoller,
        leader_epoch: int,
    ) -> None:
        """``directory`` is for errors; batches get ``leader_epoch``."""
        self._directory = directory
        self._clock = clock
        self._settings = settings
        self._offsets = offsets
        self._segments = segments
        self._state_file = state_file
        self._state = state_file.state
        self._producers = producers
        self._roller = roller
        self._policy = roller.policy
        self._leader_epoch = leader_epoch

    def append(self, batch: memoryview, header: BatchHeader) -> Appended:
        """Write one checked batch at the log end, with the next offsets and the current epoch.

        ``batch`` is changed in place: its base offset and leader epoch, which its checksum does not cover. One that
        repeats a recent batch of its producer is not written again. Nothing is synced; see ``LogFlusher``. Raises
        PartitionReadOnlyError, RecordListTooLargeError, what ``ProducerState.check`` raises, or StorageError, after
        which the log is unchanged.
        """
        state, offsets = self._state, self._offsets
        if state.read_only is not None:
            self._refuse(state.read_only)
        if header.producer_id > NO_PRODUCER_ID:
            repeated = self._producers.check((header,))
            if repeated is not None:
                return Appended(repeated.base_offset, repeated.last_offset, None, repeated.timestamp)
        size = header.size
        limit = self._settings.config.segment_bytes
        if size > limit:
            raise RecordListTooLargeError(
                f"the batch has {size} bytes, more than segment.bytes = {limit}: send less at once",
                size=size,
                limit=limit,
            )
        base = offsets.end
        last_offset = base + header.last_offset_delta
        if last_offset >= names.OFFSET_MAX:  # the next offset has to fit as well
            raise StorageError(f"offset {last_offset} is beyond what a log can hold")
        now = self._clock.now_ms()
        active = self._segments.active
        try:
            reason = self._policy.reason(active, size, last_offset, header.max_timestamp, now, state.first_append_ms)
        except OSError as error:
            raise unreadable(active, error) from error
        if reason is not None:
            if not self._roller.roll_or_note(base, reason):
                reason = None
            active = self._segments.active
        rewrite_offset_and_epoch(batch, 0, base, self._leader_epoch)
        try:
            position = active.append(batch, last_offset, header.max_timestamp)
        except OSError as error:
            self._cut_back(error)
        active.tail.note(base, last_offset + 1, position, position + size)
        offsets.end = last_offset + 1
        self._producers.apply(header, base, now)
        if state.first_append_ms is None:
            state.first_append_ms = now
            state.active_segment = active.base_offset
            self._state_file.mark_dirty()
        state.last_append_ms = now
        return Appended(base, last_offset, reason)

    @staticmethod
    def _refuse(reason: str) -> NoReturn:
        raise PartitionReadOnlyError(
            f"this partition takes no more records because {reason}; "
            "stop the broker, look at the disk, and start it again when it is sound",
            reason=reason,
        )

    def _cut_back(self, error: OSError) -> NoReturn:
        try:
            self._segments.active.log.cut_back()
        except OSError as second:
            self._state_file.mark_read_only(
                f"a write failed ({why(error)}) and what it left could not be removed ({why(second)})"
            )
        raise storage_error(f"the batch could not be written to {self._directory}: {why(error)}", error) from error
