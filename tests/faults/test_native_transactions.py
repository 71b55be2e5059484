"""A worker that reads, processes and writes in transactions, killed like its broker: each record counts once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

import seglog
from tests.processes import PATIENCE_SECONDS, Daemon, clean_environment, daemon

RECORDS = int(os.environ.get("SEGLOG_TRANSACTION_RECORDS", "3000"))
PARTITIONS = 3
KILLS = int(os.environ.get("SEGLOG_TRANSACTION_KILLS", "6"))
"""Every second one is of the broker, the others are of the worker."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 30 * KILLS)]

WORKER = """
import sys
import seglog

with seglog.connect(sys.argv[1], connect_timeout=60) as client:
    txn = client.transaction("worker", timeout=20)
    options = {"auto_commit": False, "follow": False, "instance_id": "worker", "session_timeout": 6.0}
    with client.consumer("in", group="etl", **options) as consumer:
        is_done = False
        while not is_done:
            with txn:
                count = 0
                for record in consumer:
                    txn.send("out", record.value, key=record.key)
                    count += 1
                    if count == 40:
                        break
                else:
                    is_done = True
                txn.commit_offsets(consumer)
            print(count, flush=True)
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Daemon]:
    with daemon(tmp_path / "data", "--set", "group.initial.rebalance.delay.ms=0") as running:
        yield running


def start_worker(address: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, address],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def transactions_told(worker: "subprocess.Popen[str]", count: int) -> int:
    """How many transactions the worker has told of, so many at most."""
    assert worker.stdout is not None
    told = 0
    while told < count and worker.stdout.readline():
        told += 1
    return told


def test_each_record_counts_once_whoever_is_killed(broker: Daemon) -> None:
    with seglog.connect(broker.address) as client:
        client.create_topic("in", PARTITIONS)
        client.create_topic("out", PARTITIONS)
        with client.producer("in") as producer:
            for number in range(RECORDS):
                producer.send(str(number), key=str(number % 100))
    victims = cycle(["worker", "broker"])
    killed = 0
    worker = start_worker(broker.address)
    while True:
        # At another place of the transaction each time: behind what it prints come its next reads, sends and commits.
        wanted = 1 + killed % 5
        if killed < KILLS and transactions_told(worker, wanted) == wanted:
            killed += 1
            if next(victims) == "worker":
                worker.kill()
            else:
                broker.kill()
                broker.start()
                continue  # the worker may live on
        _, errors = worker.communicate(timeout=PATIENCE_SECONDS * 4)
        if worker.returncode == 0:
            break
        assert worker.returncode == -9 or "seglog_protocol.errors" in errors, errors
        worker = start_worker(broker.address)
    assert killed == KILLS
    with seglog.connect(broker.address) as client:
        with client.consumer("out", isolation="read_committed") as consumer:
            found = [int(record.value or b"") for record in consumer]
        assert sorted(found) == list(range(RECORDS))
        committed = {offset.partition: offset.offset for offset in client.group_offsets("etl")}
        assert committed == {offsets.partition: offsets.latest for offsets in client.offsets("in")}
        assert {each.state for each in client.transactions()} <= {"CompleteCommit", "CompleteAbort", "Empty"}
