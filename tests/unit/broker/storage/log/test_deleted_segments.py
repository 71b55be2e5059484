"""Segments that left their log: renamed in an order that is safe in a crash, then removed."""

import errno

import pytest

from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.testing.forgetful import POWER_LOSS, RANDOM, Fault, ForgetfulFileSystem
from tests.support import each_case

SUFFIXES = (".log", ".index", ".timeindex")


def a_directory(*bases: int) -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.load({f"/t-0/{base:020d}{suffix}": b"abc" for base in bases for suffix in SUFFIXES} | {"/t-0/other": b"x"})
    return fs


def names(fs: FileSystem) -> set[str]:
    return set(fs.list_directory("/t-0"))


def files(*bases: int, aside: bool = False) -> set[str]:
    return {f"{base:020d}{suffix}{'.deleted' if aside else ''}" for base in bases for suffix in SUFFIXES}


def test_files_are_set_aside_and_then_removed_and_nothing_else_is_touched() -> None:
    fs = a_directory(0, 10, 20)
    doomed = DeletedSegments(fs, "/t-0", [0, 10])
    doomed.set_aside()
    assert names(fs) == {"other"} | files(20) | files(0, 10, aside=True)
    assert doomed.remove() == 18
    assert names(fs) == {"other"} | files(20)
    assert doomed.remove() == 0, "twice does no harm"


def test_the_log_of_a_segment_changes_its_name_first_and_segments_in_the_order_given() -> None:
    fs = a_directory(0, 10)
    DeletedSegments(fs, "/t-0", [10, 0]).set_aside()
    renamed = [op.path.rpartition("/")[2] for op in fs.operations if op.name == "rename"]
    assert renamed == [f"{base:020d}{suffix}" for base in (10, 0) for suffix in SUFFIXES]


def test_files_count_as_set_aside_once_that_survives_a_power_cut() -> None:
    fs = a_directory(0, 10)
    doomed = DeletedSegments(fs, "/t-0", [0])
    told: list[bool] = []
    fs.on_operation = lambda _: told.append(doomed.is_set_aside)
    doomed.set_aside()
    fs.on_operation = None
    assert told == [False] * 4, "three renames and the sync"
    assert doomed.is_set_aside
    for policy in (POWER_LOSS, *map(RANDOM, range(20))):
        assert names(fs.found_after(policy)) == {"other"} | files(10) | files(0, aside=True)


def test_survivors_are_synced_before_the_first_name_changes() -> None:
    fs = a_directory(0)
    fs.open("/t-0/survivor", create=True).close()
    found: list[set[str]] = []
    fs.on_operation = lambda operation: (
        found.append(names(fs.found_after(POWER_LOSS))) if operation.name == "rename" else None
    )
    DeletedSegments(fs, "/t-0", [0], sync_survivors=True).set_aside()
    fs.on_operation = None
    assert found
    assert all("survivor" in left for left in found)


@each_case(
    "fault",
    [
        *(Fault("rename", error=errno.EIO, nth=nth) for nth in (1, 2, 4, 6)),
        Fault("sync_directory", error=errno.EIO),
    ],
)
def test_a_setting_aside_that_failed_is_taken_up_where_it_stopped(fault: Fault) -> None:
    fs = a_directory(0, 10)
    doomed = DeletedSegments(fs, "/t-0", [0, 10])
    fs.inject(fault)
    with pytest.raises(OSError):
        doomed.set_aside()
    assert not doomed.is_set_aside
    doomed.set_aside()
    assert doomed.is_set_aside
    assert names(fs.found_after(POWER_LOSS)) == {"other"} | files(0, 10, aside=True)


def test_a_removal_that_failed_is_taken_up_where_it_stopped() -> None:
    fs = a_directory(0, 10)
    doomed = DeletedSegments(fs, "/t-0", [0, 10])
    doomed.set_aside()
    fs.inject(Fault("unlink", error=errno.EIO, nth=3))
    with pytest.raises(OSError):
        doomed.remove()
    assert doomed.remove() == 12, "two files were gone already"
    assert names(fs) == {"other"}


def test_files_that_are_not_there_are_no_error() -> None:
    fs = a_directory(0)
    fs.unlink(f"/t-0/{0:020d}.timeindex")
    doomed = DeletedSegments(fs, "/t-0", [0, 10])
    doomed.set_aside()
    assert doomed.remove() == 6
