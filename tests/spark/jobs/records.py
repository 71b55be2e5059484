"""Records without a broker: offset n of a partition has the timestamp n * 1000, as in ``fake_log``."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.parquet_files import SCHEMA

DAY_US = 24 * 3600 * 1_000_000


def row(topic: str, partition: int, offset: int) -> dict[str, object]:
    return {
        "key": None if offset % 7 == 0 else b"key %d" % (offset % 50),
        "value": None if offset % 10 == 9 else b"value %d" % offset,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": offset * 1_000_000,
        "timestampType": 0,
        "headers": [{"key": "n", "value": b"%d" % offset}, {"key": "n", "value": None}] if offset % 3 == 0 else None,
    }


def batches(r: OffsetRange, without: Iterable[int] = (), rows_max: int = 10) -> Iterator[pa.RecordBatch]:
    """The records of a range but for some offsets."""
    left_out = set(without)
    rows = [row(r.topic, r.partition, offset) for offset in range(r.start, r.end) if offset not in left_out]
    for first in range(0, len(rows), rows_max):
        yield pa.RecordBatch.from_pylist(rows[first : first + rows_max], SCHEMA)


def timed(found: Iterable[pa.RecordBatch], time_us: Callable[[int], int | None]) -> Iterator[pa.RecordBatch]:
    """The same records at other times, by their offsets."""
    place = SCHEMA.names.index("timestamp")
    for batch in found:
        times = [time_us(offset) for offset in batch.column("offset").to_pylist()]
        yield batch.set_column(place, SCHEMA.field(place), pa.array(times, SCHEMA.field(place).type))


def in_rows(found: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
    """As plain rows, times as numbers."""
    return [
        row for batch in found for row in pa.Table.from_batches([batch]).cast(_plain(batch.schema.names)).to_pylist()
    ]


def _plain(names: Sequence[str]) -> pa.Schema:
    schema = pa.schema([SCHEMA.field(name) for name in names])
    if "timestamp" in names:
        schema = schema.set(names.index("timestamp"), pa.field("timestamp", pa.int64()))
    return schema
