"""The map of damaged ranges: segments and the state file always have the same ranges."""

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.damage_map import DamageMap
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.damage import DamagedRange
from tests.logs import DIRECTORY, LogOnDisk, batch_of_size
from tests.unit.broker.storage.steps import save_state

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
