"""A Delta table over the files of an archive: one commit of its log for each commit of the archive.

How far the table reaches is in that log, too, by the means that Delta has for it, transactions of applications:

    txn  appId "seglog/TOPIC_ID/PARTITION"  version: the offset of the next record

Every commit has one for each partition. So two commits of an archive that began at the same version never both count:
whoever comes second meets the first one's transactions, which is a conflict for delta-rs and every other writer. What
others do meanwhile, such as a compaction, is none, and delta-rs commits on top of it.

Statistics of files are exact, from their footers, because engines answer ``min(offset)`` from them. The table needs
version 1 of Delta's protocol to be read and 2 to be written, which every reader has: no deletion vectors, no
timestamps without a zone, no mapped columns.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from seglog.cli.exits import InputError
from seglog_protocol.object_stores import library_options
from seglog_spark.tables.manifest import NO_DATE, ArchivedFile, Layout
from seglog_spark.tables.parquet_files import SCHEMA
from seglog_spark.tables.stores import Store
from seglog_spark.tables.targets import Shape, check_table, crowded, moved

PERIODS: Final = {"year": pa.int32(), "month": pa.string(), "date": pa.date32(), "hour": pa.string()}
"""Layout -> type of the column of the same name that the table is partitioned by."""

_TOPIC_ID: Final = "seglog.topic-id"
_DESCRIBED: Final = ("partition", "offset", "timestamp")
_TIMES: Final = (np.datetime64("0001-01-01", "us"), np.datetime64("9999-12-31T23:59:59.999", "us"))


@dataclass(slots=True)
class Delta:
    """A ``Target``: the table at the place of ``store``. ``file_bytes``: the size that files are meant to have."""

    store: Store
    topic: str
    topic_id: str
    layout: Layout = None
    file_bytes: int = 128 * 1024 * 1024
    schema: pa.Schema = SCHEMA
    _seen: dict[int, int] = field(default_factory=dict)

    def ends(self) -> Mapping[int, int]:
        """Ends by the newest transactions. Raises InputError for a table that this run cannot go on with."""
        table = self._open()
        self._seen = {} if table is None else self._ends(table)
        return self._seen

    def commit(self, files: Sequence[ArchivedFile], ends: Mapping[int, int]) -> None:
        """Commit on top of the ends that this run has seen. InputError where there are others."""
        table = self._open() or self._create()
        if self._ends(table) != self._seen:
            raise moved(self._shown())
        transactions = [Transaction(self._application(number), end) for number, end in ends.items()]
        before = table.version()
        try:
            table.create_write_transaction(
                [self._added(found) for found in files if found.records],
                "append",
                self._schema(),
                partition_by=self._partitioned(),
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError as error:
            if not self._has(files, ends):
                raise moved(self._shown()) from error
        table.update_incremental()
        self.store.settle(f"_delta_log/{number:020d}.json" for number in range(before, table.version() + 1))
        self._seen = dict(ends)

    def tidy(self) -> str | None:
        """Compact partitions with many small files. Readers go on: a later vacuum alone removes what they may read."""
        table = self._open()
        if table is None:
            return None
        found = pa.table(table.get_add_actions(flatten=True)).to_pydict()
        periods = found[f"partition.{self.layout}"] if self.layout else [""] * len(found["path"])
        # No filter of delta-rs finds the files of no period.
        chosen = [p for p in crowded(periods, found["size_bytes"], self.file_bytes) if p is not None]
        if not chosen:
            return None
        done = table.optimize.compact(
            partition_filters=[(self.layout, "in", chosen)] if self.layout else None,
            target_size=self.file_bytes,
            writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
        )
        return (
            f"{done['numFilesRemoved']} small files are {done['numFilesAdded']} now; the small ones stay for readers, "
            f"and for a week: DeltaTable({self.store.place!r}).vacuum(dry_run=False) removes them then"
        )

    def _open(self) -> DeltaTable | None:
        try:
            table = DeltaTable(self.store.place, storage_options=_options())
        except TableNotFoundError:
            return None
        described = table.metadata()
        found = Shape(described.configuration.get(_TOPIC_ID), _columns(table.schema()), described.partition_columns)
        check_table(self._shown(), found, Shape(self.topic_id, _columns(self._schema()), self._partitioned()))
        return table

    def _create(self) -> DeltaTable:
        try:
            return DeltaTable.create(
                self.store.place,
                self._schema(),
                partition_by=self._partitioned(),
                name=self.topic,
                configuration={_TOPIC_ID: self.topic_id, "delta.dataSkippingStatsColumns": ",".join(_DESCRIBED)},
                raise_if_key_not_exists=False,
                storage_options=_options(),
            )
        except DeltaError as error:  # it is there, since this run looked
            raise moved(self._shown()) from error
        except Exception as error:  # delta-rs has no class for names that differ in case alone
            raise InputError(f"{self._shown()} cannot be made: {str(error).splitlines()[0]}") from error

    def _ends(self, table: DeltaTable) -> dict[int, int]:
        ends: dict[int, int] = {}
        while (end := table.transaction_version(self._application(len(ends)))) is not None:
            ends[len(ends)] = end
        if not ends and table.file_uris():
            raise InputError(
                f"{self._shown()} has files, and its log does not say any more up to which "
                "offsets: transactions have expired (delta.setTransactionRetentionDuration); archive to another place"
            )
        return ends

    def _has(self, files: Sequence[ArchivedFile], ends: Mapping[int, int]) -> bool:
        """Whether the log has this very commit: a store that had lost its answer met it when it tried again."""
        table = self._open()
        if table is None or self._ends(table) != ends:
            return False
        there = set(pa.table(table.get_add_actions()).column("path").to_pylist())
        return there.issuperset(found.path for found in files if found.records)

    def _shown(self) -> str:
        return f"the Delta table in {self.store.place}"

    def _application(self, partition: int) -> str:
        return f"seglog/{self.topic_id}/{partition}"

    def _partitioned(self) -> list[str]:
        return [] if self.layout is None else [self.layout]

    def _schema(self) -> Schema:
        """All columns; that of the partition is in no file."""
        columns = (
            self.schema if self.layout is None else self.schema.append(pa.field(self.layout, PERIODS[self.layout]))
        )
        return Schema.from_arrow(columns)

    def _added(self, found: ArchivedFile) -> AddAction:
        """The entry of a file, whose folder says its period."""
        values: dict[str, str | None] = {}
        if self.layout is not None:
            period = found.path.partition("=")[2].partition("/")[0]
            values[self.layout] = None if period == NO_DATE else period
        footer = pq.read_metadata(self.store.open(found.path))
        return AddAction(found.path, found.size, values, int(time.time() * 1000), True, json.dumps(statistics(footer)))


def statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Delta's statistics of a file, by its footer: of the columns that queries of a topic choose by.

    A column has both bounds or no value: datasets of delta-rs lose files that lack one. So a time outside the years
    that can be written down, of a producer that mixed up its units, counts as the first or the last of them.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in _DESCRIBED:
        place = next(n for n in range(footer.num_columns) if footer.schema.column(n).path == name)
        found = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        nulls[name] = sum(part.null_count for part in found)
        bounds = [(part.min_raw, part.max_raw) for part in found if part.has_min_max]
        if bounds:
            low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
            least[name], most[name] = (_time(low), _time(high)) if name == "timestamp" else (low, high)
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _options() -> dict[str, str]:
    """Options of object stores beside the environment, which delta-rs reads itself: an endpoint without TLS."""
    return {"allow_http": str(library_options(os.environ)["client_options"]["allow_http"]).lower()}


def _columns(schema: Schema) -> dict[str, object]:
    return {column.name: column.type for column in schema.fields}


def _time(micros: int) -> str:
    first, last = (time.astype(np.int64) for time in _TIMES)
    return f"{np.datetime64(int(np.clip(micros, first, last)), 'us').astype('datetime64[ms]')}Z"
