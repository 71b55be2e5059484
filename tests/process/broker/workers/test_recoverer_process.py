"""The recoverer process: with jobs of the loop, killed, cancelled, and without its broker."""

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_files import make_partition
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery_job import RecoveryJob, recover_partition, unread_tail
from seglog_broker.workers.jobs import RECOVERER, RECOVERY
from seglog_broker.workers.messages import WorkerError
from seglog_broker.workers.pool import WorkerPool
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT
from tests.logs import TOPIC_ID, append_one, batch_of_size
from tests.processes import workers

_FS = PosixFileSystem()
_BATCHES = 100


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """The directory of a partition whose broker was killed while it wrote the last batch."""
    path = str(tmp_path / "topic-0")
    make_partition(_FS, path, TOPIC_ID)
    log = PartitionLog(load(_FS, HandlePool(_FS), SystemClock(), path, TopicConfig(), clean=True))
    for _ in range(_BATCHES):
        view = memoryview(bytearray(batch_of_size(100_000)))
        append_one(log, view)
    log.release()
    with (tmp_path / "topic-0" / f"{0:020d}.log").open("ab") as file:
        file.write(b"torn")
    return path


def job(directory: str) -> RecoveryJob:
    size = unread_tail(_FS, directory, 0).size
    return RecoveryJob(directory, size, 0, 0, 0, 10_485_760, 4096, 86_400_000)


@contextmanager
def stuck(directory: str) -> Iterator[None]:
    """Make every open of the partition block: its leader epoch checkpoint is a pipe without a writer."""
    checkpoint = Path(directory) / LEADER_EPOCH_CHECKPOINT
    aside = checkpoint.with_suffix(".aside")
    is_there = checkpoint.exists()
    if is_there:
        checkpoint.rename(aside)
    os.mkfifo(checkpoint)
    yield
    checkpoint.unlink()
    if is_there:
        aside.rename(checkpoint)


async def _worker() -> int:
    """The recoverer's process id, as soon as there is one."""
    while not (children := workers("recoverer")):  # noqa: ASYNC110 - a process tells nobody that it began
        await trio.sleep(0.01)
    (child,) = children
    return child


async def test_a_process_recovers_as_the_function_does_and_reports_progress(directory: str) -> None:
    told: list[int] = []
    async with WorkerPool(RECOVERER) as recoverer:
        outcome = await recoverer.run(RECOVERY, job(directory), progress=told.append)
        again = await recoverer.run(RECOVERY, job(directory))
    assert (outcome.end_offset, outcome.cut_bytes) == (_BATCHES, 4)
    assert sum(told) == outcome.scanned_bytes == _BATCHES * 100_000 + 4
    assert len(told) > 1
    assert (again.end_offset, again.cut_bytes) == (_BATCHES, 0)
    assert again == recover_partition(_FS, SystemClock(), job(directory))


async def test_a_killed_process_is_an_error_and_another_one_does_the_job(directory: str) -> None:
    async def kill() -> None:
        os.kill(await _worker(), signal.SIGKILL)

    asked = job(directory)
    async with WorkerPool(RECOVERER) as recoverer:
        with stuck(directory):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill)
                with pytest.raises(WorkerError, match="-9") as caught:
                    await recoverer.run(RECOVERY, asked)
        assert caught.value.kind == "died"
        assert (await recoverer.run(RECOVERY, asked)).end_offset == _BATCHES


async def test_cancellation_leaves_no_process_and_the_next_job_gets_another(directory: str) -> None:
    asked = job(directory)
    async with WorkerPool(RECOVERER) as recoverer:
        with stuck(directory):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(recoverer.run, RECOVERY, asked)
                await _worker()
                nursery.cancel_scope.cancel()
            assert nursery.cancel_scope.cancelled_caught
        assert not workers("recoverer")
        assert (await recoverer.run(RECOVERY, asked)).end_offset == _BATCHES


async def test_a_directory_stays_held_while_a_process_of_its_broker_lives(directory: str, tmp_path: Path) -> None:
    hold = _FS.hold(str(tmp_path))
    async with WorkerPool(RECOVERER, descriptors=hold.descriptors) as recoverer:
        await recoverer.run(RECOVERY, job(directory))
        hold.release()  # as a kill would
        descriptor = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    _FS.hold(str(tmp_path)).release()
