"""The state of a partition that is not in Kafka's files: its file, saves in a thread or on the loop, damaged ranges."""

import errno
import json

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.damage_map import DamageMap
from seglog_broker.storage.log.partition_state import (
    PARTITION_STATE_FILE,
    SEGMENTS_REMEMBERED_MAX,
    CleanerState,
    PartitionState,
    Roll,
    StateWrite,
)
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing import forgetful
from seglog_broker.testing.forgetful import POWER_LOSS, ForgetfulFileSystem
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT
from tests.logs import DIRECTORY, LogOnDisk, batch_of_size, flip_bit
from tests.support import each_case
from tests.unit.broker.storage.directory.directories import put
from tests.unit.broker.storage.steps import save_state

_PATH = f"/t-0/{PARTITION_STATE_FILE}"


def test_everything_is_read_back_after_a_power_cut() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/t-0/": b""})
    state = PartitionState(
        read_only="an fsync failed",
        damaged=[DamagedRange(3, 5, 0, 100, 200), DamagedRange(9, 12, 12, 0, 0, reason="missing")],
        first_append_ms=1,
        last_append_ms=2,
        log_start_reason="truncated",
        rolls={0: Roll("size", 17), 2**60: Roll("idle timer", 18)},
        compacted_before=9,
        cleaner=CleanerState(last_run_ms=5, bytes_before=9, bytes_after=7),
    )
    state.save(fs, "/t-0")
    assert PartitionState.load(fs.found_after(POWER_LOSS), "/t-0") == state


def test_without_a_file_nothing_is_known() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/t-0/": b""})
    assert PartitionState.load(fs, "/t-0") == PartitionState()


@each_case(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"damaged": [{"start": 1}]}',
        b'{"compacted_before": -1}',
        b'{"compacted_before": null}',
        b'{"read_only": true}',
        b'{"rolls": {"0": ["size"]}}',
        b'{"rolls": {"zero": ["size", 5]}}',
    ],
)
def test_a_file_that_makes_no_sense_is_an_empty_state(content: bytes) -> None:
    fs = ForgetfulFileSystem()
    fs.load({_PATH: content})
    assert PartitionState.load(fs, "/t-0") == PartitionState()


def test_a_field_that_an_older_version_did_not_know_is_empty() -> None:
    fs = ForgetfulFileSystem()
    fs.load({_PATH: json.dumps({"version": 1, "read_only": "because"}).encode()})
    assert PartitionState.load(fs, "/t-0") == PartitionState(read_only="because")


def test_of_very_many_rolls_the_newest_are_remembered() -> None:
    state = PartitionState()
    state.transaction_indexes = {number: (34, number) for number in range(SEGMENTS_REMEMBERED_MAX + 5)}
    for number in range(SEGMENTS_REMEMBERED_MAX + 5):
        state.note_roll(number, "size", number)
    assert sorted(state.rolls) == list(range(5, SEGMENTS_REMEMBERED_MAX + 5))
    assert json.loads(state.encode())["rolls"]["5"] == ["size", 5]
    assert sorted(map(int, json.loads(state.encode())["transaction_indexes"])) == sorted(state.rolls)


# --- Saving the state of a log: in a thread or on the loop, failing, interrupted, and both at once --------------------


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


# --- The map of damaged ranges: segments and the state file always have the same ranges -------------------------------


_FIRST = DamagedRange(1, 2, 0, 100, 200)
_LATER = DamagedRange(5, 6, 0, 500, 600)
_MISSING = DamagedRange(20, 30, 20, 0, 0, "missing")


def test_damage_by_position_and_in_the_order_found() -> None:
    """A segment has its damaged bytes by position and the file has all in the order found."""
    damage = DamageMap([])
    held = damage.list_for(0)
    for each in (_LATER, _MISSING, _FIRST):
        damage.add(each)
    assert held == [_FIRST, _LATER]
    assert damage.in_segment(20) == ()
    assert damage.ranges == [_LATER, _MISSING, _FIRST]


def test_what_a_start_finds_recorded_is_known_to_segments_that_are_made_later() -> None:
    damage = DamageMap([_LATER, _MISSING, _FIRST, _FIRST])
    assert damage.list_for(0) == [_FIRST, _LATER]


def test_a_wider_range_replaces_those_within_it() -> None:
    """A wider range replaces those within it, and a narrower one changes nothing."""
    damage = DamageMap([_FIRST, _LATER])
    held = damage.list_for(0)
    wide = DamagedRange(5, 7, 0, 450, 700)
    assert damage.note([wide, _LATER]) == [wide]
    assert held == [_FIRST, wide]
    assert damage.ranges == [_FIRST, wide]


def test_a_compacted_segment_brings_its_own_damage_and_what_was_missing_stays() -> None:
    damage = DamageMap([_FIRST, _MISSING, DamagedRange(25, 26, 20, 50, 90)])
    moved = DamagedRange(1, 2, 0, 30, 130)
    damage.replace_segments((0, 20), [moved])
    assert damage.ranges == [_MISSING, moved]
    assert damage.list_for(0) == [moved]
    assert damage.list_for(20) == []


def test_expired_segments_take_their_damage_along() -> None:
    """Segments that expired take their damage along and a hole ends where the log begins."""
    damage = DamageMap([_FIRST, _MISSING])
    damage.forget_before(25)
    assert damage.ranges == [DamagedRange(25, 30, 20, 0, 0, "missing")]


def test_the_state_file_of_a_log_is_written_of_the_map_that_its_segments_read() -> None:
    disk = LogOnDisk(TopicConfig(segment_bytes=1024))
    for _ in range(20):
        disk.append_batch(batch_of_size(100))
    found = DamagedRange(1, 2, 0, 100, 200)
    assert disk.log.note_damage([found]) == [found]
    assert disk.log.segments[0].damaged == [found]
    save_state(disk.log)
    assert PartitionState.read(disk.fs, DIRECTORY).damaged == [found]
