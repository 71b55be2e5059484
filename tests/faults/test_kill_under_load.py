"""Two hundred SIGKILLs of a daemon that is written to, read, rolls, compacts, expires, creates and deletes at once.

The producers and consumers run through all of them. After each kill the directory is copied, and the copy opened as by
a start: every record that was acked, or that a reader got, is there unless a later one replaced it or it expired; no
record is there twice, or was never sent; no unfinished file is left; and every segment is sound, with the indexes that
follow from its bytes. Then the daemon is started on the original.
"""

import random
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

import pytest

import seglog
from seglog_broker.config import load_config
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.faults.living_clients import Entry, Ledger, Ledgers, Policy, Reader, Writer, send_last
from tests.logs import read_around, verify
from tests.processes import Daemon, daemon
from tests.support import soak_scaled, soak_seed

KILLS: Final = max(50, soak_scaled(200))
"""Among fewer, none may be amid a compaction."""
_PATIENCE_SECONDS: Final = 300
"""No promise of any speed: on a busy machine a compaction may take more than a minute to come around."""
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
_Config = dict[str, str | int]
_SMALL: Final[_Config] = {"segment.bytes": 4096, "segment.ms": 200, "index.interval.bytes": 256}
_COMPACTED: Final[_Config] = {
    **_SMALL,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 300,
}
_TOPICS: Final[dict[str, tuple[Policy, int, _Config]]] = {
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
    """Open a directory as a start does, and check everything in it."""
    fs = PosixFileSystem()
    config, _ = load_config(None, "", {}, [f"log.dir={directory}"])
    logs = open_log_directory(fs, SystemClock(), config, str(directory))
    report = logs.report
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


class Load:
    """All the load on the daemon, in threads that run across its restarts."""

    def __init__(self, address: str, ledgers: Ledgers) -> None:
        self.ledgers = ledgers
        self.writers = [
            Writer(f"{topic}-{ack}", address, topic, ledgers, ack) for topic in _TOPICS for ack in ("os", "disk")
        ]
        self.readers = [
            Reader(address, topic, ledgers, durable_only=durable_only, again=again)
            for topic, (policy, _, _) in _TOPICS.items()
            for durable_only, again in ((False, False), (True, False), (False, True))
            if policy != "keep" or not again
        ]
        self._address = address
        self._fleeting = ComingAndGoing(address)
        for thread in (*self.writers, *self.readers, self._fleeting):
            thread.start()

    def wait_for_acks(self, count: int) -> None:
        """Return after so many more acks."""
        wanted = self._acks() + count
        self.wait_until(lambda: self._acks() >= wanted)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. There is no deadline: only what never happens fails."""
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < give_up
            self._acks()  # so that the writers go on
            time.sleep(0.01)

    def _acks(self) -> int:
        for writer in self.writers:
            writer.take_acks()
        return sum(ledger.acked for ledger in self.ledgers.values())

    def take_everything(self) -> None:
        """Add the acks and the records read so far to the ledgers."""
        for writer in self.writers:
            writer.take_acks()
        for reader in self.readers:
            reader.take_seen()

    def finish(self) -> None:
        """Wait until every record is acked, and every reader is at the end."""
        self._fleeting.finish()
        for writer in self.writers:
            writer.stop()
        for writer in self.writers:
            writer.finish()
        send_last(self._address, self.ledgers)
        for reader in self.readers:
            reader.finish()
        self.take_everything()
        assert [writer.unacknowledged for writer in self.writers] == [0] * len(self.writers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self.writers:  # when the test has failed: no broker is there to flush to
            writer.abandon()

    def summary(self) -> str:
        acked, superseded, expired, placeless = (
            sum(column) for column in zip(*(ledger.counts() for ledger in self.ledgers.values()), strict=True)
        )
        read = sum(reader.count for reader in self.readers)
        return (
            f"{acked:,} records acked, 0 missing, 0 twice; {superseded:,} superseded, {expired:,} expired, "
            f"{placeless:,} in the log already when they came again late; {read:,} read"
        )


def _is_compacted(running: Daemon, topic: str) -> bool:
    """Whether the daemon has compacted this topic since it was started."""
    whole_lines = running.log_text().splitlines()[:-1]
    return any('"partition_compacted"' in line and f'"topic": "{topic}"' in line for line in whole_lines)


def _kill_and_look(running: Daemon, load: Load, copy: Path, aside: ThreadPoolExecutor) -> bool:
    """Kill the daemon, start it again, and meanwhile check the files. Returns whether a compaction was running."""
    running.kill()
    load.take_everything()
    is_amid = any(path.name.endswith((".cleaned", ".swap")) for path in running.directory.glob("*/*"))
    shutil.copytree(running.directory, copy)
    starting = aside.submit(running.start)
    try:
        _look(copy, load.ledgers)
    finally:
        starting.result()
    shutil.rmtree(copy)
    return is_amid


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_two_hundred_kills_under_load_lose_and_duplicate_nothing_and_leave_no_unfinished_files(tmp_path: Path) -> None:
    seed = soak_seed()
    print(f"seed {seed}")
    dice = random.Random(seed)
    ledgers = {(topic, n): Ledger(policy) for topic, (policy, count, _) in _TOPICS.items() for n in range(count)}
    began = time.monotonic()
    interrupted, recognised = 0, 0.0
    with daemon(tmp_path / "data", *_DAEMON) as running, ThreadPoolExecutor(1) as aside:
        with seglog.connect(running.address) as client:
            for topic, (_, partitions, config) in _TOPICS.items():
                client.create_topic(topic, partitions, config)
        with Load(running.address, ledgers) as load:
            for number in range(KILLS):
                load.wait_for_acks(dice.randrange(1, 400))
                if number % 5 == 0:  # a machine that is busy may not get so far by itself between two kills
                    load.wait_until(partial(_is_compacted, running, ("compacted", "both")[number % 2]))
                with seglog.connect(running.address) as client:
                    recognised += client.metrics()["duplicates_total"]
                try:
                    interrupted += _kill_and_look(running, load, tmp_path / "copy", aside)
                except BaseException as error:
                    error.add_note(f"after kill {number + 1}; {tmp_path / 'copy'} is what was found")
                    raise
            load.finish()
        assert running.stop() == 0
    _look(tmp_path / "data", ledgers)
    seconds = time.monotonic() - began
    print(
        f"{KILLS} kills in {seconds:.0f} s, {interrupted} amid a compaction: {load.summary()}; "
        f"{recognised:,.0f} batches came again"
    )
    assert interrupted, "some kill fell into a compaction"
    assert recognised, "something came again"
    assert all(ledger.superseded for ledger in ledgers.values() if "compact" in ledger.policy)
    assert all(ledger.expired for ledger in ledgers.values() if "delete" in ledger.policy)
