import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from seglog.core.moments import from_epoch_ms, to_epoch_ms
from seglog_spark.jobs.lag import Lag
from seglog_spark.jobs.report_rows import ReportRow
from tests.support import missing

try:
    from seglog_spark.jobs.plot import BARS_MAX, SERIES_MAX, bars_of, draw
except ModuleNotFoundError as error:
    missing(f"matplotlib: {error}")

HOUR = timedelta(hours=1)


def hours(begin: datetime, count: int, partitions: int = 2, seed: int = 0) -> list[ReportRow]:
    """Rows by hour and partition, not of every hour."""
    choose = random.Random(seed)
    rows = []
    for number in sorted([*choose.sample(range(count), max(1, count // 3)), count - 1]):
        start = to_epoch_ms(begin + number * HOUR)
        for partition in range(partitions):
            records = choose.randrange(1, 100 * (partition + 1))
            rows.append(ReportRow(partition, start, records, 7 * records, 0, 1, start, start, 0, 0))
    return rows


@pytest.mark.parametrize(
    ("begin", "count", "period"),
    [
        (datetime(2024, 3, 30, 5, tzinfo=UTC), 1, "hour"),
        (datetime(2024, 3, 30, 5, tzinfo=UTC), 72, "hour"),
        (datetime(2024, 2, 20, 23, tzinfo=UTC), 24 * 50, "day"),
        (datetime(2023, 1, 1, tzinfo=UTC), 24 * 700, "week"),
        pytest.param(datetime(2011, 8, 1, tzinfo=UTC), 24 * 4800, "month", marks=pytest.mark.soak),
        pytest.param(datetime(1971, 1, 31, tzinfo=UTC), 24 * 20_000, "year", marks=pytest.mark.soak),
    ],
)
def test_bars_are_few_enough_to_be_seen_and_hold_every_record_where_it_belongs(
    begin: datetime, count: int, period: str
) -> None:
    rows = hours(begin, count)
    bars = bars_of(rows, "hour")
    assert bars.period == period
    assert len(bars.edges) - 1 <= BARS_MAX
    assert all(first < second for first, second in pairwise(bars.edges))
    assert bars.names == ("partition 0", "partition 1")
    for number, (first, second) in enumerate(pairwise(bars.edges)):
        inside = Counter[int | None]()
        for row in rows:
            if first <= from_epoch_ms(row.period or 0) < second:
                inside[row.partition] += row.records
        assert [bars.records[name][number] for name in bars.names] == [inside[0], inside[1]]
        assert [bars.bytes[name][number] for name in bars.names] == [7 * inside[0], 7 * inside[1]]


def test_of_many_partitions_the_largest_have_a_colour_of_their_own() -> None:
    bars = bars_of(hours(datetime(2024, 1, 1, tzinfo=UTC), 30, partitions=40), "hour")
    assert len(bars.names) == SERIES_MAX
    assert bars.names[-1] == "33 others"
    assert "partition 39" in bars.names or "partition 38" in bars.names


def test_a_picture_says_what_it_shows(tmp_path: Path) -> None:
    rows = hours(datetime(2024, 1, 1, tzinfo=UTC), 100)
    draw(tmp_path / "a.svg", "commits", rows, "hour", [Lag(0, 5, 1239), Lag(1, 7, 7)])
    drawn = (tmp_path / "a.svg").read_text()
    records = sum(row.records for row in rows)
    for words in (f"commits: {records:,} records", "records per hour", "bytes per hour", "partition 1", "lag 1,234"):
        assert words in drawn, words
    draw(tmp_path / "a.png", "commits", rows, "hour")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    draw(tmp_path / "none.svg", "commits", [], "hour")
    assert "no records with a time" in (tmp_path / "none.svg").read_text()
    timeless = [ReportRow(0, None, 1, 1, 0, 0, None, None, 0, 0)]
    draw(tmp_path / "one.svg", "commits", [*timeless, *rows[:1]], "hour")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".png", ".svg", ".svg", ".svg"]


def test_a_last_period_that_the_records_do_not_fill_is_marked(tmp_path: Path) -> None:
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    assert bars_of(hours(begin, 24 * 31), "month").is_last_whole
    rows = hours(begin, 24 * 41)
    assert not bars_of(rows, "month").is_last_whole
    for name, period, said in (("part.svg", "month", True), ("whole.svg", "month", False)):
        draw(tmp_path / name, "commits", hours(begin, 24 * 31) if name == "whole.svg" else rows, period)
        drawn = (tmp_path / name).read_text()
        assert ("hatched: the last" in drawn) == said
        assert ("<pattern" in drawn) == said
    assert "records per month; hatched: the last month, to 2024-02-10 23:00" in (tmp_path / "part.svg").read_text()


def test_a_reader_far_behind_is_drawn_also_where_partitions_were_not_counted(tmp_path: Path) -> None:
    start = to_epoch_ms(datetime(2024, 1, 1, tzinfo=UTC))
    rows = [ReportRow(None, start, 10, 70, 0, 9, start, start, 0, 0)]
    path = tmp_path / "lag.png"
    draw(path, "t", rows, "year", [Lag(0, 5, 10), Lag(1, 10, 10)])
    assert path.read_bytes().startswith(b"\x89PNG")
