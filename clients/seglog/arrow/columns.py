"""The columns that can be written, converted from a table's Arrow types to the encoder's.

    key            binary or text, null: none
    value          binary or text, null: none (a tombstone)
    headers        list<struct<key: text, value: binary or text>> or map<text, binary or text>; null: none
    timestamp      timestamp of any unit with a zone, or whole milliseconds since 1970; null: none
    partition      whole numbers, 0 or more; null: chosen by the key

Text is written as UTF-8. Without the column ``timestamp`` records get the time of the call; other missing columns are
null. In whole milliseconds -1 is none too, as in Kafka's format and for ``Producer.send``; other negative numbers are
errors, and so is -1 in ``partition``. The columns ``topic``, ``offset`` and ``timestampType``, which ``read_arrow``
returns, are ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seglog.arrow.schema import numbers_array
from seglog.arrow.varints import binary_array, joined, offsets_of, varint_columns
from seglog.core.timestamps import TimestampWatch
from seglog_protocol.batch_columns import Int64s
from seglog_protocol.record_batch import NO_TIMESTAMP
from seglog_protocol.record_columns import zigzag

WRITTEN: Final = ("key", "value", "headers", "timestamp", "partition")
IGNORED: Final = ("topic", "offset", "timestampType")

ANY_PARTITION: Final = -1

_BYTES: Final = pa.binary(), pa.large_binary(), pa.binary_view()
_TEXT: Final = pa.string(), pa.large_string(), pa.string_view()
_UNITS_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class NewRecords:
    """Records without offsets, one per row; arrays are int64.

    ``key`` and ``value`` are binary columns, None when all are null; lengths are bytes, -1 for null. ``headers`` is a
    binary column of encoded headers, their count first; None when no record has any. ``timestamp`` is epoch ms, -1 for
    none; ``partition`` is ANY_PARTITION where the partitioner chooses. ``content_bytes``: of key, value and headers.
    """

    key: pa.Array | None
    value: pa.Array | None
    headers: pa.Array | None
    timestamp: Int64s
    partition: Int64s
    key_length: Int64s
    value_length: Int64s
    content_bytes: Int64s

    def __len__(self) -> int:
        """Number of records."""
        return len(self.timestamp)

    def key_bytes(self) -> tuple[pa.Buffer, Int64s]:
        """The buffer of the keys, and the start of each; at least one record must have a key."""
        assert self.key is not None
        return self.key.buffers()[2] or pa.py_buffer(b""), offsets_of(self.key)[:-1]

    def part(self, first: int, last: int) -> "NewRecords":
        """The records [``first``, ``last``); nothing is copied."""
        rows, count = slice(first, last), last - first
        return self._with(lambda column: column.slice(first, count), lambda numbers: numbers[rows])

    def take(self, order: Int64s) -> "NewRecords":
        """These records in this order, copied."""
        places = numbers_array(pa.int64(), order)
        return self._with(lambda column: column.take(places), lambda numbers: numbers[order])

    def _with(self, rows_of: Callable[[pa.Array], pa.Array], entries_of: Callable[[Int64s], Int64s]) -> "NewRecords":
        return NewRecords(
            key=None if self.key is None else rows_of(self.key),
            value=None if self.value is None else rows_of(self.value),
            headers=None if self.headers is None else rows_of(self.headers),
            timestamp=entries_of(self.timestamp),
            partition=entries_of(self.partition),
            key_length=entries_of(self.key_length),
            value_length=entries_of(self.value_length),
            content_bytes=entries_of(self.content_bytes),
        )


def check_columns(schema: pa.Schema) -> None:
    """Raises ValueError for unknown or duplicate columns, and for a table without key and value."""
    for name in schema.names:
        if name not in WRITTEN and name not in IGNORED:
            raise ValueError(f"a record has no {name!r}; the columns that are written are {', '.join(WRITTEN)}")
        if schema.names.count(name) > 1:
            raise ValueError(f"there are two columns {name!r}")
    if "key" not in schema.names and "value" not in schema.names:
        raise ValueError("a table to write has the column value, or at least key")


def new_records(rows: pa.RecordBatch, now_ms: int, *, first_row: int = 0, whole: str = "the table") -> NewRecords:
    """The records of these rows; ``now_ms`` is their timestamp without a column for it.

    ``first_row`` (from 0) and ``whole`` locate the rows in error messages.

    Raises ValueError or TypeError for values that cannot be written.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    count = rows.num_rows
    key, value = (binary_of(columns.get(name), name) for name in ("key", "value"))
    headers = _encode_headers(columns["headers"]) if "headers" in columns else None
    key_length, value_length = (_lengths(column, count) for column in (key, value))
    content_bytes = np.maximum(key_length, 0) + np.maximum(value_length, 0)
    content_bytes += 1 if headers is None else np.diff(offsets_of(headers))
    timestamp, partition = np.full(count, now_ms, np.int64), np.full(count, ANY_PARTITION, np.int64)
    if "timestamp" in columns:
        timestamp = _timestamps(columns["timestamp"])
    if "partition" in columns:
        partition = _partitions(columns["partition"], first_row, whole)
    return NewRecords(key, value, headers, timestamp, partition, key_length, value_length, content_bytes)


def check_timestamps(records: NewRecords, watch: TimestampWatch) -> int:
    """How many of these records expire on arrival; may issue a TimestampWarning."""
    timestamps = records.timestamp[(records.timestamp >= 0) & (records.timestamp < watch.suspicious_below)]
    if not len(timestamps):
        return 0
    for timestamp in sorted({int(timestamps.min()), int(timestamps.max())}):  # they may be wrong in different ways
        watch.check(timestamp)
    return int(np.count_nonzero(timestamps < watch.expired_before))


def binary_of(column: pa.Array | None, name: str) -> pa.Array | None:
    """A column of bytes or text as binary; None when all are null. Raises TypeError for other types."""
    if column is None or column.null_count == len(column):
        return None
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if kind not in (*_BYTES, *_TEXT) and not pa.types.is_fixed_size_binary(kind):
        raise TypeError(f"the column {name} is {kind}; cast it to bytes or text")
    return column if pa.types.is_binary(kind) else column.cast(pa.binary())


def _lengths(column: pa.Array | None, count: int) -> Int64s:
    if column is None:
        return np.full(count, -1, np.int64)
    lengths = np.diff(offsets_of(column))
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return lengths


def _encode_headers(column: pa.Array) -> pa.Array | None:
    """The encoded headers of each row, their count first; None when no row has any."""
    kind = column.type
    if column.null_count == len(column):
        return None
    if pa.types.is_large_list(kind):
        column = column.cast(pa.list_(kind.value_field))
    elif pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elif not pa.types.is_list(kind):
        raise TypeError(f"the column headers is {kind}, not a list of structs of key and value")
    items = column.flatten()
    names = [field.name for field in items.type] if pa.types.is_struct(items.type) else []
    if sorted(names) != ["key", "value"]:
        raise TypeError(f"the column headers is {kind}, not a list of structs of key and value")
    fields = dict(zip(names, items.flatten(), strict=True))
    key, value = (binary_of(fields[name], f"headers.{name}") for name in ("key", "value"))
    if len(items) and (key is None or key.null_count):
        raise ValueError("a header has a key, which may be empty but not null")
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    count_numbers = varint_columns((counts << 1).astype(np.uint64))
    if key is None:
        return None
    key_lengths, value_lengths = (_lengths(field, len(items)) for field in (key, value))
    parts = (varint_columns(zigzag(key_lengths)), key, varint_columns(zigzag(value_lengths)), value)
    edges, content = joined(*(part for part in parts if part is not None))
    rows = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=rows[1:])
    edges, content = joined(count_numbers, binary_array(edges[rows].astype(np.int32), content))
    return binary_array(edges.astype(np.int32), content)


def _timestamps(column: pa.Array) -> Int64s:
    """Epoch ms; finer units are truncated."""
    kind = column.type
    if pa.types.is_floating(kind):
        raise TypeError(
            f"the column timestamp is {kind}; a timestamp is whole milliseconds since 1970, or Arrow's timestamp with "
            "a zone: pyarrow.compute.cast(pyarrow.compute.multiply(seconds, 1000), 'int64', safe=False)"
        )
    if not pa.types.is_timestamp(kind):
        return _with_nulls(column, _integers(column, "timestamp"), "timestamp", NO_TIMESTAMP)
    if kind.tz is None:
        raise ValueError("the column timestamp has no zone, so it is ambiguous: cast it to one with tz='UTC'")
    if kind.unit == "s":
        column = column.cast(pa.timestamp("ms", tz=kind.tz))
    ticks = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    timestamps: Int64s = ticks // _UNITS_PER_MS.get(kind.unit, 1)
    if len(timestamps) and int(timestamps.min()) < 0:
        raise ValueError(f"the column timestamp has a moment {-timestamps.min()} ms before 1970, which no log can hold")
    return _with_nulls(column, timestamps, "timestamp", NO_TIMESTAMP)


def _partitions(column: pa.Array, first_row: int, whole: str) -> Int64s:
    """Partition numbers, -1 for null. A -1 in the column is refused, because it may be a failed look-up."""
    partitions = _integers(column, "partition")
    wrong = np.flatnonzero(partitions < 0)
    if wrong.size:
        raise ValueError(
            f"the column partition has {partitions[wrong[0]]} in row {first_row + wrong[0]:,} of {whole}, counted from "
            "0, and no partition is below 0; where the key decides write null, or leave the column out"
        )
    return _with_nulls(column, partitions, "partition", ANY_PARTITION)


def _integers(column: pa.Array, name: str) -> Int64s:
    """Whole numbers, 0 for null."""
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise TypeError(f"the column {name} is {column.type}, not whole numbers")
    numbers: Int64s = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def _with_nulls(column: pa.Array, numbers: Int64s, name: str, absent: int) -> Int64s:
    """The numbers with ``absent`` (-1) for null; it may also stand there itself, but nothing below it."""
    if len(numbers) and int(numbers.min()) < absent:
        raise ValueError(f"the column {name} has the number {numbers.min()}, and none is below 0")
    if column.null_count:
        return np.where(column.is_null().to_numpy(zero_copy_only=False), absent, numbers)
    return numbers
