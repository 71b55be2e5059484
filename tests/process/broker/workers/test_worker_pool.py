"""The pool of worker processes: which jobs wait, which processes are kept or replaced, and the tools of jobs."""

import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.workers import messages
from seglog_broker.workers.jobs import CHECK, RECORD_CHECKER, SEARCH, CheckJob, SearchJob
from seglog_broker.workers.messages import JobKind, Tools
from seglog_broker.workers.pool import WorkerPool
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import InvalidRecordError
from tests.processes import workers

KEYED = CheckJob(needs_key=True, earliest=None, before_max_ms=0, latest=2**63 - 1)
BATCH = encode_batch([(10, b"k", b"v" * 100_000, ()), (20, b"k", b"v", ())])

_SCRIPTED = """
import json, os, sys
from pathlib import Path
for line in sys.stdin.buffer:
    job = json.loads(line)["job"]
    Path(sys.argv[1], f"{os.getpid()}-{job['timestamp']}").touch()
    while job["timestamp"] == 0 and not Path(sys.argv[1], "go").exists():
        pass
    answer = {"answer": {"found": [os.getpid(), 0, 0]}}
    kinds = {1: "bug", 2: "storage"}
    failure = {"error": kinds.get(job["timestamp"]), "message": str(os.getpid()), "refusal": None}
    print(json.dumps(failure if job["timestamp"] in kinds else answer), flush=True)
"""
"""A worker that answers with its process id: 0 when it is let, 1 as a bug, 2 as an error of the disk."""

_DEALING = """
import json, sys
for line in sys.stdin.buffer:
    size = json.loads(line)["job"]["size"]
    sent = size if size else 70_000
    sys.stdout.buffer.write(json.dumps({"answer": {"note": "n"}, "payload": size or 100_000}).encode() + b"\\n")
    sys.stdout.buffer.write((b"line\\n" * sent)[:sent])
    sys.stdout.buffer.flush()
    if not size:
        sys.exit(7)
"""
"""A worker that answers with as many bytes as it is asked for; with fewer than it announced, where that is 0."""


@dataclass(frozen=True, slots=True)
class _Wish:
    size: int


@dataclass(frozen=True, slots=True)
class _Dealt:
    note: str
    payload: bytearray


_DEAL = JobKind("deal", _Wish, _Dealt, lambda *_: _Dealt("n", bytearray()))


def scripted(folder: Path, processes_max: int = 1) -> WorkerPool:
    command = (sys.executable, "-c", _SCRIPTED, str(folder))
    return WorkerPool(RECORD_CHECKER, processes_max, command=command)


async def _pid(workers: WorkerPool, timestamp: int) -> int:
    found = (await workers.run(SEARCH, SearchJob(timestamp, 0))).found
    assert found is not None
    return found[0]


def _begun(folder: Path) -> set[int]:
    """The processes that have begun a job."""
    return {int(path.name.partition("-")[0]) for path in folder.iterdir()}


async def _another(folder: Path, known: set[int]) -> int:
    """A process that has begun a job, as soon as there is one beside those that are known."""
    while not (begun := _begun(folder) - known):  # noqa: ASYNC110 - a process tells nobody that it began
        await trio.sleep(0.01)
    return begun.pop()


async def test_jobs_of_several_kinds_with_bytes_go_through_one_process() -> None:
    async with WorkerPool(RECORD_CHECKER) as checkers:
        for _ in range(2):
            await checkers.run(CHECK, KEYED, BATCH)
            assert (await checkers.run(SEARCH, SearchJob(15, 0), memoryview(BATCH))).found == (20, 1, -1)
            assert (await checkers.run(SEARCH, SearchJob(21, 0), BATCH)).found is None
        assert len(workers("record_checker")) == 1


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memfd_create: only Linux has files in memory")
async def test_a_process_is_started_where_no_temporary_file_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose root is read-only, `/tmp` and all."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    async with scripted(tmp_path) as checkers:
        assert await _pid(checkers, 9)


async def test_the_number_of_jobs_at_a_time_is_limited_and_the_next_gets_an_idle_process(tmp_path: Path) -> None:
    pids: list[int] = []

    async def ask(timestamp: int) -> None:
        pids.append(await _pid(checkers, timestamp))

    async with scripted(tmp_path, 2) as checkers:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, 0)
            while len(begun := _begun(tmp_path)) < 2:  # noqa: ASYNC110 - a process tells nobody that it began
                await trio.sleep(0.01)
            (tmp_path / "go").touch()
        assert set(pids) == begun
        assert len(pids) == 3


async def test_a_process_is_kept_after_a_storage_error_and_replaced_after_a_bug(tmp_path: Path) -> None:
    async with scripted(tmp_path) as checkers:
        first = await _pid(checkers, 9)
        for timestamp, kind, is_kept in ((2, messages.STORAGE, True), (1, messages.BUG, False)):
            with pytest.raises(messages.WorkerError, match=str(first)) as caught:
                await _pid(checkers, timestamp)
            assert caught.value.kind == kind
            assert (await _pid(checkers, 9) == first) is is_kept


async def test_a_process_that_was_killed_costs_one_job_and_one_whose_job_was_cancelled_is_gone(tmp_path: Path) -> None:
    async def kill_at_work() -> None:
        with pytest.raises(messages.WorkerError, match="the record_checker ended with status -9") as caught:
            await _pid(checkers, 0)
        assert caught.value.kind == messages.DIED

    async with scripted(tmp_path) as checkers:
        idle = await _pid(checkers, 9)
        os.kill(idle, signal.SIGKILL)
        await kill_at_work()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_at_work)
            os.kill(killed := await _another(tmp_path, {idle}), signal.SIGKILL)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pid, checkers, 0)
            cancelled = await _another(tmp_path, {idle, killed})
            nursery.cancel_scope.cancel()
        with pytest.raises(ProcessLookupError):
            os.kill(cancelled, 0)
        assert await _pid(checkers, 9) not in {idle, killed, cancelled}


async def test_a_process_that_ends_at_once_has_its_last_words_reported() -> None:
    async with WorkerPool(RECORD_CHECKER, command=(sys.executable, "-c", "raise SystemExit('no numpy here')")) as pool:
        with pytest.raises(messages.WorkerError, match="no numpy here") as caught:
            await pool.run(CHECK, KEYED, BATCH)
        assert caught.value.kind == messages.DIED


async def test_bytes_of_an_answer_come_behind_its_line_and_the_next_answer_behind_them() -> None:
    async with WorkerPool(RECORD_CHECKER, command=(sys.executable, "-c", _DEALING)) as dealers:
        for size in (1, 5, 300_000, 2):
            dealt = await dealers.run(_DEAL, _Wish(size))
            assert (dealt.note, bytes(dealt.payload)) == ("n", (b"line\n" * size)[:size])
        with pytest.raises(messages.WorkerError, match="ended with status 7") as caught:
            await dealers.run(_DEAL, _Wish(0))
        assert caught.value.kind == messages.DIED
        assert (await dealers.run(_DEAL, _Wish(3))).payload == b"lin", "by another process"


def test_bytes_of_an_answer_do_not_go_through_json() -> None:
    answer = _Dealt("n", bytearray(b"\xff\n" * 10))
    line = messages.answer_line(answer)
    assert line == b'{"answer": {"note": "n"}, "payload": 20}\n'
    announced = messages.parse_reply(_DEAL, line)
    assert isinstance(announced, messages.Announced)
    assert announced.size == 20
    assert announced.with_payload(bytearray(messages.payload_of(answer))) == answer
    assert messages.payload_of(SearchJob(1, 2)) == b""


async def test_a_process_that_cannot_be_started_is_an_oserror() -> None:
    async with WorkerPool(RECORD_CHECKER, command=("/nowhere/python",)) as checkers:
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                await checkers.run(CHECK, KEYED, BATCH)


def test_errors_between_processes() -> None:
    """A refusal survives the way between processes and other errors become messages."""
    refusal = InvalidRecordError("record 3 has no key", record=3)
    with pytest.raises(messages.WorkerError) as caught:
        messages.parse_reply(CHECK, messages.failure_line(messages.WorkerError.of(refusal)))
    assert isinstance(caught.value.refusal, InvalidRecordError)
    assert (caught.value.refusal.message, caught.value.refusal.facts) == (refusal.message, refusal.facts)
    with pytest.raises(messages.WorkerError) as caught:
        messages.parse_reply(CHECK, messages.failure_line(messages.WorkerError.of(MemoryError())))
    assert (caught.value.kind, caught.value.message, caught.value.refusal) == (messages.BUG, "MemoryError", None)


def test_a_rate_holds_over_all_jobs_of_a_process_until_it_changes() -> None:
    tools = Tools(ForgetfulFileSystem(), SystemClock())
    first = tools.throttle(1000)
    assert tools.throttle(1000) is first
    assert tools.throttle(2000) is not first
    unthrottled = Tools(ForgetfulFileSystem(), SystemClock(), is_throttled=False)
    assert unthrottled.throttle(1000) is unthrottled.throttle(2000)
