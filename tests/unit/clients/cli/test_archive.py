"""``seglog archive``: a topic as Parquet without Spark."""

import json
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from seglog import connect
from seglog.cli import main
from seglog.testing import Broker

HOUR_MS = 3_600_000


def test_it_continues_where_it_ended_and_files_are_by_period(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "archive"
    with Broker() as broker, connect(broker.address) as client:
        client.create_topic("t", partitions=2)

        def archived(count: int) -> dict[str, object]:
            with client.producer("t") as producer:
                for number in range(count):
                    producer.send(b"%d" % number, partition=number % 2, timestamp=number * 400 * HOUR_MS)
            command = ["archive", "--topic", "t", "--out", str(out), "--partition-by", "month", "--json"]
            assert main(["--server", broker.address, *command]) == 0
            summary: dict[str, object] = json.loads(capsys.readouterr().out)
            return summary

        assert archived(6)["records"] == 6
        assert archived(0)["files"] == []
        assert archived(3)["partitions"] == {"0": [0, 5], "1": [0, 4]}
    table = ds.dataset(out, format="parquet", partitioning="hive").to_table(columns=["partition", "offset", "month"])
    assert table.num_rows == 9
    assert set(table.column("month").to_pylist()) == {"1970-01", "1970-02", "1970-03"}
