"""One file for each UTC date of a range's records, and reading them back in the order of their offsets.

The dates of a range are known only when all of it has been read, and there may be thousands. So its records go to a
temporary file first, sorted in runs that fit in memory, and from there into one Parquet file after the other. Before
the first of these gets its final name, all their names are written to a note beside the manifest. From that note the
run after a killed one knows whether the range is complete, and which files to remove when it must be written again and
has other dates.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.core.records import ConsumerGap
from seglog_spark.jobs.manifest import NO_DATE, ArchivedFile, dated_name, make_folder, write_whole
from seglog_spark.jobs.parquet_files import READ_ROWS, SCHEMA, Facts, Part, find_file, grouped, read_file, write_file
from seglog_spark.offsets import OffsetRange

BEGUN: Final = "_begun"
"""The folder of the notes. A note is of no use once the manifest has the files."""

_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 24 * 3600 * 1_000_000
_NEVER: Final = np.iinfo(np.int64).min
_MERGED_BYTES: Final = 64 * 1024 * 1024


def write_by_date(
    folder: Path, r: OffsetRange, batches: Iterable[pa.RecordBatch], compression: str, met: Iterable[ConsumerGap] = ()
) -> list[ArchivedFile]:
    """Write all records of ``r`` to files by date; the first file has the gaps. One file if there is no record.

    Otherwise as ``write_file``.
    """
    facts = Facts(r)
    with _Spool() as spool:
        for group in grouped(batches):
            facts.add(group)
            spool.add(group)
        whole = facts.file(met)
        days = spool.days() or [_NEVER]
        names = [dated_name(r, date_of(day)) for day in days]
        _begin(folder, r, names)
        parts = [Part(names[0], whole.missing, whole.gaps), *(Part(name, 0, ()) for name in names[1:])]
        return [
            write_file(folder, r, spool.read(day), compression, part=part)
            for day, part in zip(days, parts, strict=True)
        ]


def find_by_date(folder: Path, r: OffsetRange) -> list[ArchivedFile]:
    """The files of a range, by their footers, if all of them exist; else an empty list."""
    found = [find_file(folder, r, name) for name in _begun(folder, r)]
    whole = [file for file in found if file is not None]
    return whole if len(whole) == len(found) else []


def read_merged(
    folder: Path, files: Sequence[ArchivedFile], columns: Iterable[str], start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """The records of a range's files with offsets in [``start``, ``end``), with these columns, in order."""
    names = list(columns)
    if len(files) == 1:
        yield from read_file(folder / files[0].path, names, start, end)
        return
    start, end = max(start, files[0].start), min(end, files[0].end)
    # Any file may have any of the offsets: merge as many at a time as fit in memory.
    pieces = min(end - start, 1 + sum(found.size for found in files) // _MERGED_BYTES)
    for number in range(pieces):
        first, last = (start + (end - start) * edge // pieces for edge in (number, number + 1))
        wanted = list(dict.fromkeys([*names, "offset"]))
        rows = [batch for found in files for batch in read_file(folder / found.path, wanted, first, last)]
        if rows:
            merged = pa.Table.from_batches(rows).combine_chunks()
            order = np.argsort(merged.column("offset").to_numpy())
            yield from merged.select(names).take(order).to_batches(READ_ROWS)


def remove_notes(folder: Path) -> None:
    """Remove all notes: the manifest has the files now."""
    shutil.rmtree(folder / BEGUN, ignore_errors=True)


def days_of(timestamps: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Days since 1970; ``_NEVER`` for no timestamp, or one outside the years 1 to 9999 that engines accept."""
    micros = timestamps.cast(pa.int64()).fill_null(_NEVER).to_numpy()
    days = np.floor_divide(micros, _DAY_US)
    is_date = (days >= date.min.toordinal() - _EPOCH) & (days <= date.max.toordinal() - _EPOCH)
    return np.where(is_date, days, _NEVER)


def date_of(day: int) -> str:
    """The date in a folder's name."""
    return NO_DATE if day == _NEVER else date.fromordinal(_EPOCH + day).isoformat()


def _note(folder: Path, r: OffsetRange) -> Path:
    return folder / BEGUN / f"{r.partition}-{r.start}-{r.end}.json"


def _begun(folder: Path, r: OffsetRange) -> list[str]:
    try:
        names: list[str] = json.loads(_note(folder, r).read_bytes())
    except FileNotFoundError:
        return []
    return names


def _begin(folder: Path, r: OffsetRange, names: list[str]) -> None:
    """Note the files to be written; remove those that an earlier run wrote for the range under other names."""
    for name in set(_begun(folder, r)).difference(names):
        (folder / name).unlink(missing_ok=True)
    note = _note(folder, r)
    make_folder(note.parent)
    write_whole(note, json.dumps(names).encode())


class _Spool(ExitStack):
    """A temporary file of records, each batch of one day."""

    def __init__(self) -> None:
        super().__init__()
        self._file = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with the rest
        self._writer = pa.ipc.new_file(self._file, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self._batches: dict[int, list[int]] = {}
        self._count = 0
        self._reader: Any = None

    def add(self, group: pa.Table) -> None:
        """Add records; they keep their order within a day."""
        days = days_of(group.column("timestamp"))
        order = np.argsort(days, kind="stable")
        ordered = group.combine_chunks().take(order)
        values, begins = np.unique(days[order], return_index=True)
        for day, begin, end in zip(values.tolist(), begins, [*begins[1:], len(days)], strict=True):
            for batch in ordered.slice(begin, end - begin).to_batches():
                self._writer.write_batch(batch)
                self._batches.setdefault(day, []).append(self._count)
                self._count += 1

    def days(self) -> list[int]:
        """All days, ascending. After this, nothing more may be added."""
        self._writer.close()
        self._file.seek(0)
        self._reader = self.enter_context(pa.ipc.open_file(self._file))
        return sorted(self._batches)

    def read(self, day: int) -> Iterator[pa.RecordBatch]:
        """The records of a day, in the order added."""
        return map(self._reader.get_batch, self._batches.get(day, ()))
