"""The scrubber process: with jobs of the loop, killed, cancelled, and without its broker."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.workers.jobs import SCRUB, SCRUBBER
from seglog_broker.workers.messages import WorkerError, answer_line, decoded, parse_reply, parse_request, request_line
from seglog_broker.workers.pool import WorkerPool
from seglog_broker.workers.scrub_job import ScrubJob
from seglog_broker.workers.segment_scrub import scrub_segment
from seglog_protocol.batch_builder import encode_batch
from tests.cleaning import Log
from tests.processes import told_of_nonsense, workers


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(PosixFileSystem(), str(tmp_path / "topic-0"))
    for _ in range(3):
        log.roll([encode_batch([(1000, b"key", b"v" * 500, ()) for _ in range(10)], base_offset=log.end)])
    return log


def job(log: Log, number: int = 0) -> ScrubJob:
    base, following = [*log.bases, log.end][number : number + 2]
    return ScrubJob(log.directory, base, following, 4096, 10_485_760, is_adopted=False, bytes_per_second=1 << 30)


async def test_a_scrubber_process_gives_the_same_results_as_the_function(log: Log) -> None:
    async with WorkerPool(SCRUBBER) as scrubber:
        for number in range(2):
            expected = scrub_segment(log.fs, job(log, number), Throttle(None, lambda: 0.0, lambda _: None))
            assert await scrubber.run(SCRUB, job(log, number)) == expected
            assert expected.batches == 1
            assert len(workers("scrubber")) == 1


def test_a_scrub_job_and_its_result_survive_json(log: Log) -> None:
    verdict = scrub_segment(log.fs, job(log), Throttle(None, lambda: 0.0, lambda _: None))
    assert parse_reply(SCRUB, answer_line(verdict)) == verdict
    assert decoded(ScrubJob, parse_request(request_line(SCRUB, job(log))).job) == job(log)


async def test_a_storage_error_is_reported_with_its_reason_and_the_next_job_is_done(log: Log) -> None:
    async with WorkerPool(SCRUBBER) as scrubber:
        with pytest.raises(WorkerError, match="nowhere") as caught:
            await scrubber.run(SCRUB, dataclasses.replace(job(log), directory=f"{log.directory}/nowhere"))
        assert caught.value.kind == "storage"
        assert (await scrubber.run(SCRUB, job(log))).batches == 1


async def test_a_killed_process_is_an_error_and_another_one_does_the_next_job(log: Log) -> None:
    async with WorkerPool(SCRUBBER) as scrubber:
        await scrubber.run(SCRUB, job(log))
        (child,) = workers("scrubber")
        os.kill(child, signal.SIGKILL)
        with pytest.raises(WorkerError, match="-9") as caught:
            await scrubber.run(SCRUB, job(log))
        assert caught.value.kind == "died"
        assert (await scrubber.run(SCRUB, job(log))).batches == 1


async def test_cancellation_leaves_no_process(log: Log) -> None:
    os.mkfifo(f"{log.directory}/stuck.log")
    log.fs.rename(f"{log.directory}/stuck.log", log.path(0))  # opening it waits for somebody to write to it
    async with WorkerPool(SCRUBBER) as scrubber, trio.open_nursery() as nursery:
        nursery.start_soon(scrubber.run, SCRUB, job(log))
        while not workers("scrubber"):  # noqa: ASYNC110 - a process tells nobody that it began
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert not workers("scrubber")


def test_a_malformed_job_is_refused_and_the_end_of_stdin_ends_it() -> None:
    told, code = told_of_nonsense("scrubber")
    assert told["error"] == "malformed job"
    assert code == 3


def test_the_daemon_does_not_load_what_only_the_scrubber_needs() -> None:
    code = (
        "import sys, seglog_broker.server, seglog_broker.workers.jobs\n"
        "sys.exit('seglog_broker.workers.segment_scrub' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
