"""The kernel's queue for fsyncs, and its replacement: the same results as single calls of fdatasync(2)."""

import errno
import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from seglog_broker.storage.io import fsync_queue as kernel_queue
from seglog_broker.storage.io.filesystem import File, PendingSync, PosixFileSystem
from seglog_broker.storage.io.fsync_queue import QUEUE_LENGTH, KernelSync, begin_in_kernel, sync_in_kernel
from tests.support import each_case


@contextmanager
def written(folder: Path, count: int) -> Iterator[list[int]]:
    """Descriptors of so many files with unsynced bytes."""
    descriptors = []
    try:
        for number in range(count):
            descriptors.append(os.open(folder / f"{number}", os.O_CREAT | os.O_RDWR))
            os.pwrite(descriptors[-1], b"some bytes", 0)
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def with_a_pipe(fs: PosixFileSystem, folder: Path) -> Iterator[list[File]]:
    """Four open files, the third of which is a pipe, which has no fsync."""
    files = [fs.open(str(folder / f"{number}"), create=True) for number in range(4)]
    reading, writing = os.pipe()
    os.dup2(writing, files[2].fileno())
    try:
        yield files
    finally:
        for descriptor in (reading, writing):
            os.close(descriptor)
        for file in files:
            file.close()


@pytest.fixture
def queue(tmp_path: Path) -> None:
    """For what a system without one, or which forbids it, cannot show."""
    with written(tmp_path, 1) as descriptors:
        if sync_in_kernel(descriptors) != [0]:
            pytest.skip("this system has no queue for fsyncs, or forbids it")


def outcomes(begun: KernelSync | PendingSync) -> list[Any]:
    """What ``collect`` says when everything is done, waiting as a loop does."""
    while (found := begun.collect()) is None:
        if begun.descriptor is None:
            time.sleep(0.001)
        else:
            assert select.select([begun.descriptor], [], [], 30)[0], "nobody was told"
    return list(found)


def on_a_loop(descriptors: list[int]) -> list[Any]:
    """Outcomes without a thread: an eventfd tells when."""
    begun = begin_in_kernel(descriptors)
    assert begun is not None
    return outcomes(begun)


@each_case(
    ("sync", "count"),
    [
        *((sync_in_kernel, count) for count in (0, 1, 2, QUEUE_LENGTH, QUEUE_LENGTH + 1, 2 * QUEUE_LENGTH + 3)),
        *((on_a_loop, count) for count in (1, 2, QUEUE_LENGTH)),
    ],
)
@pytest.mark.usefixtures("queue")
def test_every_file_gets_an_outcome_of_its_own_however_many_there_are(
    tmp_path: Path, sync: Callable[[list[int]], list[Any]], count: int
) -> None:
    with written(tmp_path, count) as descriptors:
        for _ in range(3):
            assert sync(descriptors) == [0] * count


def test_a_queue_that_other_threads_have_taken_is_not_missed(tmp_path: Path) -> None:
    """Rounds begin on the loop while checkpoints sync in threads; both share the idle queues."""
    kernel_queue._idle.clear()
    with written(tmp_path, 2) as descriptors:
        assert sync_in_kernel(descriptors) in ([0, 0], [None, None])


@each_case("sync", [sync_in_kernel, on_a_loop])
@pytest.mark.usefixtures("queue")
def test_what_the_kernel_does_not_take_is_left_for_the_ordinary_way_and_never_called_synced(
    tmp_path: Path, sync: Callable[[list[int]], list[Any]]
) -> None:
    reading, writing = os.pipe()  # has no fsync
    assert begin_in_kernel([writing]) is None
    with written(tmp_path, 3) as files:
        assert sync([files[0], files[1], writing, files[2]]) == [0, 0, None, None]
    os.close(reading)
    os.close(writing)


@pytest.fixture(params=["queue", "no queue"])
def fs(request: pytest.FixtureRequest) -> PosixFileSystem:
    fs = PosixFileSystem()
    if request.param == "no queue":
        fs.sync_files_in_kernel = fs.sync_directories_in_kernel = lambda descriptors: [None] * len(descriptors)
        fs.begin_in_kernel = lambda _descriptors: None
    return fs


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_a_file_system_syncs_many_files_and_directories_with_a_queue_and_without(
    fs: PosixFileSystem, tmp_path: Path, count: int
) -> None:
    folders = [tmp_path / f"{number}" for number in range(count)]
    for folder in folders:
        folder.mkdir()
    files = [fs.open(str(folder / "f"), create=True) for folder in folders]
    for file in files:
        file.pwritev([b"some bytes"], 0)
    assert fs.sync_files(files) == [None] * count
    assert fs.sync_directories([str(folder) for folder in folders]) == [None] * count
    for file in files:
        file.close()


def synced_on_a_loop(fs: PosixFileSystem, files: list[File]) -> list[Any]:
    begun = fs.begin_sync(files)
    return fs.sync_files(files) if begun is None else outcomes(begun)


@each_case("sync", [PosixFileSystem.sync_files, synced_on_a_loop])
def test_one_that_fails_does_not_fail_the_others(
    fs: PosixFileSystem, tmp_path: Path, sync: Callable[[PosixFileSystem, list[File]], list[Any]]
) -> None:
    with with_a_pipe(fs, tmp_path) as files:
        found = sync(fs, files)
    assert [outcome and outcome.errno for outcome in found] == [None, None, errno.EINVAL, None]
    missing = fs.sync_directories([str(tmp_path), str(tmp_path / "missing"), str(tmp_path / "1")])
    assert [outcome and outcome.errno for outcome in missing] == [None, errno.ENOENT, errno.ENOTDIR]


class Failing(KernelSync):
    """Whose second file could not be synced."""

    def __init__(self) -> None:
        self.descriptor = 0

    def collect(self) -> list[int | None]:
        return [0, errno.EIO, errno.ENOSPC]


@each_case("sync", [PosixFileSystem.sync_files, synced_on_a_loop])
def test_a_failed_fsync_that_the_kernel_reports_is_an_error_with_its_path(
    tmp_path: Path, sync: Callable[[PosixFileSystem, list[File]], list[Any]]
) -> None:
    fs = PosixFileSystem()
    fs.sync_files_in_kernel = lambda _descriptors: Failing().collect()
    fs.begin_in_kernel = lambda _descriptors: Failing()
    files = [fs.open(str(tmp_path / f"{number}"), create=True) for number in range(3)]
    fine, failed, full = sync(fs, files)
    assert fine is None
    assert (failed.errno, failed.filename) == (errno.EIO, files[1].path)
    assert full.errno == errno.ENOSPC
    for file in files:
        file.close()


# --- Without a thread -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("queue")
def test_the_loop_is_woken_once_for_all_files_of_a_round(tmp_path: Path) -> None:
    with written(tmp_path, 20) as descriptors:
        begun = begin_in_kernel(descriptors)
        assert begun is not None
        told = begun.descriptor
        assert told is not None
        assert outcomes(begun) == [0] * 20
        assert begun.descriptor is None
        assert not select.select([told], [], [], 0)[0] or os.eventfd_read(told) == 1


@pytest.mark.usefixtures("queue")
def test_two_at_a_time_do_not_take_each_others_outcomes(tmp_path: Path) -> None:
    with written(tmp_path, 5) as descriptors:
        first, second = begin_in_kernel(descriptors[:2]), begin_in_kernel(descriptors[2:])
        assert first is not None
        assert second is not None
        assert outcomes(second) == [0] * 3
        assert outcomes(first) == [0] * 2


@pytest.mark.usefixtures("queue")
def test_an_outcome_that_the_kernel_does_not_tell_counts_as_failed(tmp_path: Path) -> None:
    with written(tmp_path, 2) as descriptors:
        begun = begin_in_kernel(descriptors)
        assert begun is not None
        queue = begun._queue
        getevents, queue._getevents = queue._getevents, -1  # no such call
        assert begun.collect() == [errno.EIO, errno.EIO]
        assert not queue.is_usable
        queue._getevents = getevents
        assert len(queue.take_outcomes(2, wait=True)) == 2
