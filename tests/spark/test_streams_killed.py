"""Streams on two executors, as on a cluster: drivers, executors and broker are killed between two instructions."""

import importlib.util
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import seglog
from seglog_protocol.isolation import Isolation
from tests.processes import daemon
from tests.spark.conftest import require_spark
from tests.spark.drivers import Driver, GivenUpError, dice, driver, newest
from tests.support import soak_parts

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="what a driver started is found in /proc"),
]

PARTITIONS = 3
KILLS = 15 if soak_parts() == 1 else 4
OFFSETS_PER_TRIGGER = 500
RECORDS = 100_000
"""200 micro-batches: no driver comes to the end of them before it is killed."""
COPIES: dict[str, Isolation] = {"copies": "read_uncommitted", "transacted": "read_committed"}


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


def wait_for_commits(running: Driver, folder: Path, count: int) -> None:
    """Return when each stream has committed so many micro-batches more."""

    def committed() -> list[int]:
        return [newest(folder / f"{topic}-checkpoint" / "commits") for topic in COPIES]

    before = committed()
    while any(now < then + count for now, then in zip(committed(), before, strict=True)):
        running.watch(0.02)


def test_copies_have_every_record_once_and_in_order(tmp_path: Path) -> None:
    require_spark()
    choose = dice()
    home = spark_home(tmp_path / "spark")
    with daemon(tmp_path / "data") as broker, seglog.connect(broker.address, connect_timeout=60) as client:
        for topic in ("source", *COPIES):
            client.create_topic(topic, PARTITIONS, {"retention.ms": "-1"})
        with client.producer("source", ack="os") as producer:
            for number in range(RECORDS):
                producer.send(f"value {number}", key=f"key {number % 100}" if number % 10 else None)
        arguments = ("streaming", broker.address, "source", *COPIES, str(tmp_path))
        environment = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        kills = 0
        while kills <= KILLS:
            limit = OFFSETS_PER_TRIGGER if kills < KILLS else sys.maxsize
            with (
                suppress(GivenUpError),
                driver(*arguments, str(limit), log=tmp_path / "driver.log", **environment) as running,
            ):
                if kills == KILLS:
                    running.finish()
                    break
                wait_for_commits(running, tmp_path, choose.randint(1, 3))
                running.watch(choose.random() / 2)
                if kills % 3 == 1:
                    broker.kill()
                    broker.start()
                    wait_for_commits(running, tmp_path, 1)
                elif kills % 3 == 2:
                    both = [id_ for id_, line in running.command_lines().items() if "ExecutorBackend" in line]
                    assert len(both) == 2
                    os.kill(choose.choice(both), signal.SIGKILL)
                    wait_for_commits(running, tmp_path, 2)
                running.watch(choose.random() / 2)
                assert running.kill(), "a driver at work"
                kills += 1
        with client.consumer("source") as consumer:
            there = {(r.partition, r.offset): (r.key, r.value, r.timestamp) for r in consumer}
        assert len(there) == RECORDS
        for topic, isolation in COPIES.items():
            found: dict[tuple[int, int], object] = {}
            read_to: dict[tuple[int, int], int] = {}
            with client.consumer(topic, isolation=isolation) as consumer:
                for record in consumer:
                    source, offset = map(int, (dict(record.headers)["from"] or b"").split())
                    assert (source, offset) not in found
                    found[source, offset] = record.key, record.value, record.timestamp
                    assert record.partition == source or record.key is None
                    assert read_to.get((source, record.partition), -1) < offset
                    read_to[source, record.partition] = offset
            assert found == there
