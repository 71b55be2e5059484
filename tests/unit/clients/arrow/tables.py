"""Helpers for tests about Arrow: rows of a table as records, and records as a table."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from seglog.arrow.decoding import DecodedRecords, decode_verified
from seglog.arrow.schema import HEADERS, SCHEMA
from seglog.arrow.values import Values
from seglog_protocol.batch_builder import NewRecord
from seglog_protocol.batch_columns import read_batches
from seglog_protocol.records import Record

_MS_PER_US = 1000


def decode(
    data: bytes, topic: str, partition: int, schema: pa.Schema = SCHEMA, **options: Any
) -> Iterator[DecodedRecords]:
    """The records of whole batches."""
    return decode_verified(read_batches(data), topic, partition, schema, **options)


def records_of(table: pa.Table | pa.RecordBatch) -> list[Record]:
    """The rows of a table that has all columns; it is validated first."""
    table.validate(full=True)
    columns = {name: table.column(name).to_pylist() for name in ("key", "value", "offset", "headers")}
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        Record(
            offset,
            -1 if time is None else time // _MS_PER_US,
            key,
            value,
            tuple((header["key"], header["value"]) for header in headers or ()),
        )
        for offset, time, key, value, headers in zip(
            columns["offset"], times, columns["key"], columns["value"], columns["headers"], strict=True
        )
    ]


def table_of(records: Sequence[NewRecord], partitions: Iterable[int | None] | None = None) -> pa.RecordBatch:
    """A table to write; a timestamp of -1 becomes null."""
    columns: dict[str, Any] = {
        "timestamp": pa.array([None if r[0] == -1 else r[0] for r in records], pa.int64()),
        "key": pa.array([r[1] for r in records], pa.binary()),
        "value": pa.array([r[2] for r in records], pa.binary()),
        "headers": pa.array([[{"key": k, "value": v} for k, v in r[3]] or None for r in records], HEADERS.type),
    }
    if partitions is not None:
        columns["partition"] = pa.array(partitions, pa.int32())
    return pa.record_batch(columns)


def decoded(values: Values, *rows: bytes | None) -> tuple[list[Any], list[tuple[int, str]]]:
    """What becomes of rows: values, and misfits."""
    kind, decode = values.decoder()
    column, misfits = decode(pa.array(rows, pa.binary()))
    column.validate(full=True)
    assert column.type == kind
    return column.to_pylist(maps_as_pydicts="strict"), misfits
