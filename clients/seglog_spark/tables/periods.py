"""One file for each UTC year, month, date or hour of a range's records, and reading them in the order of offsets.

The periods of a range are known only when all of it has been read, and there may be thousands. So its records go to a
temporary file first, sorted in runs that fit in memory, and from there into one Parquet file after the other. Before
the first of these gets its final name, all their names are written to a note beside the manifest. From that note the
run after a killed one knows whether the range is complete, and which files to remove when it must be written again and
has other periods.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.core.records import ConsumerGap
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.manifest import NO_DATE, ArchivedFile, Format, period_name
from seglog_spark.tables.parquet_files import READ_ROWS, SCHEMA, Facts, Part, find_file, grouped, read_file, write_file
from seglog_spark.tables.stores import Store

BEGUN: Final = "_begun"
"""The folder of the notes. A note is of no use once the manifest has the files."""

UNITS: Final = {"year": "Y", "month": "M", "date": "D", "hour": "h"}
"""Layout -> numpy's unit of a period, from coarse to fine."""

_FIRST, _END = (np.datetime64(text, "us").astype(np.int64) for text in ("0001-01-01", "10000-01-01"))
_NEVER: Final = np.iinfo(np.int64).min
_RANGE_BYTES_MAX: Final = 4 * 1024 * 1024 * 1024
_SPOOLS: Final = 32
"""Into which the room on the disk is divided: some tasks at once, each with a spool somewhat larger than its range."""

_MERGED_BYTES: Final = 64 * 1024 * 1024


def write_by_period(
    store: Store,
    layout: str,
    r: OffsetRange,
    batches: Iterable[pa.RecordBatch],
    compression: str,
    met: Iterable[ConsumerGap] = (),
    table_format: Format = "parquet",
    rows_max: int = sys.maxsize,
    schema: pa.Schema = SCHEMA,
    on_file: Callable[[], object] = lambda: None,
) -> list[ArchivedFile]:
    """Write all records of ``r`` to files by period; the first file has the gaps. One file if there is no record.

    A period of more than ``rows_max`` records has several files, in order. ``on_file`` is called after each file.

    Otherwise as ``write_file``.
    """
    facts = Facts(r)
    with _Spool(UNITS[layout], schema, rows_max) as spool:
        for group in grouped(batches, schema):
            facts.add(group)
            spool.add(group)
        whole = facts.file(met)
        pieces = spool.pieces()
        names = [period_name(r, layout, shown(period, layout), number, table_format) for period, number, _ in pieces]
        _begin(store, r, names)
        parts = [Part(names[0], whole.missing, whole.gaps), *(Part(name, 0, ()) for name in names[1:])]
        written = []
        for (_, _, piece), part in zip(pieces, parts, strict=True):
            written.append(write_file(store, r, piece, compression, part=part, schema=schema))
            on_file()
        return written


def find_by_period(store: Store, r: OffsetRange) -> list[ArchivedFile]:
    """The files of a range, by their footers, if all of them exist; else an empty list."""
    found = [find_file(store, r, name) for name in _begun(store, r)]
    whole = [file for file in found if file is not None]
    return whole if len(whole) == len(found) else []


def read_merged(
    store: Store, files: Sequence[ArchivedFile], columns: Iterable[str], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """The records of a range's files with offsets in [``start``, ``end``), with these columns, in order."""
    names = list(columns)
    if len(files) == 1:
        yield from read_file(store, files[0].path, names, start, end)
        return
    start, end = max(start, files[0].start), min(end, files[0].end)
    # Any file may have any of the offsets: merge as many at a time as fit in memory.
    pieces = min(end - start, 1 + sum(found.size for found in files) // _MERGED_BYTES)
    for number in range(pieces):
        first, last = (start + (end - start) * edge // pieces for edge in (number, number + 1))
        wanted = list(dict.fromkeys([*names, "offset"]))
        rows = [batch for found in files for batch in read_file(store, found.path, wanted, first, last)]
        if rows:
            merged = pa.Table.from_batches(rows).combine_chunks()
            order = np.argsort(merged.column("offset").to_numpy())
            yield from merged.select(names).take(order).to_batches(READ_ROWS)


def remove_notes(store: Store) -> None:
    """Remove all notes: the manifest has the files now."""
    for name in list(store.names(BEGUN)):
        store.remove(name)


def periods_of(timestamps: pa.ChunkedArray, unit: str) -> npt.NDArray[np.int64]:
    """Periods since 1970; ``_NEVER`` for no timestamp, or one outside the years 1 to 9999 that engines accept."""
    micros = timestamps.cast(pa.int64()).fill_null(_NEVER).to_numpy()
    is_date = (micros >= _FIRST) & (micros < _END)
    periods = micros.view("datetime64[us]").astype(f"datetime64[{unit}]").astype(np.int64)
    return np.where(is_date, periods, _NEVER)


def shown(period: int, layout: str) -> str:
    """The period in a folder's name, such as ``2019``, ``2019-01``, ``2019-01-01`` or ``2019-01-01T05``."""
    return NO_DATE if period == _NEVER else str(np.array(period).astype(f"datetime64[{UNITS[layout]}]"))


def _note(r: OffsetRange) -> str:
    return f"{BEGUN}/{r.partition}-{r.start}-{r.end}.json"


def _begun(store: Store, r: OffsetRange) -> list[str]:
    with suppress(FileNotFoundError):
        return list(json.loads(store.read(_note(r))))
    return []


def _begin(store: Store, r: OffsetRange, names: list[str]) -> None:
    """Note the files to be written; remove those that an earlier run wrote for the range under other names."""
    for name in set(_begun(store, r)).difference(names):
        store.remove(name)
    store.write(_note(r), json.dumps(names).encode())


def range_bytes(file_bytes: int) -> int:
    """The bytes of log of a range, at most, so that a period has few files; bounded by room in TMPDIR for spools."""
    return max(file_bytes, min(_RANGE_BYTES_MAX, shutil.disk_usage(tempfile.gettempdir()).free // _SPOOLS))


class _Spool(ExitStack):
    """A temporary file of records, each batch of one period, in numpy's ``unit``, and of ``rows_max`` at most."""

    def __init__(self, unit: str, schema: pa.Schema, rows_max: int) -> None:
        super().__init__()
        self._unit, self._rows_max = unit, rows_max
        self._file = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with the rest
        self._writer = pa.ipc.new_file(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        self._batches: dict[int, list[tuple[int, int]]] = {}  # numbers of batches and their rows, by period
        self._count = 0

    def add(self, group: pa.Table) -> None:
        """Add records; they keep their order within a period."""
        periods = periods_of(group.column("timestamp"), self._unit)
        order = np.argsort(periods, kind="stable")
        ordered = group.combine_chunks().take(order)
        values, begins = np.unique(periods[order], return_index=True)
        for period, begin, end in zip(values.tolist(), begins, [*begins[1:], len(periods)], strict=True):
            for batch in ordered.slice(begin, end - begin).to_batches(self._rows_max):
                self._writer.write_batch(batch)
                self._batches.setdefault(period, []).append((self._count, batch.num_rows))
                self._count += 1

    def pieces(self) -> list[tuple[int, int | None, Iterator[pa.RecordBatch]]]:
        """Periods, ascending, in pieces of ``rows_max`` records at most, which are numbered if there are several.

        After this, nothing more may be added. A spool of no record has one piece.
        """
        self._writer.close()
        self._file.seek(0)
        reader = self.enter_context(pa.ipc.open_file(self._file))
        pieces: list[tuple[int, int | None, Iterator[pa.RecordBatch]]] = []
        for period in sorted(self._batches) or [_NEVER]:
            parts: list[list[int]] = [[]]
            total = 0
            for number, rows in self._batches.get(period, ()):
                if total + rows > self._rows_max:
                    parts.append([])
                    total = 0
                parts[-1].append(number)
                total += rows
            numbers = range(len(parts)) if len(parts) > 1 else [None]
            pieces += [
                (period, number, map(reader.get_batch, part)) for number, part in zip(numbers, parts, strict=True)
            ]
        return pieces
