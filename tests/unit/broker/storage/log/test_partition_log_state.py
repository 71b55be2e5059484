"""Saving the state of a log: in a thread or on the loop, failing, interrupted, and both at once."""

import errno

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState
from seglog_broker.storage.log.state_file import StateWrite
from seglog_broker.testing import forgetful
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT
from tests.logs import DIRECTORY, LogOnDisk, flip_bit
from tests.support import each_case
from tests.unit.broker.storage.directory.directories import put
from tests.unit.broker.storage.steps import save_state

STATE = f"{DIRECTORY}/{PARTITION_STATE_FILE}"


def a_log() -> LogOnDisk:
    """A log with one record, and so with unsaved state."""
    disk = LogOnDisk(TopicConfig(segment_bytes=1000))
    disk.append(b"a")
    return disk


def saved(disk: LogOnDisk) -> PartitionState:
    """The state that a power cut now would leave."""
    return PartitionState.load(disk.double.found_after(forgetful.POWER_LOSS), DIRECTORY)


def prepared(disk: LogOnDisk) -> StateWrite:
    write = disk.log.state_file.prepare()
    assert write is not None
    return write


def test_there_is_something_to_be_saved_only_when_something_is_new() -> None:
    disk = LogOnDisk()
    assert disk.log.state_file.prepare() is None
    disk.append(b"a")
    save_state(disk.log)
    assert saved(disk) == disk.log.state
    assert disk.log.state_file.prepare() is None
    disk.append(b"b")
    assert disk.log.state_file.prepare() is None, "the last append alone is not worth a write"
    disk.log.truncation.drop_oldest(1)
    assert disk.log.state_file.prepare() is not None


def test_what_is_written_is_what_was_remembered_when_the_write_was_prepared() -> None:
    disk = a_log()
    write = prepared(disk)
    while len(disk.log.segments) == 1:
        disk.append(b"." * 100)
    write.run()
    assert saved(disk).rolls == {}
    disk.log.state_file.finish(written=True)
    save_state(disk.log)
    assert saved(disk).rolls == disk.log.state.rolls != {}


def test_a_write_that_failed_is_prepared_again() -> None:
    disk = a_log()
    write = prepared(disk)
    disk.double.inject(forgetful.Fault("pwritev", ".tmp", error=errno.ENOSPC))
    with pytest.raises(OSError):
        write.run()
    disk.log.state_file.finish(written=False)
    assert saved(disk) == PartitionState()
    save_state(disk.log)
    assert saved(disk) == disk.log.state


def test_an_urgent_save_waits_only_for_the_write_in_progress() -> None:
    """Two writers would write the same temporary file."""
    disk = a_log()
    write = prepared(disk)
    disk.double.operations.clear()
    disk.log.state_file.mark_read_only("an fsync failed")
    assert disk.double.operations == []
    write.run()
    assert saved(disk).read_only is None
    disk.log.state_file.finish(written=True)
    assert saved(disk).read_only == "an fsync failed"
    assert disk.log.state_file.prepare() is None


def test_an_urgent_save_is_made_although_the_write_in_progress_fails() -> None:
    disk = a_log()
    write = prepared(disk)
    disk.log.state_file.mark_read_only("an fsync failed")
    disk.double.inject(forgetful.Fault("fdatasync", ".tmp", error=errno.EIO))
    with pytest.raises(OSError):
        write.run()
    disk.log.state_file.finish(written=False)
    save_state(disk.log)
    assert saved(disk).read_only == "an fsync failed"


def test_a_failed_urgent_save_is_tried_again() -> None:
    for is_writing in (True, False):
        disk = a_log()
        write = prepared(disk) if is_writing else None
        disk.double.inject(forgetful.Fault("pwritev", ".tmp", error=errno.ENOSPC, nth=1 + is_writing))
        disk.log.state_file.mark_read_only("an fsync failed")
        if write is not None:
            write.run()
            with pytest.raises(OSError):
                disk.log.state_file.finish(written=True)
        assert saved(disk).read_only is None
        save_state(disk.log)
        assert saved(disk).read_only == "an fsync failed"


def test_a_log_start_that_moves_during_a_write_is_proven_by_the_one_that_follows() -> None:
    disk = a_log()
    disk.append(b"b")
    write = prepared(disk)
    disk.log.truncate_before(1)
    assert not disk.log.state_file.start_is_proven
    write.run()
    assert saved(disk).deleted_before == 0
    disk.log.state_file.finish(written=True)
    assert disk.log.state_file.start_is_proven
    assert saved(disk).deleted_before == 1
    assert disk.log.state_file.prepare() is None


def test_without_a_write_in_progress_an_urgent_save_is_on_the_disk_at_once() -> None:
    disk = a_log()
    disk.log.state_file.mark_read_only("an fsync failed")
    assert saved(disk) == disk.log.state
    assert disk.log.state_file.prepare() is None


@each_case(
    "policy",
    [forgetful.PROCESS_KILL, forgetful.POWER_LOSS, forgetful.RANDOM(1), forgetful.RANDOM(2), forgetful.RANDOM(3)],
    ids=str,
)
def test_a_crash_during_the_write_leaves_the_old_state_or_the_new(policy: forgetful.CrashPolicy) -> None:
    disk = a_log()
    disk.log.state_file.save()
    old = saved(disk)
    disk.log.state.last_append_ms = 17
    disk.log.truncation.drop_oldest(1)
    write = prepared(disk)
    found: list[forgetful.ForgetfulFileSystem] = []
    disk.double.on_operation = lambda _: found.append(disk.double.found_after(policy))
    write.run()
    disk.double.on_operation = None
    assert found
    assert all(PartitionState.load(fs, DIRECTORY) in (old, disk.log.state) for fs in found)
    assert saved(disk) == disk.log.state


def test_a_clean_stop_saves_state_that_is_not_worth_a_write_by_itself() -> None:
    disk = a_log()
    disk.clock.now += 500
    disk.append(b"b")
    disk.reopen()
    assert disk.log.state.last_append_ms == disk.clock.now


def test_reasons_of_segments_that_are_gone_are_forgotten_at_the_start() -> None:
    disk = a_log()
    for _ in range(40):
        disk.append(b"." * 100)
    disk.log.state_file.save()
    known = list(disk.log.state.rolls)
    assert len(known) > 2
    disk.log.truncation.drop_oldest(2).set_aside()
    assert list(disk.log.state.rolls) == known[2:]
    disk.restart_unclean()
    assert list(disk.log.state.rolls) == known[2:], "although the file still has them"


# --- What the state remembers for files that have no checksum ---------------------------------------------------------


def _in_epoch_two() -> LogOnDisk:
    disk = a_log()
    for _ in range(2):
        disk.restart_unclean()
        disk.append(b"more")
    disk.log.close()
    assert disk.log.epochs.entries == [(0, 0), (1, 1), (2, 2)]
    return disk


@each_case("epochs", [b"0\n3\n0 0\n1 1\n0 2\n", b"0\n2\n0 0\n1 1\n", b"0\n3\n0 0\n1 0\n2 2\n", b"0\n\x34\n"])
def test_epochs_that_changed_since_the_stop_are_those_of_the_stop(epochs: bytes) -> None:
    disk = _in_epoch_two()
    put(disk.double, f"{DIRECTORY}/{LEADER_EPOCH_CHECKPOINT}", epochs)
    log = disk._open(clean=True)
    assert log.epochs.entries == [(0, 0), (1, 1), (2, 2)]
    assert log.leader_epoch == 2
    log.close()
    assert disk._open(clean=True).epochs.problem is None


@each_case(
    ("clean", "epochs", "latest"),
    [
        (False, b"0\n1\n0 0\n", 3),  # an epoch that was given is not given again though its entry is lost in a kill
        (True, b"0\n2\n0 0\n7 3\n", 7),  # higher ones are those of a Kafka that had the log in between
    ],
)
def test_an_epoch_is_not_given_twice(clean: bool, epochs: bytes, latest: int) -> None:
    disk = _in_epoch_two()
    put(disk.double, f"{DIRECTORY}/{LEADER_EPOCH_CHECKPOINT}", epochs)
    assert disk._open(clean=clean).leader_epoch == latest
    assert not clean or disk.report.problems == []


def test_a_state_in_which_a_bit_turned_is_named() -> None:
    disk = a_log()
    disk.log.close()
    flip_bit(disk.fs, STATE, 40)
    disk._open(clean=True)
    [problem] = disk.report.problems
    assert problem.startswith("seglog-partition.json is ignored: ")


def test_a_state_says_where_the_log_ended_only_while_nobody_has_it_open() -> None:
    disk = a_log()
    disk.log.close()
    assert saved(disk).stopped == (0, 1)
    disk._open(clean=True)
    disk.log.state_file.mark_read_only("a test")
    assert saved(disk).stopped is None
