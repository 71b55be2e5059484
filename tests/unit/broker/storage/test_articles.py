"""The examples of the articles this project grew from, each a test by its name."""

import pytest

from seglog_broker.config import TopicConfig
from seglog_protocol.errors import OffsetOutOfRangeError
from seglog_protocol.segment_files import OFFSET_ENTRY
from tests.logs import LogOnDisk, batch, batch_of_size
from tests.support import each_case
from tests.unit.broker.storage.steps import piece_at


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


def test_100_byte_records_with_the_default_interval_put_entries_at_41_and_82() -> None:
    disk = LogOnDisk()
    for _ in range(100):
        disk.append_batch(batch_of_size(100))
    entries = list(OFFSET_ENTRY.iter_unpack(disk.log.active.offset_index.read()))
    assert entries == [(41, 4100), (82, 8200)]


def test_offset_1191_is_found_through_its_neighbours() -> None:
    disk = _thousand_record_log()
    floor = disk.log.segments[2].offset_index.lookup(1191)
    assert floor.offset <= 1191 < floor.offset + 5
    assert piece_at(disk.log, 1191, 1) == (1191, 191 * 100, 100)


def test_offset_1800_touches_only_the_files_of_segment_1500() -> None:
    disk = _thousand_record_log()
    disk.reopen()
    double = disk.double
    double.reads.clear()
    assert piece_at(disk.log, 1800)[0] == 1800
    assert {read.path.rpartition("/")[2].partition(".")[0] for read in double.reads} == {f"{1500:020d}"}
    scanned = sum(read.size for read in double.reads if read.path.endswith(".log") and read.name == "pread")
    assert scanned <= 3 * 4096, "windows of 4096 bytes, and the headers that prove index entries"


@each_case("end", [0, 2100])
def test_at_the_end_there_is_nothing_and_beyond_it_a_refusal_before_any_index_is_touched(end: int) -> None:
    disk = _thousand_record_log() if end else LogOnDisk()
    double = disk.double
    double.reads.clear()
    assert disk.log.read(end, 10_000) is None
    with pytest.raises(OffsetOutOfRangeError) as caught:
        disk.log.read(end + 1, 10_000)
    error = caught.value
    assert (error.requested, error.earliest, error.latest, error.reason) == (end + 1, 0, end, "beyond_end")
    assert double.reads == []


def test_a_batch_larger_than_the_limit_is_returned_whole() -> None:
    disk = LogOnDisk()
    large = batch(*[b"x" * 100 for _ in range(50)])
    disk.append_batch(large)
    disk.append_batch(batch(b"next"))
    assert piece_at(disk.log, 10, 1) == (0, 0, len(large))
    assert disk.log.read(10, 1, min_one=False) is None
