"""Record batches -> ``pyarrow.RecordBatch``, many at a time and without a Python object per record.

``record_columns`` finds the positions of all fields; each column is then one gather from the buffer of the (if needed
decompressed) batches. Only requested columns are made; if batch headers suffice for them, no batch is decompressed.
Errors are those of ``records.iter_records``.

Headers of records, which ``record_columns`` does not decode::

    headerCount     varint, then for each: key as varint length and UTF-8, value as varint length (-1 none) and bytes

Records are known to be well formed, headers included, so nothing is checked here. Headers are contiguous, as
records are: step k finds the k-th header of every record that has one, and the few records with more headers than the
others are walked one by one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.arrow.fitting import Misfit
from seglog.arrow.schema import HEADER, SCHEMA, constant, numbers_array
from seglog.core.records import ConsumerGap, located
from seglog_protocol.batch_columns import BatchColumns, Bools, Int64s
from seglog_protocol.checksum import Buffer
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX, Codec
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    INT32_MAX,
    INT64_MAX,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
)
from seglog_protocol.record_columns import DECODED_RECORDS, Octets, RecordColumns, open_batches
from seglog_protocol.records import RECORD_SIZE_MIN, decode_records

_US_PER_MS: Final = 1000
_TIMESTAMP_MAX: Final = INT64_MAX // _US_PER_MS

_IN_HEADERS: Final = frozenset({"topic", "partition", "offset", "timestampType"})
"""Columns that follow from batch headers, unless compaction has removed records inside a batch."""


# The C library gives memory that was freed back to the system, which clears it before it is used again: a third of the
# time of decoding. With glibc the largest block that was ever freed says how much may be kept instead, twice as much.
np.empty(16 * 1024 * 1024, np.uint8)


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """Some records of one partition: the rows of ``table`` and their ``offsets`` (int64), in log order.

    ``gaps`` are offsets that compaction removed inside their batches.
    """

    table: pa.RecordBatch
    offsets: Int64s
    gaps: tuple[ConsumerGap, ...] = ()


def decode_verified(
    batches: BatchColumns,
    topic: str,
    partition: int,
    schema: pa.Schema = SCHEMA,
    *,
    start: int = 0,
    end: int = INT64_MAX,
    decompressed_batch_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX,
    records_max: int = DECODED_RECORDS,
    on_misfit: Callable[[Misfit], None] | None = None,
) -> Iterator[DecodedRecords]:
    """The records with offsets in [``start``, ``end``) of ``batches``, up to ``records_max`` at a time.

    Of a larger batch all, and of batches that need not be opened more. Headers and checksums have been verified, and
    offsets ascend. ``schema`` is one of ``schema_of``. Control batches have no rows.

    Raises CorruptRecordError (or its subclass DecompressedTooLargeError) with the range [``start_offset``,
    ``next_offset``) of the unreadable batch, after all records before it have been yielded. Also raised, if the column
    is requested, for a record whose timestamp does not fit microseconds; ``on_misfit`` is told instead, and it is null.
    """
    wanted = (batches.attributes & CONTROL_BIT == 0) & (batches.last_offset >= start) & (batches.base_offset < end)
    if _IN_HEADERS.issuperset(schema.names) and _is_complete(batches, wanted, decompressed_batch_bytes_max):
        yield from _read_headers(batches, wanted, topic, partition, schema, (start, end))
        return
    for opened in open_batches(batches, wanted, size_limit=decompressed_batch_bytes_max, records_max=records_max):
        records = opened.records
        bad = min((*opened.errors, *(opened.first + number for number in records.malformed)), default=None)
        readable = len(records) if bad is None else int(records.first_record[bad - opened.first])
        batch_number = records.list_number[:readable] + opened.first
        offsets = batches.base_offset.take(batch_number)
        offsets += records.offset_delta[:readable]
        first, last = (int(place) for place in np.searchsorted(offsets, (start, end)))
        offsets = offsets[first:last]
        last_batch = opened.last if bad is None else bad
        found = _compacted(batches, wanted, range(opened.first, last_batch), offsets, (start, end))
        gaps = tuple(ConsumerGap(topic, partition, *each, "compacted") for each in found)
        if len(offsets) or gaps:
            place = batches, batch_number[first:last], offsets, topic, partition
            yield DecodedRecords(_RecordRows(*place, records, first, last, on_misfit).table(schema), offsets, gaps)
        if bad is not None:
            raise _malformed(batches, bad, opened.errors.get(bad), topic, partition, decompressed_batch_bytes_max)


def _is_complete(batches: BatchColumns, wanted: Bools, size_limit: int) -> bool:
    """Whether every wanted batch has a record at each of its offsets, and a plausible record count."""
    is_plain = batches.attributes & CODEC_MASK == Codec.NONE
    room = np.where(is_plain, batches.end - batches.position - HEADER_SIZE, size_limit)
    complete = batches.record_count == batches.last_offset_delta + 1
    return bool((complete & (batches.record_count * RECORD_SIZE_MIN <= room))[wanted].all())


def _read_headers(
    batches: BatchColumns, wanted: Bools, topic: str, partition: int, schema: pa.Schema, bounds: tuple[int, int]
) -> Iterator[DecodedRecords]:
    """The rows of complete batches, from their headers only."""
    counts = np.where(wanted, batches.record_count, 0)
    begin = 0
    while begin < len(batches):
        total = np.cumsum(counts[begin:])
        stop = begin + max(1, int(np.searchsorted(total, DECODED_RECORDS, side="right")))
        batch_number = np.repeat(np.arange(begin, stop), counts[begin:stop])
        first_row = total[: stop - begin] - counts[begin:stop]
        offsets = batches.base_offset.take(batch_number)
        offsets += np.arange(len(batch_number)) - np.repeat(first_row, counts[begin:stop])
        first, last = (int(place) for place in np.searchsorted(offsets, bounds))
        if last > first:
            rows = _Rows(batches, batch_number[first:last], offsets[first:last], topic, partition)
            yield DecodedRecords(rows.table(schema), rows.offsets)
        begin = stop


# --- Columns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows given by batch and offset; has the columns that follow from batch headers."""

    batches: BatchColumns
    batch_number: Int64s
    offsets: Int64s
    topic: str
    partition: int

    def table(self, schema: pa.Schema) -> pa.RecordBatch:
        """The rows with the columns of ``schema``."""
        return pa.RecordBatch.from_arrays([self.column(name) for name in schema.names], schema=schema)

    def column(self, name: str) -> pa.Array:
        """One column of the schema."""
        count = len(self.offsets)
        match name:
            case "topic":
                return pa.repeat(constant(pa.string(), self.topic.encode()), count)
            case "partition":
                return numbers_array(pa.int32(), np.full(count, self.partition, np.int32))
            case "offset":
                return numbers_array(pa.int64(), self.offsets)
            case _:
                kinds = (self._of_batch(self.batches.attributes) & LOG_APPEND_TIME_BIT != 0).astype(np.int32)
                return numbers_array(pa.int32(), kinds)

    def _of_batch(self, field: Int64s) -> Int64s:
        """A field of the batch of each row."""
        return field.take(self.batch_number)


@dataclass(frozen=True, slots=True)
class _RecordRows(_Rows):
    """Rows of decoded batches: the records [``first``, ``last``) of ``records``; has all columns."""

    records: RecordColumns
    first: int
    last: int
    on_misfit: Callable[[Misfit], None] | None

    def column(self, name: str) -> pa.Array:
        """One column of the schema."""
        match name:
            case "key":
                return self._binary(self.records.key_start, self.records.key_length)
            case "value":
                return self._binary(self.records.value_start, self.records.value_length)
            case "timestamp":
                return self._timestamps()
            case "headers":
                return self._headers()
            case _:
                return _Rows.column(self, name)

    def _binary(self, starts: Int64s, lengths: Int64s) -> pa.Array:
        rows = slice(self.first, self.last)
        return gather(self.records.data, starts[rows], lengths[rows], pa.binary())

    def _timestamps(self) -> pa.Array:
        batches = self.batches
        has_append_time = batches.attributes & LOG_APPEND_TIME_BIT != 0
        timestamps = self.records.timestamp_delta[self.first : self.last]
        if has_append_time.any():
            timestamps = np.where(self._of_batch(has_append_time.astype(np.int64)) != 0, 0, timestamps)
        base = np.where(has_append_time, batches.max_timestamp, batches.base_timestamp)
        timestamps = timestamps + self._of_batch(base)
        far = np.flatnonzero((timestamps > _TIMESTAMP_MAX) | (timestamps < -_TIMESTAMP_MAX))
        for row in far.tolist():
            offset, time_ms = int(self.offsets[row]), int(timestamps[row])
            if self.on_misfit is None:
                raise CorruptRecordError(
                    f"the record at offset {offset} of {self.topic}-{self.partition} has the timestamp {time_ms} ms, "
                    "which microseconds cannot hold; leave out the column timestamp to read it",
                    topic=self.topic,
                    partition=self.partition,
                    start_offset=offset,
                    next_offset=offset + 1,
                )
            start, length = (int(at[self.first + row]) for at in (self.records.value_start, self.records.value_length))
            value = None if length < 0 else bytes(self.records.data[start : start + length])
            reason = f"of a time that microseconds cannot hold ({time_ms} ms)"
            self.on_misfit(Misfit(self.topic, self.partition, offset, reason, value))
        timestamps[far] = NO_TIMESTAMP
        has_timestamp = timestamps != NO_TIMESTAMP
        timestamps *= _US_PER_MS
        return pa.Array.from_buffers(
            pa.timestamp("us", tz="UTC"), len(timestamps), [_validity(has_timestamp), pa.py_buffer(timestamps)]
        )

    def _headers(self) -> pa.Array:
        data = self.records.data
        first_header, key_start, key_length, value_start, value_length = decode_headers(
            self.records, self.first, self.last
        )
        items = pa.StructArray.from_arrays(
            [
                gather(data, key_start, key_length, pa.string()),
                gather(data, value_start, value_length, pa.binary()),
            ],
            fields=list(HEADER),
        )
        return pa.Array.from_buffers(
            pa.list_(pa.field("element", HEADER)),
            len(first_header) - 1,
            [_validity(first_header[:-1] != first_header[1:]), pa.py_buffer(first_header.astype(np.int32))],
            children=[items],
        )


def gather(data: Buffer, starts: Int64s, lengths: Int64s, kind: pa.DataType) -> pa.Array:
    """``data[start : start + length]`` for each, null for a length of -1; copied once.

    Ranges must ascend without overlap. Raises ValueError when they span more than 2 GiB, the limit of Arrow's offsets.
    """
    count = len(starts)
    if not count:
        return pa.nulls(0, kind)
    if int(starts[-1] + lengths[-1]) - int(starts[0]) > INT32_MAX:
        raise ValueError("2 GiB of records are too many at a time; pass smaller pieces, or lower the limit")
    # One array over the data of the fields and the bytes between them, of which every other element is taken.
    base = int(starts[0])
    bounds = np.empty(2 * count, np.int32)
    is_there = lengths >= 0
    bounds[0::2] = starts - base
    bounds[1::2] = starts - base + np.maximum(lengths, 0)
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data).slice(base)]
    )
    taken = everything.take(numbers_array(pa.int32(), np.arange(0, 2 * count, 2, dtype=np.int32)))
    _, offsets, content = taken.buffers()
    return pa.Array.from_buffers(kind, count, [_validity(is_there), offsets, content])


def _validity(is_there: Bools) -> pa.Buffer | None:
    """Arrow's validity bitmap; None without nulls."""
    if is_there.all():
        return None
    bits: npt.NDArray[np.uint8] = np.packbits(is_there, bitorder="little")
    return pa.py_buffer(bits)


# --- Gaps and errors --------------------------------------------------------------------------------------------------


def _compacted(
    batches: BatchColumns, wanted: Bools, numbers: range, offsets: Int64s, bounds: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """Offsets inside these batches and within ``bounds`` whose records were removed by compaction."""
    chosen = slice(numbers.start, numbers.stop)
    sparse = wanted[chosen] & (batches.record_count[chosen] <= batches.last_offset_delta[chosen])
    for number in (np.flatnonzero(sparse) + numbers.start).tolist():
        begin = max(bounds[0], int(batches.base_offset[number]))
        stop = min(bounds[1], int(batches.last_offset[number]) + 1)
        first, last = np.searchsorted(offsets, (begin, stop))
        edges = np.concatenate(([begin - 1], offsets[first:last], [stop]))
        holes = np.flatnonzero(np.diff(edges) > 1)
        yield from zip((edges[holes] + 1).tolist(), edges[holes + 1].tolist(), strict=True)


def _malformed(
    batches: BatchColumns, number: int, error: CorruptRecordError | None, topic: str, partition: int, size_limit: int
) -> CorruptRecordError:
    """The error of ``decode_records`` for this batch."""
    header = batches.header(number)
    try:
        decode_records(header, batches.batch(number), size_limit=size_limit)
    except CorruptRecordError as found:
        error = found
    assert error is not None, "columns and loop disagree about what is malformed"
    return located(error, topic, partition, None)


LOCKSTEP_MIN: Final = 16
"""Number of records from which one array step for all is cheaper than plain Python for each."""

_VARINT_BYTES_MAX: Final = 5


def decode_headers(
    records: RecordColumns, first: int = 0, last: int | None = None
) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
    """The headers of records [``first``, ``last``), in order; ``last`` None is the end. Arrays are int64.

    The first array (one entry more than there are records) holds where those of each record begin and end; the others
    are by header: the start and the length of its key, and of its value, as bytes of ``data``. A value's length is -1
    for null.
    """
    octets = Octets(records.data)
    counts, position = _numbers(octets, records.value_end[first:last])
    counts >>= 1
    first_header = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first_header[1:])
    key_start, key_length, value_start, value_length = np.empty((4, int(first_header[-1])), np.int64)
    active, step = np.flatnonzero(counts), 0
    position, to = position[active], first_header[:-1][active]
    while active.size >= LOCKSTEP_MIN:
        length, begin = _numbers(octets, position)
        key_start[to], key_length[to] = begin, length >> 1
        length, begin = _numbers(octets, begin + (length >> 1))
        value_start[to], value_length[to] = begin, np.where(length & 1, -1, length >> 1)
        step += 1
        left = counts[active] > step
        active = active[left]
        position = (begin + np.where(length & 1, 0, length >> 1))[left]
        to = to[left] + 1
    for start, stop, at in zip(to.tolist(), first_header[1:][active].tolist(), position.tolist(), strict=True):
        here = at
        for number in range(start, stop):
            size, here = _number(records.data, here)
            key_start[number], key_length[number] = here, size >> 1
            size, here = _number(records.data, here + (size >> 1))
            value_start[number], value_length[number] = here, -1 if size & 1 else size >> 1
            here += 0 if size & 1 else size >> 1
    return first_header, key_start, key_length, value_start, value_length


def _numbers(octets: Octets, position: Int64s) -> tuple[Int64s, Int64s]:
    return octets.varints(position, _VARINT_BYTES_MAX, np.zeros(len(position), np.bool_))


def _number(data: Buffer, position: int) -> tuple[int, int]:
    """The varint at ``position``, still zigzag, and the position after it."""
    number, shift = 0, 0
    while True:
        octet = data[position]
        position += 1
        number |= (octet & 0x7F) << shift
        shift += 7
        if octet <= 0x7F:
            return number & 0xFFFFFFFF, position
