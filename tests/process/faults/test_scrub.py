"""Checksums and the scrub in a real daemon: closed segments are covered, and damage is found and reported."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

import seglog
from seglog_protocol.errors import CorruptRecordError
from tests.process.faults.test_retention import fill
from tests.processes import Daemon, daemon, seglogd, wait_until, workers
from tests.processes import seglog as seglog_cli
from tests.support import numbers_of

_OFTEN = (
    *("--set", "log.initial.task.delay.ms=0", "--set", "log.flush.offset.checkpoint.interval.ms=50"),
    *("--set", "seglog.scrub.interval.ms=50", "--set", "seglog.scrub.bytes.per.second=100000000"),
    *("--set", "log.cleaner.backoff.ms=50"),
)
_WITHOUT_SCRUB = (*_OFTEN[:4], *_OFTEN[8:], "--set", "seglog.scrub.bytes.per.second=0")
_TOPICS: dict[str, dict[str, Any]] = {
    "t": {"segment.bytes": 1024},
    "compacted": {"segment.bytes": 1024, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.1},
}


def _check(directory: Path) -> list[dict[str, Any]]:
    done = seglogd("check", "--json", directory)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, lines
    return lines


def _write(client: seglog.Client) -> None:
    fill(client, 40)
    with client.producer("compacted") as producer:
        for number in range(60):
            producer.send(b"%d" % number, key=b"%d" % (number % 3))
            producer.flush()


def _refuse_uncovered(running: Daemon) -> None:
    partitions = [line for line in _check(running.directory) if line["kind"] == "partition"]
    assert len(partitions) == len(_TOPICS)
    for partition in partitions:
        assert partition["segments"] > 1
        assert partition["covered"] == partition["segments"] - 1, partition


@pytest.mark.soak
def test_every_closed_segment_is_covered_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    with daemon(tmp_path / "data", *_WITHOUT_SCRUB) as running:
        with seglog.connect(running.address) as client:
            for topic, config in _TOPICS.items():
                client.create_topic(topic, 1, config=config)
            _write(client)
        running.kill()
        running.start()
        with seglog.connect(running.address) as client:
            _write(client)
            wait_until(lambda: b"partition_compacted" in running.log_text().encode(), "compaction")
        running.kill()
        running.start()
        running.stop()
        _refuse_uncovered(running)
        running.start()
        with seglog.connect(running.address) as client:
            _write(client)
        running.stop()
        _refuse_uncovered(running)
        running.start()


def test_damage_is_reported_before_a_reader_finds_it_and_the_rest_is_served(tmp_path: Path) -> None:
    with daemon(tmp_path / "data", *_OFTEN) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1, config=_TOPICS["t"])
        fill(client, 40)
        wait_until(lambda: numbers_of(client)["scrubbed_segments_total"] > 0, "the scrub")
        log = running.directory / "t-0" / f"{0:020d}.log"
        index = min(path for path in (running.directory / "t-0").glob("*.timeindex"))
        right = index.read_bytes()
        with log.open("r+b") as file:
            file.seek(100)
            byte = file.read(1)[0]
            file.seek(100)
            file.write(bytes([byte ^ 1]))
        wait_until(lambda: "damage_found" in running.log_text(), "the damage to be found")
        with seglog.connect(running.address) as another:
            assert any("are damaged" in problem for problem in another.ping().problems)
        told = seglog_cli(running.address, "ping")
        assert (told.returncode, b"\nproblem: t-0: " in told.stdout, b"are damaged" in told.stdout) == (1, True, True)
        with pytest.raises(CorruptRecordError), client.consumer("t") as consumer:
            list(consumer)
        with client.consumer("t", start=20) as consumer:
            assert len(list(consumer)) == 20
        index.unlink()
        wait_until(lambda: index.exists() and index.read_bytes() != b"", "the index")
        assert len(index.read_bytes()) == len(right)


@pytest.mark.soak
def test_the_scrubber_has_low_priority_and_ends_with_its_broker(tmp_path: Path) -> None:
    with daemon(tmp_path / "data", *_OFTEN) as running, seglog.connect(running.address) as client:
        client.create_topic("t", 1, config=_TOPICS["t"])
        fill(client, 40)
        log = running.directory / "t-0" / f"{0:020d}.log"
        scrubber = _stuck_scrubber(running, log)
        assert os.getpriority(os.PRIO_PROCESS, scrubber) >= 5
        assert running.stop() == 0, "it does not hold up a stop"
        assert not Path(f"/proc/{scrubber}").exists()
        running.start()
        scrubber = _stuck_scrubber(running, log)
        running.kill()
        wait_until(lambda: not Path(f"/proc/{scrubber}").exists(), "it to leave")
        running.start()


def _scrubbers(running: Daemon) -> list[int]:
    assert running.process is not None
    return workers("scrubber", running.process.pid)


def _stuck_scrubber(running: Daemon, log: Path) -> int:
    """A daemon with a scrubber that never ends a segment: opening a pipe waits for a writer.

    It waits until the start has read the closed segments, so that only the scrubber blocks.
    """
    with seglog.connect(running.address) as client:
        wait_until(lambda: numbers_of(client)["scrub_passes_total"] >= 1, "a scrub pass")
    aside = log.rename(log.with_suffix(".aside"))
    os.mkfifo(log)
    before, now = [0], list[int]()
    while before != now or not now:
        before = now
        time.sleep(0.5)
        now = _scrubbers(running)
    aside.replace(log)
    return now[0]
