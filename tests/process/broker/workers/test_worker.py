"""Processes of each kind do what the functions do, refuse what is no job, and end with their broker."""

import dataclasses
import fcntl
import os
import signal
from pathlib import Path

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.clock import SystemClock, Throttle
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_files import make_partition
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery_job import RecoveryJob, recover_partition, unread_tail
from seglog_broker.workers.jobs import CLEANING, RECOVERER, RECOVERY, SCRUB, SCRUBBER
from seglog_broker.workers.messages import WorkerError, answer_line, decoded, parse_reply, parse_request, request_line
from seglog_broker.workers.pool import WorkerPool
from seglog_broker.workers.scrub_job import ScrubJob
from seglog_broker.workers.segment_scrub import scrub_segment
from seglog_protocol.batch_builder import encode_batch
from tests.cleaning import Log, run
from tests.logs import TOPIC_ID, append_one, batch_of_size
from tests.processes import answer_to, worker, workers

_FS = PosixFileSystem()
_BATCHES = 100


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(_FS, str(tmp_path / "topic-0"))
    for _ in range(3):
        log.roll([encode_batch([(1000, b"key", b"v" * 500, ()) for _ in range(10)], base_offset=log.end)])
        log.roll([encode_batch([(1000, b"%d" % log.end, b"v", ())], base_offset=log.end)])
    return log


@pytest.fixture
def torn(tmp_path: Path) -> str:
    """The directory of a partition whose broker was killed while it wrote the last batch."""
    path = str(tmp_path / "topic-0")
    make_partition(_FS, path, TOPIC_ID)
    log = PartitionLog(load(_FS, HandlePool(_FS), SystemClock(), path, TopicConfig(), clean=True))
    for _ in range(_BATCHES):
        append_one(log, memoryview(bytearray(batch_of_size(100_000))))
    log.release()
    with Path(path, f"{0:020d}.log").open("ab") as file:
        file.write(b"torn")
    return path


# --- Jobs -------------------------------------------------------------------------------------------------------------


async def test_a_process_cleans_as_the_function_does(log: Log) -> None:
    expected = run(log.fs, dataclasses.replace(log.job(), dry_run=True))
    result = await Offload().clean(log.fs, log.job())
    assert result.groups == expected.groups
    assert (result.first_dirty, result.losses) == (expected.first_dirty, expected.losses)
    before = {record.key: (record.offset, record.value) for record in log.records()}
    log.swap(result)
    log.verify()
    assert {record.key: (record.offset, record.value) for record in log.records()} == before
    assert result.bytes_written > 0
    with pytest.raises(WorkerError, match="nowhere") as caught:
        await Offload().clean(log.fs, dataclasses.replace(log.job(), directory=f"{log.directory}/nowhere"))
    assert caught.value.kind == "storage"


async def test_a_process_scrubs_as_the_function_does(log: Log) -> None:
    async with WorkerPool(SCRUBBER) as scrubber:
        for number in range(2):
            base, following = log.bases[number : number + 2]
            job = ScrubJob(log.directory, base, following, 4096, 10_485_760, False, 1 << 30)
            expected = scrub_segment(log.fs, job, Throttle(None, lambda: 0.0, lambda _: None))
            assert await scrubber.run(SCRUB, job) == expected == parse_reply(SCRUB, answer_line(expected))
            assert expected.batches == 1
            assert decoded(ScrubJob, parse_request(request_line(SCRUB, job)).job) == job
            assert len(workers("scrubber")) == 1


async def test_a_process_recovers_as_the_function_does_and_holds_the_directory_of_its_broker(
    torn: str, tmp_path: Path
) -> None:
    told: list[int] = []
    hold = _FS.hold(str(tmp_path))
    async with WorkerPool(RECOVERER, descriptors=hold.descriptors) as recoverer:
        job = RecoveryJob(torn, unread_tail(_FS, torn, 0).size, 0, 0, 0, 10_485_760, 4096, 86_400_000)
        outcome = await recoverer.run(RECOVERY, job, progress=told.append)
        assert (outcome.end_offset, outcome.cut_bytes) == (_BATCHES, 4)
        assert sum(told) == outcome.scanned_bytes == _BATCHES * 100_000 + 4
        assert len(told) > 1
        job = dataclasses.replace(job, size=unread_tail(_FS, torn, 0).size)
        again = await recoverer.run(RECOVERY, job)
        assert (again.end_offset, again.cut_bytes) == (_BATCHES, 0)
        assert again == recover_partition(_FS, SystemClock(), job)
        hold.release()  # as a kill would
        descriptor = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
    _FS.hold(str(tmp_path)).release()


# --- Without a job, without a broker ----------------------------------------------------------------------------------

_OF_NO_KIND = b'{"kind": "scrub", "payload": 0, "job": {}}'
_OF_NO_SIZE = b'{"kind": "cleaning", "payload": -1, "job": {}}'
_OF_NO_DIRECTORY = b'{"kind": "cleaning", "payload": 0, "job": {"directory": 1}}'


def test_what_is_no_job_is_refused_signals_are_ignored_and_a_stuck_job_ends_with_stdin(log: Log) -> None:
    """Under systemd's default a stop signals all processes: the broker then lacked workers for its last acks."""
    with worker("cleaner") as process:
        assert process.stdin is not None
        bad = (b"", b"nonsense", b"[]", b"{}", b'{"directory": 1}', _OF_NO_KIND, _OF_NO_SIZE, _OF_NO_DIRECTORY)
        for line in bad:
            told = answer_to(process, line + b"\n")
            assert told["error"] == "malformed job", line
            assert told["message"], line
        assert os.getpriority(os.PRIO_PROCESS, process.pid) >= 5, "the loop gets processor time first"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.send_signal(number)
            assert "error" in answer_to(process, b"nonsense\n")
        _FS.rename(log.path(0), log.path(0, ".aside"))
        os.mkfifo(log.path(0))  # opening a pipe waits for a writer
        process.stdin.write(request_line(CLEANING, log.job()))
        process.stdin.close()
        assert process.wait(60) == 3
