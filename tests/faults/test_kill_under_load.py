"""Fifty SIGKILLs of a daemon that is appended to, rolls, compacts, expires, creates and deletes, all at once.

After each one the directory is copied and the copy opened as a start would do it: what was acked at disk is there
unless something later superseded it or it expired, nothing was invented, no half-done file is left, and every segment
is whole, with the indexes that its bytes give. Then the daemon goes on with the original.
"""

import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import seglog
from seglog_broker.config import load_config
from seglog_broker.storage.clock import SystemClock
from seglog_broker.storage.filesystem import PosixFileSystem
from seglog_broker.storage.log_directory import LogDirectory
from tests.logs import read_around, verify
from tests.processes import Daemon, daemon

KILLS = 50
_KEYS = 40
_PATIENCE_SECONDS = 60
_DAEMON = tuple(
    part
    for key, value in {
        "log.initial.task.delay.ms": 0,
        "log.cleaner.backoff.ms": 50,
        "log.retention.check.interval.ms": 50,
        "log.flush.offset.checkpoint.interval.ms": 100,
        "log.segment.delete.delay.ms": 100,
    }.items()
    for part in ("--set", f"{key}={value}")
)
_SMALL = {"segment.bytes": 4096, "segment.ms": 200, "index.interval.bytes": 256}
_TOPICS: dict[str, dict[str, str | int]] = {
    "compacted": {**_SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 300},
    "both": {**_SMALL, "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": 0, "retention.bytes": 40_000},
    "expiring": {**_SMALL, "retention.bytes": 40_000},
}
_UNFINISHED = (".cleaned", ".swap", ".deleted", ".tmp")


class Ledger:
    """What was sent and what was acked, by topic."""

    def __init__(self) -> None:
        self.sent: dict[str, set[tuple[bytes, bytes | None]]] = {topic: set() for topic in _TOPICS}
        self.acked: dict[str, dict[int, tuple[bytes, bytes | None]]] = {topic: {} for topic in _TOPICS}
        self.superseded = 0
        self.expired = 0

    def check(self, topic: str, found: dict[int, tuple[bytes, bytes | None]], log_start: int) -> None:
        """Hold what was found in a topic against what was promised."""
        acked = self.acked[topic]
        assert set(found.values()) <= self.sent[topic], "nothing is invented"
        newest = {key: offset for offset, (key, _) in sorted(found.items())}
        last_acked = {key: offset for offset, (key, _) in sorted(acked.items())}
        for offset, record in acked.items():
            if offset < log_start:
                assert topic != "compacted", "nobody asked for that"
                self.expired += 1
            elif offset in found:
                assert found[offset] == record
            else:
                key, _ = record
                assert topic != "expiring", f"{offset} was acked and is gone"
                # A later write of its key is there; or the last one was a tombstone, whose time was over.
                gone_for_good = acked[last_acked[key]][1] is None and key not in newest
                assert gone_for_good or newest[key] > offset, f"key {key!r}: {offset} was acked, nothing later is there"
                self.superseded += 1
        for offset in [offset for offset in acked if offset < log_start]:
            del acked[offset]


def _produce(running: Daemon, ledger: Ledger, chance: random.Random, seconds: float) -> None:
    """Load until the daemon is killed amid it; then what was acked goes into the ledger."""
    stop = threading.Event()
    fleeting = threading.Thread(target=_come_and_go, args=(running.address, stop))
    fleeting.start()
    deliveries = []
    with seglog.connect(running.address) as client:
        producers = {
            topic: client.producer(topic, ack="disk", linger_ms=2, batch_bytes=1024, delivery_timeout=5)
            for topic in _TOPICS
        }
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for topic, producer in producers.items():
                key = b"key %d" % chance.randrange(_KEYS)
                value = None if chance.random() < 0.05 and topic != "expiring" else b"%030x" % chance.getrandbits(120)
                ledger.sent[topic].add((key, value))
                deliveries.append((topic, (key, value), producer.send(value, key=key)))
            time.sleep(0.001)
        running.kill()
        stop.set()
        for producer in producers.values():
            producer.abort(timeout=0)
    fleeting.join(_PATIENCE_SECONDS)
    assert not fleeting.is_alive()
    for topic, record, delivery in deliveries:
        if delivery.done() and delivery.exception() is None:
            ledger.acked[topic][delivery.result().offset] = record


def _come_and_go(address: str, stop: threading.Event) -> None:
    """A compacted topic that is created, written to and deleted, over and over."""
    with suppress(seglog.SeglogError, OSError), seglog.connect(address, connect_timeout=0.1) as client:
        while not stop.is_set():
            with suppress(seglog.SeglogError):
                client.create_topic("fleeting", 1, _TOPICS["compacted"])
            producer = client.producer("fleeting", delivery_timeout=1, linger_ms=2)
            for number in range(200):
                producer.send("." * 100, key=str(number % 5))
            stop.wait(0.1)
            producer.abort(timeout=0)
            with suppress(seglog.SeglogError):
                client.delete_topic("fleeting")


def _look(directory: Path, check: Callable[[str, dict[int, tuple[bytes, bytes | None]], int], None]) -> None:
    """Open a directory as a start does, and judge everything in it."""
    fs = PosixFileSystem()
    config, _ = load_config(None, "", {}, [f"log.dir={directory}"])
    logs = LogDirectory(fs, SystemClock(), config, str(directory))
    report = logs.open()
    try:
        assert report.offline == {}
        assert report.problems == []
        for (topic, _), log in logs.logs.items():
            verify(fs, log)
            assert log.state.damaged == []
            assert [name for name in fs.list_directory(log.directory) if name.endswith(_UNFINISHED)] == []
            if topic in _TOPICS:
                found = {r.offset: (r.key or b"", r.value) for r in read_around(log)}
                check(topic, found, log.log_start_offset)
    finally:
        logs.abandon()


@pytest.mark.slow
def test_fifty_kills_under_load_lose_nothing_that_was_acked_and_leave_nothing_half_done(tmp_path: Path) -> None:
    chance = random.Random(5)
    ledger = Ledger()
    began = time.monotonic()
    interrupted = 0
    with daemon(tmp_path / "data", *_DAEMON) as running:
        with seglog.connect(running.address) as client:
            for topic, config in _TOPICS.items():
                client.create_topic(topic, 1, config)
        for number in range(KILLS):
            _produce(running, ledger, chance, chance.uniform(0.2, 0.7))
            names = [path.name for path in (tmp_path / "data").glob("*/*")]
            interrupted += any(name.endswith((".cleaned", ".swap")) for name in names)
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "data", copy)
            try:
                _look(copy, ledger.check)
            except BaseException as error:
                error.add_note(f"after kill {number + 1}; {copy} is what was found")
                raise
            shutil.rmtree(copy)
            running.start()
        assert running.stop() == 0
    _look(tmp_path / "data", ledger.check)
    acked = sum(map(len, ledger.acked.values()))
    print(
        f"{KILLS} kills in {time.monotonic() - began:.0f} s, {interrupted} amid a compaction: {acked:,} acked records "
        f"still promised, none missing; {ledger.superseded:,} times one was superseded, {ledger.expired:,} expired"
    )
    assert interrupted, "some kill fell into a compaction"
    assert ledger.superseded
    assert ledger.expired
