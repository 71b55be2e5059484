"""Two executors, as on a cluster: reading, writing, and an executor that is killed."""

import importlib.util
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from seglog.client import Client
from seglog.core.records import Record
from seglog_protocol.isolation import Isolation
from tests.processes import Daemon
from tests.spark.conftest import require_spark
from tests.spark.drivers import Driver, GivenUpError, driver, newest

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="what a driver started is found in /proc"),
]

RECORDS = 8_000
VALUE_BYTES = 3_000
"""So that a task has more than the sink sends at a time."""
EXECUTOR = "CoarseGrainedExecutorBackend"


def spark_home(folder: Path) -> Path:
    """That of pip's package, but with a ``work`` folder of its own: a cluster keeps the logs of its executors there."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    folder.mkdir()
    for path in Path(found.origin).parent.iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder


def executors(running: Driver) -> list[int]:
    return [process for process, line in running.command_lines().items() if EXECUTOR in line]


def busy_executors(events: Path) -> set[str]:
    """Those that have finished tasks well, from Spark's own log of events."""
    found = (json.loads(line) for log in events.iterdir() for line in log.read_text().splitlines())
    ends = (event for event in found if event["Event"] == "SparkListenerTaskEnd")
    return {event["Task Info"]["Executor ID"] for event in ends if event["Task End Reason"]["Reason"] == "Success"}


def counted(records: Iterable[Record]) -> Counter[tuple[bytes | None, bytes | None, int, bytes | None]]:
    """Content and origin, the latter as the driver has written it into a header."""
    return Counter((r.key, r.value, r.timestamp, dict(r.headers)["from"]) for r in records)


@pytest.mark.parametrize(
    ("guarantee", "isolation"), [("effectively-once", "read_uncommitted"), ("exactly-once", "read_committed")]
)
def test_two_executors_of_which_one_dies(
    guarantee: str, isolation: Isolation, running: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    """Two executors read and write and tasks that fail, and one that dies, leave nothing out and nothing twice."""
    require_spark()
    source, batch, stream = (f"{topic[:80]}-{name}" for name in ("source", "batch", "stream"))
    for name in (source, batch, stream):
        client.create_topic(name, partitions=4)
    with client.producer(source, ack="os") as producer:
        for number in range(RECORDS):
            producer.send(f"value {number} ".ljust(VALUE_BYTES, "."), key=f"key {number % 100}" if number % 4 else None)
    (tmp_path / "events").mkdir()
    home = spark_home(tmp_path / "spark")
    while True:
        with (
            suppress(GivenUpError),
            driver(
                *("clustering", running.address, source, batch, stream, str(tmp_path), guarantee),
                log=tmp_path / "driver.log",
                SPARK_HOME=str(home),
                SPARK_LOCAL_IP="127.0.0.1",
            ) as cluster,
        ):
            before = newest(tmp_path / "checkpoint" / "commits")
            while newest(tmp_path / "checkpoint" / "commits") < before + 3:
                cluster.watch(0.02)
            both = executors(cluster)
            assert len(both) == 2
            os.kill(both[0], signal.SIGKILL)
            cluster.finish()
            break

    with client.consumer(source) as consumer:
        there = Counter((r.key, r.value, r.timestamp, f"{r.partition} {r.offset}".encode()) for r in consumer)
    assert len(there) == RECORDS
    for name in (batch, stream):
        with client.consumer(name, isolation=isolation) as consumer:
            assert counted(consumer) == there
    assert {"0", "1"} <= busy_executors(tmp_path / "events")
