"""The examples of the articles this project grew from, each a test by its name."""

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_protocol.errors import OffsetOutOfRangeError
from seglog_protocol.segment_files import OFFSET_ENTRY
from tests.logs import LogOnDisk, batch, batch_of_size, read_all, verify


def _thousand_record_log() -> LogOnDisk:
    """Segments with base 0, 500, 1000, 1500, 2000, of one-record batches; entries every five batches."""
    disk = LogOnDisk(TopicConfig(segment_bytes=500 * 100, index_interval_bytes=400))
    for _ in range(2100):
        disk.append_batch(batch_of_size(100))
    assert [segment.base_offset for segment in disk.log.segments] == [0, 500, 1000, 1500, 2000]
    return disk


def test_with_base_100_offset_120_is_stored_as_20() -> None:
    disk = LogOnDisk(TopicConfig(segment_bytes=100 * 100, index_interval_bytes=1950))
    for _ in range(130):
        disk.append_batch(batch_of_size(100))
    segment = disk.log.active
    assert segment.base_offset == 100
    assert list(OFFSET_ENTRY.iter_unpack(segment.offset_index.read())) == [(20, 2000)]
    assert segment.offset_index.lookup(120) == (120, 2000)


def test_a_full_offset_index_answers_and_a_new_segment_follows() -> None:
    disk = LogOnDisk(TopicConfig(index_interval_bytes=0, segment_index_bytes=5 * 12))
    rolled = [disk.append(b"value").rolled for _ in range(12)]
    # Batch 0 is never indexed and the time index, which would fill first, holds nothing without timestamps.
    assert disk.log.segments[0].offset_index.is_full
    assert RollReason.OFFSET_INDEX_FULL in rolled
    assert [record.offset for record in read_all(disk.log)] == list(range(12))
    for offset in range(12):
        assert read_all(disk.log, offset)[0].offset == offset
    verify(disk.fs, disk.log)


def test_100_byte_records_with_the_default_interval_put_entries_at_41_and_82() -> None:
    disk = LogOnDisk()
    for _ in range(100):
        disk.append_batch(batch_of_size(100))
    entries = list(OFFSET_ENTRY.iter_unpack(disk.log.active.offset_index.read()))
    assert entries == [(41, 4100), (82, 8200)]


def test_offset_1191_is_found_through_its_neighbours() -> None:
    disk = _thousand_record_log()
    segment = disk.log.segments[2]
    floor = segment.offset_index.lookup(1191)
    assert floor.offset <= 1191 < floor.offset + 5
    found = disk.log.read(1191, 1)
    assert found is not None
    assert found.start_offset == 1191
    assert found.position == 191 * 100
    found.release()


def test_offset_1800_touches_only_the_files_of_segment_1500() -> None:
    disk = _thousand_record_log()
    disk.reopen()
    double = disk.double
    double.reads.clear()
    found = disk.log.read(1800, 10_000)
    assert found is not None
    found.release()
    assert {read.path.rpartition("/")[2].partition(".")[0] for read in double.reads} == {f"{1500:020d}"}
    scanned = sum(read.size for read in double.reads if read.path.endswith(".log") and read.name == "pread")
    assert scanned <= 3 * 4096, "windows of 4096 bytes, and the headers that prove index entries"


def test_offset_0_and_the_last_offset_are_read() -> None:
    disk = _thousand_record_log()
    assert read_all(disk.log, 0)[0].offset == 0
    assert [record.offset for record in read_all(disk.log, 2099)] == [2099]


def test_at_the_end_there_is_nothing_and_no_index_is_touched() -> None:
    disk = _thousand_record_log()
    double = disk.double
    double.reads.clear()
    assert disk.log.read(2100, 10_000) is None
    assert double.reads == []


def test_beyond_the_end_is_refused_before_any_index_is_touched() -> None:
    disk = _thousand_record_log()
    double = disk.double
    double.reads.clear()
    with pytest.raises(OffsetOutOfRangeError) as caught:
        disk.log.read(2101, 10_000)
    assert (caught.value.requested, caught.value.earliest, caught.value.latest) == (2101, 0, 2100)
    assert caught.value.reason == "beyond_end"
    assert double.reads == []


def test_in_an_empty_log_offset_0_is_its_end() -> None:
    disk = LogOnDisk()
    assert disk.log.read(0, 10_000) is None
    with pytest.raises(OffsetOutOfRangeError):
        disk.log.read(1, 10_000)


def test_a_batch_larger_than_the_limit_is_returned_whole() -> None:
    disk = LogOnDisk()
    disk.append(*[b"x" * 100 for _ in range(50)])
    disk.append_batch(batch(b"next"))
    found = disk.log.read(10, 1)
    assert found is not None
    assert found.start_offset == 0
    assert found.size > 50 * 100
    found.release()
    assert disk.log.read(10, 1, min_one=False) is None
