"""The scrubber process: with jobs of the loop, killed, cancelled, and without its broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.workers.jobs import SCRUB, SCRUBBER, ScrubJob
from seglog_broker.workers.messages import answer_line, decoded, parse_reply, parse_request, request_line
from seglog_broker.workers.pool import WorkerPool
from seglog_broker.workers.segment_scrub import scrub_segment
from seglog_protocol.batch_builder import encode_batch
from tests.cleaning import Log
from tests.processes import workers


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


def test_the_daemon_does_not_load_what_only_the_scrubber_needs() -> None:
    code = (
        "import sys, seglog_broker.server, seglog_broker.workers.jobs\n"
        "sys.exit('seglog_broker.workers.segment_scrub' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
