"""Appends checked batches, and the markers of transactions, to the end of a log, at the next offsets."""

from dataclasses import dataclass
from typing import Final, NoReturn

from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.log_files import unreadable
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_broker.storage.segment.index_writer import WrittenBatch
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.errors import PartitionReadOnlyError, RecordListTooLargeError, SeglogError, StorageError
from seglog_protocol.record_batch import LOG_OVERHEAD, BatchHeader, parse_header, rewrite_offset_and_epoch
from seglog_protocol.transaction_files import AbortedTransaction, encode_end_marker

JOINED_BYTES_MAX: Final = 64 * 1024
"""Batches of so many bytes together are copied into one piece to be written: a checksum and a write take longer to
begin than this copy takes."""


@dataclass(slots=True, init=False)
class Appended:
    """Where a batch was appended; ``rolled`` is why a new segment was begun for it, None if none was.

    ``duplicate_of`` is None for a batch that was written, else the timestamp (ms) of the batch that it repeats.
    """

    base_offset: int
    last_offset: int
    rolled: RollReason | None
    duplicate_of: int | None

    # One is made for every batch. The ``__init__`` that dataclass makes is not compiled, and takes four times as long.
    def __init__(
        self, base_offset: int, last_offset: int, rolled: RollReason | None, duplicate_of: int | None = None
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.rolled = rolled
        self.duplicate_of = duplicate_of


class Appender:
    """Appends to one log, with one leader epoch."""

    def __init__(self, log: LoadedLog) -> None:
        self._directory = log.files.directory  # for errors
        self._clock = log.clock
        self._settings = log.settings
        self._offsets = log.offsets
        self._segments = log.segments
        self._state_file = log.state_file
        self._state = log.state_file.state
        self._producers = log.producers
        self._transactions = log.transactions
        self._roller = log.roller
        self._policy = log.roller.policy
        self._leader_epoch = log.leader_epoch  # of the batches
        self._writes_alone = False  # for the rest of a call, after a write of many has failed

    def append(
        self, batches: list[memoryview], headers: list[BatchHeader], *, by_coordinator: bool = False
    ) -> list[Appended | SeglogError]:
        """Write checked batches at the log end, with the next offsets and the current epoch, each as if it came alone.

        ``batches`` are changed in place: base offset and leader epoch, which their checksums do not cover. One that
        repeats a recent batch of its producer is not written again; ``by_coordinator`` none is repeated, and sequences
        do not count. Nothing is synced; see ``LogFlusher``. Returns the outcome of each: where it is, or
        PartitionReadOnlyError, RecordListTooLargeError, what ``ProducerState.check`` raises, or StorageError, after
        which the log is as it was before that batch.
        """
        outcomes: list[Appended | SeglogError] = []
        self._writes_alone = False
        while len(outcomes) < len(headers):
            try:
                outcomes += self._append_some(batches, headers, len(outcomes), by_coordinator=by_coordinator)
            except SeglogError as error:
                outcomes.append(error)
        return outcomes

    def append_marker(self, end: TransactionEnd) -> Appended:
        """Write the marker that ends a producer's transaction here, and enter it in the transaction index if aborted.

        A producer without a transaction here gets a marker all the same, as one that is sent again does. Nothing is
        synced. Raises what ``ProducerState.check_end`` does, PartitionReadOnlyError, or StorageError, after which the
        log is as it was.
        """
        if self._state.read_only is not None:
            self._refuse(self._state.read_only)
        self._producers.check_end(end)
        now = self._clock.now_ms()
        builder = BatchBuilder(
            producer_id=end.producer_id, producer_epoch=end.producer_epoch, transactional=True, control=True
        )
        builder.append(now, *encode_end_marker(end.marker))
        is_stamped = self._settings.config.message_timestamp_type == "LogAppendTime"
        batch = memoryview(bytearray(builder.build(log_append_time=now if is_stamped else None)))
        self._writes_alone = False
        [appended] = self._place([batch], [parse_header(batch)], 0, 1, end)
        return appended

    def _append_some(
        self, batches: list[memoryview], headers: list[BatchHeader], first: int, *, by_coordinator: bool
    ) -> list[Appended]:
        """Write the batch number ``first`` and those behind it that can be written together with it.

        Raises the error of the first one.
        """
        if self._state.read_only is not None:
            self._refuse(self._state.read_only)
        if by_coordinator:
            self._producers.check_of_coordinator(headers[first])
            count = 1
        else:
            count = self._producers.count_new(headers, first)
            if not count:
                repeated = self._producers.check(headers[first])
                assert repeated is not None, "it is either new, or repeated, or refused"
                return [Appended(repeated.base_offset, repeated.last_offset, None, repeated.timestamp)]
        return self._place(batches, headers, first, count)

    def _place(
        self,
        batches: list[memoryview],
        headers: list[BatchHeader],
        first: int,
        count: int,
        end: TransactionEnd | None = None,
    ) -> list[Appended]:
        """Write batches from number ``first`` on, at most ``count``, that can be written together.

        They go to a new segment if it is time. With ``end`` the one batch is its marker. Raises the error of the first.
        """
        state, offsets = self._state, self._offsets
        header = headers[first]
        size = header.size
        limit = self._settings.config.segment_bytes
        if size > limit and end is None:
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
            if self._writes_alone:
                count = 1
            elif count > 1 and reason is None:
                count = self._policy.count_without_roll(active, headers[first : first + count], base)
        except OSError as error:
            raise unreadable(active, error) from error
        if reason is not None:
            count = 1
            if not self._roller.roll_or_note(base, reason):
                reason = None
            active = self._segments.active
        entry = None if end is None or end.is_commit else self._producers.aborted_by(end.producer_id, base)
        if entry is None:
            appended = self._write(active, batches[first : first + count], headers[first : first + count], now, end)
        else:
            appended = self._write_with_entry(active, batches, headers, now, end, entry)
        if reason is not None:
            appended[0].rolled = reason
        if state.first_append_ms is None:
            state.first_append_ms = now
            state.active_segment = active.base_offset
            self._state_file.mark_dirty()
        state.last_append_ms = now
        return appended

    def _write_with_entry(
        self,
        active: Segment,
        batches: list[memoryview],
        headers: list[BatchHeader],
        now: int,
        end: TransactionEnd | None,
        entry: AbortedTransaction,
    ) -> list[Appended]:
        """Write the marker of an aborted transaction and its entry in the transaction index, both or neither.

        The entry is first, and is not used before the marker is there. If a crash comes between, the next load finds
        that it does not belong to the log.
        """
        transactions, base = self._transactions, active.base_offset
        try:
            try:
                transactions.write_ahead(base, entry)
            except OSError as error:
                raise self._not_written(error) from error
            appended = self._write(active, batches, headers, now, end)
        except StorageError as error:
            try:
                transactions.cut_back(base)
            except OSError as second:
                self._state_file.mark_read_only(
                    f"a write failed, and what it left in {transactions.path(base)} could not be removed "
                    f"({why(second)})"
                )
                raise error from second
            raise
        transactions.count_entry(base, entry)
        return appended

    def _write(
        self,
        active: Segment,
        batches: list[memoryview],
        headers: list[BatchHeader],
        now: int,
        transaction_end: TransactionEnd | None = None,
    ) -> list[Appended]:
        """Write batches at the end of the active segment, as one; the first alone where that fails."""
        base, epoch = self._offsets.end, self._leader_epoch
        start = end = active.size
        appended: list[Appended] = []
        written: list[WrittenBatch] = []
        bases: list[int] = []
        positions: list[int] = []
        for batch, header in zip(batches, headers):
            rewrite_offset_and_epoch(batch, 0, base, epoch)
            size, last_offset = header.batch_length + LOG_OVERHEAD, base + header.last_offset_delta
            appended.append(Appended(base, last_offset, None))
            written.append((size, last_offset, header.max_timestamp))
            bases.append(base)
            positions.append(end)
            end += size
            base = last_offset + 1
        try:
            is_joined = len(batches) > 1 and end - start <= JOINED_BYTES_MAX
            active.append((b"".join(batches),) if is_joined else batches, written)
        except OSError as error:
            self._cut_back(error)
            if len(batches) > 1:
                self._writes_alone = True
                return self._write(active, batches[:1], headers[:1], now)
            raise self._not_written(error) from error
        active.tail.note(bases, positions, base, end)
        self._offsets.end = base
        if transaction_end is None:
            self._producers.apply_many(headers, bases, now)
        else:
            self._producers.apply_marker(headers[0], bases[0], transaction_end.marker, now)
        return appended

    @staticmethod
    def _refuse(reason: str) -> NoReturn:
        raise PartitionReadOnlyError(
            f"this partition takes no more records because {reason}; "
            "stop the broker, look at the disk, and start it again when it is sound",
            reason=reason,
        )

    def _cut_back(self, error: OSError) -> None:
        """Remove what a failed write left. Raises StorageError where that fails, too: the log is read-only then."""
        try:
            self._segments.active.log.cut_back()
        except OSError as second:
            self._state_file.mark_read_only(
                f"a write failed ({why(error)}) and what it left could not be removed ({why(second)})"
            )
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> StorageError:
        return storage_error(f"the batch could not be written to {self._directory}: {why(error)}", error)
