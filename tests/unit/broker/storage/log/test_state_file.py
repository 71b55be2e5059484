"""The state of a log and its file: changes are written by the next checkpoint, urgent ones at once."""

import errno

import pytest

from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState
from seglog_broker.storage.log.state_file import StateFile
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.forgetful_script import Fault
from tests.logs import DIRECTORY, LogOnDisk


@pytest.fixture
def disk() -> LogOnDisk:
    found = LogOnDisk()
    for _ in range(5):
        found.append(b"value")
    found.log.state_file.save()
    return found


def _file(disk: LogOnDisk) -> StateFile:
    return disk.log.state_file


def _said(disk: LogOnDisk) -> PartitionState:
    return PartitionState.read(disk.fs, DIRECTORY)


def test_nothing_is_written_until_something_has_changed(disk: LogOnDisk) -> None:
    file = _file(disk)
    assert file.prepare() is None
    file.mark_dirty()
    write = file.prepare()
    assert write is not None
    write.run()
    file.finish(written=True)
    assert file.prepare() is None


def test_a_write_that_failed_is_made_again(disk: LogOnDisk) -> None:
    file = _file(disk)
    file.mark_dirty()
    assert file.prepare() is not None
    file.finish(written=False)
    assert file.prepare() is not None


def test_what_is_to_be_saved_during_a_write_follows_it(disk: LogOnDisk) -> None:
    file = _file(disk)
    file.mark_dirty()
    write = file.prepare()
    assert write is not None
    disk.log.truncate_before(3)
    assert not file.start_is_proven
    write.run()
    assert _said(disk).deleted_before == 0
    file.finish(written=True)
    assert file.start_is_proven
    assert _said(disk).deleted_before == 3
    assert file.prepare() is None


def test_a_mark_that_the_disk_refuses_is_written_by_the_next_checkpoint(disk: LogOnDisk) -> None:
    file, fs = _file(disk), disk.fs
    assert isinstance(fs, ForgetfulFileSystem)
    fs.inject(Fault("open", f"{PARTITION_STATE_FILE}.tmp", error=errno.ENOSPC))
    file.mark_read_only("a test says so")
    assert file.state.read_only == "a test says so"
    assert _said(disk).read_only is None
    write = file.prepare()
    assert write is not None
    write.run()
    file.finish(written=True)
    assert _said(disk).read_only == "a test says so"


@pytest.mark.parametrize(
    "name",
    ["log_start_offset", "log_end_offset", "durable_end_offset", "proven_start_offset", "start_is_proven", "state"],
)
def test_facts_of_a_log_cannot_be_set_from_outside(disk: LogOnDisk, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(disk.log, name, 7)


def test_where_compaction_ended_cannot_be_set_from_outside(disk: LogOnDisk) -> None:
    with pytest.raises(AttributeError):
        disk.log.cleaning.first_dirty_offset = 7  # type: ignore[misc]
