"""How many files an archive has: said before it starts, and what is said of small ones afterwards."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from seglog_protocol.messages import ExplainedSegment
from seglog_spark.jobs.estimate import Made, made, sentence
from seglog_spark.tables.manifest import ArchivedFile, Manifest, save
from seglog_spark.tables.stores import Folder
from seglog_spark.tables.targets import ParquetFiles

DAY_MS = 24 * 3600 * 1000
MIB = 1024 * 1024


def segment(first_ms: int, largest_ms: int, size: int, records: int) -> ExplainedSegment:
    return ExplainedSegment(0, records, size, "closed", "", first_ms, largest_ms)


YEAR = segment(0, 365 * DAY_MS - 1, 100 * MIB, 1_000_000)


@pytest.mark.parametrize(
    ("layout", "files"), [(None, 1), ("year", 1), ("month", 12), ("date", 365), ("hour", 365 * 24)]
)
def test_files_by_period_are_those_that_the_times_touch(layout: object, files: int) -> None:
    found = made(layout, [[YEAR]], 128 * MIB, 1024 * MIB)  # type: ignore[arg-type]
    assert found == Made(layout, files, 100 * MIB // files)  # type: ignore[arg-type]


def test_a_period_that_segments_share_counts_once_and_a_partition_alone() -> None:
    halves = [segment(0, 45 * DAY_MS, MIB, 1000), segment(40 * DAY_MS, 80 * DAY_MS, MIB, 1000)]
    assert made("month", [halves, halves], 128 * MIB, 1024 * MIB).files == 2 * 3
    assert made("hour", [[segment(0, 100 * DAY_MS, MIB, 7)]], 128 * MIB, 1024 * MIB).files == 7
    assert made("month", [[], []], 128 * MIB, 1024 * MIB) == Made("month", 0, 0)


def test_large_partitions_have_a_file_more_for_each_range_and_none_above_the_size() -> None:
    assert made("month", [[YEAR]], 128 * MIB, 25 * MIB).files == 12 + 3
    assert made("year", [[YEAR]], 10 * MIB, 1024 * MIB).files == 10
    assert made(None, [[YEAR], [YEAR]], 10 * MIB, 10 * MIB).files == 20


def test_the_line_names_what_would_be_better_where_files_are_small() -> None:
    large = msgspec.structs.replace(YEAR, size=12 * 20 * MIB)
    assert sentence("month", [[large]], 128 * MIB, 1024 * MIB) == (
        "--partition-by month up to 12 files of about 21 MB of log"
    )
    assert sentence("date", [[large]], 128 * MIB, 1024 * MIB) == (
        "--partition-by day up to 365 files of about 689 kB of log; better --partition-by month up to 12 files of "
        "about 21 MB of log: small files are slow to read"
    )
    found = sentence(None, [[YEAR]], 128 * MIB, 128 * MIB)
    assert found == "without --partition-by up to 1 file of about 105 MB of log"
    tiny = segment(0, 400 * DAY_MS, 1000, 10)
    assert "; better without --partition-by up to 1 file" in sentence("year", [[tiny]], 128 * MIB, 1024 * MIB)
    assert sentence("year", [[segment(0, 5, 1000, 10)]], 128 * MIB, 1024 * MIB).count("better") == 0


def test_many_small_files_are_said_with_the_command_that_puts_them_together(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    target = ParquetFiles(store)
    assert target.tidy() is None
    one = ArchivedFile("a", 0, 0, 1, 1, 10_000, 0, 0, 0, ())
    few, small, large = [one] * 99, [one] * 100, [replace(one, size=20 * MIB)] * 100
    for files, is_said in ((few, False), (large, False), (small, True)):
        save(store, Manifest("t", "id", files=tuple(files)))
        assert (target.tidy() is not None) is is_said
    assert f"the 100 files in {store.place} have 10 kB on average" in str(target.tidy())
    assert "duckdb -c" in str(target.tidy())
