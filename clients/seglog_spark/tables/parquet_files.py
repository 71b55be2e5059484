"""Records as Parquet files: written atomically, read back in order; without Spark.

The columns are those of a read with headers, in their order; timestamps are exact to the millisecond of the log. A
file's entry in the manifest is in its footer too (key ``seglog``). If a run was killed between the file and the
manifest, the next run reads the entry from there.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seglog.arrow.schema import schema_of
from seglog.arrow.writing import gathered
from seglog.core.records import ConsumerGap
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.manifest import GAPS_MAX, ArchivedFile, FileGap, file_name
from seglog_spark.tables.stores import Store

SCHEMA: Final = schema_of(headers=True)
READ_ROWS: Final = 32 * 1024
"""Rows of a batch that is read."""

_FOOTER: Final = "seglog"
_GROUP_ROWS: Final = 256 * 1024
_GROUP_BYTES: Final = 64 * 1024 * 1024
_LEVELS: Final = {"zstd": 1}  # nearly as small as 3, and a tenth faster
_MICROSECONDS: Final = 1000


class Part(NamedTuple):
    """A file with some of a range's records: its name, and the gaps of the range that its entry lists."""

    name: str
    missing: int
    gaps: tuple[FileGap, ...] | None


def write_file(
    store: Store,
    r: OffsetRange,
    batches: Iterable[pa.RecordBatch],
    compression: str,
    met: Iterable[ConsumerGap] = (),
    part: Part | None = None,
    schema: pa.Schema = SCHEMA,
) -> ArchivedFile:
    """Write all records of ``r`` in offset order, to the range's file in ``store``; return its entry.

    ``met`` are the gaps with a known reason; it may grow while ``batches`` is read. The gaps of a ``part`` are known
    already. Raises what ``batches`` and the file system raise; then there is no file.
    """
    with store.new(file_name(r) if part is None else part.name) as temporary:
        with pq.ParquetWriter(
            temporary,
            schema,
            compression=compression,
            compression_level=_LEVELS.get(compression),
            use_dictionary=["topic", "partition", "timestampType"],
            write_page_index=True,
        ) as writer:
            facts = Facts(r)
            for group in grouped(batches, schema):
                writer.write_table(group, row_group_size=_GROUP_ROWS)
                facts.add(group)
            written = facts.file(met)
            if part is not None:
                written = replace(written, path=part.name, missing=part.missing, gaps=part.gaps)
            writer.add_key_value_metadata({_FOOTER: json.dumps(msgspec.to_builtins(written))})
        size = temporary.stat().st_size
    return replace(written, size=size)


def find_file(store: Store, r: OffsetRange, name: str | None = None) -> ArchivedFile | None:
    """The entry of a range's file, from its footer; None when there is no such file or it is of another range."""
    name = file_name(r) if name is None else name
    try:
        footer = pq.read_metadata(store.open(name))
        size = store.size(name)
        found = msgspec.json.decode((footer.metadata or {})[_FOOTER.encode()], type=ArchivedFile)
    except (OSError, pa.ArrowInvalid, KeyError, ValueError):
        return None
    is_it = (found.path, found.start, found.end, found.records) == (name, r.start, r.end, footer.num_rows)
    return replace(found, size=size) if is_it else None


def read_file(store: Store, name: str, columns: Iterable[str], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records with offsets in [``start``, ``end``), with these columns, in order."""
    wanted = list(columns)
    with pq.ParquetFile(store.open(name)) as file:
        groups = [n for n in range(file.num_row_groups) if _may_have(file.metadata.row_group(n), start, end)]
        for batch in file.iter_batches(READ_ROWS, row_groups=groups, columns=[*wanted, "offset"]):
            offsets = batch.column("offset")
            found = batch.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
            if found.num_rows:
                yield found.select(wanted)


def _may_have(group: Any, start: int, end: int) -> bool:
    """Whether a row group may have offsets in [``start``, ``end``)."""
    found = group.column(SCHEMA.names.index("offset")).statistics
    return found is None or not found.has_min_max or (found.min < end and found.max >= start)


def first_at(store: Store, name: str, time_ms: int) -> int | None:
    """The offset of the first record at or after a time; None when there is none."""
    moment = pa.scalar(time_ms * _MICROSECONDS, pa.timestamp("us", tz="UTC"))
    with pq.ParquetFile(store.open(name)) as file:
        for batch in file.iter_batches(READ_ROWS, columns=["offset", "timestamp"]):
            found = batch.filter(pc.greater_equal(batch.column("timestamp"), moment))
            if found.num_rows:
                return int(found.column("offset")[0].as_py())
    return None


def grouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> Iterator[pa.Table]:
    """The batches as tables of a row group each, bounded in rows and bytes."""
    return (found.select(schema.names).cast(schema) for found in gathered(batches, _GROUP_ROWS, _GROUP_BYTES))


class Facts:
    """Gathers the manifest entry of a range's file while it is written."""

    def __init__(self, r: OffsetRange) -> None:
        self._range = r
        self._records = 0
        self._next = r.start
        self._times: list[int] = []
        self._missing = 0
        self._holes: list[tuple[int, int]] = []

    def add(self, group: pa.Table) -> None:
        """Count some records; ValueError when their offsets do not rise within the range."""
        offsets = group.column("offset").to_numpy()
        edges = np.concatenate([[self._next - 1], offsets])
        steps = np.diff(edges)
        if not group.num_rows or (steps < 1).any() or int(offsets[-1]) >= self._range.end:
            raise ValueError(f"the offsets read of {self._range} do not rise within it")
        for place in np.flatnonzero(steps > 1).tolist():
            self._hole(int(edges[place]) + 1, int(edges[place + 1]))
        self._next = int(offsets[-1]) + 1
        self._records += group.num_rows
        times = pc.min_max(group.column("timestamp").cast(pa.int64())).as_py()
        self._times += [time for time in times.values() if time is not None]

    def _hole(self, start: int, end: int) -> None:
        if start < end:
            self._missing += end - start
            if len(self._holes) <= GAPS_MAX:
                self._holes.append((start, end))

    def file(self, met: Iterable[ConsumerGap]) -> ArchivedFile:
        """The entry, with ``size`` 0: it is not known yet."""
        self._hole(self._next, self._range.end)
        reasons = sorted((gap.start, gap.end, gap.reason) for gap in met)
        gaps = [gap for hole in self._holes for gap in _reasoned(*hole, reasons)]
        times = [time // _MICROSECONDS for time in self._times]
        return ArchivedFile(
            path=file_name(self._range),
            partition=self._range.partition,
            start=self._range.start,
            end=self._range.end,
            records=self._records,
            size=0,
            min_timestamp=min(times, default=None),
            max_timestamp=max(times, default=None),
            missing=self._missing,
            gaps=tuple(gaps) if len(gaps) <= GAPS_MAX else None,
        )


def _reasoned(start: int, end: int, reasons: list[tuple[int, int, str]]) -> Iterator[FileGap]:
    """A hole in pieces, each with its reason; ``unknown`` where none was reported."""
    for first, last, reason in reasons[bisect_right(reasons, start, key=itemgetter(1)) :]:
        if first >= end:
            break
        if start < first:
            yield FileGap(start, first, "unknown")
        yield FileGap(max(start, first), min(end, last), reason)
        start = min(end, last)
    if start < end:
        yield FileGap(start, end, "unknown")
