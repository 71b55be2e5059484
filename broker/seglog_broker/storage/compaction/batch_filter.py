"""The choice of the batches and records that compaction keeps, for thousands of batches at a time.

Source: Kafka's Cleaner and MemoryRecords.filterTo. The rules are in docs/STORAGE.md; in short: the last record of each
key, tombstones until their delete horizon, everything behind the offset map, and of a batch that something still
depends on at least its header.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from seglog_broker.storage.compaction.batch_rewrite import rewritten_batches
from seglog_broker.storage.compaction.keys import Keys
from seglog_broker.storage.compaction.offset_map import OffsetMap
from seglog_broker.storage.compaction.producers import ActiveProducers, TransactionTracker, read_marker
from seglog_protocol.batch_builder import compacted_batch
from seglog_protocol.batch_columns import BatchColumns, Bools, Int64s
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import CONTROL_BIT, DELETE_HORIZON_BIT, HEADER_SIZE, NO_PRODUCER_ID, TRANSACTIONAL_BIT
from seglog_protocol.record_columns import OpenedBatches, open_batches

NO_HORIZON: Final = -1
FAR_TIME: Final = 1 << 61
"""Larger timestamps and deltas could not be written relative to a delete horizon: batches with such are kept."""
HORIZON_MAX: Final = FAR_TIME >> 1
"""The latest delete horizon, for what stays for ever; timestamps relative to it are none of the far ones."""

_ABORT: Final = "ABORT"


@dataclass(slots=True)
class RecordCounts:
    """Counts of the records that were filtered."""

    read: int = 0
    kept: int = 0
    keyless: int = 0
    tombstones_kept: int = 0
    tombstones_dropped: int = 0
    tombstones_due_ms: int | None = None  # when the first of those that were kept, markers included, may go

    def note_due(self, horizon: int) -> None:
        """Something is kept until ``horizon`` (ms)."""
        if self.tombstones_due_ms is None or horizon < self.tombstones_due_ms:
            self.tombstones_due_ms = horizon


class Filtered(NamedTuple):
    """What is left of some batches: the numbers of those that are, and of the changed ones the new bytes.

    ``records_kept`` has an entry for every batch that came in; ``unreadable`` are numbers of batches whose records
    cannot be opened or written, and which therefore stay as they are.
    """

    left: Int64s
    changed: dict[int, bytes]
    records_kept: Int64s
    unreadable: Int64s


@dataclass(frozen=True, slots=True)
class BatchFilter:
    """One pass over the log from its first batch on: batches come in the order of their offsets, each once."""

    offset_map: OffsetMap
    upper_bound: int
    now_ms: int
    delete_retention_ms: int
    decompressed_batch_bytes_max: int
    transactions: TransactionTracker
    producers: ActiveProducers
    counts: RecordCounts = field(default_factory=RecordCounts)

    @property
    def new_horizon(self) -> int:
        """The delete horizon (ms) of what this pass is the first to find removable."""
        return min(self.now_ms + self.delete_retention_ms, HORIZON_MAX)

    def filter(self, batches: BatchColumns) -> Filtered:
        """Decide over ``batches``, whose checksums were verified."""
        return _Decision(self, batches).made()


class _Decision:
    """The arrays have one entry a batch."""

    def __init__(self, rules: BatchFilter, batches: BatchColumns) -> None:
        self.rules = rules
        self.batches = batches
        count = len(batches)
        self.is_control = batches.attributes & CONTROL_BIT != 0
        # Behind the map nothing is known: what lies wholly there stays as it is.
        self.untouched = batches.base_offset > rules.offset_map.latest_offset
        last_words = np.isin(batches.last_offset, rules.producers.last_data_offsets)
        self.must_stay = last_words & (batches.producer_id != NO_PRODUCER_ID) & ~self.is_control
        self.must_stay |= batches.last_offset + 1 == rules.upper_bound
        self.is_aborted = np.zeros(count, np.bool_)
        self.unreadable = np.zeros(count, np.bool_)
        self.records_kept = np.zeros(count, np.int64)
        self.changed: dict[int, bytes] = {}

    def made(self) -> Filtered:
        batches, counts = self.batches, self.rules.counts
        for number in np.flatnonzero(batches.attributes & (CONTROL_BIT | TRANSACTIONAL_BIT)).tolist():
            if self.is_control[number]:
                self._decide_control(number)
            elif self.rules.transactions.is_aborted(int(batches.producer_id[number]), int(batches.last_offset[number])):
                self.is_aborted[number] = not self.untouched[number]
        has_records = (batches.record_count > 0) | (batches.end - batches.position > HEADER_SIZE)
        wanted = has_records & ~(self.is_control | self.untouched | self.is_aborted)
        if wanted.any():
            limit = self.rules.decompressed_batch_bytes_max
            for opened in open_batches(batches, wanted, size_limit=limit, only=self._known_to_stay(wanted)):
                self._decide_records(opened, wanted)
        as_it_is = self.untouched | self.unreadable
        self.records_kept[as_it_is] = batches.record_count[as_it_is]
        for number in np.flatnonzero(self.must_stay & (self.records_kept == 0) & ~as_it_is).tolist():
            self._keep_header(number)
        left = (self.records_kept > 0) | self.must_stay | as_it_is
        counts.read += int(batches.record_count.sum())
        counts.kept += int(self.records_kept.sum())
        return Filtered(np.flatnonzero(left), self.changed, self.records_kept, np.flatnonzero(self.unreadable))

    def _known_to_stay(self, wanted: Bools) -> Int64s | None:
        """The offsets of the records that can stay, where the map alone knows all of them; None where it does not.

        That is so for dirty batches that no earlier round thinned out: then the others need not even be read.
        """
        batches, offset_map = self.batches, self.rules.offset_map
        first, last = int(batches.base_offset[0]), int(batches.last_offset[-1])
        is_dense = batches.record_count == batches.last_offset_delta + 1
        if (
            not offset_map.is_complete
            or first < offset_map.first_dirty
            or last > offset_map.latest_offset
            or not is_dense[wanted].all()
        ):
            return None
        offsets = offset_map.last_offsets(first, last)
        return offsets if wanted.all() else offsets[wanted[np.searchsorted(batches.last_offset, offsets)]]

    def _decide_control(self, number: int) -> None:
        """Markers stay as long as a batch of their transaction does, and then until their delete horizon."""
        rules, header = self.rules, self.batches.header(number)
        if rules.producers.is_last_marker(header):
            self.must_stay[number] = True
        try:
            records, marker = read_marker(self.batches, number)
        except CorruptRecordError:
            self.unreadable[number] = True
            return
        if not records:
            return  # emptied by an earlier round
        can_go = marker is not None and rules.transactions.end(
            header.producer_id, header.last_offset, is_abort=marker.type == _ABORT, stays=bool(self.untouched[number])
        )
        horizon = header.delete_horizon
        if can_go and horizon is not None and horizon <= rules.now_ms:
            return
        self.records_kept[number] = header.record_count
        if can_go and horizon is None:
            horizon = rules.new_horizon
            self.changed[number] = compacted_batch(header, records, delete_horizon=horizon)
        if horizon is not None:
            rules.counts.note_due(horizon)

    def _keep_header(self, number: int) -> None:
        """A batch without records that must stay: its header, unless it is nothing else already."""
        bare = compacted_batch(self.batches.header(number), ())
        if bare != self.batches.batch(number):
            self.changed[number] = bare

    def _decide_records(self, opened: OpenedBatches, wanted: Bools) -> None:
        batches, records, first = self.batches, opened.records, opened.first
        for number in (*opened.errors, *(first + number for number in records.malformed)):
            self.unreadable[number] = bool(wanted[number])
        self._set_far_times_aside(opened)
        here = slice(opened.first, opened.last)
        attributes = batches.attributes[here]
        has_horizon = attributes & DELETE_HORIZON_BIT != 0
        is_due = has_horizon & (batches.base_timestamp[here] <= self.rules.now_ms)
        is_tombstone = records.value_length < 0
        kept = self._kept(opened, is_due, is_tombstone)

        kept_before = np.append(0, np.cumsum(kept))
        count = np.diff(kept_before[records.first_record])
        self.records_kept[here] += count
        tombstones = np.bincount(records.list_number[kept & is_tombstone], minlength=opened.last - first)
        self.rules.counts.tombstones_kept += int(tombstones.sum())
        needs_horizon = (tombstones > 0) & ~has_horizon
        horizons = np.where(has_horizon, batches.base_timestamp[here], NO_HORIZON)
        horizons[needs_horizon] = self.rules.new_horizon
        if tombstones.any():
            self.rules.counts.note_due(int(horizons[tombstones > 0].min()))
        whole = (count == batches.record_count[here]) & ~needs_horizon
        to_rewrite = np.flatnonzero((count > 0) & ~whole & ~self.unreadable[here])
        if to_rewrite.size:
            self.changed.update(rewritten_batches(batches, opened, kept, to_rewrite, horizons))

    def _set_far_times_aside(self, opened: OpenedBatches) -> None:
        records, here = opened.records, slice(opened.first, opened.last)
        for column, of in (
            (records.timestamp_delta, records.list_number),
            (self.batches.base_timestamp[here], np.arange(opened.last - opened.first)),
        ):
            if len(column) and (int(column.min()) < -FAR_TIME or int(column.max()) > FAR_TIME):
                self.unreadable[opened.first + of[(column < -FAR_TIME) | (column > FAR_TIME)]] = True

    def _kept(self, opened: OpenedBatches, is_due: Bools, is_tombstone: Bools) -> Bools:
        """Whether each record is kept."""
        records, offset_map, counts = opened.records, self.rules.offset_map, self.rules.counts
        offsets = self.batches.base_offset[opened.first + records.list_number] + records.offset_delta
        bounds = (offset_map.first_dirty, offset_map.latest_offset + 1)
        first_dirty, behind = np.searchsorted(offsets, bounds).tolist()
        kept = np.ones(len(records), np.bool_)
        has_key = records.key_length[:behind] >= 0
        counts.keyless += behind - int(np.count_nonzero(has_key))
        kept[first_dirty:behind] = offset_map.are_last(offsets[first_dirty:behind])
        clean = np.flatnonzero(has_key[:first_dirty])
        kept[:first_dirty] = False
        kept[clean] = offset_map.are_absent(Keys.of_records(records, clean))
        late = np.flatnonzero(kept[:behind] & is_tombstone[:behind])
        late = late[is_due[records.list_number[late]]]
        kept[late] = False
        counts.tombstones_dropped += len(late)
        return kept
