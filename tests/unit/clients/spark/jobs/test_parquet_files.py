from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.records import ConsumerGap
from seglog_spark.jobs.manifest import GAPS_MAX, FileGap, file_name
from seglog_spark.jobs.parquet_files import SCHEMA, find_file, first_at, read_file, write_file
from seglog_spark.offsets import OffsetRange
from tests.spark.jobs.records import batches, in_rows, row

RANGE = OffsetRange("t", 1, 100, 160)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_went_in(tmp_path: Path, compression: str) -> None:
    written = write_file(tmp_path, RANGE, batches(RANGE), compression)
    path = tmp_path / written.path
    assert in_rows(read_file(path, SCHEMA.names, 0, 1000)) == [row("t", 1, offset) for offset in range(100, 160)]
    assert in_rows(read_file(path, ["value"], 110, 112)) == [{"value": b"value 110"}, {"value": b"value 111"}]
    assert list(read_file(path, ["value"], 160, 1000)) == []
    assert (written.records, written.missing, written.gaps) == (60, 0, ())
    assert (written.min_timestamp, written.max_timestamp) == (100_000, 159_000)
    assert written.size == path.stat().st_size
    assert find_file(tmp_path, RANGE) == written


def test_a_range_without_a_record_has_a_file_that_says_so(tmp_path: Path) -> None:
    gap = ConsumerGap("t", 1, 50, 500, "compacted")
    written = write_file(tmp_path, RANGE, [], "zstd", [gap])
    assert (written.records, written.missing, written.gaps) == (0, 60, (FileGap(100, 160, "compacted"),))
    assert written.min_timestamp is None
    assert pq.read_table(tmp_path / written.path).schema.equals(SCHEMA)
    assert first_at(tmp_path / written.path, 0) is None


@given(st.sets(st.integers(100, 159)), st.sets(st.integers(100, 159)))
def test_every_offset_is_a_record_or_in_a_gap_with_its_reason(
    tmp_path_factory: pytest.TempPathFactory, without: set[int], told: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("archive")
    met = [ConsumerGap("t", 1, offset, offset + 1, "compacted") for offset in without & told]
    written = write_file(folder, RANGE, batches(RANGE, without, rows_max=7), "none", met)
    assert written.gaps is not None
    reasons = {offset: gap.reason for gap in written.gaps for offset in range(gap.start, gap.end)}
    assert reasons == {offset: "compacted" if offset in told else "unknown" for offset in without}
    assert written.missing == len(without)
    assert written.records == 60 - len(without)
    assert find_file(folder, RANGE) == written


def test_more_gaps_than_anybody_reads_are_only_counted(tmp_path: Path) -> None:
    r = OffsetRange("t", 0, 0, 3 * GAPS_MAX)
    written = write_file(tmp_path, r, batches(r, range(0, r.end, 2), rows_max=1000), "none")
    assert (written.missing, written.gaps) == (r.size // 2, None)


def test_what_is_not_whole_is_not_taken_for_a_file(tmp_path: Path) -> None:
    written = write_file(tmp_path, RANGE, batches(RANGE), "zstd")
    path = tmp_path / written.path
    whole = path.read_bytes()
    assert find_file(tmp_path, OffsetRange("t", 1, 100, 161)) is None
    for content in (b"", whole[:-1], whole[:1000], b"PAR1" * 10):
        path.write_bytes(content)
        assert find_file(tmp_path, RANGE) is None
    other = OffsetRange("t", 1, 200, 260)
    path.rename(tmp_path / file_name(other))
    (tmp_path / file_name(other)).write_bytes(whole)
    assert find_file(tmp_path, other) is None  # it says itself whose records it has


def test_offsets_that_do_not_rise_within_the_range_are_an_error_and_leave_nothing(tmp_path: Path) -> None:
    wrong = [
        [*batches(RANGE), *batches(OffsetRange("t", 1, 159, 160))],
        [*batches(RANGE._replace(end=161))],
        [*batches(RANGE._replace(start=99))],
    ]
    for pieces in wrong:
        with pytest.raises(ValueError, match="do not rise within it"):
            write_file(tmp_path, RANGE, pieces, "none")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_first_record_at_a_time_is_found(tmp_path: Path) -> None:
    path = tmp_path / write_file(tmp_path, RANGE, batches(RANGE, [120]), "none").path
    assert [first_at(path, time_ms) for time_ms in (0, 100_000, 119_001, 159_000, 159_001)] == [
        100,
        100,
        121,
        159,
        None,
    ]
