"""The log of a partition: rolls, reads, look-ups by time, truncation, and a disk that fails."""

import errno
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.appender import Appended
from seglog_broker.storage.log.flusher import SEGMENTS_PER_FLUSH_MAX
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_files import make_is_incomplete, make_partition
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, Fault, ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    PartitionReadOnlyError,
    RecordListTooLargeError,
    StorageError,
)
from seglog_protocol.record_batch import INT32_MAX, parse_header, seal_batch
from tests import logs
from tests.support import each_case, examples

_FOREVER = 2**62


def _filled(count: int = 30, *, segment_bytes: int = 1000, interval: int = 250) -> logs.LogOnDisk:
    """Batches of one record and 100 bytes: segments with base 0, 10, 20 and so on."""
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=interval))
    for _ in range(count):
        disk.append_batch(logs.batch_of_size(100))
    return disk


def _lives(disk: logs.LogOnDisk) -> Iterator[PartitionLog]:
    """The open log, then the log after a clean stop, then after a kill."""
    yield disk.log
    yield disk.reopen()
    yield disk.restart_unclean()


def _log_path(base: int) -> str:
    return f"{logs.DIRECTORY}/{base:020d}.log"


# --- Appending and rolling --------------------------------------------------------------------------------------------


def test_a_batch_gets_offsets_and_epoch() -> None:
    """A batch gets the next offsets and the current epoch and nothing else changes."""
    disk = logs.LogOnDisk()
    sent = logs.batch(b"a", b"b", timestamp=5)
    assert disk.append_batch(sent) == Appended(0, 1, None)
    assert disk.append_batch(sent) == Appended(2, 3, None)
    stored = logs.contents(disk.fs)[_log_path(0)]
    first, second = stored[: len(sent)], stored[len(sent) :]
    assert first == bytes(8) + sent[8:12] + bytes(4) + sent[16:]
    assert second[:8] == (2).to_bytes(8, "big")
    assert second[16:] == sent[16:]


def test_a_segment_that_becomes_exactly_full_does_not_roll() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300))
    assert [disk.append_batch(logs.batch_of_size(100)).rolled for _ in range(4)] == [None, None, None, RollReason.SIZE]
    assert logs.bases_of(disk.log) == [0, 3]


def test_one_byte_more_than_fits_rolls() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300))
    disk.append_batch(logs.batch_of_size(100))
    disk.append_batch(logs.batch_of_size(100))
    assert disk.append_batch(logs.batch_of_size(101)).rolled is RollReason.SIZE


def test_a_batch_as_large_as_a_segment_fits_and_a_larger_one_is_refused() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300))
    disk.append_batch(logs.batch_of_size(300))
    before = logs.contents(disk.fs)
    with pytest.raises(RecordListTooLargeError) as caught:
        disk.append_batch(logs.batch_of_size(301))
    assert (caught.value.size, caught.value.limit) == (301, 300)
    assert logs.contents(disk.fs) == before
    assert disk.append_batch(logs.batch_of_size(300)) == Appended(1, 1, RollReason.SIZE)


def test_segment_ms_to_the_millisecond() -> None:
    """A timestamp exactly segment ms after the first batch stays and one more rolls."""
    disk = logs.LogOnDisk(TopicConfig(segment_ms=1000))
    disk.append(b"first", timestamp=5000)
    disk.append(b"late", timestamp=1)
    assert disk.append(b"equal", timestamp=6000).rolled is None
    assert disk.append(b"beyond", timestamp=6001).rolled is RollReason.TIME
    assert disk.append(b"old", timestamp=5000).rolled is None


def test_the_reference_is_of_the_first_batch() -> None:
    """The reference is the largest timestamp of the first batch also after a restart."""
    disk = logs.LogOnDisk(TopicConfig(segment_ms=1000))
    disk.append_batch(encode_batch([(500, None, b"a", ()), (5000, None, b"b", ()), (700, None, b"c", ())]))
    disk.append(b"larger", timestamp=5900)
    disk.reopen()
    assert disk.append(b"equal", timestamp=6000).rolled is None
    assert disk.append(b"beyond", timestamp=6001).rolled is RollReason.TIME


def test_the_wall_clock_alone_does_not_roll_where_there_are_timestamps() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_ms=1000))
    disk.append(b"first", timestamp=5000)
    disk.clock.now += 10**9
    assert disk.append(b"second", timestamp=5001).rolled is None


def test_without_timestamps_the_wall_clock_rolls() -> None:
    """Without timestamps the wall clock since the first append rolls also across a restart."""
    disk = logs.LogOnDisk(TopicConfig(segment_ms=1000))
    disk.clock.now += 5000
    assert disk.append(b"an old empty segment takes it").rolled is None
    disk.clock.now += 600
    disk.reopen()
    disk.clock.now += 400
    assert disk.append(b"equal").rolled is None
    disk.clock.now += 1
    assert disk.append(b"beyond").rolled is RollReason.TIME


def test_jitter_rolls_between_segment_ms_less_jitter_and_segment_ms() -> None:
    ages = set()
    for seed in range(60):
        fs = ForgetfulFileSystem()
        make_partition(fs, logs.DIRECTORY, logs.TOPIC_ID)
        config = TopicConfig(segment_ms=100, segment_jitter_ms=30)
        log = PartitionLog(
            load(fs, HandlePool(fs), logs.ManualClock(), logs.DIRECTORY, config, clean=True, random=Random(seed))
        )
        timestamp = 5000
        while True:
            view = memoryview(bytearray(logs.batch(b"value", timestamp=timestamp)))
            if logs.append_one(log, view).rolled:
                break
            timestamp += 1
        ages.add(timestamp - 1 - 5000)
    assert max(ages) == 100
    assert 71 <= min(ages) <= 73
    assert len(ages) > 15


def test_a_compacted_topic_rolls_after_the_largest_compaction_lag_if_that_is_shorter() -> None:
    config = TopicConfig(cleanup_policy=("compact",), segment_ms=1000, max_compaction_lag_ms=200)
    disk = logs.LogOnDisk(config)
    disk.append(b"first", timestamp=5000)
    assert disk.append(b"equal", timestamp=5200).rolled is None
    assert disk.append(b"beyond", timestamp=5201).rolled is RollReason.TIME


def test_a_full_offset_index_rolls() -> None:
    disk = logs.LogOnDisk(TopicConfig(index_interval_bytes=0, segment_index_bytes=3 * 8))
    assert [disk.append(b"value").rolled for _ in range(6)] == [None] * 4 + [RollReason.OFFSET_INDEX_FULL, None]
    assert disk.log.segments[0].offset_index.count == 3
    logs.verify(disk.fs, disk.log)


def test_a_full_time_index_rolls_one_slot_early_and_closing_fills_it() -> None:
    disk = logs.LogOnDisk(TopicConfig(index_interval_bytes=0, segment_index_bytes=3 * 12))
    rolled = [disk.append(b"value", timestamp=1000 + number).rolled for number in range(4)]
    assert rolled == [None, None, None, RollReason.TIME_INDEX_FULL]
    assert disk.log.segments[0].time_index.count == 2
    logs.verify(disk.fs, disk.log)


def test_an_index_with_room_for_nothing_gives_a_segment_for_each_batch_and_no_loop() -> None:
    disk = logs.LogOnDisk(TopicConfig(index_interval_bytes=0, segment_index_bytes=12))
    rolled = [disk.append(b"value", timestamp=1000 + number).rolled for number in range(3)]
    assert rolled == [None, RollReason.TIME_INDEX_FULL, RollReason.TIME_INDEX_FULL]
    assert logs.bases_of(disk.log) == [0, 1, 2]
    assert len(logs.read_all(disk.reopen())) == 3
    logs.verify(disk.fs, disk.log)


def _sparse_batch(last_offset_delta: int) -> bytes:
    """A batch of one record with a range of many offsets, as compaction leaves it."""
    plain = logs.batch(b"value")
    header = parse_header(plain)
    return seal_batch(header._replace(last_offset_delta=last_offset_delta, record_count=1), plain[61:])


def test_an_offset_that_no_index_entry_can_hold_rolls_and_the_gap_is_read_over() -> None:
    disk = logs.LogOnDisk(TopicConfig(index_interval_bytes=0))
    assert disk.append(b"first").rolled is None
    assert disk.append_batch(_sparse_batch(INT32_MAX - 1)).rolled is None
    assert disk.log.log_end_offset == INT32_MAX + 1
    assert disk.append(b"third") == Appended(INT32_MAX + 1, INT32_MAX + 1, RollReason.OFFSET_RANGE)
    for log in _lives(disk):
        assert logs.bases_of(log) == [0, INT32_MAX + 1]
        assert [record.offset for record in logs.read_all(log)] == [0, 1, INT32_MAX + 1]
        found = log.read(1000, 1)
        assert found is not None
        assert found.start_offset == 1
        found.release()


def test_an_offset_range_of_one_more_rolls_before_the_batch() -> None:
    disk = logs.LogOnDisk()
    disk.append(b"first")
    disk.append(b"second")
    assert disk.append_batch(_sparse_batch(INT32_MAX - 1)) == Appended(2, INT32_MAX + 1, RollReason.OFFSET_RANGE)
    assert logs.bases_of(disk.log) == [0, 2]


def test_a_roll_closes_the_old_segment_trimmed_and_begins_the_new_one_with_its_files() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300, index_interval_bytes=0))
    for number in range(4):
        disk.append_batch(logs.batch_of_size(100, timestamp=1000 - number))
    disk.append_batch(logs.batch_of_size(100, timestamp=999))
    found = logs.contents(disk.fs)
    assert len(found[_log_path(0)]) == 300
    assert found[f"{logs.DIRECTORY}/{0:020d}.index"].hex() == "000000010000006400000002000000c8"
    assert found[f"{logs.DIRECTORY}/{0:020d}.timeindex"].hex() == "00000000000003e800000000"
    assert {f"{logs.DIRECTORY}/{3:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")} <= set(found)


def test_a_restart_with_a_smaller_segment_size_rolls_at_once() -> None:
    disk = _filled(9)
    disk.config = TopicConfig(segment_bytes=500)
    disk.reopen()
    assert disk.append_batch(logs.batch_of_size(100)).rolled is RollReason.SIZE
    assert logs.bases_of(disk.log) == [0, 9]


def test_the_broker_remembers_when_it_last_appended() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300))
    start = disk.clock.now
    for _ in range(3):
        disk.append_batch(logs.batch_of_size(100))
        disk.clock.now += 10
    assert (disk.log.state.first_append_ms, disk.log.state.last_append_ms) == (start, start + 20)
    disk.append_batch(logs.batch_of_size(100))
    disk.reopen()
    assert (disk.log.state.first_append_ms, disk.log.state.last_append_ms) == (start + 30, start + 30)


# --- A disk that fails ------------------------------------------------------------------------------------------------


@each_case("code", [errno.ENOSPC, errno.EIO])
@each_case("short", [0, 1, 60, 99])
def test_a_failed_append_leaves_the_log_as_it_was(code: int, short: int) -> None:
    disk = _filled(5)
    before = logs.contents(disk.fs)
    disk.double.inject(Fault("pwritev", ".log", short=short))
    disk.double.inject(Fault("pwritev", ".log", error=code, nth=2))
    with pytest.raises(StorageError, match="could not be written"):
        disk.append_batch(logs.batch_of_size(100))
    assert logs.contents(disk.fs) == before
    assert disk.log.log_end_offset == 5
    disk.double.heal()
    assert disk.append_batch(logs.batch_of_size(100)).base_offset == 5
    logs.verify(disk.fs, disk.log)
    logs.verify(disk.fs, disk.reopen())


def test_a_failed_append_that_cannot_be_cut_back() -> None:
    """When a failed append cannot be cut back the partition is read only also after a restart."""
    disk = _filled(5)
    disk.double.inject(Fault("pwritev", ".log", short=50))
    disk.double.inject(Fault("pwritev", ".log", error=errno.EIO, nth=2))
    disk.double.inject(Fault("truncate", ".log", error=errno.EIO))
    with pytest.raises(StorageError):
        disk.append_batch(logs.batch_of_size(100))
    disk.double.heal()
    for log in _lives(disk):
        assert [record.offset for record in logs.read_all(log)] == list(range(5))
        with pytest.raises(PartitionReadOnlyError) as caught:
            disk.append(b"more")
        assert "could not be removed" in caught.value.reason


def test_a_failed_fsync_is_final_and_a_later_success_proves_nothing() -> None:
    disk = _filled(5)
    disk.log.flusher.flush()
    assert disk.log.durable_end_offset == 5
    disk.append(b"not on the disk")
    disk.double.inject(Fault("fdatasync", ".log", error=errno.EIO))
    with pytest.raises(StorageError, match="could not be synced"):
        disk.log.flusher.flush()
    with pytest.raises(PartitionReadOnlyError):
        disk.append(b"more")
    disk.log.flusher.flush()
    assert disk.log.durable_end_offset == 5
    disk.reopen()
    with pytest.raises(PartitionReadOnlyError) as caught:
        disk.append(b"more")
    assert "fsync failed" in caught.value.reason


def test_a_flush_that_cannot_open_a_file_leaves_everything_to_the_next_one() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300), handles_max=1)
    for _ in range(10):
        disk.append_batch(logs.batch_of_size(100))
    for segment in disk.log.segments:
        disk.log._files.handles.forget(segment.log_path)
    disk.double.inject(Fault("open", _log_path(0), error=errno.EMFILE, sticky=True))
    with pytest.raises(StorageError, match="EMFILE"):
        disk.log.flusher.flush()
    assert disk.log.durable_end_offset == 0
    disk.double.heal()
    disk.log.flusher.flush()
    assert disk.log.durable_end_offset == 10
    found = disk.double.found_after(POWER_LOSS).snapshot()
    assert [len(found[_log_path(base)]) for base in (0, 3, 6, 9)] == [300, 300, 300, 100]
    disk.log.release()
    assert disk.double.open_files == []


def test_a_checkpoint_that_cannot_save_an_index_can_be_tried_again() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300, index_interval_bytes=0))
    for _ in range(3):
        disk.append_batch(logs.batch_of_size(100))
    disk.double.inject(Fault("pwritev", "index", error=errno.ENOSPC, sticky=True))
    assert disk.append_batch(logs.batch_of_size(100)).rolled is RollReason.SIZE
    with pytest.raises(OSError, match="ENOSPC"):
        disk.log.flusher.prepare_checkpoint()
    assert len(logs.read_all(disk.log)) == 4
    disk.double.heal()
    flush = disk.log.flusher.prepare_checkpoint()
    assert flush.end_offset == 3
    flush.run()
    disk.log.finish_flush(flush, None)
    assert len(disk.double.found_after(POWER_LOSS).snapshot()[f"{logs.DIRECTORY}/{0:020d}.index"]) == 16
    logs.verify(disk.fs, disk.reopen())


def test_a_flush_covers_the_segments_before_a_roll_and_their_names() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300))
    for _ in range(10):
        disk.append_batch(logs.batch_of_size(100))
    disk.log.flusher.flush()
    found = disk.double.found_after(POWER_LOSS).snapshot()
    assert [len(found[_log_path(base)]) for base in (0, 3, 6, 9)] == [300, 300, 300, 100]
    operations = disk.double.operations
    operations.clear()
    disk.append(b"next")
    disk.log.flusher.flush()
    assert [(op.name, op.path) for op in operations] == [("pwritev", _log_path(9)), ("fdatasync", _log_path(9))]


def _filled_with_segments(count: int, *, handles_max: int = 512) -> logs.LogOnDisk:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=100, index_interval_bytes=0), handles_max=handles_max)
    for _ in range(count):
        disk.append_batch(logs.batch_of_size(100))
    return disk


def test_very_many_segments_are_synced_a_few_at_a_time_the_oldest_first() -> None:
    disk = _filled_with_segments(2 * SEGMENTS_PER_FLUSH_MAX + 1)
    flush = disk.log.prepare_flush()
    flush.run()
    disk.log.finish_flush(flush, None)
    assert disk.log.durable_end_offset == flush.end_offset == SEGMENTS_PER_FLUSH_MAX
    found = disk.double.found_after(POWER_LOSS).snapshot()
    assert [len(found[_log_path(base)]) for base in range(SEGMENTS_PER_FLUSH_MAX)] == [100] * SEGMENTS_PER_FLUSH_MAX
    disk.log.flusher.flush()
    assert disk.log.durable_end_offset == disk.log.log_end_offset


def test_a_checkpoint_of_very_many_segments_says_how_far_it_goes() -> None:
    disk = _filled_with_segments(SEGMENTS_PER_FLUSH_MAX + 5)
    for end_offset in (SEGMENTS_PER_FLUSH_MAX, disk.log.active.base_offset):
        flush = disk.log.flusher.prepare_checkpoint()
        flush.run()
        disk.log.finish_flush(flush, None)
        assert flush.end_offset == end_offset


def test_with_few_descriptors_as_many_segments_are_synced_as_can_be_opened() -> None:
    """Where all were to be opened at once, a start of many rolls could be neither synced nor stopped cleanly."""
    disk = _filled_with_segments(SEGMENTS_PER_FLUSH_MAX)
    for segment in disk.log.segments:
        disk.log._files.handles.forget(segment.log_path)
    disk.double.inject(Fault("open", _log_path(5), error=errno.EMFILE, sticky=True))
    flush = disk.log.prepare_flush()
    assert 0 < flush.end_offset <= 5
    flush.run()
    disk.log.finish_flush(flush, None)
    assert disk.log.durable_end_offset == flush.end_offset
    disk.double.heal()
    disk.log.flusher.flush()
    assert disk.log.durable_end_offset == SEGMENTS_PER_FLUSH_MAX


@pytest.mark.parametrize("handles_max", [1, 6, 512])
def test_a_stop_syncs_them_all(handles_max: int) -> None:
    disk = _filled_with_segments(3 * SEGMENTS_PER_FLUSH_MAX, handles_max=handles_max)
    disk.log.close()
    found = disk.double.found_after(POWER_LOSS).snapshot()
    assert all(len(found[_log_path(base)]) == 100 for base in range(3 * SEGMENTS_PER_FLUSH_MAX))


def test_when_a_writer_gives_its_file_back() -> None:
    """A writer gives its file back when all it wrote is on the disk and not before."""
    disk = _filled(3)
    active = disk.log.active
    active.log.release_idle_writer()
    assert active.log.holds_writer, "what was written may still be lost, and only an open file hears of it"
    disk.log.flusher.flush()
    assert not active.log.holds_writer
    disk.append(b"again")
    assert active.log.holds_writer
    assert len(logs.read_all(disk.log)) == 4


def test_what_is_appended_during_a_flush_is_left_to_the_next() -> None:
    disk = _filled(3)
    flush = disk.log.prepare_flush()
    disk.append(b"meanwhile")
    flush.run()
    disk.log.finish_flush(flush, None)
    assert disk.log.durable_end_offset == 3
    disk.log.flusher.flush()
    assert disk.log.durable_end_offset == 4


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
def test_a_roll_that_fails_hands_out_no_offset_twice(suffix: str) -> None:
    disk = _filled(10)
    disk.double.inject(Fault("open", f"{10:020d}{suffix}", error=errno.EMFILE))
    with pytest.raises(StorageError, match="could not be begun"):
        disk.append_batch(logs.batch_of_size(150))
    assert disk.log.log_end_offset == 10
    small = logs.batch_of_size(80)
    appended = [disk.append_batch(small).base_offset for _ in range(2)]
    assert appended == [10, 11]
    disk.append_batch(logs.batch_of_size(950))
    for log in _lives(disk):
        assert [record.offset for record in logs.read_all(log)] == list(range(13))
        logs.verify(disk.fs, log)


def test_a_batch_after_a_failed_roll() -> None:
    """The new segment's ``.log`` may exist already: a start would take it for the active one and append to it."""
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300))
    disk.append_batch(logs.batch_of_size(100))
    disk.double.inject(Fault("open", f"{1:020d}.index", error=errno.EMFILE))
    with pytest.raises(StorageError):
        disk.append_batch(logs.batch_of_size(250))
    assert disk.append_batch(logs.batch_of_size(100)) == Appended(1, 1, RollReason.SIZE)
    disk.reopen()
    assert disk.log.log_end_offset == 2
    assert len(logs.read_all(disk.log)) == 2


def test_after_a_roll_that_failed_a_start_goes_on_at_the_same_offset() -> None:
    disk = _filled(10)
    disk.double.inject(Fault("open", f"{10:020d}.index", error=errno.EMFILE))
    with pytest.raises(StorageError):
        disk.append_batch(logs.batch_of_size(100))
    disk.reopen()
    assert disk.append_batch(logs.batch_of_size(100)).base_offset == 10
    logs.verify(disk.fs, disk.log)


def test_a_closed_log_holds_no_file() -> None:
    disk = _filled(30)
    logs.read_all(disk.log)
    disk.log.close()
    assert disk.double.open_files == []


# --- Reading ----------------------------------------------------------------------------------------------------------


def test_out_of_range_names_the_valid_range_and_the_reason() -> None:
    disk = _filled(30)
    disk.log.truncate_before(12)
    for offset, reason in ((11, "truncated"), (0, "truncated"), (31, "beyond_end"), (-1, "truncated")):
        with pytest.raises(OffsetOutOfRangeError, match="records 12 to 29 can be read, and the next") as caught:
            disk.log.read(offset, 1000)
        error = caught.value
        assert (error.requested, error.earliest, error.latest, error.reason) == (offset, 12, 30, reason)
    assert disk.log.read(30, 1000) is None


def test_records_below_a_log_start_of_unknown_cause_have_expired() -> None:
    disk = _filled(30)
    disk.log.truncate_before(12)
    disk.log.state.log_start_reason = None
    log = disk.reopen(log_start=12)
    with pytest.raises(OffsetOutOfRangeError, match="the records before 12 have expired: records 12 to 29") as caught:
        log.read(11, 1000)
    assert caught.value.reason == "expired"
    log.truncate_before(30)
    with pytest.raises(OffsetOutOfRangeError, match="the records before 30 were deleted: the log is empty, its end"):
        log.read(11, 1000)


def test_what_is_known_of_compaction_never_goes_beyond_the_end_of_the_log() -> None:
    disk = _filled(30)
    log = disk.log
    log.state.compacted_before = 25
    log.truncation.truncate_to(13)
    assert log.state.compacted_before == 13
    log.close()
    for told, known in ((5, 13), (1000, 13)):
        log = PartitionLog(
            load(
                disk.fs,
                HandlePool(disk.fs, 10),
                disk.clock,
                logs.DIRECTORY,
                disk.config,
                clean=True,
                first_dirty_offset=told,
            )
        )
        assert log.state.compacted_before == known
        log.close()


def test_every_limit_gives_whole_batches_and_at_most_that_many_bytes() -> None:
    disk = _filled(30)
    for log in _lives(disk):
        for offset in (0, 3, 9, 10, 19, 25, 29):
            left = (10 - offset % 10) * 100
            for size in range(1, 1200, 49):
                found = log.read(offset, size)
                assert found is not None
                assert (found.start_offset, found.position) == (offset, offset % 10 * 100)
                assert found.size % 100 == 0
                assert found.size == 100 if size < 200 else found.size <= size
                assert found.size == left or found.size > size - 400, "no further back than one index entry"
                found.release()


def test_without_min_one_a_batch_that_does_not_fit_is_not_read() -> None:
    disk = _filled(5)
    assert disk.log.read(2, 0, min_one=False) is None
    assert disk.log.read(2, 99, min_one=False) is None
    found = disk.log.read(2, 100, min_one=False)
    assert found is not None
    assert found.size == 100
    found.release()
    found = disk.log.read(2, 0)
    assert found is not None
    assert found.size == 100
    found.release()


def test_a_read_in_the_middle_of_a_batch_begins_with_that_batch() -> None:
    disk = logs.LogOnDisk()
    disk.append(*[b"value"] * 10)
    disk.append(*[b"value"] * 10)
    found = disk.log.read(15, 1)
    assert found is not None
    assert found.start_offset == 10
    found.release()
    assert [record.offset for record in logs.read_all(disk.log, 15)] == list(range(15, 20))


def test_a_read_never_crosses_a_segment() -> None:
    disk = _filled(30)
    found = disk.log.read(5, 10_000)
    assert found is not None
    assert (found.position, found.size) == (500, 500)
    found.release()


def test_a_gap_at_the_end_of_a_segment_leads_to_the_next_segment() -> None:
    disk = _filled(30)
    disk.log.close()
    logs.cut_file(disk.fs, _log_path(10), 500)  # offsets 15 to 19
    log = disk._open(clean=True)
    found = log.read(17, 150)
    assert found is not None
    assert (found.start_offset, found.position) == (20, 0)
    found.release()
    assert [record.offset for record in logs.read_all(log)] == [*range(15), *range(20, 30)]


def test_a_slice_outlives_the_deletion_of_its_segment() -> None:
    disk = _filled(30)
    found = disk.log.read(25, 10_000)
    assert found is not None
    disk.log.truncation.truncate_to(15)
    assert len(found.file.pread(found.size, found.position)) == 500
    found.release()


def test_an_error_of_the_disk_is_a_storage_error_and_leaves_no_lease() -> None:
    disk = _filled(30)
    disk.reopen()
    for operation in ("open", "pread", "stat"):
        disk.double.inject(Fault(operation, f"{10:020d}.log", error=errno.EIO))
        disk.log._files.handles.forget(_log_path(10))
        with pytest.raises(StorageError, match="could not be read"):
            logs.read_all(disk.log, 10)
        disk.double.heal()
        disk.log.release()
        assert disk.double.open_files == []
        disk._open(clean=True)


def test_damage_elsewhere_does_not_affect_a_reader() -> None:
    disk = _filled(30, interval=100_000)
    disk.log.close()
    logs.flip_bit(disk.fs, _log_path(10), 416)  # the magic of offset 14
    for offset in (10, 13, 15, 19):
        log = disk._open(clean=True)
        found = log.read(offset, 600)
        assert found is not None
        assert found.start_offset == offset
        assert found.size == ((14 if offset < 14 else 20) - offset) * 100
        found.release()
        assert log.state.damaged == [DamagedRange(14, 15, 10, 400, 500)]
        log.release()
        disk.fs.unlink(f"{logs.DIRECTORY}/seglog-partition.json")


def test_reading_damage_is_an_error_that_names_it_and_says_where_to_go_on() -> None:
    disk = _filled(30)
    disk.log.close()
    for position in (416, 516):
        logs.flip_bit(disk.fs, _log_path(10), position)
    log = disk._open(clean=True)
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="offsets 14 to 15 are damaged") as caught:
            log.read(14, 1000)
        error = caught.value
        assert (error.path, error.position, error.start_offset, error.next_offset) == (_log_path(10), 400, 14, 16)
    assert [record.offset for record in logs.read_around(log)] == [*range(14), *range(16, 30)]


def test_damage_to_the_first_batch_is_reported_from_the_base_offset_for_any_reader() -> None:
    disk = logs.LogOnDisk()
    disk.append(*[b"value"] * 5)
    disk.append(*[b"value"] * 5)
    disk.log.close()
    logs.flip_bit(disk.fs, _log_path(0), 16)
    log = disk._open(clean=True)  # recovered: a valid batch follows
    with pytest.raises(CorruptRecordError, match="offsets 0 to 4 are damaged"):
        log.read(3, 1000)
    disk = _filled(30)
    disk.log.close()
    logs.flip_bit(disk.fs, _log_path(10), 16)
    logs.flip_bit(disk.fs, _log_path(10), 116)
    log = disk._open(clean=True)
    with pytest.raises(CorruptRecordError, match="offsets 10 to 11 are damaged"):
        log.read(11, 1000)


@each_case("seed", range(20))
def test_several_damaged_ranges_found_in_any_order_are_recorded_and_skipped(seed: int) -> None:
    disk = _filled(60, segment_bytes=3000, interval=100_000)
    disk.log.close()
    bad = [4, 5, 11, 20, 33, 58]
    for offset in bad:
        logs.flip_bit(disk.fs, _log_path(offset // 30 * 30), offset % 30 * 100 + 16)
    log = disk._open(clean=True)
    order = list(range(60))
    Random(seed).shuffle(order)
    for opened in (log, None):
        log = opened or disk.reopen()
        for offset in order:
            if offset in bad:
                with pytest.raises(CorruptRecordError):
                    log.read(offset, 10_000)
            else:
                found = log.read(offset, 10_000)
                assert found is not None
                assert found.start_offset == offset
                found.release()
    assert [record.offset for record in logs.read_around(log)] == [n for n in range(60) if n not in bad]
    assert disk.append(b"more").base_offset == 60
    assert len({(d.segment, d.position) for d in log.state.damaged}) == len(log.state.damaged)


def test_damage_at_the_end_keeps_its_offsets() -> None:
    """Damage at the end of the active segment met by a reader keeps its offsets over a stop."""
    disk = _filled(25)
    logs.flip_bit(disk.fs, _log_path(20), 416)
    with pytest.raises(CorruptRecordError, match="offsets 24 to 24 are damaged"):
        disk.log.read(24, 1000)
    assert disk.reopen().log_end_offset == 25
    assert disk.append(b"next").base_offset == 25
    disk.reopen()
    assert [record.offset for record in logs.read_around(disk.log)] == [*range(24), 25]


def test_an_index_that_lies_is_made_anew_before_anything_is_answered() -> None:
    disk = _filled(30)
    before = logs.index_bytes(disk.log)
    disk.log.close()
    path = f"{logs.DIRECTORY}/{10:020d}.index"
    logs.flip_bit(disk.fs, path, 3, 1)  # the first entry names 11 for the batch of 13: 12 would be skipped
    log = disk._open(clean=True)
    for offset in (17, 13, 12, 14, 10):
        found = log.read(offset, 1)
        assert found is not None
        assert found.start_offset == offset
        found.release()
    assert logs.index_bytes(log) == before


# --- Time -------------------------------------------------------------------------------------------------------------


def _answer(log: PartitionLog, timestamp: int) -> tuple[int, int] | None:
    found = log.find_timestamp(timestamp)
    return (found.timestamp, found.offset) if found else None


@settings(max_examples=examples(60))
@given(
    stamps=st.lists(st.one_of(st.just(-1), st.integers(0, 40)), min_size=1, max_size=40),
    interval=st.sampled_from([0, 150, 1000]),
    start=st.integers(0, 40),
)
def test_a_time_gives_the_lowest_offset_at_or_after_it(stamps: list[int], interval: int, start: int) -> None:
    """A time gives the lowest offset at or after it out of order and without timestamps."""
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=700, index_interval_bytes=interval, segment_ms=_FOREVER))
    for first, second in zip(stamps[::2], [*stamps[1::2], None], strict=False):
        rows = [(stamp, None, b"value", ()) for stamp in (first, second) if stamp is not None]
        disk.append_batch(encode_batch(rows))
    start = min(start, len(stamps))
    disk.log.truncate_before(start)
    for _ in range(2):
        for wanted in range(-1, 42):
            expected = next(((t, n) for n, t in enumerate(stamps) if t >= max(wanted, 0) and n >= start), None)
            assert _answer(disk.log, max(wanted, 0)) == expected
        disk.reopen(log_start=start)


def test_a_time_beyond_every_record_has_no_answer_and_an_empty_log_has_none() -> None:
    disk = logs.LogOnDisk()
    assert _answer(disk.log, 0) is None
    disk.append(b"value", timestamp=50)
    assert _answer(disk.log, 50) == (50, 0)
    assert _answer(disk.log, 51) is None


def test_a_segment_without_timestamps_swallows_no_time_whatever_its_file_date() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300, segment_ms=_FOREVER))
    disk.double.now_ms = 10**15
    for _ in range(3):
        disk.append_batch(logs.batch_of_size(100))
    disk.append(b"later", timestamp=500)
    for log in _lives(disk):
        assert _answer(log, 400) == (500, 3)


def test_a_lost_time_index_swallows_no_time_either() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300, segment_ms=_FOREVER))
    for number in range(9):
        disk.append_batch(logs.batch_of_size(100, timestamp=100 * number))
    disk.log.close()
    for base, content in ((0, None), (3, b"")):
        disk.fs.unlink(f"{logs.DIRECTORY}/{base:020d}.timeindex")
        if content is not None:
            disk.double.load({f"{logs.DIRECTORY}/{base:020d}.timeindex": content})
    log = disk._open(clean=True)
    assert [_answer(log, 100 * number - 50) for number in range(1, 9)] == [(100 * n, n) for n in range(1, 9)]


def test_a_time_lookup_opens_only_the_segment_that_answers() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300, segment_ms=_FOREVER))
    for number in range(30):
        disk.append_batch(logs.batch_of_size(100, timestamp=100 * number))
    disk.reopen()
    assert _answer(disk.log, 1250) == (1300, 13)  # the first one has held what the time indexes say against the log
    disk.double.reads.clear()
    assert _answer(disk.log, 1250) == (1300, 13)
    assert {read.path for read in disk.double.reads if read.name == "pread"} == {_log_path(12)}


def test_a_time_lookup_goes_around_damage() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_ms=_FOREVER, segment_bytes=3000, index_interval_bytes=100_000))
    for number in range(40):
        disk.append_batch(logs.batch_of_size(100, timestamp=100 * number))
    disk.log.close()
    for offset in (5, 12, 13):
        logs.flip_bit(disk.fs, _log_path(0), offset * 100 + 16)
    log = disk._open(clean=True)
    assert _answer(log, 2000) == (2000, 20)
    assert _answer(log, 1200) == (1400, 14)
    assert [(d.start_offset, d.end_offset) for d in log.state.damaged] == [(5, 6), (12, 14)]


# --- Shortening -------------------------------------------------------------------------------------------------------


@each_case("offset", [0, 5, 10, 15, 29, 30])
def test_records_before_an_offset_are_gone_at_once(offset: int) -> None:
    disk = _filled(30)
    assert disk.log.truncate_before(offset) == offset
    assert disk.log.log_start_offset == offset
    assert [record.offset for record in logs.read_all(disk.log)] == list(range(offset, 30))
    assert disk.log.truncate_before(0) == offset, "a lower target is a success that changes nothing"
    disk.reopen(log_start=offset)
    assert [record.offset for record in logs.read_all(disk.log)] == list(range(offset, 30))


def test_records_beyond_the_end_cannot_be_deleted() -> None:
    disk = _filled(5)
    with pytest.raises(OffsetOutOfRangeError):
        disk.log.truncate_before(6)
    assert disk.log.log_start_offset == 0


@each_case(
    ("offset", "end", "bases"),
    [
        (60, 60, [0, 20, 40]),
        (61, 60, [0, 20, 40]),
        (59, 58, [0, 20, 40]),
        (45, 44, [0, 20, 40]),
        (41, 40, [0, 20, 40]),
        (40, 40, [0, 20, 40]),
        (39, 38, [0, 20]),
        (20, 20, [0, 20]),
        (1, 0, [0]),
        (0, 0, [0]),
    ],
)
def test_truncation_keeps_whole_batches_below_the_offset_and_appending_goes_on(
    offset: int, end: int, bases: list[int]
) -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=1000, index_interval_bytes=150))
    pair = encode_batch([(7, None, b"." * 12, ()), (7, None, b"." * 13, ())])
    assert len(pair) == 100
    for _ in range(30):
        disk.append_batch(pair)
    disk.log.flusher.flush()
    disk.log.truncation.truncate_to(offset)
    assert disk.log.log_end_offset == end == disk.log.durable_end_offset
    assert logs.bases_of(disk.log) == bases
    logs.verify(disk.fs, disk.log)
    assert disk.append_batch(pair).base_offset == end
    for log in _lives(disk):
        assert [record.offset for record in logs.read_all(log)] == list(range(end + 2))
        logs.verify(disk.fs, log)
    assert not [name for name in logs.contents(disk.fs) if name.endswith(".deleted")]


def test_truncation_below_the_first_segment_begins_anew_there() -> None:
    disk = _filled(30)
    disk.log.close()
    for base in (0, 10):
        for suffix in (".log", ".index", ".timeindex"):
            disk.fs.unlink(f"{logs.DIRECTORY}/{base:020d}{suffix}")
    log = disk._open(clean=True)
    assert (log.log_start_offset, log.log_end_offset) == (0, 30)
    log.truncation.truncate_to(7)
    assert (logs.bases_of(log), log.log_start_offset, log.log_end_offset) == ([7], 0, 7)
    assert disk.append(b"again").base_offset == 7
    logs.verify(disk.fs, disk.reopen())


def test_truncation_survives_a_power_cut() -> None:
    disk = _filled(30)
    disk.log.flusher.flush()
    disk.log.truncation.truncate_to(15)
    disk.fs = disk.double.crash(POWER_LOSS)
    log = disk._open(clean=False)
    assert [record.offset for record in logs.read_all(log)] == list(range(15))


def test_a_truncation_whose_process_is_killed_leaves_no_hole() -> None:
    disk = _filled(50)
    disk.log.flusher.flush()
    double = disk.double
    found: list[ForgetfulFileSystem] = []
    double.on_operation = lambda _: found.append(double.found_after(PROCESS_KILL))
    disk.log.truncation.truncate_to(12)
    assert len(found) > 15
    for fs in found:
        disk.fs = fs
        log = disk._open(clean=False)
        assert [record.offset for record in logs.read_all(log)] == list(range(log.log_end_offset))
        assert log.log_end_offset >= 12
        assert log.state.damaged == []


def test_damage_that_was_cut_off_is_forgotten() -> None:
    disk = _filled(30)
    logs.flip_bit(disk.fs, _log_path(20), 716)
    with pytest.raises(CorruptRecordError):
        disk.log.read(27, 1000)
    disk.log.truncation.truncate_to(25)
    for _ in range(10):
        disk.append_batch(logs.batch_of_size(100))
    for log in _lives(disk):
        assert [record.offset for record in logs.read_all(log)] == list(range(35))
        assert log.state.damaged == []


# --- Making a partition -----------------------------------------------------------------------------------------------


def test_a_new_partition_has_everything_an_empty_log_has() -> None:
    fs = ForgetfulFileSystem()
    make_partition(fs, "/t-0", logs.TOPIC_ID)
    assert fs.snapshot() == {
        "/t-0/00000000000000000000.index": b"",
        "/t-0/00000000000000000000.log": b"",
        "/t-0/00000000000000000000.timeindex": b"",
        "/t-0/leader-epoch-checkpoint": b"0\n1\n0 0\n",
        "/t-0/partition.metadata": f"version: 0\ntopic_id: {logs.TOPIC_ID}".encode(),
    }
    fs.sync_directory("/")
    assert fs.found_after(POWER_LOSS).snapshot() == fs.snapshot()
    assert not make_is_incomplete(fs, "/t-0")


def test_when_a_partition_is_incomplete() -> None:
    """A partition is incomplete until its metadata is there unless it holds a record."""
    fs = ForgetfulFileSystem()
    fs.load({"/t-0/": b""})
    assert make_is_incomplete(fs, "/t-0")
    fs.load({"/t-0/00000000000000000000.log": b""})
    assert make_is_incomplete(fs, "/t-0")
    fs.load({"/t-1/00000000000000000000.log": b"x"})
    assert not make_is_incomplete(fs, "/t-1")
    fs.load({"/t-2/00000000000000000500.log": b""})
    assert not make_is_incomplete(fs, "/t-2"), "an emptied log of Kafka's, whose end is 500"
