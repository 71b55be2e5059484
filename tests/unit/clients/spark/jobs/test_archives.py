"""Archives without Spark: files and their dates, the manifest, and what a run leaves that is killed at any step."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.arrow.values import Values
from seglog.cli.exits import InputError
from seglog.core.moments import AtOffset, AtTime, Edge, Moment
from seglog.core.records import ConsumerGap
from seglog_protocol.messages import TopicDescription
from seglog_spark.jobs import archiving
from seglog_spark.jobs.archiving import ArchiveTask, archive, check_same, next_ranges
from seglog_spark.jobs.inputs import ArchiveInput, archive_ends, spans
from seglog_spark.offsets import OffsetRange
from seglog_spark.planning import DataLossError, Ends
from seglog_spark.tables import periods, stores
from seglog_spark.tables.delta import Delta
from seglog_spark.tables.iceberg import Iceberg
from seglog_spark.tables.manifest import (
    GAPS_MAX,
    MANIFEST,
    NO_DATE,
    ArchivedFile,
    FileGap,
    Format,
    Layout,
    Manifest,
    file_name,
    load,
    load_whole,
    save,
)
from seglog_spark.tables.parquet_files import SCHEMA, find_file, first_at, read_file, write_file
from seglog_spark.tables.periods import (
    BEGUN,
    find_by_period,
    periods_of,
    read_merged,
    remove_notes,
    shown,
    write_by_period,
)
from seglog_spark.tables.stores import Folder
from seglog_spark.tables.targets import ParquetFiles, Target
from tests.archive_readers import READERS
from tests.spark.fake_log import RECORD_BYTES, FakeLog, log, tp
from tests.spark.jobs.records import DAY_US, batches, in_rows, row, timed

RANGE = OffsetRange("t", 1, 100, 160)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_went_in(tmp_path: Path, compression: str) -> None:
    store = Folder(tmp_path)
    written = write_file(store, RANGE, batches(RANGE), compression)
    assert in_rows(read_file(store, written.path, SCHEMA.names, 0, 1000)) == [
        row("t", 1, offset) for offset in range(100, 160)
    ]
    few = in_rows(read_file(store, written.path, ["value"], 110, 112))
    assert few == [{"value": b"value 110"}, {"value": b"value 111"}]
    assert list(read_file(store, written.path, ["value"], 160, 1000)) == []
    assert (written.records, written.missing, written.gaps) == (60, 0, ())
    assert (written.min_timestamp, written.max_timestamp) == (100_000, 159_000)
    assert written.size == (tmp_path / written.path).stat().st_size
    assert find_file(store, RANGE) == written
    assert written.path == "t-1/00000000000000000100-00000000000000000160.parquet"


@given(st.sets(st.integers(100, 159)), st.sets(st.integers(100, 159)))
def test_every_offset_is_a_record_or_in_a_gap_with_its_reason(
    tmp_path_factory: pytest.TempPathFactory, without: set[int], told: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    met = [ConsumerGap("t", 1, offset, offset + 1, "compacted") for offset in without & told]
    written = write_file(Folder(folder), RANGE, batches(RANGE, without, rows_max=7), "none", met)
    assert written.gaps is not None
    reasons = {offset: gap.reason for gap in written.gaps for offset in range(gap.start, gap.end)}
    assert reasons == {offset: "compacted" if offset in told else "unknown" for offset in without}
    assert written.missing == len(without)
    assert written.records == 60 - len(without)
    assert find_file(Folder(folder), RANGE) == written


def test_more_gaps_than_anybody_reads_are_only_counted(tmp_path: Path) -> None:
    r = OffsetRange("t", 0, 0, 3 * GAPS_MAX)
    written = write_file(Folder(tmp_path), r, batches(r, range(0, r.end, 2), rows_max=1000), "none")
    assert (written.missing, written.gaps) == (r.size // 2, None)


def test_what_is_not_whole_is_not_taken_for_a_file(tmp_path: Path) -> None:
    written = write_file(Folder(tmp_path), RANGE, batches(RANGE), "zstd")
    path = tmp_path / written.path
    whole = path.read_bytes()
    assert find_file(Folder(tmp_path), OffsetRange("t", 1, 100, 161)) is None
    for content in (b"", whole[:-1], whole[:1000], b"PAR1" * 10):
        path.write_bytes(content)
        assert find_file(Folder(tmp_path), RANGE) is None
    other = OffsetRange("t", 1, 200, 260)
    path.rename(tmp_path / file_name(other))
    (tmp_path / file_name(other)).write_bytes(whole)
    assert find_file(Folder(tmp_path), other) is None  # it says itself whose records it has


def test_offsets_that_do_not_rise_within_the_range_are_an_error_and_leave_nothing(tmp_path: Path) -> None:
    twice = [*batches(RANGE), *batches(OffsetRange("t", 1, 159, 160))]
    for pieces in (twice, batches(RANGE._replace(end=161)), batches(RANGE._replace(start=99))):
        with pytest.raises(ValueError, match="do not rise within it"):
            write_file(Folder(tmp_path), RANGE, pieces, "none")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


SPAN = OffsetRange("t", 1, 100, 140)
CHRISTMAS_US = 17_890 * DAY_US
"""2018-12-25."""


def mixed(r: OffsetRange, without: set[int] | None = None) -> list[pa.RecordBatch]:
    """Records of three days, in no order, and without a timestamp."""
    return list(
        timed(
            batches(r, without or (), rows_max=7),
            lambda offset: None if offset % 5 == 2 else CHRISTMAS_US + offset * 7 % 3 * DAY_US + offset,
        )
    )


times = st.one_of(
    st.none(),
    st.integers(-3, 3).map(lambda days: days * DAY_US),
    st.integers(CHRISTMAS_US - DAY_US, CHRISTMAS_US + DAY_US).map(lambda time: time // 1000 * 1000),
    st.sampled_from([-(2**63) + 1, 2**63 - 1]).map(lambda time: time // 1_000_000 * 1000),
)


@given(
    st.lists(times, min_size=SPAN.size, max_size=SPAN.size),
    st.sets(st.integers(SPAN.start, SPAN.end - 1)),
    st.tuples(st.integers(95, 145), st.integers(95, 145)),
    st.integers(1, 1 << 20),
)
def test_by_date_there_are_the_same_records_in_the_same_order_and_the_same_gaps(
    tmp_path_factory: pytest.TempPathFactory,
    chosen: list[int | None],
    without: set[int],
    span: tuple[int, int],
    merged_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    as_dated, as_plain = Folder(folder / "dated"), Folder(folder / "plain")
    records = list(timed(batches(SPAN, without, rows_max=7), lambda offset: chosen[offset - SPAN.start]))
    met = [ConsumerGap("t", 1, offset, offset + 1, "compacted") for offset in without]
    plain = write_file(as_plain, SPAN, records, "none", met)
    dated = write_by_period(as_dated, "date", SPAN, records, "none", met)
    assert sum(found.records for found in dated) == plain.records
    assert sum(found.missing for found in dated) == plain.missing
    assert [gap for found in dated for gap in found.gaps or ()] == list(plain.gaps or ())
    for column in ("min_timestamp", "max_timestamp"):
        facts = [getattr(found, column) for found in dated if getattr(found, column) is not None]
        assert (min if column[:3] == "min" else max)(facts, default=None) == getattr(plain, column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(periods, "_MERGED_BYTES", merged_bytes)
        for columns in (SCHEMA.names, ["value", "timestamp"]):
            read = in_rows(read_merged(as_dated, dated, columns, *span))
            assert read == in_rows(read_merged(as_plain, [plain], columns, *span))
    inputs = ArchiveInput("t", as_dated, tuple(dated)), ArchiveInput("t", as_plain, (plain,))
    for time_ms in (-1, 0, 1, CHRISTMAS_US // 1000, CHRISTMAS_US // 1000 + 7200, 2**53):
        by_dates, by_offsets = (source.find_times({tp("t-1"): time_ms}) for source in inputs)
        assert by_dates == by_offsets


def test_a_file_has_the_records_of_one_range_and_one_date(tmp_path: Path) -> None:
    written = write_by_period(Folder(tmp_path), "date", SPAN, mixed(SPAN), "zstd")
    assert [found.path for found in written] == [
        f"topic=t/date={date}/partition=1/00000000000000000100-00000000000000000140.parquet"
        for date in (NO_DATE, "2018-12-25", "2018-12-26", "2018-12-27")
    ]
    for found, date in zip(written, (None, 25, 26, 27), strict=True):
        path = tmp_path / found.path
        rows = pq.ParquetFile(path).read().to_pylist()
        assert [row["timestamp"] and row["timestamp"].day for row in rows] == [date] * found.records
        assert (found.start, found.end, found.size) == (100, 140, path.stat().st_size)
    assert sorted(path.name[:1] for path in tmp_path.iterdir()) == ["_", "t"]


def test_dates_are_those_of_utc_and_what_is_no_date_has_none() -> None:
    dates = {
        -1: "1969-12-31",
        0: "1970-01-01",
        DAY_US - 1: "1970-01-01",
        DAY_US: "1970-01-02",
        None: NO_DATE,
        253_402_300_800_000_000: NO_DATE,
        253_402_300_799_999_999: "9999-12-31",
        -62_135_596_800_000_001: NO_DATE,
    }
    days = periods_of(pa.chunked_array([pa.array([*dates], pa.timestamp("us", "UTC"))]), "D")
    assert [shown(day, "date") for day in days.tolist()] == [*dates.values()]
    assert shown(int(np.datetime64("2024-02-29").astype("int64")), "date") == "2024-02-29"


@pytest.mark.parametrize(
    ("layout", "folders"),
    [("year", {"2018", "2019"}), ("month", {"2018-12", "2019-01"}), ("hour", {"2018-12-31T23", "2019-01-01T00"})],
)
def test_a_period_is_a_year_a_month_or_an_hour(tmp_path: Path, layout: str, folders: set[str]) -> None:
    new_year_us = CHRISTMAS_US + 7 * DAY_US
    records = timed(batches(SPAN, (), rows_max=7), lambda offset: new_year_us - offset % 2)
    written = write_by_period(Folder(tmp_path), layout, SPAN, records, "zstd")
    assert {found.path.split("/")[1] for found in written} == {f"{layout}={period}" for period in folders}


def test_a_period_of_many_records_has_several_files_in_order(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    told = iter(range(3))
    written = write_by_period(
        store, "year", SPAN, batches(SPAN, (), rows_max=7), "zstd", rows_max=15, on_file=lambda: next(told)
    )
    assert list(told) == []
    assert [found.path.rpartition("/")[2] for found in written] == [
        f"00000000000000000100-00000000000000000140-{number:05d}.parquet" for number in range(3)
    ]
    assert [found.records for found in written] == [15, 15, 10]
    offsets = [row["offset"] for found in written for row in in_rows(read_file(store, found.path, ["offset"], 0, 999))]
    assert offsets == list(range(100, 140))
    assert find_by_period(store, SPAN) == written
    read = in_rows(read_merged(store, written, ["offset"], 0, 999))
    assert [row["offset"] for row in read] == offsets


@pytest.mark.parametrize("layout", [None, "date"])
def test_a_range_without_a_record_has_one_file_that_says_so(tmp_path: Path, layout: Layout) -> None:
    store, met = Folder(tmp_path), [ConsumerGap("t", 1, 0, 500, "expired")]
    write: Callable[..., Any] = write_file if layout is None else partial(write_by_period, layout=layout)
    made = write(store, r=SPAN, batches=[], compression="zstd", met=met)
    (written,) = made if layout else [made]
    assert (written.records, written.missing, written.gaps) == (0, 40, (FileGap(100, 140, "expired"),))
    assert written.min_timestamp is None
    assert pq.ParquetFile(tmp_path / written.path).schema_arrow.equals(SCHEMA)
    assert (find_by_period(store, SPAN) if layout else [find_file(store, SPAN)]) == [written]
    assert layout is None or f"date={NO_DATE}/" in written.path
    assert first_at(store, written.path, 0) is None


def test_a_range_is_found_when_all_its_files_are_there(tmp_path: Path) -> None:
    assert find_by_period(Folder(tmp_path), SPAN) == []
    written = write_by_period(Folder(tmp_path), "date", SPAN, mixed(SPAN), "zstd")
    assert find_by_period(Folder(tmp_path), SPAN) == written
    assert find_by_period(Folder(tmp_path), SPAN._replace(end=141)) == []
    for found in written:
        path = tmp_path / found.path
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        assert find_by_period(Folder(tmp_path), SPAN) == []
        path.unlink()
        assert find_by_period(Folder(tmp_path), SPAN) == []
        path.write_bytes(content)
    assert find_by_period(Folder(tmp_path), SPAN) == written
    remove_notes(Folder(tmp_path))
    assert find_by_period(Folder(tmp_path), SPAN) == []


def test_a_range_that_is_made_again_with_fewer_dates_leaves_no_file_of_before(tmp_path: Path) -> None:
    before = write_by_period(Folder(tmp_path), "date", SPAN, mixed(SPAN), "zstd")
    (tmp_path / before[0].path).unlink()  # it was killed
    without = {offset for offset in range(100, 140) if offset % 5 == 2 or offset * 7 % 3 == 1}  # compacted since
    again = write_by_period(Folder(tmp_path), "date", SPAN, mixed(SPAN, without), "zstd")
    assert [found.path.split("/")[1] for found in again] == ["date=2018-12-25", "date=2018-12-27"]
    assert files_below(tmp_path) == {found.path for found in again}


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def test_every_folder_on_the_way_to_a_file_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    monkeypatch.setattr(stores, "_sync", synced.add)
    (first, *_) = write_by_period(Folder(tmp_path), "date", SPAN, mixed(SPAN), "zstd")
    assert synced >= {tmp_path / parent for parent in Path(first.path).parents}


# --- What an archive has: its manifest, and what is read of it --------------------------------------------------------


FIRST = OffsetRange("t", 0, 0, 100)


def archived(r: OffsetRange, *gaps: FileGap) -> ArchivedFile:
    missing = sum(gap.end - gap.start for gap in gaps)
    return ArchivedFile(file_name(r), r.partition, r.start, r.end, r.size - missing, 5000, 0, 99_000, missing, gaps)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    made = Manifest("t", "id", planned=(FIRST, OffsetRange("t", 1, 5, 9)))
    save(Folder(tmp_path), made)
    assert load(Folder(tmp_path)) == made
    full = made.with_written([archived(OffsetRange("t", 1, 5, 9)), archived(FIRST, FileGap(3, 5, "compacted"))])
    save(Folder(tmp_path), full)
    assert load(Folder(tmp_path)) == full
    assert full.partitions == {0: (0, 100), 1: (5, 9)}
    assert [found.partition for found in full.files] == [0, 1]
    assert full.planned == ()
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


def test_readers_see_the_files_of_a_topic_whose_name_hides_folders(tmp_path: Path) -> None:
    for topic in ("_t", ".t", "t"):
        r = OffsetRange(topic, 0, 0, 5)
        write_file(Folder(tmp_path), r, batches(r), "zstd")
    assert ds.dataset(tmp_path, format="parquet").count_rows() == 15


def test_a_folder_with_something_else_in_it_is_no_archive(tmp_path: Path) -> None:
    assert load(Folder(tmp_path / "missing")) is None
    assert load(Folder(tmp_path)) is None
    with Folder(tmp_path).claimed():
        pass
    assert load(Folder(tmp_path)) is None
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(InputError, match=r"is not an archive of seglog: it holds other files"):
        load(Folder(tmp_path))
    with pytest.raises(InputError, match=r"letter\.txt is a file"):
        load(Folder(tmp_path / "letter.txt"))
    with pytest.raises(InputError, match="holds no archive"):
        load_whole(Folder(tmp_path / "missing"))
    newer = json.dumps(Manifest("t", "").to_json() | {"version": 2})
    for text in ("", "[]", '{"format": "other", "version": 1}', newer):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(InputError, match="is not a manifest that this version can read"):
            load(Folder(tmp_path))


def test_a_compaction_that_was_not_finished_is_not_read(tmp_path: Path) -> None:
    save(Folder(tmp_path), Manifest("t", "id", "compacted", planned=(FIRST,)))
    with pytest.raises(InputError, match="was not finished"):
        load_whole(Folder(tmp_path))
    save(Folder(tmp_path), Manifest("t", "id", planned=(FIRST,)))
    assert load_whole(Folder(tmp_path)).planned == (FIRST,)  # of an archive what is there can be read


def test_what_killed_runs_left_is_swept_away_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    kept = [tmp_path / "t-0" / "a.parquet", tmp_path / ".hidden", tmp_path / "b.tmp"]
    for path in [*kept, tmp_path / "t-0" / ".a.parquet.12.tmp", tmp_path / "._manifest.json.3.tmp"]:
        path.touch()
    with Folder(tmp_path).claimed():
        pass
    (tmp_path / "_lock").unlink()
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


ARCHIVED = [OffsetRange("a", 0, 5, 20), OffsetRange("a", 0, 20, 60), OffsetRange("a", 1, 0, 30)]


def archive_of(folder: Path) -> tuple[ArchiveInput, Manifest]:
    files = [write_file(Folder(folder), r, batches(r), "none") for r in ARCHIVED]
    manifest = Manifest("a", "id", planned=tuple(ARCHIVED)).with_written(files)
    return ArchiveInput("a", Folder(folder), manifest.files), manifest


moments = st.one_of(
    st.none(),
    st.sampled_from(Edge),
    st.integers(0, 80).map(AtOffset),
    st.integers(0, 80_000).map(AtTime),
)


@given(moments, moments)
def test_moments_cut_an_archive_where_they_cut_the_topic(start: Moment | None, until: Moment | None) -> None:
    ends = {tp("a-0"): Ends(5, 60), tp("a-1"): Ends(0, 30)}
    source = FakeLog({tp("a-0"): 60, tp("a-1"): 30}, {tp("a-0"): 5})
    ranges = spans(ends, start, until, source.find_times)
    for (partition, found), r in zip(ends.items(), ranges, strict=True):
        assert r.topic_partition == partition
        wanted = [
            offset
            for offset in range(found.earliest, found.latest)
            if not _is_before(offset, start or Edge.EARLIEST) and _is_before(offset, until or Edge.LATEST)
        ]
        assert list(range(r.start, r.end)) == wanted


def _is_before(offset: int, moment: Moment) -> bool:
    if isinstance(moment, AtOffset):
        return offset < moment.offset
    return moment is Edge.LATEST if isinstance(moment, Edge) else offset * 1000 < moment.timestamp


def test_an_archive_finds_times_as_the_topic_does(tmp_path: Path) -> None:
    archive, manifest = archive_of(tmp_path)
    ends = archive_ends(manifest)
    assert ends == {tp("a-0"): Ends(5, 60), tp("a-1"): Ends(0, 30)}
    source = FakeLog({tp("a-0"): 60, tp("a-1"): 30}, {tp("a-0"): 5})
    for time_ms in (0, 5000, 19_001, 20_000, 29_000, 29_001, 59_000, 59_001):
        times = dict.fromkeys(ends, time_ms)
        assert archive.find_times(times) == source.find_times(times)


def test_a_range_is_read_in_order_over_the_edges_of_files(tmp_path: Path) -> None:
    archive, _ = archive_of(tmp_path)
    rows = in_rows(archive.batches(OffsetRange("a", 0, 18, 22), ["offset", "timestamp"]))
    assert [row["offset"] for row in rows] == [18, 19, 20, 21]
    assert [row["timestamp"] for row in rows] == [offset * 1_000_000 for offset in range(18, 22)]
    assert list(archive.batches(OffsetRange("a", 1, 30, 30), ["offset"])) == []


# --- Archives without Spark: what is planned, and what is left when a run is killed at any step -----------------------


PLAN = partial(next_ranges, server="localhost", range_bytes=10 * RECORD_BYTES)
TOPIC = TopicDescription("a", "id", partitions=2, max_message_bytes=1 << 20, segment_bytes=1 << 30)


class FakeReader:
    """In place of RangeReader; one value of ten is no JSON."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def read(self, r: OffsetRange) -> Iterator[pa.RecordBatch]:
        for batch in timed(batches(r), lambda offset: None if offset % 9 == 4 else offset * 5 % 4 * DAY_US):
            values = [b"{" if offset % 10 == 3 else b'{"id":5}' for offset in batch.column("offset").to_pylist()]
            yield batch.set_column(SCHEMA.names.index("value"), "value", pa.array(values, pa.binary()))


def in_archive(folder: Path, table_format: Format) -> list[tuple[int, int]]:
    """(partition, offset) of all rows, as the format's own library reads them."""
    return sorted(map(tuple, map(dict.values, READERS[table_format](folder, ["partition", "offset"]).to_pylist())))


def files_in(folder: Path) -> list[Path]:
    """All below it but the manifest, and the name of the folder itself."""
    return [path for path in folder.glob("*/**/*") if path.is_file()]


def in_log(source: FakeLog) -> list[tuple[int, int]]:
    return sorted((p.partition, offset) for p, end in source.latest.items() for offset in range(end))


def test_a_plan_covers_what_the_archive_lacks_once() -> None:
    source = log(a_0=25, a_1=4)
    empty = Manifest("a", "id").with_partitions({0: 0, 1: 0})
    assert [r[1:] for r in PLAN(source, empty)] == [(0, 0, 8), (0, 8, 16), (0, 16, 25), (1, 0, 4)]
    there = Manifest("a", "id", partitions={0: (0, 25)}).with_partitions({0: 0, 1: 0})
    assert PLAN(source, there) == [OffsetRange("a", 1, 0, 4)]
    assert PLAN(source, Manifest("a", "id", partitions={0: (0, 25), 1: (0, 4)})) == []
    assert PLAN(FakeLog({tp("a-0"): 9}, {tp("a-0"): 9}), Manifest("a", "id").with_partitions({0: 9})) == []


def test_what_expired_before_it_was_archived_is_an_error_or_a_gap_of_the_first_file() -> None:
    source = FakeLog({tp("a-0"): 25}, {tp("a-0"): 12})
    there = Manifest("a", "id", partitions={0: (0, 5)})
    with pytest.raises(DataLossError, match="from 5 to 25 cannot all be read: the log begins at 12"):
        PLAN(source, there)
    assert PLAN(source, there, accept_loss=True) == [OffsetRange("a", 0, 5, 18), OffsetRange("a", 0, 18, 25)]
    # A topic that begins late is none that has lost something.
    assert PLAN(source, Manifest("a", "id").with_partitions({0: 12}))[0].start == 12


def test_an_archive_of_another_topic_is_left_alone(tmp_path: Path) -> None:
    source = log(a_0=25)
    flat = Manifest("a", "id", partitions={0: (0, 25)})
    dated = replace(flat, settings={"partition_by": "date"})
    check_same(flat, TOPIC, source, "here")
    check_same(dated, TOPIC, source, "here", "date")
    wrong: list[tuple[Manifest, Layout, type[Exception], str]] = [
        (Manifest("b", "id"), None, InputError, "holds the archive of b; an archive of a needs a folder of its own"),
        (Manifest("a", "id", "compacted"), None, InputError, "holds a compaction of a"),
        (Manifest("a", "other"), None, InputError, "an earlier topic a, which was deleted"),
        (dated, None, InputError, "was begun with --partition-by date, and stays as it was begun"),
        (flat, "date", InputError, "was begun without --partition-by, and stays"),
        (replace(flat, partitions={0: (0, 26)}), None, DataLossError, "up to offset 26, and its log ends at 25"),
    ]
    for manifest, layout, kind, sentence in wrong:
        with pytest.raises(kind, match=sentence):
            check_same(manifest, TOPIC, source, "here", layout)


def test_the_log_of_a_table_is_the_truth(tmp_path: Path) -> None:
    """The log of a table is the truth: it may have a commit more than the manifest, or less after a rollback."""
    r = OffsetRange("a", 0, 9, 20)
    made = Manifest("a", "id", partitions={0: (2, 9), 1: (0, 0)}, planned=(r,))
    assert made.with_table({0: 9, 1: 0}) == made
    more = made.with_table({0: 20, 1: 0})
    assert (more.partitions, more.planned) == ({0: (2, 20), 1: (0, 0)}, ())
    entries = tuple(ArchivedFile(f"{n}", 0, n, n + 3, 3, 1, None, None, 0, ()) for n in (2, 5))
    less = replace(made, files=entries).with_table({0: 5})
    assert (less.partitions, less.planned, less.files) == ({0: (2, 5), 1: (0, 0)}, (), entries[:1])
    gone = Delta(Folder(tmp_path), "a", "id")
    with pytest.raises(InputError, match="has been archived to, and the table is gone, or is in another catalog"):
        archive(PLAN, log(a_0=25), made, gone, lambda _: [])


class Killed(BaseException):
    pass


class Steps:
    """Every touch of the disk that matters is a step; from step ``last`` on there is no process any more."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.taken = 0

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            if self.taken >= self.last:
                raise Killed
            self.taken += 1
            return real(*arguments, **named)

        return step


@pytest.mark.parametrize(
    ("table_format", "layout", "stride"),
    [
        ("parquet", None, 1),
        pytest.param("parquet", "date", 1, marks=pytest.mark.soak),
        ("delta", None, 7),
        pytest.param("delta", "month", 1, marks=pytest.mark.soak),
        ("iceberg", None, 11),
        pytest.param("iceberg", "month", 2, marks=pytest.mark.soak),
    ],
)
def test_a_run_that_is_killed_at_any_step(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    table_format: Format,
    layout: Layout,
    stride: int,
) -> None:
    """A run that is killed at any step is gone on with and nothing is doubled or missing."""
    monkeypatch.setattr(archiving, "RangeReader", FakeReader)
    settings = {"partition_by": layout, "format": table_format}
    values = Values("json", "id bigint") if table_format == "parquet" else Values("bytes")

    def target_in(store: Folder) -> Target:
        if table_format == "parquet":
            return ParquetFiles(store)
        return Delta(store, "a", "id", layout) if table_format == "delta" else Iceberg(store, "a", "id", layout)

    def run(folder: Path, source: FakeLog, last_step: int) -> bool:
        """Whether it came to its end."""
        place = target_in(Folder(folder))
        task = ArchiveTask("localhost", place.store, "none", False, False, layout, table_format, values=values)
        steps = Steps(last_step)
        with monkeypatch.context() as patch:
            # Nobody pulls a plug here: that it would be synced is enough.
            patch.setattr(stores, "_sync", steps.around(lambda _: None))
            patch.setattr(Folder, "settle", lambda *_: None)  # within a library's commit, which a kill would release
            for name in ("replace", "unlink", "mkdir"):
                patch.setattr(Path, name, steps.around(getattr(Path, name)))
            try:
                # Spark finishes tasks in any order.
                with place.store.claimed():
                    manifest = load(place.store) or Manifest("a", "id", settings=settings)
                    archive(PLAN, source, manifest, place, lambda ranges: [*map(task, ranges[::-1])])
            except Killed:
                return False
        return True

    for first_kill in range(0, 500, stride):
        folder = tmp_path_factory.mktemp("archive")
        source = log(a_0=25, a_1=4)
        if run(folder, source, first_kill):
            break
        source.latest |= {tp("a-0"): 31, tp("a-1"): 9}  # the topic grows, and plans made now would be others
        run(folder, source, first_kill // 2 + 3)
        source.latest |= {tp("a-0"): 40}
        assert run(folder, source, 10_000)
        made = load(Folder(folder))
        assert made is not None
        beside = [
            (row["partition"], row["offset"])
            for found in made.rejected
            for row in pq.read_table(folder / found.path).to_pylist()
        ]
        assert bool(beside) == (table_format == "parquet")
        assert sorted([*in_archive(folder, table_format), *beside]) == in_log(source)
        assert table_format != "parquet" or {found.path for found in (*made.files, *made.rejected)} == {
            str(p.relative_to(folder)) for p in files_in(folder)
        }
        assert made.planned == ()
        assert list((folder / BEGUN).glob("*")) == []
    else:
        pytest.fail("it never came to its end")
    assert first_kill > 20
