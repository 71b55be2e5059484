from datetime import UTC
from pathlib import Path

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.tables import aligned
from seglog_spark.jobs.report import ReportRow, by_partition, merged, table, write_parquet

HOUR = 3_600_000
START = 1_546_300_800_000
ROWS = [
    ReportRow(0, START, 10, 1000, 0, 9, START + 5, START + 7, 5, 1),
    ReportRow(0, START + HOUR, 2, 40, 10, 12, START + HOUR, START + HOUR, 0, 0),
    ReportRow(1, None, 3, 30, 0, 2, None, None, 3, 3),
]


def test_rows_add_up() -> None:
    assert merged(ROWS) == ReportRow(None, None, 15, 1070, 0, 12, START + 5, START + HOUR, 8, 4)
    assert by_partition(ROWS) == {
        0: ReportRow(0, None, 12, 1040, 0, 12, START + 5, START + HOUR, 5, 1),
        1: ReportRow(1, None, 3, 30, 0, 2, None, None, 3, 3),
    }
    assert by_partition([ReportRow(None, START, 1, 1, 0, 0, START, START, 0, 0)]) == {}


@given(st.integers(1, 10**9), st.data())
def test_a_share_is_between_none_and_all(records: int, data: st.DataObject) -> None:
    row = ReportRow(0, 0, records, 0, 0, 0, None, None, data.draw(st.integers(0, records)), 0)
    assert 0 <= row.null_key_share <= 1


def test_a_table_has_the_columns_that_were_asked_for() -> None:
    lines = [*aligned(*table(ROWS, ("hour", "partition"), UTC))]
    assert lines[0].split()[:4] == ["HOUR", "PARTITION", "RECORDS", "BYTES"]
    assert lines[1].split()[:4] == ["2019-01-01T00", "0", "10", "1,000"]
    assert "50.0%" in lines[1]
    assert lines[3].startswith("-  ")
    by_year = [*aligned(*table([merged(ROWS)], ("year",), UTC))]
    assert "OFFSET" not in by_year[0]


def test_parquet_has_times_as_times_and_what_json_has(tmp_path: Path) -> None:
    path = tmp_path / "report.parquet"
    write_parquet(path, ROWS, ("partition", "hour"))
    found = pq.read_table(path)
    assert found.column("period").to_pylist()[2] is None
    assert found.column("period").cast("int64").to_pylist() == [START, START + HOUR, None]
    assert found.schema.names == list(ROWS[0].to_json(("partition", "hour")))
    assert "partition" not in ROWS[0].to_json(("hour",))
    assert "period" not in ROWS[0].to_json(("partition",))
    write_parquet(path, [], ("partition", "hour"))
    assert pq.read_table(path).num_rows == 0
