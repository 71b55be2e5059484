"""examples/spark_query.py, in the session that all tests here share."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples import spark_query
from seglog.client import Client
from tests.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_it_counts_keys_and_its_stream_goes_on_when_it_is_started_again(
    spark: "SparkSession",
    running: Daemon,
    client: Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert spark is not None
    monkeypatch.setattr(spark_query, "SERVER", running.address)
    monkeypatch.setattr(spark_query, "TOPIC", topic)
    client.create_topic(topic, partitions=3)
    for values, total in ((range(100), 100), (range(100, 150), 150)):
        with client.producer(topic) as producer:
            for value in values:
                producer.send(str(value), key=f"sensor-{value % 10}")
        spark_query.main(tmp_path / "spark")
        lines = capfd.readouterr().out.splitlines()
        assert [line for line in lines if line.startswith("|sensor")] == [
            f"|sensor-{key}|{total // 10:5d}|" for key in range(10)
        ]
        assert f"records in Parquet: {total}" in lines
