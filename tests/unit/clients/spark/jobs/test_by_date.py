import importlib
import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.records import ConsumerGap
from seglog_spark.jobs import by_date, manifest
from seglog_spark.jobs.by_date import date_of, days_of, find_by_date, read_merged, remove_notes, write_by_date
from seglog_spark.jobs.inputs import ArchiveInput
from seglog_spark.jobs.manifest import NO_DATE, FileGap
from seglog_spark.jobs.parquet_files import SCHEMA, write_file
from seglog_spark.offsets import OffsetRange
from tests.spark.fake_log import tp
from tests.spark.jobs.records import DAY_US, batches, in_rows, timed

RANGE = OffsetRange("t", 1, 100, 140)
RANGES = (RANGE, OffsetRange("t", 1, 140, 150), OffsetRange("t", 0, 0, 30))
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
    st.lists(times, min_size=RANGE.size, max_size=RANGE.size),
    st.sets(st.integers(RANGE.start, RANGE.end - 1)),
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
    records = list(timed(batches(RANGE, without, rows_max=7), lambda offset: chosen[offset - RANGE.start]))
    met = [ConsumerGap("t", 1, offset, offset + 1, "compacted") for offset in without]
    plain = write_file(folder / "plain", RANGE, records, "none", met)
    dated = write_by_date(folder / "dated", RANGE, records, "none", met)
    assert sum(found.records for found in dated) == plain.records
    assert sum(found.missing for found in dated) == plain.missing
    assert [gap for found in dated for gap in found.gaps or ()] == list(plain.gaps or ())
    for column in ("min_timestamp", "max_timestamp"):
        facts = [getattr(found, column) for found in dated if getattr(found, column) is not None]
        assert (min if column[:3] == "min" else max)(facts, default=None) == getattr(plain, column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_date, "_MERGED_BYTES", merged_bytes)
        for columns in (SCHEMA.names, ["value", "timestamp"]):
            read = in_rows(read_merged(folder / "dated", dated, columns, *span))
            assert read == in_rows(read_merged(folder / "plain", [plain], columns, *span))
    inputs = (ArchiveInput("t", folder / "dated", tuple(dated)), ArchiveInput("t", folder / "plain", (plain,)))
    for time_ms in (-1, 0, 1, CHRISTMAS_US // 1000, CHRISTMAS_US // 1000 + 7200, 2**53):
        by_dates, by_offsets = (source.find_times({tp("t-1"): time_ms}) for source in inputs)
        assert by_dates == by_offsets


def test_a_file_has_the_records_of_one_range_and_one_date(tmp_path: Path) -> None:
    written = write_by_date(tmp_path, RANGE, mixed(RANGE), "zstd")
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
    micros = [
        -1,
        0,
        DAY_US - 1,
        DAY_US,
        None,
        253_402_300_800_000_000,
        253_402_300_799_999_999,
        -62_135_596_800_000_001,
    ]
    days = days_of(pa.chunked_array([pa.array(micros, pa.timestamp("us", "UTC"))]))
    assert list(map(date_of, days.tolist())) == [
        "1969-12-31",
        "1970-01-01",
        "1970-01-01",
        "1970-01-02",
        NO_DATE,
        NO_DATE,
        "9999-12-31",
        NO_DATE,
    ]
    assert date_of(int(np.datetime64("2024-02-29").astype("int64"))) == "2024-02-29"


def test_a_range_without_a_record_has_one_file_that_says_so(tmp_path: Path) -> None:
    (written,) = write_by_date(tmp_path, RANGE, [], "zstd", [ConsumerGap("t", 1, 0, 500, "expired")])
    assert (written.records, written.missing, written.gaps) == (0, 40, (FileGap(100, 140, "expired"),))
    assert f"date={NO_DATE}/" in written.path
    assert find_by_date(tmp_path, RANGE) == [written]


def test_a_range_is_found_when_all_its_files_are_there(tmp_path: Path) -> None:
    assert find_by_date(tmp_path, RANGE) == []
    written = write_by_date(tmp_path, RANGE, mixed(RANGE), "zstd")
    assert find_by_date(tmp_path, RANGE) == written
    assert find_by_date(tmp_path, RANGE._replace(end=141)) == []
    for found in written:
        path = tmp_path / found.path
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        assert find_by_date(tmp_path, RANGE) == []
        path.unlink()
        assert find_by_date(tmp_path, RANGE) == []
        path.write_bytes(content)
    assert find_by_date(tmp_path, RANGE) == written
    remove_notes(tmp_path)
    assert find_by_date(tmp_path, RANGE) == []


def test_a_range_that_is_made_again_with_fewer_dates_leaves_no_file_of_before(tmp_path: Path) -> None:
    before = write_by_date(tmp_path, RANGE, mixed(RANGE), "zstd")
    (tmp_path / before[0].path).unlink()  # it was killed
    without = {offset for offset in range(100, 140) if offset % 5 == 2 or offset * 7 % 3 == 1}  # compacted since
    again = write_by_date(tmp_path, RANGE, mixed(RANGE, without), "zstd")
    assert [found.path.split("/")[1] for found in again] == ["date=2018-12-25", "date=2018-12-27"]
    assert files_below(tmp_path) == {found.path for found in again}


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def test_every_folder_on_the_way_to_a_file_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    monkeypatch.setattr(manifest, "_sync", synced.add)
    (first, *_) = write_by_date(tmp_path, RANGE, mixed(RANGE), "zstd")
    assert synced >= {tmp_path / parent for parent in Path(first.path).parents}


def test_engines_read_the_folder_as_a_whole(tmp_path: Path) -> None:
    for r in RANGES:
        write_by_date(tmp_path, r, mixed(r), "zstd")
    (tmp_path / "_manifest.json").write_text("{}")
    days = [days_of(pa.chunked_array([batch.column("timestamp")])) for r in RANGES for batch in mixed(r)]
    dates = map(date_of, np.concatenate(days).tolist())
    wanted = Counter(None if date == NO_DATE else date for date in dates)
    assert len(wanted) == 4
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    assert Counter(table.column("date").to_pylist()) == wanted
    assert set(table.schema.names) == {*SCHEMA.names, "date"}
    plain = ds.dataset(tmp_path, format="parquet").to_table(columns=["partition", "offset"]).to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in plain) == [
        *((0, offset) for offset in range(30)),
        *((1, offset) for offset in range(100, 150)),
    ]
    if importlib.util.find_spec("duckdb") is not None:
        query = f"select cast(date as varchar), count(*) from '{tmp_path}/**/*.parquet' group by date"
        assert dict(importlib.import_module("duckdb").sql(query).fetchall()) == wanted
