"""The progress of a job while its tasks are at work: what Spark and the tasks that are done have counted."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seglog.cli.arguments import Options
from seglog.client import Client
from seglog_spark.jobs.progress import Progress
from seglog_spark.jobs.running import Runner
from tests.processes import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_it_is_records_and_bytes_of_the_tasks_that_are_done(
    spark: "SparkSession", running: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, partitions=2)
    for partition, count in ((0, 300), (1, 700)):
        with client.producer(topic) as producer:
            for _ in range(count):
                producer.send("value", partition=partition)
    runner = Runner(Options(lambda _: 0, "", json=False, connect_timeout=1), Progress("test"))
    runner._spark = spark
    frame = spark.read.format("seglog").options(servers=running.address, subscribe=topic).load()
    first, gate = "300 records", tmp_path / "gate"

    def held(batches: Any) -> Any:
        """The batches; those of the second task come when the gate is there."""
        from pyspark import TaskContext  # noqa: PLC0415 - on a worker

        context = TaskContext.get()
        while context is not None and context.partitionId() and not gate.exists():
            time.sleep(0.01)
        return batches

    def wait() -> str:
        """The progress; lets the second task begin when the first one is done."""
        if runner.passed() == first:
            gate.touch()
        return runner.passed()

    assert runner.do(frame.select("value").mapInArrow(held, "value binary").collect, wait)
    gate.unlink()
    first = "10 records, 1.2 kB"
    found = runner.run([0, 1], lambda number: held(10 + number), wait, measure=lambda result: (result, 1200))
    assert (found, runner.passed()) == ([10, 11], "21 records, 2.4 kB")
