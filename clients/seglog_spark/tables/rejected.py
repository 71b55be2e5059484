"""Records that do not fit the columns of an archive: in files beside it, raw, each with the reason.

A range has one such file at most, ``_rejected/…``, which is whole before any other file of the range is. Its name does
not end in ``.parquet``, as patterns of readers do, and begins as those of folders that engines pass over.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from seglog.arrow.fitting import Misfit
from seglog.arrow.values import Values
from seglog.core.errors import count_of
from seglog.core.records import ConsumerGap
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.manifest import ArchivedFile, is_rejected, rejected_name
from seglog_spark.tables.parquet_files import SCHEMA, Part, write_file
from seglog_spark.tables.stores import Store

Seen = Callable[[int, int], object]
"""Is told how many more records were read, and files written; what it raises ends the work."""

REJECTED: Final = SCHEMA.append(pa.field("reason", pa.string()))
"""The columns of a file: those of a record, ``value`` as bytes, and why it does not fit."""


def schema_with(values: Values) -> pa.Schema:
    """The columns of an archive of such values."""
    return SCHEMA.set(SCHEMA.names.index("value"), pa.field("value", values.decoder()[0]))


class Sieve:
    """Gives the values of a range's records their type, and keeps those that do not fit in a file of their own.

    So it does with records that ``refuse`` was told of before they came. ``seen`` is told how many came, and 0.
    """

    def __init__(self, store: Store, r: OffsetRange, values: Values, compression: str, seen: Seen = max) -> None:
        self._store, self._range, self._compression, self._seen = store, r, compression, seen
        _, self._decode = values.decoder()
        self._refused: dict[int, str] = {}
        self.files: list[ArchivedFile] = []
        """The file, if there is one, when all batches were passed."""

    def refuse(self, misfit: Misfit) -> None:
        """Note a record that does not fit, whatever its value is."""
        self._refused[misfit.offset] = misfit.reason

    def passed(self, batches: Iterable[pa.RecordBatch], met: list[ConsumerGap]) -> Iterator[pa.RecordBatch]:
        """The records that fit; others become gaps, ``rejected``, in ``met``. RegistryError if a registry is away."""
        count = 0
        with tempfile.TemporaryFile() as file:
            with pa.ipc.new_file(file, REJECTED, options=pa.ipc.IpcWriteOptions(compression="lz4")) as spool:
                for batch in batches:
                    self._seen(batch.num_rows, 0)
                    column, misfits = self._decode(batch.column("value"))
                    typed = batch.set_column(batch.schema.names.index("value"), "value", column)
                    if self._refused:
                        places = enumerate(batch.column("offset").to_pylist())
                        refused = {row: self._refused.pop(at) for row, at in places if at in self._refused}
                        misfits = sorted((dict(misfits) | refused).items())
                    if misfits:
                        rows = pa.array([row for row, _ in misfits], pa.int64())
                        reasons = pa.array([reason for _, reason in misfits], pa.string())
                        spool.write_batch(pa.record_batch([*batch.take(rows).columns, reasons], schema=REJECTED))
                        count += 1
                        offsets = batch.column("offset").take(rows).to_numpy()
                        runs = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
                        met += [ConsumerGap(*self._range[:2], int(r[0]), int(r[-1]) + 1, "rejected") for r in runs]
                        fits = np.ones(len(batch), np.bool_)
                        fits[rows] = False
                        typed = typed.filter(pa.array(fits))
                    yield typed
            name = rejected_name(self._range)
            if not count:
                self._store.remove(name)  # of a killed run, when the registry lacked a schema
                return
            file.seek(0)
            with pa.ipc.open_file(file) as rejected:
                rows = map(rejected.get_batch, range(count))
                part = Part(name, 0, ())
                self.files = [write_file(self._store, self._range, rows, self._compression, part=part, schema=REJECTED)]


def described(store: Store, files: Iterable[ArchivedFile]) -> str:
    """How many records of each partition were rejected, and the most frequent reason; empty for none."""
    counts, reasons, examples = Counter[int](), Counter[str](), dict[str, str]()
    for found in filter(is_rejected, files):
        counts[found.partition] += found.records
        with pq.ParquetFile(store.open(found.path)) as file:
            for each in file.read(["reason"])["reason"].value_counts().to_pylist():
                kind = each["values"].partition(" (")[0]
                reasons[kind] += each["counts"]
                examples.setdefault(kind, each["values"])
    if not counts:
        return ""
    each = ", ".join(f"{count:,} in partition {number}" for number, count in sorted(counts.items()))
    often, times = reasons.most_common(1)[0]
    rejected = f"{count_of(counts.total(), 'record')} rejected ({each})"
    return f"{rejected}, {times:,} of them because the value is {examples[often]}"
