"""Rolls by the wall clock: the age limit of a segment, and the idle timer across restarts and clock jumps."""

import errno
from random import Random

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.roller import RollReason, draw_segment_age
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_protocol.errors import StorageError
from tests.logs import DIRECTORY, LogOnDisk, bases_of, contents, cut_file, read_all, verify
from tests.support import each_case
from tests.unit.broker.storage.steps import save_state

DAY = 86_400_000


# --- How old a segment may become -------------------------------------------------------------------------------------


@each_case(
    ("segment_ms", "jitter", "ages"),
    [(DAY, 0, {DAY}), (10, 4, {10, 9, 8, 7}), (3, DAY, {3, 2, 1})],
)
def test_jitter_takes_a_random_part_off_and_never_all_of_it(segment_ms: int, jitter: int, ages: set[int]) -> None:
    config = TopicConfig(segment_ms=segment_ms, segment_jitter_ms=jitter)
    assert {draw_segment_age(config, Random(seed)) for seed in range(200)} == ages


@each_case(
    ("policy", "lag", "age"),
    [
        (("compact",), 500, 500),
        (("compact", "delete"), 500, 500),
        (("compact",), 5000, 1000),
        (("compact",), 0, 1000),
        (("delete",), 500, 1000),
        ((), 500, 1000),
    ],
)
def test_the_compaction_lag_bounds_the_age_of_a_compacted_topics_segment(
    policy: tuple[str, ...], lag: int, age: int
) -> None:
    config = TopicConfig(segment_ms=1000, cleanup_policy=policy, max_compaction_lag_ms=lag)
    assert draw_segment_age(config, Random(1)) == age


# --- The idle timer ---------------------------------------------------------------------------------------------------


def a_log() -> LogOnDisk:
    disk = LogOnDisk(TopicConfig(segment_ms=1000))
    disk.set_time(disk.clock.now)
    return disk


def test_when_a_quiet_segment_is_closed() -> None:
    """A quiet segment is closed when its first append is older than segment ms and not before."""
    disk = a_log()
    began = disk.clock.now
    disk.append(b"a", timestamp=5)
    disk.set_time(began + 900)
    disk.append(b"b", timestamp=6)
    assert disk.log.roller.idle_roll_ms == began + 1000, "later appends put nothing off"
    disk.set_time(began + 1000)
    assert not disk.log.roller.roll_if_idle()
    disk.set_time(began + 1001)
    assert disk.log.roller.roll_if_idle()
    assert bases_of(disk.log) == [0, 2]
    assert disk.log.state.rolls == {0: ("idle timer", began + 1001)}
    verify(disk.fs, disk.log)


def test_an_empty_segment_is_never_closed_and_its_time_begins_with_its_first_append() -> None:
    disk = a_log()
    disk.set_time(disk.clock.now + DAY)
    assert disk.log.roller.idle_roll_ms is None
    assert not disk.log.roller.roll_if_idle()
    disk.append(b"a")
    assert not disk.log.roller.roll_if_idle()
    disk.set_time(disk.clock.now + 1001)
    assert disk.log.roller.roll_if_idle()
    assert disk.log.roller.idle_roll_ms is None
    disk.set_time(disk.clock.now + DAY)
    assert not disk.log.roller.roll_if_idle(), "nothing has been appended since"
    assert disk.append(b"b").base_offset == 1
    assert bases_of(disk.log) == [0, 1]


def test_a_clean_restart_does_not_postpone_the_idle_timer() -> None:
    disk = a_log()
    began = disk.clock.now
    disk.append(b"a")
    for _ in range(3):
        disk.set_time(disk.clock.now + 300)
        disk.reopen()
        assert disk.log.roller.idle_roll_ms == began + 1000
        assert not disk.log.roller.roll_if_idle()
    disk.log.close()
    disk.set_time(began + DAY)
    disk._open(clean=True)
    assert disk.log.roller.roll_if_idle(), "a log that was stopped for long is due at once"


def test_after_a_crash_a_saved_first_append_counts() -> None:
    disk = a_log()
    began = disk.clock.now
    disk.append(b"a")
    save_state(disk.log)
    disk.set_time(began + 900)
    disk.append(b"b")
    disk.restart_unclean()
    assert disk.log.roller.idle_roll_ms == began + 1000


@each_case(
    ("timestamp", "expected"),
    [
        (-1, 0),  # no timestamp: not before the log was made
        (200, 200),  # the first record's own, if it can be true
        (-7000, 0),  # older than the log
        (9000, 500),  # later than the last write
    ],
)
def test_the_first_append_is_estimated_after_a_crash(timestamp: int, expected: int) -> None:
    """After a crash the first append is estimated between the log's making and its last write."""
    fs = ForgetfulFileSystem(now_ms=1_700_000_000_000)
    disk = LogOnDisk(TopicConfig(segment_ms=1000), fs=fs)
    began = disk.clock.now
    disk.set_time(began + 300)
    disk.append(b"a", timestamp=timestamp if timestamp == -1 else began + timestamp)
    disk.set_time(began + 500)
    disk.append(b"b")
    disk.set_time(began + 800)
    disk.restart_unclean()
    assert disk.log.state.first_append_ms == began + expected
    assert disk.log.state.last_append_ms is None, "the file knows better"


def test_estimates_after_a_crash_are_in_order() -> None:
    """After a crash the first append to a later segment is not before the last one to the segment before."""
    disk = a_log()
    began = disk.clock.now
    disk.append(b"a")
    disk.set_time(began + 1001)
    assert disk.log.roller.roll_if_idle()
    disk.set_time(began + 1500)
    disk.append(b"b")
    disk.set_time(began + 1600)
    disk.append(b"c")
    disk.restart_unclean()
    assert disk.log.state.first_append_ms == began, "when the first segment was last written to"
    assert disk.log.roller.idle_roll_ms == began + 1000
    disk.reopen()
    assert disk.log.state.first_append_ms == began, "the estimate is remembered"


def test_a_first_append_that_a_power_cut_took_away_does_not_age_the_next_one() -> None:
    disk = a_log()
    disk.append(b"a")
    save_state(disk.log)
    disk.log.release()
    cut_file(disk.fs, f"{DIRECTORY}/{0:020d}.log", 0)
    disk.set_time(disk.clock.now + DAY)
    disk._open(clean=False)
    assert disk.log.state.first_append_ms is None
    disk.append(b"a again")
    assert not disk.log.roller.roll_if_idle()
    assert disk.log.roller.idle_roll_ms == disk.clock.now + 1000


def test_a_clock_that_is_set_back_makes_the_time_begin_anew_and_only_once() -> None:
    disk = a_log()
    disk.append(b"a")
    began = disk.clock.now - DAY
    disk.set_time(began)
    assert not disk.log.roller.roll_if_idle()
    assert disk.log.roller.idle_roll_ms == began + 1000
    disk.set_time(began + 1001)
    assert disk.log.roller.roll_if_idle()


def test_a_clock_that_is_set_forward_closes_the_segment_early_and_nothing_else() -> None:
    disk = a_log()
    disk.append(b"a", timestamp=2**50)  # timestamps of records do not affect the idle timer
    disk.set_time(disk.clock.now + 365 * DAY)
    assert disk.log.roller.roll_if_idle()
    disk.set_time(disk.clock.now - 365 * DAY)
    assert disk.append(b"b").rolled is None
    assert [record.value for record in read_all(disk.log)] == [b"a", b"b"]
    assert not disk.log.roller.roll_if_idle()


def test_an_altered_segment_ms_is_in_force_at_once_and_not_for_a_log_that_is_read_only() -> None:
    disk = a_log()
    disk.append(b"a")
    disk.set_time(disk.clock.now + 500)
    disk.log.reconfigure(TopicConfig(segment_ms=499))
    disk.log.state_file.mark_read_only("an fsync failed")
    before = contents(disk.fs)
    assert not disk.log.roller.roll_if_idle()
    assert contents(disk.fs) == before
    disk.log.state.read_only = None
    assert disk.log.roller.roll_if_idle()


def test_a_segment_that_cannot_be_begun_is_begun_later_by_the_timer_or_by_an_append() -> None:
    for later in ("timer", "append"):
        disk = a_log()
        disk.append(b"a")
        disk.set_time(disk.clock.now + 1001)
        disk.double.inject(Fault("open", ".timeindex", error=errno.ENOSPC))
        with pytest.raises(StorageError, match="a new segment could not be begun"):
            disk.log.roller.roll_if_idle()
        assert bases_of(disk.log) == [0]
        if later == "timer":
            assert disk.log.roller.roll_if_idle()
        else:
            assert disk.append(b"b").rolled is RollReason.IDLE
        assert bases_of(disk.log) == [0, 1]
        verify(disk.fs, disk.log)
        disk.reopen()
        assert bases_of(disk.log) == [0, 1]
