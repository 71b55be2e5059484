"""A cleaner that is killed, with real processes and files."""

import sys
from pathlib import Path

import pytest

from seglog_broker.runtime.offload import Offload
from seglog_broker.server import compaction_of
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.workers.pool import COMMAND
from tests.processes import clean_environment
from tests.unit.broker.tasks.living_broker import START_MS, bases, living, log_of, with_topic
from tests.unit.broker.tasks.test_compaction import COMPACT, files, fill, is_compacted, latest, offsets_found


class RealClock(Clock):
    def now_ms(self) -> int:
        return START_MS


async def test_a_cleaner_process_that_is_killed_costs_one_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real clock, with real files: the first process dies of a signal, the second does the work."""
    monkeypatch.setenv("PYTHONPATH", clean_environment()["PYTHONPATH"])
    suicide = (sys.executable, "-c", "import os, signal; os.read(0, 1); os.kill(os.getpid(), signal.SIGKILL)")
    fs, offload = PosixFileSystem(), Offload()
    offload.worker_command = suicide
    flags = (f"log.dir={tmp_path / 'data'}", "log.cleaner.backoff.ms=10")
    async with living(fs, RealClock(), *flags, offload=offload, tasks=()) as broker:
        await with_topic(broker, **COMPACT)
        fill(broker, 4)
        expected = latest(broker)
        rounds = compaction_of(broker)
        assert await rounds.clean_next()
        log = log_of(broker)
        assert "-9" in str(log.state.cleaner.last_error)
        assert len(bases(broker)) == 5
        assert not await rounds.clean_next(), "not at once"
        offload.worker_command = COMMAND
        rounds = compaction_of(broker)
        assert await rounds.clean_next()
        assert log.state.cleaner.last_error is None
        assert is_compacted(broker)
        assert latest(broker) == expected
        assert log.log_end_offset - 1 == max(offsets_found(broker))
        assert files(fs, log.directory) == {n for n in files(fs, log.directory) if n.endswith(".deleted")}
