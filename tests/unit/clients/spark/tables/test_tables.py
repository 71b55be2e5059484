"""Tables of Delta and Iceberg over files of known offsets: what their own readers find, and when a commit counts."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from seglog.cli.exits import InputError, UsageError
from seglog_spark.offsets import OffsetRange
from seglog_spark.tables.delta import Delta
from seglog_spark.tables.iceberg import Iceberg
from seglog_spark.tables.manifest import ArchivedFile, Layout
from seglog_spark.tables.parquet_files import SCHEMA, write_file
from seglog_spark.tables.periods import write_by_period
from seglog_spark.tables.stores import Folder
from seglog_spark.tables.targets import SMALL_FILES, Target
from tests.archive_readers import READERS
from tests.spark.jobs.records import DAY_US, batches, in_rows, timed

BEGIN_US = int(datetime(2019, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
FEBRUARY = datetime(2019, 2, 1, tzinfo=UTC)
MARCH = datetime(2019, 3, 1, tzinfo=UTC)
NO_TIME = 17
ABSURD = 23
ABSURD_US = 1_700_000_000_000_000_000


def time_us(offset: int) -> int | None:
    """One record a day from 2019 on, one without a time, and one of a producer that mixed up its units."""
    return {NO_TIME: None, ABSURD: ABSURD_US}.get(offset, BEGIN_US + offset * DAY_US)


def records(r: OffsetRange) -> list[pa.RecordBatch]:
    return list(timed(batches(r), time_us))


@dataclass(frozen=True)
class Format:
    """A format, and its own library, which knows nothing of archives."""

    name: str
    target: Callable[..., Target]
    polars: Callable[[Path], pl.LazyFrame]
    paths: Callable[[Path], list[str]]
    """The files that a query of February reads."""
    touch: Callable[[Path], object]
    """Somebody else's commit, which adds no rows."""
    add: Callable[[Path], object]
    """Somebody else's rows: one."""

    def __str__(self) -> str:
        return self.name

    def arrow(self, folder: Path) -> pa.Table:
        """All of it."""
        return READERS[self.name](folder, None)


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars warns where a package of its own is not there that plans faster than pyiceberg."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def catalog(folder: Path) -> Catalog:
    return load_catalog("seglog", type="sql", uri=f"sqlite:///{folder}/_catalog.db")


def iceberg(folder: Path) -> Table:
    return catalog(folder).load_table(("seglog", "t"))


def _february_of_iceberg(folder: Path) -> list[str]:
    scan = iceberg(folder).scan(f"timestamp >= '{FEBRUARY.isoformat()}' and timestamp < '{MARCH.isoformat()}'")
    return [task.file.file_path for task in scan.plan_files()]


def _february_of_delta(folder: Path) -> list[str]:
    wanted = (pc.field("timestamp") >= pa.scalar(FEBRUARY)) & (pc.field("timestamp") < pa.scalar(MARCH))
    return [part.path for part in DeltaTable(folder).to_pyarrow_dataset().get_fragments(wanted)]


def _touch_iceberg(folder: Path) -> None:
    table = iceberg(folder)
    table.overwrite(table.scan().to_arrow())


DELTA = Format(
    "delta",
    Delta,
    lambda folder: pl.scan_delta(str(folder)),
    _february_of_delta,
    lambda folder: DeltaTable(folder).optimize.compact(),
    lambda folder: write_deltalake(folder, DeltaTable(folder).to_pyarrow_table().slice(0, 1), mode="append"),
)
ICEBERG = Format(
    "iceberg",
    Iceberg,
    lambda folder: pl.scan_iceberg(iceberg(folder)),
    _february_of_iceberg,
    _touch_iceberg,
    lambda folder: iceberg(folder).append(iceberg(folder).scan(limit=1).to_arrow()),
)
each_format = pytest.mark.parametrize("table", [DELTA, ICEBERG], ids=str)


def target(table: Format, folder: Path, layout: Layout = None, **named: Any) -> Target:
    return table.target(Folder(folder), "t", "id", layout, **named)


def files(folder: Path, table: Format, start: int, end: int, layout: Layout = None) -> list[ArchivedFile]:
    r = OffsetRange("t", 0, start, end)
    if layout is None:
        return [write_file(Folder(folder), r, iter(records(r)), "zstd")]
    name: Any = table.name
    return write_by_period(Folder(folder), layout, r, iter(records(r)), "zstd", (), name)


def archived(
    table: Format, folder: Path, *edges: int, layout: Layout = None, **named: Any
) -> tuple[Target, Mapping[int, int] | None]:
    """A table of some commits, and where a new run sees it end."""
    for start, end in pairwise(edges):
        one = target(table, folder, layout, **named)
        one.ends()
        one.commit(files(folder, table, start, end, layout), {0: end, 1: 0})
    new = target(table, folder, layout, **named)
    return new, new.ends()


def offsets(found: pa.Table) -> list[int]:
    return sorted(found["offset"].to_pylist())


@pytest.mark.parametrize("layout", [None, "year", "month", "date", "hour"])
@each_format
def test_readers_find_the_records_of_the_log(tmp_path: Path, table: Format, layout: Layout) -> None:
    _, ends = archived(table, tmp_path, 0, 25, 60, layout=layout)
    assert ends == {0: 60, 1: 0}
    wanted = in_rows(records(OffsetRange("t", 0, 0, 60)))
    found = table.arrow(tmp_path).sort_by("offset")
    names = [*wanted[0]]
    rows = in_rows(found.select(names).to_batches())
    assert [row | {"headers": row["headers"] or None} for row in rows] == wanted  # pyiceberg's null lists are empty
    assert found.column_names == names + ([layout] if layout and table is DELTA else [])
    counted = duckdb.sql("select count(*), count(timestamp), sum(octet_length(value)) from found")
    assert counted is not None
    assert counted.fetchall() == [(60, 59, sum(map(len, filter(None, found["value"].to_pylist()))))]
    frame = table.polars(tmp_path).select("offset", "key", "headers").sort("offset").collect()
    assert frame.to_dicts() == [{name: row[name] for name in ("offset", "key", "headers")} for row in wanted]


@pytest.mark.parametrize("layout", [None, "month"])
@each_format
def test_a_query_of_a_month_reads_its_files(tmp_path: Path, table: Format, layout: Layout) -> None:
    """A query of a month reads its files alone, where a file has a month and where it is known from statistics."""
    archived(table, tmp_path, 0, 31, 59, 90, layout=layout)
    read = table.paths(tmp_path)
    assert len([path for path in read if "00031-" in path]) == 1
    assert len(read) == (1 if layout else 2)  # a file of January has the absurd time, too


@pytest.mark.parametrize("edges", [(), (0, 10)], ids=["no table", "a table"])
@each_format
def test_of_two_runs_one_counts(tmp_path: Path, table: Format, edges: tuple[int, ...]) -> None:
    """Of two runs that began at the same end one counts, whichever ranges the other has made."""
    first, _ = archived(table, tmp_path, *edges)
    second = target(table, tmp_path)
    second.ends()
    begin = edges[-1] if edges else 0
    first.commit(files(tmp_path, table, begin, 20), {0: 20, 1: 0})
    with pytest.raises(InputError, match=r"another run has committed to .* start it again"):
        second.commit(files(tmp_path, table, begin, 30), {0: 30, 1: 0})
    assert offsets(table.arrow(tmp_path)) == list(range(20))
    assert second.ends() == {0: 20, 1: 0}


def test_a_log_that_another_run_has_overwritten_is_left_alone(tmp_path: Path) -> None:
    """In a store that ignores conditions a run may overwrite another one's commit: then that stops at its next one."""
    first, _ = archived(DELTA, tmp_path, 0, 10)
    second = target(DELTA, tmp_path)
    second.ends()
    first.commit(files(tmp_path, DELTA, 10, 20), {0: 20, 1: 0})
    (tmp_path / "_delta_log" / f"{2:020d}.json").unlink()
    second.commit(files(tmp_path, DELTA, 10, 15), {0: 15, 1: 0})
    with pytest.raises(InputError, match="another run has committed"):
        first.commit(files(tmp_path, DELTA, 20, 30), {0: 30, 1: 0})
    assert offsets(DELTA.arrow(tmp_path)) == list(range(15))


class Meanwhile(Folder):
    """A folder in which something happens once, after a commit has looked at the table and before it writes."""

    happens: ClassVar[list[Callable[[], object]]] = []

    def open(self, name: str) -> Any:
        if self.happens:
            self.happens.pop()()
        return super().open(name)


@each_format
def test_a_commit_that_meets_another_one_looks_again(tmp_path: Path, table: Format) -> None:
    """Met by another run's commit, a commit fails; by a commit of somebody else, it counts once."""
    archived(table, tmp_path, 0, 5, 10)
    second = table.target(Meanwhile(tmp_path), "t", "id")
    second.ends()
    other = target(table, tmp_path)
    other.ends()
    more = files(tmp_path, table, 10, 20)
    Meanwhile.happens = [lambda: other.commit(more, {0: 20, 1: 0})]
    with pytest.raises(InputError, match="another run has committed"):
        second.commit(files(tmp_path, table, 10, 30), {0: 30, 1: 0})
    second.ends()
    Meanwhile.happens = [lambda: table.touch(tmp_path)]
    second.commit(files(tmp_path, table, 20, 30), {0: 30, 1: 0})
    assert Meanwhile.happens == []
    assert offsets(table.arrow(tmp_path)) == list(range(30))
    assert target(table, tmp_path).ends() == {0: 30, 1: 0}


@each_format
def test_a_table_that_is_not_of_this_topic_is_left_alone(tmp_path: Path, table: Format) -> None:
    """A table of another topic, with other columns or other partitions is left alone, and the error says what to do."""
    archived(table, tmp_path, 0, 5)
    with pytest.raises(InputError, match=r"deleted: its id is id; archive to a place of its own"):
        table.target(Folder(tmp_path), "t", "recreated").ends()
    with pytest.raises(InputError, match=r"is partitioned by nothing; give the options"):
        target(table, tmp_path, "month").ends()
    typed = target(table, tmp_path).schema.set(1, pa.field("value", pa.struct([("id", pa.int64())])))  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="has no column value of the type that this run would write"):
        target(table, tmp_path, schema=typed).ends()


def test_a_table_that_seglog_did_not_make_is_left_alone(tmp_path: Path) -> None:
    rows = pa.table({"offset": pa.array([1], pa.int64())})
    write_deltalake(tmp_path / "delta", rows)
    with pytest.raises(InputError, match="was not made by seglog; archive to a place of its own"):
        target(DELTA, tmp_path / "delta").ends()
    catalog(tmp_path).create_namespace("seglog")
    catalog(tmp_path).create_table(("seglog", "t"), rows.schema, location=f"file://{tmp_path}/other")
    with pytest.raises(InputError, match=r"the Iceberg table seglog\.t was not made by seglog"):
        target(ICEBERG, tmp_path).ends()


def test_a_delta_table_has_no_names_that_differ_in_case_alone(tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int64()), ("A", pa.int64())])
    schema = SCHEMA.set(SCHEMA.names.index("value"), pa.field("value", kind))
    with pytest.raises(InputError, match=r"the Delta table in .* cannot be made: .*[Dd]uplicate field name"):
        Delta(Folder(tmp_path), "t", "id", schema=schema).commit([], {0: 0})


def test_the_ends_of_a_delta_table_survive_its_checkpoints(tmp_path: Path) -> None:
    archived(DELTA, tmp_path, 0, 5, 10)
    made = DeltaTable(tmp_path)
    made.create_checkpoint()
    for number in range(made.version()):
        (tmp_path / "_delta_log" / f"{number:020d}.json").unlink()
    assert target(DELTA, tmp_path).ends() == {0: 10, 1: 0}


def test_a_delta_table_whose_transactions_have_expired_is_left_alone(tmp_path: Path) -> None:
    """A Delta table with files and without transactions, as Spark's retention of those leaves it, is left alone."""
    archived(DELTA, tmp_path, 0, 5, 10)
    for entry in (tmp_path / "_delta_log").glob("*.json"):
        kept = [line for line in entry.read_text().splitlines() if not line.startswith('{"txn"')]
        entry.write_text("\n".join(kept))
    with pytest.raises(InputError, match="does not say any more up to which offsets"):
        target(DELTA, tmp_path).ends()


def test_a_delta_table_needs_no_feature_of_its_readers(tmp_path: Path) -> None:
    """A Delta table needs no feature of its readers, and its statistics are exact."""
    archived(DELTA, tmp_path, 0, 30)
    protocol = DeltaTable(tmp_path).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    log = (tmp_path / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
    added = next(found["add"] for found in map(json.loads, log) if "add" in found)
    assert json.loads(added["stats"]) == {
        "numRecords": 30,
        "minValues": {"partition": 0, "offset": 0, "timestamp": "2019-01-01T00:00:00.000Z"},
        "maxValues": {"partition": 0, "offset": 29, "timestamp": "9999-12-31T23:59:59.999Z"},
        "nullCount": {"partition": 0, "offset": 0, "timestamp": 1},
    }


def test_an_iceberg_table_tells_its_end_after_others(tmp_path: Path) -> None:
    """An Iceberg table tells its end after commits of others, when all of ours have expired, and rolled back."""
    new, _ = archived(ICEBERG, tmp_path, 0, 5, 10)
    first = iceberg(tmp_path).history()[0].snapshot_id
    ICEBERG.add(tmp_path)
    assert target(ICEBERG, tmp_path).ends() == {0: 10, 1: 0}
    made = iceberg(tmp_path)
    made.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in made.snapshots()[:-1]]).commit()
    assert len(iceberg(tmp_path).snapshots()) == 1
    assert target(ICEBERG, tmp_path).ends() == {0: 10, 1: 0}
    new.ends()
    new.commit(files(tmp_path, ICEBERG, 10, 20), {0: 20, 1: 0})
    new.commit(files(tmp_path, ICEBERG, 20, 30), {0: 30, 1: 0})
    made = iceberg(tmp_path)
    made.manage_snapshots().rollback_to_snapshot(made.snapshots()[-2].snapshot_id).commit()
    assert new.ends() == {0: 20, 1: 0}
    assert first not in {s.snapshot_id for s in made.snapshots()}
    new.commit(files(tmp_path, ICEBERG, 20, 30), {0: 30, 1: 0})
    assert len(offsets(ICEBERG.arrow(tmp_path))) == 31


@pytest.mark.parametrize("layout", [None, "year"])
@each_format
def test_many_small_files_are_put_together_or_that_is_said(tmp_path: Path, table: Format, layout: Layout) -> None:
    """Many small files are put together, or it is said what does it; readers of the files before go on."""
    one, _ = archived(table, tmp_path, layout=layout)
    small = [found for n in range(24, 23 + SMALL_FILES) for found in files(tmp_path, table, n, n + 1, layout)]
    one.commit(small, {0: 23 + SMALL_FILES, 1: 0})
    assert one.tidy() is None
    one.commit(files(tmp_path, table, 23 + SMALL_FILES, 50, layout), {0: 50, 1: 0})
    before = pl.scan_delta(str(tmp_path)) if table is DELTA else None
    sentence = one.tidy()
    assert sentence is not None
    assert offsets(table.arrow(tmp_path)) == list(range(24, 50))
    if before is None:
        assert "rewrite_data_files('your_catalog.seglog.`t`')" in sentence
        return
    assert sentence.startswith(f"{SMALL_FILES} small files are 1 now")
    assert "vacuum" in sentence
    assert before.select(pl.len()).collect().item() == 26
    assert one.tidy() is None
    assert one.ends() == {0: 50, 1: 0}
    one.commit(files(tmp_path, table, 50, 51, layout), {0: 51, 1: 0})


def test_a_table_in_a_bucket_needs_a_catalog(tmp_path: Path) -> None:
    """A table in a bucket needs a catalog, and one that cannot be opened is an error of the command line."""

    class InBucket(Folder):
        place = "s3://bucket/t"

    with pytest.raises(UsageError, match="cannot be beside it: name one by --catalog"):
        Iceberg(InBucket(tmp_path), "t", "id").ends()
    with pytest.raises(UsageError, match="--catalog nobody"):
        Iceberg(Folder(tmp_path), "t", "id", catalog_name="nobody").ends()
    with pytest.raises(UsageError, match=r"--catalog zork://\*\*\*@x/y: ") as caught:
        Iceberg(Folder(tmp_path), "t", "id", catalog_name="zork://me:s3cret@x/y").ends()
    assert "s3cret" not in str(caught.value)
    named = Iceberg(Folder(tmp_path), "t", "id", catalog_name=f"sqlite:///{tmp_path}/other.db")
    named.ends()
    named.commit(files(tmp_path, ICEBERG, 0, 5), {0: 5})
    assert named.ends() == {0: 5}
    elsewhere = Iceberg(Folder(tmp_path / "x"), "t", "id", catalog_name=f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(InputError, match="lies in file://"):
        elsewhere.ends()
