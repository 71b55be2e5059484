"""Consume, transform, produce with confluent-kafka while workers and the broker are killed: each record once.

``SEGLOG_TRANSACTION_RECORDS`` and ``SEGLOG_TRANSACTION_KILLS`` make it longer; 500,000 and 10 are what was run by hand.
"""

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import Daemon, kafka_daemon

RECORDS = int(os.environ.get("SEGLOG_TRANSACTION_RECORDS", "4000"))
KILLS = int(os.environ.get("SEGLOG_TRANSACTION_KILLS", "2"))
BATCH = max(20, RECORDS // 200)
PARTITIONS = 4
WORKERS = 2
COPIER = Path(__file__).with_name("transaction_copier.py")

pytestmark = pytest.mark.slow


class Worker:
    """A process that copies, and is started again whenever it ends."""

    def __init__(self, bootstrap: str, name: str, folder: Path) -> None:
        self._command = [sys.executable, str(COPIER), bootstrap, name, str(BATCH)]
        self._said = folder / f"{name}.txt"
        self._is_over = False
        self.process = self._start()
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._said.open("ab") as said:
            return subprocess.Popen(self._command, stdout=said, stderr=said)

    def _keep(self) -> None:
        while not self._is_over:
            self.process.wait()
            if not self._is_over:
                time.sleep(0.2)
                self.process = self._start()

    def end(self) -> None:
        self._is_over = True
        self.process.kill()
        self._thread.join()
        self.process.kill()
        self.process.wait()


@contextmanager
def workers(bootstrap: str, folder: Path) -> Iterator[list[Worker]]:
    started = [Worker(bootstrap, f"copier-{number}", folder) for number in range(WORKERS)]
    try:
        yield started
    finally:
        for worker in started:
            worker.end()


def fill(bootstrap: str) -> None:
    """The records to be copied, each with a value of its own."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("in", "out")]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20})
    for number in range(RECORDS):
        while True:
            try:
                producer.produce("in", str(number).encode(), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def copied(bootstrap: str, seconds: float) -> Counter[bytes]:
    """The values in ``out`` at read_committed, once there are as many, or after ``seconds``."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["out"])
    found: Counter[bytes] = Counter()
    deadline = time.monotonic() + seconds
    while len(found) < RECORDS and time.monotonic() < deadline:
        found.update(message.value() for message in consumer.consume(1000, 1.0) if message.error() is None)
    for _ in range(3):  # and nothing behind them
        found.update(message.value() for message in consumer.consume(1000, 1.0) if message.error() is None)
    consumer.close()
    return found


def commits(folder: Path) -> int:
    return sum(path.read_text().count("copied") for path in folder.glob("copier-*.txt"))


def test_each_record_is_copied_once_through_the_death_of_workers_and_of_the_broker(tmp_path: Path) -> None:
    chosen = random.Random(7)
    with kafka_daemon(tmp_path / "data") as running:
        bootstrap = f"127.0.0.1:{running.kafka_port}"
        fill(bootstrap)
        with workers(bootstrap, tmp_path) as copying:
            for number in range(2 * KILLS):
                wait_for_commits(tmp_path, (number + 1) * RECORDS // BATCH // (2 * KILLS + 2))
                time.sleep(chosen.random() / 5)
                kill(running, copying, number)
            found = copied(bootstrap, 120 + RECORDS / 500)
    assert len(found) == RECORDS
    assert set(found.values()) == {1}


def wait_for_commits(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while commits(folder) < count:
        assert time.monotonic() < deadline, [path.read_text()[-2000:] for path in folder.glob("copier-*.txt")]
        time.sleep(0.05)


def kill(running: Daemon, copying: list[Worker], number: int) -> None:
    if number % 2:
        copying[number // 2 % WORKERS].process.kill()
    else:
        running.kill()
        running.start()
