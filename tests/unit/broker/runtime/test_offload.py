"""Offload: each kind of call has its own limiter, no call is abandoned, and the inline double for tests."""

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked

from seglog_broker.runtime import offload as module
from seglog_broker.runtime.offload import REST_SECONDS, Offload, Places
from seglog_broker.storage.io.filesystem import SYNCS_BEGUN_MAX, File, PendingSync, PosixFileSystem
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.storage.io.fsync_queue import begin_in_kernel
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.testing.offload import InlineOffload


async def test_calls_run_in_threads_and_bring_back_results_and_errors() -> None:
    offload = Offload()
    loop = threading.get_ident()
    for run in (offload.fsync, offload.cold_read, offload.maintenance):
        assert await run(threading.get_ident) != loop
        assert await run(int, "7") == 7
        with pytest.raises(ValueError):
            await run(int, "seven")


async def test_cold_reads_and_maintenance_do_not_hold_up_an_fsync() -> None:
    offload = Offload()
    gate = threading.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(2 * module.COLD_READ_THREADS_MAX):
            nursery.start_soon(lambda: offload.cold_read(gate.wait))
            nursery.start_soon(lambda: offload.maintenance(gate.wait))
        await wait_all_tasks_blocked()
        assert await offload.fsync(int, "1") == 1
        gate.set()


async def test_addresses_that_wait_for_a_place_take_turns() -> None:
    places, order = Places(1), list[str]()
    leaving = trio.CancelScope()

    async def take(name: str) -> None:
        with leaving if name == "a2" else trio.CancelScope():
            async with places.of(name[0]):
                order.append(name)

    async with trio.open_nursery() as nursery, places.of("a"):
        for name in ("a1", "a2", "a3", "c1", "b1", "a4"):
            nursery.start_soon(take, name)
            await wait_all_tasks_blocked()
        leaving.cancel()
    assert order == ["a1", "c1", "b1", "a3", "a4"]
    with assert_no_checkpoints():
        async with places.of("d"):
            pass


async def test_a_cancelled_fsync_is_waited_for_and_its_outcome_known() -> None:
    offload = Offload()
    began, gate = threading.Event(), threading.Event()
    outcomes = []

    def fsync() -> str:
        began.set()
        gate.wait()
        return "synced"

    async def sync(scope: trio.CancelScope) -> None:
        with scope:
            outcomes.append(await offload.fsync(fsync))

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(sync, scope)
        await trio.to_thread.run_sync(began.wait)
        scope.cancel()
        await wait_all_tasks_blocked()
        assert outcomes == []
        gate.set()
    assert outcomes == ["synced"]


@pytest.mark.parametrize("offload", [Offload(), InlineOffload()], ids=["threads", "inline"])
async def test_a_call_cancelled_before_it_began_does_not_happen(offload: Offload) -> None:
    happened: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await offload.fsync(happened.append, 1)
    assert scope.cancelled_caught
    assert happened == []


# --- Rounds of group commit -------------------------------------------------------------------------------------------


class WatchedFileSystem(PosixFileSystem):
    """Notes which thread syncs files; ``begins`` as Linux does, or not, as macOS does."""

    def __init__(self, *, begins: bool) -> None:
        super().__init__()
        self.begins = begins
        self.threads: list[int] = []

    def begin_sync(self, files: Sequence[File]) -> PendingSync | None:
        return super().begin_sync(files) if self.begins else None

    def sync_files(self, files: Sequence[File]) -> list[OSError | None]:
        self.threads.append(threading.get_ident())
        return super().sync_files(files)


def flushes_of(fs: PosixFileSystem, folder: Path, count: int, *, directory: bool = False) -> list[Flush]:
    handles = HandlePool(fs)
    flushes = []
    for number in range(count):
        lease = handles.lease(str(folder / f"{number}"), create=True)
        lease.resource.pwritev([b"some bytes"], 0)
        flushes.append(Flush(fs, [lease], str(folder) if directory else None, 10))
    return flushes


def descriptors_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def needs_kernel_queue(folder: Path) -> None:
    with (folder / "probe").open("wb") as file:
        if begin_in_kernel([file.fileno()]) is None:
            pytest.skip("this system has no queue for fsyncs, or forbids it")


@pytest.mark.parametrize("count", [1, 3, SYNCS_BEGUN_MAX])
async def test_a_round_takes_no_thread_where_the_kernel_syncs_by_itself(tmp_path: Path, count: int) -> None:
    needs_kernel_queue(tmp_path)
    fs = WatchedFileSystem(begins=True)
    flushes = flushes_of(fs, tmp_path, count)
    assert await Offload().commit(fs, flushes) == [None] * count
    assert all(flush.files_are_synced for flush in flushes)
    assert fs.threads == []


@pytest.mark.parametrize(
    ("begins", "directory", "count"), [(False, False, 2), (True, True, 2), (True, False, SYNCS_BEGUN_MAX + 1)]
)
async def test_when_a_round_takes_a_thread(tmp_path: Path, begins: bool, directory: bool, count: int) -> None:
    """A round takes a thread where the system cannot where a name is new and for very many files."""
    fs = WatchedFileSystem(begins=begins)
    flushes = flushes_of(fs, tmp_path, count, directory=directory)
    assert await Offload().commit(fs, flushes) == [None] * count
    assert len(fs.threads) == 1
    assert fs.threads[0] != threading.get_ident()


async def test_a_cancelled_round_is_waited_for_and_its_outcome_known(tmp_path: Path) -> None:
    needs_kernel_queue(tmp_path)
    fs = WatchedFileSystem(begins=True)
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await Offload().commit(fs, flushes_of(fs, tmp_path, 2)) == [None, None]


async def test_rounds_one_after_the_other_use_one_queue(tmp_path: Path) -> None:
    needs_kernel_queue(tmp_path)
    fs = WatchedFileSystem(begins=True)
    offload, flushes = Offload(), flushes_of(fs, tmp_path, 3)
    before = descriptors_open()
    for _ in range(300):
        assert await offload.commit(fs, flushes) == [None] * 3
    assert descriptors_open() <= before + 1


async def test_the_loop_rests_while_a_sync_is_awaited_and_only_then() -> None:
    offload = Offload()
    with assert_no_checkpoints():
        await offload.rest()
    done = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(offload.fsync, done.wait))
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await offload.rest()
        assert trio.current_time() - began >= REST_SECONDS
        done.set()
    with assert_no_checkpoints():
        await offload.rest()
