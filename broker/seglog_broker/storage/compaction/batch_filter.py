"""The batches and records that compaction keeps, and those batches rewritten, for thousands of batches at a time.

Source: Kafka's Cleaner and MemoryRecords.filterTo. The rules are in docs/STORAGE.md; in short: the last record of each
key, tombstones until their delete horizon, everything behind the offset map, and of a batch that something still
depends on at least its header.

Records of rewritten batches are not encoded again. Their timestamps count from the batch's base timestamp, which
changes with the first record that stays; so length and timestamp of a record with another delta are rewritten, and the
rest is copied.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from seglog_broker.storage.compaction.job import RecordCounts
from seglog_broker.storage.compaction.keys import Keys
from seglog_broker.storage.compaction.offset_map import OffsetMap
from seglog_broker.storage.compaction.producers import ActiveProducers, TransactionTracker, read_marker
from seglog_protocol import errors, record_batch
from seglog_protocol.batch_builder import compacted_batch
from seglog_protocol.batch_columns import BatchColumns, Bools, Int64s, seal_batches
from seglog_protocol.compression import Codec, compress
from seglog_protocol.record_columns import OpenedBatches, open_batches, put_varints, varint_sizes, zigzag

NO_HORIZON: Final = -1
FAR_TIME: Final = 1 << 61
"""Larger timestamps and deltas could not be written relative to a delete horizon: batches with such are kept."""
HORIZON_MAX: Final = FAR_TIME >> 1
"""The latest delete horizon, for what stays for ever; timestamps relative to it are none of the far ones."""

_ABORT: Final = "ABORT"


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
        self.is_control = batches.attributes & record_batch.CONTROL_BIT != 0
        # Behind the map nothing is known: what lies wholly there stays as it is.
        self.untouched = batches.base_offset > rules.offset_map.latest_offset
        last_words = np.isin(batches.last_offset, rules.producers.last_data_offsets)
        self.must_stay = last_words & (batches.producer_id != record_batch.NO_PRODUCER_ID) & ~self.is_control
        self.must_stay |= batches.last_offset + 1 == rules.upper_bound
        self.is_aborted = np.zeros(count, np.bool_)
        self.unreadable = np.zeros(count, np.bool_)
        self.records_kept = np.zeros(count, np.int64)
        self.changed: dict[int, bytes] = {}

    def made(self) -> Filtered:
        batches, counts = self.batches, self.rules.counts
        for number in np.flatnonzero(
            batches.attributes & (record_batch.CONTROL_BIT | record_batch.TRANSACTIONAL_BIT)
        ).tolist():
            if self.is_control[number]:
                self._decide_control(number)
            elif self.rules.transactions.is_aborted(int(batches.producer_id[number]), int(batches.last_offset[number])):
                self.is_aborted[number] = not self.untouched[number]
        has_records = (batches.record_count > 0) | (batches.end - batches.position > record_batch.HEADER_SIZE)
        wanted = has_records & ~(self.is_control | self.untouched | self.is_aborted)
        if wanted.any():
            limit = self.rules.decompressed_batch_bytes_max
            for opened in open_batches(batches, wanted, size_limit=limit, only=self._known_to_stay(wanted)):
                self._decide_records(opened, wanted)
        as_it_is = self.untouched | self.unreadable
        self.records_kept[as_it_is] = batches.record_count[as_it_is]
        for number in np.flatnonzero(self.must_stay & (self.records_kept == 0) & ~as_it_is).tolist():
            bare = compacted_batch(batches.header(number), ())
            if bare != batches.batch(number):  # unless it is nothing but its header already
                self.changed[number] = bare
        left = (self.records_kept > 0) | self.must_stay | as_it_is
        counts.records_read += int(batches.record_count.sum())
        counts.records_kept += int(self.records_kept.sum())
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
        except errors.CorruptRecordError:
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

    def _decide_records(self, opened: OpenedBatches, wanted: Bools) -> None:
        batches, records, first = self.batches, opened.records, opened.first
        for number in (*opened.errors, *(first + number for number in records.malformed)):
            self.unreadable[number] = bool(wanted[number])
        self._set_far_times_aside(opened)
        here = slice(opened.first, opened.last)
        attributes = batches.attributes[here]
        has_horizon = attributes & record_batch.DELETE_HORIZON_BIT != 0
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


def rewritten_batches(
    batches: BatchColumns, opened: OpenedBatches, kept: Bools, lists: Int64s, horizons: Int64s
) -> dict[int, bytes]:
    """The new bytes of each of ``lists``, of which at least one record is ``kept``, by their number in ``batches``.

    ``lists`` count from the first opened batch; ``horizons`` has the delete horizon of every opened batch, -1 for none.
    """
    records, numbers = opened.records, opened.first + lists
    is_rewritten = np.zeros(opened.last - opened.first, np.bool_)
    is_rewritten[lists] = True
    which = np.flatnonzero(kept & is_rewritten[records.list_number])  # records, ascending
    of = np.searchsorted(lists, records.list_number[which])  # index into lists of each
    first = np.searchsorted(of, np.arange(len(lists)))  # index into which of the first of each

    has_append_time = batches.attributes[numbers] & record_batch.LOG_APPEND_TIME_BIT != 0
    old_base, max_timestamp, horizon = batches.base_timestamp[numbers], batches.max_timestamp[numbers], horizons[lists]
    old_delta = records.timestamp_delta[which]
    timestamp = np.where(has_append_time[of], max_timestamp[of], old_base[of] + old_delta)
    new_base = np.where(horizon >= 0, horizon, timestamp[first])
    new_delta = timestamp - new_base[of]
    new_max = np.where(has_append_time, max_timestamp, np.maximum.reduceat(timestamp, first))
    moved = np.logical_or.reduceat(new_delta != old_delta, first)  # of each list

    parts = _Parts(opened, which, new_delta, moved, of)
    last = np.append(first[1:], len(which))
    attributes = batches.attributes[numbers] & ~record_batch.DELETE_HORIZON_BIT | np.where(
        horizon >= 0, record_batch.DELETE_HORIZON_BIT, 0
    )
    bodies = [b"".join(parts.pieces[start:end]) for start, end in parts.ranges(first, last)]
    for index in np.flatnonzero(attributes & record_batch.CODEC_MASK).tolist():
        bodies[index] = compress(Codec(int(attributes[index]) & record_batch.CODEC_MASK), bodies[index])
    sealed = seal_batches(
        batches,
        numbers,
        bodies,
        attributes=attributes,
        base_timestamp=new_base,
        max_timestamp=new_max,
        record_count=last - first,
    )
    return dict(zip(numbers.tolist(), sealed, strict=True))


class _Parts:
    """The bytes of the kept records, in ``pieces``: one for a run of neighbours, or head and rest of each."""

    def __init__(self, opened: OpenedBatches, which: Int64s, new_delta: Int64s, moved: Bools, of: Int64s) -> None:
        records, data = opened.records, opened.records.data
        is_moved = moved[of]
        joins = np.zeros(len(which), np.bool_)  # the piece goes on where the one before it ended
        joins[1:] = (records.start[which[1:]] == records.end[which[:-1]]) & (of[1:] == of[:-1])
        begins = ~joins | is_moved
        self._piece_number = np.cumsum(np.where(is_moved, 2, begins.astype(np.int64)))
        run_starts = np.flatnonzero(begins)
        run_ends = np.append(run_starts[1:], len(which)) - 1
        start = records.offset_delta_start[which[run_starts]]
        start = np.where(is_moved[run_starts], start, records.start[which[run_starts]])
        end = records.end[which[run_ends]]
        runs = [data[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)]
        if not is_moved.any():
            self.pieces = runs
            return
        changed = which[is_moved]
        heads = _heads(records.end[changed] - records.offset_delta_start[changed], new_delta[is_moved])
        if is_moved.all():
            self.pieces = [b""] * (2 * len(runs))
            self.pieces[::2] = heads
            self.pieces[1::2] = runs
            return
        self.pieces = []
        next_head = iter(heads)
        for run, has_head in zip(runs, is_moved[run_starts].tolist(), strict=True):
            self.pieces += (next(next_head), run) if has_head else (run,)

    def ranges(self, first: Int64s, last: Int64s) -> list[tuple[int, int]]:
        """Which pieces are those of records [first, last), for many such."""
        ends = np.append(0, self._piece_number)
        return list(zip(ends[first].tolist(), ends[last].tolist(), strict=True))


def _heads(rest_size: Int64s, timestamp_delta: Int64s) -> list[bytes]:
    """Length, attributes and timestamp delta of records that go on with ``rest_size`` bytes."""
    delta = zigzag(timestamp_delta)
    delta_size = varint_sizes(delta)
    length = (rest_size + 1 + delta_size).astype(np.uint64) << np.uint64(1)
    length_size = varint_sizes(length)
    ends = np.cumsum(length_size + 1 + delta_size)
    starts = ends - (length_size + 1 + delta_size)
    octets = np.zeros(int(ends[-1]), np.uint8)  # the attributes are 0
    put_varints(octets, starts, length, length_size)
    put_varints(octets, starts + length_size + 1, delta, delta_size)
    data = octets.tobytes()
    return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
