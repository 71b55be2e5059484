"""The cleaner process: with jobs of the loop, killed, cancelled, and without its broker."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.workers.jobs import CLEANING
from seglog_broker.workers.messages import WorkerError, request_line
from seglog_protocol.batch_builder import encode_batch
from tests.cleaning import Log, run
from tests.processes import told_of_nonsense, worker, workers


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(PosixFileSystem(), str(tmp_path / "topic-0"))
    for _ in range(3):
        log.roll([encode_batch([(1000, b"key", b"v" * 500, ()) for _ in range(10)], base_offset=log.end)])
        log.roll([encode_batch([(1000, b"%d" % log.end, b"v", ())], base_offset=log.end)])
    return log


@pytest.fixture
def stuck_log(log: Log) -> Log:
    """A log whose cleaning never ends: opening a pipe waits for a writer."""
    log.fs.rename(log.path(0), log.path(0, ".aside"))
    os.mkfifo(log.path(0))
    return log


async def run_cleaner(job: CleaningJob) -> CleaningResult:
    return await Offload().clean(PosixFileSystem(), job)


async def test_a_process_does_what_the_function_does(log: Log) -> None:
    expected = run(log.fs, dataclasses.replace(log.job(), dry_run=True))
    result = await run_cleaner(log.job())
    assert result.groups == expected.groups
    assert (result.first_dirty, result.losses) == (expected.first_dirty, expected.losses)
    before = {record.key: (record.offset, record.value) for record in log.records()}
    log.swap(result)
    log.verify()
    assert {record.key: (record.offset, record.value) for record in log.records()} == before
    assert result.bytes_written > 0


async def test_a_storage_error_is_reported_with_its_reason(log: Log) -> None:
    job = dataclasses.replace(log.job(), directory=f"{log.directory}/nowhere")
    with pytest.raises(WorkerError, match="nowhere") as caught:
        await run_cleaner(job)
    assert caught.value.kind == "storage"


_OF_NO_KIND = '{"kind": "scrub", "payload": 0, "job": {}}'
_OF_NO_SIZE = '{"kind": "cleaning", "payload": -1, "job": {}}'
_OF_NO_DIRECTORY = '{"kind": "cleaning", "payload": 0, "job": {"directory": 1}}'


@pytest.mark.parametrize(
    "line", ["", "nonsense", "[]", "{}", '{"directory": 1}', _OF_NO_KIND, _OF_NO_SIZE, _OF_NO_DIRECTORY]
)
def test_a_malformed_job_is_refused_on_stdout_and_the_end_of_stdin_ends_it(line: str) -> None:
    told, code = told_of_nonsense("cleaner", line.encode() + b"\n")
    assert told["error"] == "malformed job"
    assert told["message"]
    assert code == 3


async def _child() -> int:
    """The cleaner's process id, as soon as there is one."""
    while not (children := workers("cleaner")):  # noqa: ASYNC110 - a process tells nobody that it began
        await trio.sleep(0.01)
    (child,) = children
    return child


async def test_cancellation_leaves_no_process(stuck_log: Log) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_cleaner, stuck_log.job())
        await _child()
        nursery.cancel_scope.cancel()
    assert not workers("cleaner")


async def test_a_killed_process_is_an_error_and_the_next_one_does_the_job(stuck_log: Log) -> None:
    job = stuck_log.job()
    errors: list[WorkerError] = []

    async def clean_for_ever() -> None:
        try:
            await run_cleaner(job)
        except WorkerError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(clean_for_ever)
        os.kill(await _child(), signal.SIGKILL)
    assert [error.kind for error in errors] == ["died"]
    assert "-9" in str(errors[0])
    stuck_log.fs.rename(stuck_log.path(0, ".aside"), stuck_log.path(0))
    before = stuck_log.records()[-1]
    stuck_log.swap(await run_cleaner(job))
    stuck_log.verify()
    assert stuck_log.records()[-1] == before


async def test_a_process_that_cannot_start_reports_the_end_of_its_standard_error(log: Log) -> None:
    offload = Offload()
    offload.worker_command = (sys.executable, "-c", "raise SystemExit('no numpy here')")
    with pytest.raises(WorkerError, match="no numpy here") as caught:
        await offload.clean(log.fs, log.job())
    assert caught.value.kind == "died"


def test_the_cleaner_ends_when_its_broker_does(stuck_log: Log) -> None:
    with worker("cleaner") as process:
        assert process.stdin is not None
        process.stdin.write(request_line(CLEANING, stuck_log.job()))
        process.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.stdin.close()
        assert process.wait(60) == 3


def test_the_daemon_and_its_side_of_the_cleaner_load_no_numpy() -> None:
    code = (
        "import sys, seglog_broker.__main__, seglog_broker.server, seglog_broker.workers.jobs\n"
        "sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
