"""A killed daemon with much to recover: other partitions are served meanwhile, clients wait, further kills do no harm.

A recovery takes as long as the test wants: the producer snapshot that it reads first is replaced by a pipe, and opening
a pipe waits for a writer.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import seglog
import seglog.trio
from tests.processes import PATIENCE_SECONDS, Daemon, daemon, finished, wait_until, workers

_VALUE = bytes(100_000)
_RECORDS = 120
_FLAGS = (
    *("--set", "log.initial.task.delay.ms=0"),
    *("--set", "log.flush.offset.checkpoint.interval.ms=50"),
)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Daemon]:
    """A killed daemon with many records in ``big`` and few in ``small``; not running."""
    with daemon(tmp_path / "data", *_FLAGS) as running:
        with seglog.connect(running.address) as client:
            client.create_topic("big", 1, {"segment.bytes": 4_000_000})
            client.create_topic("small", 1)
            with client.producer("small") as producer:
                producer.send(b"before")
            with client.producer("big", ack="os", batch_bytes=300_000) as producer:
                for number in range(_RECORDS):
                    producer.send(b"%d" % number + _VALUE)
                    if number == _RECORDS // 3:
                        producer.flush()
                        wait_until(lambda: _recovery_point(running.directory) > 0, "a checkpoint")
                        client.alter_topic("big", {"segment.bytes": 1 << 30})  # from here on one large tail
        running.kill()
        yield running


def _recovery_point(directory: Path) -> int:
    path = directory / "recovery-point-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return max((int(line.split()[2]) for line in lines if line.startswith("big ")), default=0)


class _HeldUp:
    """A started daemon that cannot recover ``big`` until the test allows it."""

    def __init__(self, killed: Daemon) -> None:
        self._running = killed
        self._snapshot = killed.directory / "big-0" / f"{_recovery_point(killed.directory):020d}.snapshot"
        self._aside = self._snapshot.rename(killed.directory.parent / "snapshot")
        os.mkfifo(self._snapshot)
        killed.start()
        wait_until(lambda: bool(_workers(killed)), "a worker")

    def clear(self) -> None:
        """Put the original file back."""
        self._aside.rename(self._snapshot)

    def let_go(self) -> None:
        """Let the workers continue: an open that a signal interrupts is repeated, with the original file."""
        self.clear()
        for worker in _workers(self._running):
            os.kill(worker, signal.SIGSTOP)
            os.kill(worker, signal.SIGCONT)


def _workers(running: Daemon) -> list[int]:
    assert running.process is not None
    return workers("recoverer", running.process.pid)


def _is_at_work(process: int) -> bool:
    listed = finished(["ps", "-o", "stat=", "-p", str(process)])
    return listed.stdout.strip()[:1] not in {"", "Z"}


def _values(client: seglog.Client, topic: str) -> list[bytes]:
    with client.consumer(topic) as consumer:
        return [(record.value or b"").removesuffix(_VALUE) for record in consumer]


def test_readyz_answers_503_with_the_progress_until_all_is_recovered(killed: Daemon) -> None:
    """What a readiness probe asks: meanwhile the broker lives, and is not unwell."""
    killed.arguments = (*killed.arguments, "--set", "seglog.http.listen=127.0.0.1:0")
    held = _HeldUp(killed)
    assert _page(killed, "/healthz")[0] == 200
    status, told = _page(killed, "/readyz")
    assert (status, told["status"], told["partitions"]) == (503, "recovering", 1)
    assert 0 <= told["ratio"] < 1
    assert told["read_bytes"] < told["bytes"]
    assert told["bytes"] >= (_RECORDS - _RECORDS // 3 - 1) * len(_VALUE)
    held.let_go()
    wait_until(lambda: _page(killed, "/readyz") == (200, {"status": "ready"}), "readiness")


def _page(running: Daemon, path: str) -> tuple[int, Any]:
    """Status and JSON of a page."""
    connection = HTTPConnection("127.0.0.1", running.http_port, timeout=PATIENCE_SECONDS)
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


@pytest.mark.soak
def test_a_daemon_killed_during_a_recovery_ends_its_workers_and_starts_again(killed: Daemon) -> None:
    held = _HeldUp(killed)
    (worker,) = _workers(killed)
    killed.kill()
    held.clear()
    killed.start()
    assert not _is_at_work(worker), "whoever holds the directory has waited for it"
    with seglog.connect(killed.address) as client:
        assert _values(client, "big") == [b"%d" % number for number in range(_RECORDS)]
        with client.producer("big") as producer:
            assert producer.send(b"more").result(timeout=PATIENCE_SECONDS).offset == _RECORDS
