"""Drivers and daemons that are killed between two instructions."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import seglog
from seglog.client import Client
from tests.clients.spark.conftest import require_spark
from tests.processes import Daemon, clean_environment, daemon
from tests.support import REPOSITORY

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

RECORDS = 6_000
DRIVER = REPOSITORY / "tests" / "clients" / "spark" / "copying.py"


def content(client: Client, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    with client.consumer(topic) as consumer:
        return [(record.partition, record.key, record.value) for record in consumer]


def wait_until_copied(running: Daemon, count: int, driver: "subprocess.Popen[bytes]") -> None:
    """Return when the target has that many records, or the driver has ended."""
    while driver.poll() is None:
        with seglog.connect(running.address) as client:
            if sum(place.latest for place in client.offsets("target")) >= count:
                return
        try:
            driver.wait(0.05)
        except subprocess.TimeoutExpired:
            continue


@contextmanager
def killed_in_the_end(driver: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """The driver, gone afterwards with its JVM."""
    try:
        yield driver
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_a_copy_is_exact_when_driver_and_daemon_are_killed_on_the_way(tmp_path: Path) -> None:
    require_spark()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    log = (tmp_path / "driver.log").open("wb")
    with daemon(tmp_path / "data") as running, log:
        with seglog.connect(running.address) as client:
            for name in ("source", "target"):
                client.create_topic(name, partitions=3)
            with client.producer("source", ack="os") as producer:
                for number in range(RECORDS):
                    producer.send(f"value {number}", key=f"key {number % 100}" if number % 4 else None)
            there = content(client, "source")

        def start() -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [sys.executable, str(DRIVER), running.address, "source", "target", str(tmp_path / "checkpoint")],
                env=clean_environment(),
                start_new_session=True,
                stdout=log,
                stderr=log,
            )

        for number, count in enumerate(sorted(choose.randrange(1, RECORDS) for _ in range(3))):
            with killed_in_the_end(start()) as driver:
                wait_until_copied(running, count, driver)
                if number == 1:
                    running.kill()
                    running.start()
                    wait_until_copied(running, count + 1, driver)
        with killed_in_the_end(start()) as driver:
            assert driver.wait() == 0, (tmp_path / "driver.log").read_text()[-4000:]
        with seglog.connect(running.address) as client:
            copied = content(client, "target")
    assert len(copied) == len(there) == RECORDS
    assert sorted(value for _, _, value in copied if value) == sorted(value for _, _, value in there if value)
    keyed = {row for row in there if row[1] is not None}
    assert {row for row in copied if row[1] is not None} == keyed
