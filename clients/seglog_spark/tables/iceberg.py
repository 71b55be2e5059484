"""An Iceberg table over the files of an archive: one snapshot for each commit of the archive.

How far the table reaches is in its metadata, twice:

    summary of each snapshot of ours   seglog.topic-id, and seglog.offsets: JSON, partition -> offset of the next record
    properties of the table            the same, of the last commit

The newest snapshot of ours among the ancestors of the current one tells it, whatever others have committed after it; a
table that was rolled back has less then, and gets it again. Where maintenance has expired all of ours, or the table was
written anew, the properties tell it: they change in the commits of an archive alone.

A commit names the snapshot that it stands on, so the catalog refuses it when the table has moved. pyiceberg would then
stage the same files again on top of whatever came in between, another run's too: here it must not. Whoever is refused
looks again, and goes on only where the table still ends where this run saw it end.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchPropertyException,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, Transform, YearTransform
from pyiceberg.typedef import Record
from pyiceberg.types import TimestamptzType
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from seglog.cli.exits import InputError, UsageError
from seglog_spark.tables.manifest import NO_DATE, ArchivedFile, Layout
from seglog_spark.tables.parquet_files import SCHEMA
from seglog_spark.tables.stores import Store
from seglog_spark.tables.targets import Shape, check_table, crowded, moved

NAMESPACE: Final = "seglog"
"""Of tables, and the name of catalogs that are named by an address."""

CATALOG_FILE: Final = "_catalog.db"
"""The catalog beside the table, if no other one is named: a database of SQLite."""

_TRANSFORMS: Final[Mapping[str, Transform[Any, Any]]] = {
    "year": YearTransform(),
    "month": MonthTransform(),
    "date": DayTransform(),
    "hour": HourTransform(),
}
_TOPIC_ID: Final = "seglog.topic-id"
_OFFSETS: Final = "seglog.offsets"
_METRICS_OF_TIME: Final = "write.metadata.metrics.column.timestamp"
_COMMIT_TRIES: Final = 5
_S3: Final = {"s3.endpoint": "AWS_ENDPOINT_URL", "s3.region": "AWS_REGION"}
"""Properties of pyiceberg whose variables it does not read itself."""


@dataclass(slots=True)
class Iceberg:
    """A ``Target``: the table ``seglog.TOPIC`` of a catalog, at the place of ``store``.

    ``catalog_name`` is a catalog of pyiceberg's configuration, or an address; None: CATALOG_FILE beside the table.
    """

    store: Store
    topic: str
    topic_id: str
    layout: Layout = None
    catalog_name: str | None = None
    file_bytes: int = 128 * 1024 * 1024
    schema: pa.Schema = SCHEMA
    _seen: dict[int, int] = field(default_factory=dict)
    _catalog: Catalog | None = None

    def ends(self) -> Mapping[int, int]:
        """Ends by the newest snapshot of ours. Raises InputError for a table that this run cannot go on with."""
        table = self._open()
        self._seen = {} if table is None else self._ends(table)
        return self._seen

    def commit(self, files: Sequence[ArchivedFile], ends: Mapping[int, int]) -> None:
        """Commit on top of the ends that this run has seen. InputError where there are others."""
        offsets = {_TOPIC_ID: self.topic_id, _OFFSETS: json.dumps(ends)}
        table = self._open() or self._create()
        described = [self._data_file(found, table) for found in files if found.records]
        for _ in range(_COMMIT_TRIES):
            if self._ends(table) != self._seen:
                break
            # For this transaction alone: what other writers do to the table stays as it is set.
            properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
            table.metadata = table.metadata.model_copy(update={"properties": properties})
            transaction = table.transaction()
            transaction.set_properties(offsets)
            with transaction.update_snapshot(snapshot_properties=offsets).merge_append() as append:
                for data_file in described:
                    append.append_data_file(data_file)
            try:
                transaction.commit_transaction()
            except CommitFailedException:
                table = self._open() or self._create()
            else:
                self._seen = dict(ends)
                return
        raise moved(self._shown())

    def tidy(self) -> str | None:
        """The commands of Spark for many small files: pyiceberg cannot put them together."""
        table = self._open()
        if table is None or table.current_snapshot() is None:
            return None
        files = table.inspect.files()
        periods = files["partition"].to_pylist() if self.layout else [None] * len(files)
        if not crowded(map(str, periods), files["file_size_in_bytes"].to_pylist(), self.file_bytes):
            return None
        name = f"your_catalog.{NAMESPACE}.`{self.topic}`"
        return (
            f"{self._shown()} has many small files, which slow its readers down; Spark puts them together: "
            f"CALL your_catalog.system.rewrite_data_files('{name}'), and removes what nobody reads any more: "
            f"CALL your_catalog.system.expire_snapshots('{name}')"
        )

    def _open(self) -> Table | None:
        try:
            table = self._opened_catalog().load_table((NAMESPACE, self.topic))
        except NoSuchTableError:
            return None
        transforms = [str(part.transform) for part in table.spec().fields]
        found = Shape(table.properties.get(_TOPIC_ID), _columns(schema_to_pyarrow(table.schema())), transforms)
        wanted = Shape(self.topic_id, _columns(self.schema), [str(one) for one in self._transforms()])
        check_table(self._shown(), found, wanted)
        if table.location() != self._location():
            raise InputError(
                f"{self._shown()} lies in {table.location()}, not in {self._location()}: give that place, or another "
                "catalog"
            )
        return table

    def _create(self) -> Table:
        catalog = self._opened_catalog()
        properties = {
            _TOPIC_ID: self.topic_id,
            "write.metadata.delete-after-commit.enabled": "true",  # each of these files holds all snapshots
        }
        name = NAMESPACE, self.topic
        try:
            catalog.create_namespace_if_not_exists(NAMESPACE)
            with catalog.create_table_transaction(name, self.schema, self._location(), properties=properties) as begun:
                mapping = begun.table_metadata.schema().name_mapping.model_dump_json()
                begun.set_properties({"schema.name-mapping.default": mapping})
                if self.layout is not None:
                    with begun.update_spec() as update:
                        update.add_field("timestamp", _TRANSFORMS[self.layout])
        except (TableAlreadyExistsError, CommitFailedException, IntegrityError) as error:
            raise moved(self._shown()) from error
        return catalog.load_table(name)

    def _ends(self, table: Table) -> dict[int, int]:
        ours = (
            snapshot.summary[_OFFSETS]
            for snapshot in ancestors_of(table.current_snapshot(), table.metadata)
            if snapshot.summary is not None and snapshot.summary.get(_TOPIC_ID) == self.topic_id
        )
        found = next(ours, None) or table.properties.get(_OFFSETS, "{}")
        return {int(number): end for number, end in json.loads(found).items()}

    def _data_file(self, found: ArchivedFile, table: Table) -> DataFile:
        schema = table.schema()
        footer, ids = pq.read_metadata(self.store.open(found.path)), parquet_path_to_id_mapping(schema)
        try:
            plan = compute_statistics_plan(schema, table.properties)
            statistics = data_file_statistics_from_parquet_metadata(footer, plan, ids)
        except OverflowError:  # pyarrow shows no time behind the year 9999, which some producer's clock may have
            plan = compute_statistics_plan(schema, {**table.properties, _METRICS_OF_TIME: "counts"})
            statistics = data_file_statistics_from_parquet_metadata(footer, plan, ids)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._location()}/{found.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*(_period(found, transform) for transform in self._transforms())),
            file_size_in_bytes=found.size,
            sort_order_id=None,
            spec_id=table.metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _transforms(self) -> list[Transform[Any, Any]]:
        """Of the partition fields, which are one or none."""
        return [] if self.layout is None else [_TRANSFORMS[self.layout]]

    def _location(self) -> str:
        """The address of the table, whose files have its names below."""
        return self.store.place if "://" in self.store.place else f"file://{self.store.place}"

    def _shown(self) -> str:
        return f"the Iceberg table {NAMESPACE}.{self.topic}"

    def _opened_catalog(self) -> Catalog:
        """The catalog, opened once. UsageError for one that cannot be."""
        if self._catalog is None:
            self._catalog = self._find_catalog()
            if isinstance(self._catalog, SqlCatalog) and "://" not in self.store.place:
                settled: set[str] = set()

                def settle(_connection: object) -> None:
                    """Make durable what the catalog is about to name: its own commit is, files of a table are not."""
                    new = set(self.store.names("metadata")) - settled
                    self.store.settle(new)
                    settled.update(new)

                event.listen(self._catalog.engine, "commit", settle)
        return self._catalog

    def _find_catalog(self) -> Catalog:
        try:
            if self.catalog_name is not None:
                if "://" not in self.catalog_name:
                    return load_catalog(self.catalog_name)
                found = {name: os.environ.get(variable) for name, variable in _S3.items()}
                given = {name: value for name, value in found.items() if value}
                return load_catalog(NAMESPACE, uri=self.catalog_name, **given)
            if "://" not in self.store.place:
                return load_catalog(NAMESPACE, type="sql", uri=f"sqlite:///{self.store.place}/{CATALOG_FILE}")
        except (ValueError, ImportError, SQLAlchemyError, NoSuchPropertyException, RESTError) as error:
            said = f"--catalog {self.catalog_name}: {error}"
            raise UsageError(re.sub(r"//[^/\s]*@", "//***@", said)) from error  # accounts
        raise UsageError(
            f"the catalog of a table in {self.store.place} cannot be beside it: name one by --catalog, the address of "
            "a database or of a REST catalog, or a name of pyiceberg's configuration"
        )


def _columns(schema: pa.Schema) -> dict[str, object]:
    """Types by name, by their texts: pyiceberg takes the large variants, which are no others in a table."""
    return {column.name: str(column.type).replace("large_", "") for column in schema}


def _period(found: ArchivedFile, transform: Transform[Any, Any]) -> Any:
    """The value of a partition field for all rows of a file; None for those without a time, or with an absurd one."""
    if found.min_timestamp is None or f"={NO_DATE}/" in found.path:
        return None
    return transform.transform(TimestamptzType())(found.min_timestamp * 1000)
