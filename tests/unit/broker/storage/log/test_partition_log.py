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
from seglog_broker.storage.log.reader import PROVEN_MAX
from seglog_broker.storage.log.roller import RollReason, draw_segment_age
from seglog_broker.storage.segment.traced_steps import SeekTrace
from seglog_broker.testing.forgetful import POWER_LOSS, Fault, ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    PartitionReadOnlyError,
    RecordListTooLargeError,
    StorageError,
)
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import INT32_MAX, parse_header, seal_batch
from tests import logs
from tests.logs import LogOnDisk, batch
from tests.support import each_case, examples
from tests.unit.broker.storage.steps import checkpoint, piece_at

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


def _sparse_batch(last_offset_delta: int) -> bytes:
    """A batch of one record with a range of many offsets, as compaction leaves it."""
    plain = logs.batch(b"value")
    header = parse_header(plain)
    return seal_batch(header._replace(last_offset_delta=last_offset_delta, record_count=1), plain[61:])


def _stamped(*timestamps: int) -> list[bytes]:
    return [logs.batch(b"value", timestamp=timestamp) for timestamp in timestamps]


# --- Appending and rolling --------------------------------------------------------------------------------------------


_FULL = TopicConfig(segment_bytes=300)
_AGED = TopicConfig(segment_ms=1000)
_LAGGING = TopicConfig(cleanup_policy=("compact",), segment_ms=1000, max_compaction_lag_ms=200)


@each_case(
    ("config", "batches", "rolled"),
    [
        (_FULL, [logs.batch_of_size(100)] * 4, [None, None, None, RollReason.SIZE]),
        (_FULL, [logs.batch_of_size(size) for size in (100, 100, 101)], [None, None, RollReason.SIZE]),
        (_AGED, _stamped(5000, 1, 6000, 6001, 5000), [None, None, None, RollReason.TIME, None]),
        (_LAGGING, _stamped(5000, 5200, 5201), [None, None, RollReason.TIME]),
        (
            TopicConfig(index_interval_bytes=0, segment_index_bytes=3 * 8),
            _stamped(*[-1] * 6),
            [None] * 4 + [RollReason.OFFSET_INDEX_FULL, None],
        ),
        (  # one slot early: closing fills it
            TopicConfig(index_interval_bytes=0, segment_index_bytes=3 * 12),
            _stamped(1000, 1001, 1002, 1003),
            [None, None, None, RollReason.TIME_INDEX_FULL],
        ),
        (  # room for nothing gives a segment for each batch and no loop
            TopicConfig(index_interval_bytes=0, segment_index_bytes=12),
            _stamped(1000, 1001, 1002),
            [None, RollReason.TIME_INDEX_FULL, RollReason.TIME_INDEX_FULL],
        ),
    ],
)
def test_what_fits_a_segment_stays_in_it_and_one_more_rolls(
    config: TopicConfig, batches: list[bytes], rolled: list[RollReason | None]
) -> None:
    disk = logs.LogOnDisk(config)
    appended = [disk.append_batch(encoded) for encoded in batches]
    assert [each.rolled for each in appended] == rolled
    assert logs.bases_of(disk.log) == [0, *(each.base_offset for each in appended if each.rolled)]
    logs.verify(disk.fs, disk.log)
    assert len(logs.read_all(disk.reopen())) == len(batches)


def test_a_batch_as_large_as_a_segment_fits_and_a_larger_one_is_refused() -> None:
    disk = logs.LogOnDisk(TopicConfig(segment_bytes=300))
    disk.append_batch(logs.batch_of_size(300))
    before = logs.contents(disk.fs)
    with pytest.raises(RecordListTooLargeError) as caught:
        disk.append_batch(logs.batch_of_size(301))
    assert (caught.value.size, caught.value.limit) == (301, 300)
    assert logs.contents(disk.fs) == before
    assert disk.append_batch(logs.batch_of_size(300)) == Appended(1, 1, RollReason.SIZE)


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


@each_case("seed", range(3))
def test_a_segment_rolls_at_the_age_that_was_drawn_for_it(seed: int) -> None:
    fs = ForgetfulFileSystem()
    make_partition(fs, logs.DIRECTORY, logs.TOPIC_ID)
    config = TopicConfig(segment_ms=100, segment_jitter_ms=30)
    clock, dice = logs.ManualClock(), Random(seed)
    log = PartitionLog(load(fs, HandlePool(fs), clock, logs.DIRECTORY, config, clean=True, random=dice))
    age = draw_segment_age(config, Random(seed))
    assert age < 100
    views = [memoryview(bytearray(encoded)) for encoded in _stamped(5000, 5000 + age, 5000 + age + 1)]
    assert [logs.append_one(log, view).rolled for view in views] == [None, None, RollReason.TIME]


def test_an_offset_that_no_index_entry_can_hold_rolls_and_the_gap_is_read_over() -> None:
    disk = logs.LogOnDisk(TopicConfig(index_interval_bytes=0))
    assert disk.append(b"first").rolled is None
    assert disk.append_batch(_sparse_batch(INT32_MAX - 1)).rolled is None
    assert disk.append(b"third") == Appended(INT32_MAX + 1, INT32_MAX + 1, RollReason.OFFSET_RANGE)
    for log in _lives(disk):
        assert [record.offset for record in logs.read_all(log)] == [0, 1, INT32_MAX + 1]
        assert piece_at(log, 1000, 1)[0] == 1


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
    assert checkpoint(disk.log) == 3
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
        assert checkpoint(disk.log) == end_offset


def test_with_few_descriptors_as_many_segments_are_synced_as_can_be_opened() -> None:
    """Where all were to be opened at once, a start of many rolls could be neither synced nor stopped cleanly."""
    disk = _filled_with_segments(SEGMENTS_PER_FLUSH_MAX)
    for segment in disk.log.segments:
        disk.log._log.files.handles.forget(segment.log_path)
    disk.double.inject(Fault("open", _log_path(0), error=errno.EMFILE, sticky=True))
    with pytest.raises(StorageError, match="EMFILE"):
        disk.log.flusher.flush()
    assert disk.log.durable_end_offset == 0
    disk.double.heal()
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
    for told in (5, 1000):
        disk.log.state.compacted_before = 35
        assert disk.reopen(first_dirty_offset=told).state.compacted_before == 30


def test_without_min_one_a_batch_that_does_not_fit_is_not_read() -> None:
    disk = _filled(5)
    assert disk.log.read(2, 0, min_one=False) is disk.log.read(2, 99, min_one=False) is None
    assert piece_at(disk.log, 2, 100, min_one=False) == piece_at(disk.log, 2, 0) == (2, 200, 100)


def test_an_error_of_the_disk_is_a_storage_error_and_leaves_no_lease() -> None:
    disk = _filled(30)
    disk.reopen()
    for operation in ("open", "pread", "stat"):
        disk.double.inject(Fault(operation, f"{10:020d}.log", error=errno.EIO))
        disk.log._log.files.handles.forget(_log_path(10))
        with pytest.raises(StorageError, match="could not be read"):
            logs.read_all(disk.log, 10)
        disk.double.heal()
        disk.log.release()
        assert disk.double.open_files == []
        disk._open(clean=True)


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


@each_case(("hurt", "asked", "last"), [([0], 3, 4), ([5], 9, 9), ([0, 5], 7, 9)])
def test_damage_is_reported_from_its_first_offset_for_any_reader(hurt: list[int], asked: int, last: int) -> None:
    disk = logs.LogOnDisk()
    batch = logs.batch(*[b"value"] * 5)
    for _ in range(3):
        disk.append_batch(batch)
    disk.log.close()
    for offset in hurt:
        logs.flip_bit(disk.fs, _log_path(0), offset // 5 * len(batch) + 16)
    with pytest.raises(CorruptRecordError, match=f"offsets {hurt[0]} to {last} are damaged"):
        disk._open(clean=True).read(asked, 1000)


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


def test_records_before_an_offset_are_gone_at_once() -> None:
    disk = _filled(30)
    with pytest.raises(OffsetOutOfRangeError):
        disk.log.truncate_before(31)
    for target, start in ((0, 0), (5, 5), (10, 10), (15, 15), (0, 15), (29, 29), (30, 30)):
        assert disk.log.truncate_before(target) == start == disk.log.log_start_offset, "a lower target changes nothing"
        assert [record.offset for record in logs.read_all(disk.log)] == list(range(start, 30))


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


# --- What the reader of a log remembers -------------------------------------------------------------------------------


def test_of_very_many_batches_that_looked_odd_the_newest_are_known_to_be_right() -> None:
    reader = LogOnDisk().log.traced(SeekTrace())
    header = parse_header(batch(b"value"))
    for offset in range(3 * PROVEN_MAX):
        reader._note_proven(LocatedBatch(0, header._replace(base_offset=offset)), offset)
    assert list(reader._proven) == list(range(2 * PROVEN_MAX, 3 * PROVEN_MAX))
