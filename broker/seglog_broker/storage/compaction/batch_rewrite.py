"""Rewrites compacted batches: ``batch_builder.compacted_batch`` for thousands at a time.

Records are not encoded again. Their timestamps count from the batch's base timestamp, which changes with the first
record that stays; so length and timestamp of a record with another delta are rewritten, and the rest is copied.
"""

import numpy as np
import numpy.typing as npt

from seglog_protocol.batch_columns import BatchColumns, Bools, Int64s, seal_batches
from seglog_protocol.compression import Codec, compress
from seglog_protocol.record_batch import CODEC_MASK, DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT
from seglog_protocol.record_columns import OpenedBatches


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

    has_append_time = batches.attributes[numbers] & LOG_APPEND_TIME_BIT != 0
    old_base, max_timestamp, horizon = batches.base_timestamp[numbers], batches.max_timestamp[numbers], horizons[lists]
    old_delta = records.timestamp_delta[which]
    timestamp = np.where(has_append_time[of], max_timestamp[of], old_base[of] + old_delta)
    new_base = np.where(horizon >= 0, horizon, timestamp[first])
    new_delta = timestamp - new_base[of]
    new_max = np.where(has_append_time, max_timestamp, np.maximum.reduceat(timestamp, first))
    moved = np.logical_or.reduceat(new_delta != old_delta, first)  # of each list

    parts = _Parts(opened, which, new_delta, moved, of)
    last = np.append(first[1:], len(which))
    attributes = batches.attributes[numbers] & ~DELETE_HORIZON_BIT | np.where(horizon >= 0, DELETE_HORIZON_BIT, 0)
    bodies = [b"".join(parts.pieces[start:end]) for start, end in parts.ranges(first, last)]
    for index in np.flatnonzero(attributes & CODEC_MASK).tolist():
        bodies[index] = compress(Codec(int(attributes[index]) & CODEC_MASK), bodies[index])
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
    zigzag = ((timestamp_delta << 1) ^ (timestamp_delta >> 63)).astype(np.uint64)
    delta_size = _varint_sizes(zigzag)
    length = (rest_size + 1 + delta_size).astype(np.uint64) << np.uint64(1)
    length_size = _varint_sizes(length)
    ends = np.cumsum(length_size + 1 + delta_size)
    starts = ends - (length_size + 1 + delta_size)
    octets = np.zeros(int(ends[-1]), np.uint8)  # the attributes are 0
    _put_varints(octets, starts, length, length_size)
    _put_varints(octets, starts + length_size + 1, zigzag, delta_size)
    data = octets.tobytes()
    return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _varint_sizes(numbers: npt.NDArray[np.uint64]) -> Int64s:
    sizes = np.ones(len(numbers), np.int64)
    rest = numbers >> np.uint64(7)
    while rest.any():
        sizes += rest != 0
        rest >>= np.uint64(7)
    return sizes


def _put_varints(octets: npt.NDArray[np.uint8], starts: Int64s, numbers: npt.NDArray[np.uint64], sizes: Int64s) -> None:
    for index in range(int(sizes.max())):
        having = np.flatnonzero(sizes > index)
        value = (numbers[having] >> np.uint64(7 * index) & np.uint64(0x7F)).astype(np.uint8)
        octets[starts[having] + index] = value | np.where(sizes[having] > index + 1, 0x80, 0).astype(np.uint8)
