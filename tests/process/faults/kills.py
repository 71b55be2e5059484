"""Kills of a daemon under load: the load, and what is looked at after each kill.

After each kill the directory is copied, and the copy opened as by a start: every record that was acked, or that a
reader got, is there unless a later one replaced it or it expired; no record is there twice, or was never sent; no
unfinished file is left; and every segment is sound, with the indexes that follow from its bytes. Then the daemon is
started on the original.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from seglog_broker.config import load_config
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.logs import read_around, verify
from tests.process.faults.living_clients import Entry, Ledgers, Reader, Sender, send_last
from tests.processes import PATIENCE_SECONDS, Daemon, copy_data

_UNFINISHED: Final = (".cleaned", ".swap", ".deleted", ".tmp")


def look(directory: Path, ledgers: Ledgers) -> None:
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

    def __init__(self, address: str, ledgers: Ledgers, writers: Sequence[Sender], readers: Sequence[Reader]) -> None:
        self.ledgers = ledgers
        self.writers = writers
        self.readers = readers
        self._address = address
        threads: list[Sender | Reader] = [*writers, *readers]
        for thread in threads:
            thread.start()

    def wait_for_acks(self, count: int) -> None:
        """Return after so many more acks."""
        wanted = self._acks() + count
        self.wait_until(lambda: self._acks() >= wanted)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition. There is no deadline: only what never happens fails."""
        give_up = time.monotonic() + PATIENCE_SECONDS
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


def has_a_compaction_begun(partition: Path) -> bool:
    """Whether a partition has files that a compaction has begun and not ended."""
    return any(path.name.endswith((".cleaned", ".swap")) for path in partition.iterdir())


def kill_and_look(running: Daemon, load: Load, copy: Path, aside: ThreadPoolExecutor) -> bool:
    """Kill the daemon, start it again, and meanwhile check the files. Returns whether a compaction was running."""
    running.kill()
    load.take_everything()
    is_amid = any(map(has_a_compaction_begun, filter(Path.is_dir, running.directory.iterdir())))
    copy_data(running.directory, copy)
    starting = aside.submit(running.start)
    try:
        look(copy, load.ledgers)
    finally:
        starting.result()
    shutil.rmtree(copy)
    return is_amid
