"""The records of a range in a file for each UTC date of their timestamps, and back in the order of their offsets.

Which dates a range has is known when all of it was read, and there may be thousands. So its records go to a temporary
file first, sorted within as much as memory takes, and from there into one Parquet file after the other. Before the
first of these has its name, all their names are noted beside the manifest: a run that follows one that was killed knows
by that note whether the range is whole, and what is to go when it has to be made again and has other dates by then.
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.gaps import ConsumerGap
from seglog_spark.jobs.manifest import NO_DATE, ArchivedFile, dated_name, make_folder, write_whole
from seglog_spark.jobs.parquet_files import READ_ROWS, SCHEMA, Facts, Part, find_file, grouped, read_file, write_file
from seglog_spark.offsets import OffsetRange

BEGUN: Final = "_begun"
"""The folder of the notes; nothing in it means anything once the manifest has the files."""

_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_US: Final = 24 * 3600 * 1_000_000
_NEVER: Final = np.iinfo(np.int64).min
_MERGED_BYTES: Final = 64 * 1024 * 1024


def write_by_date(
    folder: Path, r: OffsetRange, batches: Iterable[pa.RecordBatch], compression: str, met: Iterable[ConsumerGap] = ()
) -> list[ArchivedFile]:
    """All records of ``r`` in files by date, of which the first also tells the gaps; one file if there is no record.

    As ``write_file`` otherwise.
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
    """What is known of a range's files that are all there already; nothing when they are not."""
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
    # Any file may have any of the offsets: as many of these at a time as memory takes, from one file after the other.
    pieces = min(end - start, 1 + sum(found.size for found in files) // _MERGED_BYTES)
    for number in range(pieces):
        first, last = (start + (end - start) * edge // pieces for edge in (number, number + 1))
        wanted = list(dict.fromkeys([*names, "offset"]))
        rows = [batch for found in files for batch in read_file(folder / found.path, wanted, first, last)]
        if rows:
            merged = pa.Table.from_batches(rows).combine_chunks()
            order = np.argsort(merged.column("offset").to_numpy())
            yield from merged.select(names).take(order).to_batches(READ_ROWS)


def forget_begun(folder: Path) -> None:
    """The manifest has the files now."""
    shutil.rmtree(folder / BEGUN, ignore_errors=True)


def days_of(timestamps: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Days since 1970; the least number for no timestamp, and for one that is no date as engines know dates."""
    micros = timestamps.cast(pa.int64()).fill_null(_NEVER).to_numpy()
    days = np.floor_divide(micros, _DAY_US)
    is_date = (days >= date.min.toordinal() - _EPOCH) & (days <= date.max.toordinal() - _EPOCH)
    return np.where(is_date, days, _NEVER)


def date_of(day: int) -> str:
    """As folders are named."""
    return NO_DATE if day == _NEVER else date.fromordinal(_EPOCH + day).isoformat()


# --- Notes ------------------------------------------------------------------------------------------------------------


def _note(folder: Path, r: OffsetRange) -> Path:
    return folder / BEGUN / f"{r.partition}-{r.start}-{r.end}.json"


def _begun(folder: Path, r: OffsetRange) -> list[str]:
    try:
        names: list[str] = json.loads(_note(folder, r).read_bytes())
    except FileNotFoundError:
        return []
    return names


def _begin(folder: Path, r: OffsetRange, names: list[str]) -> None:
    """These files are going to be made; what an earlier run has made of the range under other names goes."""
    for name in set(_begun(folder, r)).difference(names):
        (folder / name).unlink(missing_ok=True)
    note = _note(folder, r)
    make_folder(note.parent)
    write_whole(note, json.dumps(names).encode())


# --- Sorting ----------------------------------------------------------------------------------------------------------


class _Spool:
    """Records on their way into files by date: in a temporary file, each day's in batches of its own."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._batches: dict[int, list[int]] = {}
        self._count = 0
        self._reader: Any = None

    def __enter__(self) -> Self:
        self._file = self._open.enter_context(tempfile.TemporaryFile())
        self._writer = pa.ipc.new_file(self._file, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def add(self, group: pa.Table) -> None:
        """More records, which keep their order within a day."""
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
        """All there are, in their order; behind this nothing more is added."""
        self._writer.close()
        self._file.seek(0)
        self._reader = self._open.enter_context(pa.ipc.open_file(self._file))
        return sorted(self._batches)

    def read(self, day: int) -> Iterator[pa.RecordBatch]:
        """The records of a day, in their order; none of a day that has none."""
        return map(self._reader.get_batch, self._batches.get(day, ()))
