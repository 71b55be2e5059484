"""Two hundred SIGKILLs of a daemon that is appended to, read, rolls, compacts, expires, creates and deletes, all at once.

The producers and consumers live through all of them. After each one the directory is copied and the copy opened as a
start would do it: what was acked, or shown to any reader, is there unless something later superseded it or it expired,
nothing is twice, nothing was invented, no half-done file is left, and every segment is whole, with the indexes that its
bytes give. Then the daemon goes on with the original.
"""

import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import seglog
from seglog_broker.config import load_config
from seglog_broker.storage.clock import SystemClock
from seglog_broker.storage.filesystem import PosixFileSystem
from seglog_broker.storage.log_directory import LogDirectory
from tests.faults.living_clients import Entry, Ledger, Ledgers, Policy, Reader, Writer, send_last
from tests.logs import read_around, verify
from tests.processes import Daemon, daemon

import os
KILLS: Final = int(os.environ.get('K','200'))
_PATIENCE_SECONDS: Final = 60
_DAEMON: Final = tuple(
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
_SMALL: Final = {"segment.bytes": 4096, "segment.ms": 200, "index.interval.bytes": 256}
_COMPACTED: Final = {**_SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 300}
_TOPICS: Final[dict[str, tuple[Policy, int, Mapping[str, str | int]]]] = {
    "kept": ("keep", 2, {"segment.bytes": 40_000, "index.interval.bytes": 256, "retention.ms": -1}),
    "compacted": ("compact", 1, _COMPACTED),
    "both": ("compact,delete", 1, {**_COMPACTED, "cleanup.policy": "compact,delete", "retention.bytes": 40_000}),
    "expiring": ("delete", 1, {**_SMALL, "retention.bytes": 40_000}),
}
"""Of each topic the policy, the partitions and the configuration."""
_UNFINISHED: Final = (".cleaned", ".swap", ".deleted", ".tmp")


class ComingAndGoing(threading.Thread):
    """A compacted topic that is created, written to and deleted, over and over."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            with suppress(seglog.SeglogError, OSError), seglog.connect(self._address, connect_timeout=0.1) as client:
                self._come_and_go(client)

    def _come_and_go(self, client: seglog.Client) -> None:
        while not self._is_over.is_set():
            with suppress(seglog.TopicExistsError):
                client.create_topic("fleeting", 1, _COMPACTED)
            producer = client.producer("fleeting", delivery_timeout=1, linger_ms=2)
            for number in range(200):
                producer.send("." * 100, key=str(number % 5))
            self._is_over.wait(0.1)
            producer.abort(timeout=0)
            client.delete_topic("fleeting")

    def finish(self) -> None:
        self._is_over.set()
        self.join(_PATIENCE_SECONDS)
        assert not self.is_alive()


def _look(directory: Path, ledgers: Ledgers) -> None:
    """Open a directory as a start does, and judge everything in it."""
    fs = PosixFileSystem()
    config, _ = load_config(None, "", {}, [f"log.dir={directory}"])
    logs = LogDirectory(fs, SystemClock(), config, str(directory))
    report = logs.open()
    try:
        assert report.offline == {}
        assert report.problems == []
        for place, log in logs.logs.items():
            verify(fs, log)
            assert log.state.damaged == []
            assert [name for name in fs.list_directory(log.directory) if name.endswith(_UNFINISHED)] == []
            if place in ledgers:
                found = {r.offset: Entry.of(r.key, r.value, r.headers) for r in read_around(log)}
                ledgers[place].check(found, log.log_start_offset, log.log_end_offset)
    finally:
        logs.abandon()


def _wait_for(what: Callable[[], bool]) -> None:
    """Nothing here has a promised moment; only what never comes fails."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def _kill_and_look(
    running: Daemon, clients: tuple[list[Writer], list[Reader]], ledgers: Ledgers, copy: Path, aside: ThreadPoolExecutor
) -> bool:
    """Kill, look at what is left while the daemon starts again; whether the kill fell into a compaction."""
    writers, readers = clients
    running.kill()
    for writer in writers:
        writer.take_acks()
    for reader in readers:
        reader.take_seen()
    is_amid = any(path.name.endswith((".cleaned", ".swap")) for path in running.directory.glob("*/*"))
    shutil.copytree(running.directory, copy)
    starting = aside.submit(running.start)
    try:
        _look(copy, ledgers)
    finally:
        starting.result()
    shutil.rmtree(copy)
    return is_amid


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_kills_under_load_lose_nothing_double_nothing_and_leave_nothing_half_done(tmp_path: Path) -> None:
    dice = random.Random(5)
    ledgers = {
        (topic, partition): Ledger(policy)
        for topic, (policy, partitions, _) in _TOPICS.items()
        for partition in range(partitions)
    }
    began = time.monotonic()
    interrupted = 0
    recognised = 0.0
    with daemon(tmp_path / "data", *_DAEMON) as running, ThreadPoolExecutor(1) as aside:
        with seglog.connect(running.address) as client:
            for topic, (_, partitions, config) in _TOPICS.items():
                client.create_topic(topic, partitions, config)
        writers = [Writer(f"{topic}-{ack}", running.address, topic, ledgers, ack) for topic in _TOPICS for ack in ("os", "disk")]
        readers = [
            Reader(running.address, topic, ledgers, durable_only=durable_only, again=again)
            for topic in _TOPICS
            for durable_only, again in ((False, False), (True, False), (False, True))
        ]
        fleeting = ComingAndGoing(running.address)
        for thread in (*writers, *readers, fleeting):
            thread.start()
        for number in range(KILLS):
            wanted = dice.randrange(1, 400)
            acked = 0

            def is_loaded() -> bool:
                nonlocal acked
                acked += sum(writer.take_acks() for writer in writers)
                return acked >= wanted

            _wait_for(is_loaded)
            with seglog.connect(running.address) as client:
                recognised += client.metrics()["duplicates_total"]
            try:
                interrupted += _kill_and_look(running, (writers, readers), ledgers, tmp_path / "copy", aside)
            except BaseException as error:
                error.add_note(f"after kill {number + 1}; {tmp_path / 'copy'} is what was found")
                raise
        fleeting.finish()
        for writer in writers:
            writer.stop()
        for writer in writers:
            writer.finish()
            writer.take_acks()
            assert writer.unacknowledged == 0
        send_last(running.address, ledgers)
        for reader in readers:
            reader.finish()
            reader.take_seen()
        assert running.stop() == 0
    _look(tmp_path / "data", ledgers)
    acked = sum(ledger.acked for ledger in ledgers.values())
    superseded = sum(len(ledger.superseded) for ledger in ledgers.values())
    expired = sum(ledger.expired for ledger in ledgers.values())
    unplaced = sum(ledger.acked_unplaced for ledger in ledgers.values())
    print(
        f"{KILLS} kills in {time.monotonic() - began:.0f} s, {interrupted} amid a compaction: {acked:,} records acked, "
        f"0 missing, 0 twice; {superseded:,} superseded, {expired:,} expired; {recognised:,.0f} batches came again, "
        f"{unplaced:,} records were known to be there already; {sum(reader.count for reader in readers):,} read"
    )
    assert interrupted, "some kill fell into a compaction"
    assert superseded
    assert expired
    assert recognised, "something came again"
