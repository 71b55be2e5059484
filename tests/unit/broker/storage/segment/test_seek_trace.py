"""The trace of a seek against what the seam of the forgetful double saw: the same files, the same bytes, no more.

"Touched" are files that were opened, mapped or read; asking for a size is not touching. With a handle pool that is
empty, as after a start, the two agree exactly. Later the seam no longer sees which open file or map is used again.
"""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.segment.segment_indexes import VERIFIED_TIMES_MAX
from seglog_broker.storage.segment.sparse_index import BESIDE_SUFFIX, SparseIndex
from seglog_broker.storage.segment.time_index import TimeIndex
from seglog_broker.storage.segment.traced_steps import POSITIONS_MAX, IndexLookup, SeekTrace
from seglog_protocol.errors import CorruptRecordError, OffsetOutOfRangeError
from seglog_protocol.segment_files import OFFSET_ENTRY
from tests.logs import DIRECTORY, LogOnDisk, batch, batch_of_size, cut_file, flip_bit, read_all, verify
from tests.support import each_case, examples

LOG = f"{DIRECTORY}/00000000000000000000.log"
INDEX = f"{DIRECTORY}/00000000000000000000.index"
TIME_INDEX = f"{DIRECTORY}/00000000000000000000.timeindex"


class Seam:
    """What the double saw since this object was made."""

    def __init__(self, disk: LogOnDisk) -> None:
        self._fs = disk.double
        self._fs.reads.clear()

    @property
    def files(self) -> set[str]:
        reads = (read for read in self._fs.reads if read.name in {"open", "map", "pread"})
        return {read.path.removesuffix(BESIDE_SUFFIX) for read in reads}  # an index that is rebuilt

    @property
    def log_bytes(self) -> int:
        return sum(read.size for read in self._fs.reads if read.name == "pread" and read.path.endswith(".log"))

    @property
    def is_untouched(self) -> bool:
        return self._fs.reads == []


def config(**changes: Any) -> TopicConfig:
    return TopicConfig(**{"index_interval_bytes": 200, "segment_bytes": 1 << 20, **changes})


def full_log(count: int, *, timestamps: bool = True, **changes: Any) -> LogOnDisk:
    """``count`` batches of one record, each in offset order a millisecond later, from 1000 on."""
    disk = LogOnDisk(config(**changes))
    for number in range(count):
        disk.append(b"value %06d" % number, timestamp=1000 + number if timestamps else -1)
    return disk


def traced(disk: LogOnDisk, offset: int) -> tuple[SeekTrace, Seam]:
    trace, seam = SeekTrace(), Seam(disk)
    place = disk.log.traced(trace).seek(offset)
    if place is not None:
        number, found = place
        assert trace.segment == disk.log.segments[number].base_offset
        assert (trace.position, trace.base_offset, trace.last_offset) == (
            found.position,
            found.header.base_offset,
            found.header.last_offset,
        )
        assert trace.scan_start + trace.scanned_bytes == found.position
        assert trace.positions == sorted(set(trace.positions))
        assert len(trace.positions) == min(trace.scanned_batches, POSITIONS_MAX)
        assert trace.scanned_batches > POSITIONS_MAX or trace.positions[-1] == found.position
        assert (trace.log_size, trace.batch_size) == (disk.log.segments[number].size, found.header.size)
    return trace, seam


# --- What was touched -------------------------------------------------------------------------------------------------


@each_case("offset", [0, 1, 57, 120, 150])
def test_a_first_seek_after_a_start_names_the_files_and_bytes_that_the_seam_saw(offset: int) -> None:
    disk = full_log(200, segment_bytes=4096)
    disk.reopen()
    assert len(disk.log.segments) > 3
    trace, seam = traced(disk, offset)
    assert trace.segment != disk.log.active.base_offset, "which is open since the start"
    assert set(trace.files) == seam.files
    assert trace.read_bytes == seam.log_bytes > 0
    assert len(trace.files) == 2, "one index and one log, whatever the number of segments"
    assert not trace.rebuilt_indexes


@each_case(("count", "wanted", "batches"), [(2, 1, 2), (50, 40, 2)])
def test_an_index_that_is_all_in_memory_is_searched_without_its_file(count: int, wanted: int, batches: int) -> None:
    disk = full_log(count)
    trace, seam = traced(disk, wanted)
    assert {LOG} == seam.files == set(trace.files)
    [lookup] = trace.lookups
    assert (lookup.path, lookup.in_file, lookup.entries) == (INDEX, False, disk.log.active.offset_index.count)
    assert (lookup.probes > 0, lookup.entry is not None) == (count > 2, count > 2), "an empty one costs no probe"
    assert trace.scanned_batches == batches


def test_a_seek_out_of_range_or_at_the_end_touches_nothing() -> None:
    disk = full_log(20)
    disk.log.truncate_before(5)
    trace, seam = SeekTrace(), Seam(disk)
    for offset in (4, 21):
        with pytest.raises(OffsetOutOfRangeError):
            disk.log.traced(trace).seek(offset)
        assert seam.is_untouched
        assert trace == SeekTrace()
    assert disk.log.traced(trace).seek(20) is None
    assert seam.is_untouched
    assert (trace.segment, trace.files, trace.lookups, trace.position) == (None, [], [], None)
    assert "end of the log" in trace.why_segment


def test_a_gap_at_the_end_of_a_segment_leads_to_the_next_and_says_so() -> None:
    disk = full_log(200, segment_bytes=4096)
    first, second = disk.log.segments[:2]
    cut_file(disk.fs, first.log_path, first.size - len(batch(b"value 000000", timestamp=1000)))
    disk.reopen()
    trace, seam = traced(disk, second.base_offset - 1)
    assert (trace.segment, trace.passed_over) == (second.base_offset, 1)
    assert "the next one follows" in trace.why_segment
    assert trace.base_offset == second.base_offset
    assert set(trace.files) == seam.files
    assert trace.read_bytes == seam.log_bytes


# --- How much work it was ---------------------------------------------------------------------------------------------


def most_probes(entries: int) -> int:
    return math.ceil(math.log2(entries)) + 1 if entries else 0


def assert_trail_is_of(index: SparseIndex, lookup: IndexLookup) -> None:
    """The probes of a look-up are entries of the index, and leave the one that was found."""
    data, size = index.read(), index.entry_size
    entries = [data[at : at + size] for at in range(0, len(data), size)]
    low, high = 0, len(entries)
    for number, key in lookup.trail:
        assert low <= number < high
        first = int.from_bytes(entries[number][: size - 4])
        assert key == (first if isinstance(index, TimeIndex) else index.base_offset + first)
        is_below = key < lookup.wanted if isinstance(index, TimeIndex) else key <= lookup.wanted
        low, high = (number + 1, high) if is_below else (low, number)
    assert low == high
    assert len(lookup.trail) == lookup.probes
    assert (low == 0) == (lookup.entry is None)


@each_case("entries", range(1, 41))
@each_case("on_file", ["none", "some", "all"])
def test_probes_are_few_for_every_size_and_every_split_between_file_and_memory(entries: int, on_file: str) -> None:
    disk = LogOnDisk(config(index_interval_bytes=0))
    active = disk.log.active
    disk.append(b"never indexed", timestamp=999)
    for number in range(entries):
        disk.append(b"%d" % number, timestamp=1000 + number)
        if on_file == "some" and number == entries // 2:
            active.indexes.writer.save()
    if on_file == "all":
        active.indexes.writer.save()
    assert active.offset_index.count == active.time_index.count == entries
    for offset in range(entries + 1):
        trace, _ = traced(disk, offset)
        [lookup] = trace.lookups
        assert (lookup.entries, lookup.wanted) == (entries, offset)
        assert lookup.probes <= most_probes(entries)
        assert_trail_is_of(active.offset_index, lookup)
        assert trace.scanned_batches == 1
        moment = SeekTrace()
        disk.log.traced(moment).find_timestamp(999 + offset)
        assert [found.index for found in moment.lookups] == ["time", "offset"]
        assert all(found.probes <= most_probes(entries) for found in moment.lookups)
        assert_trail_is_of(active.time_index, moment.lookups[0])
        assert moment.record_offset == offset


def test_a_seek_reads_once_from_the_place_that_the_index_names() -> None:
    """Whatever it looks at there: the header that is looked at before it is believed, and those behind it."""
    disk = full_log(100)
    for offset, batches in ((90, 1), (91, 2)):
        trace, seam = traced(disk, offset)
        reads = [read for read in disk.double.reads if read.name == "pread"]
        assert [(read.position, read.size) for read in reads] == [(trace.scan_start, trace.read_bytes)]
        assert trace.scanned_batches == batches
        assert trace.read_bytes == seam.log_bytes
    before = len(disk.double.reads)
    disk.log.find_timestamp(1050)
    assert [read.name for read in disk.double.reads[before:]].count("pread") == 1


# --- By timestamp -----------------------------------------------------------------------------------------------------


def log_bytes_of(disk: LogOnDisk, timestamp: int) -> int:
    seam = Seam(disk)
    assert disk.log.find_timestamp(timestamp) is not None
    return seam.log_bytes


def test_a_time_entry_that_the_log_confirmed_is_remembered_until_the_log_changes() -> None:
    """A later seek reads the batch behind it alone; one that is traced shows how it is found without that."""
    disk = LogOnDisk(config(index_interval_bytes=0))
    for number in range(20):
        disk.append_batch(batch_of_size(3_000, timestamp=1000 + number))
    first = log_bytes_of(disk, 1010)
    again = log_bytes_of(disk, 1010)
    assert again < first / 2
    trace = SeekTrace()
    disk.log.traced(trace).find_timestamp(1010)
    assert trace.read_bytes == first
    assert [lookup.index for lookup in trace.lookups] == ["time", "offset"]
    disk.log.active.indexes.rebuild()
    assert log_bytes_of(disk, 1010) == first


def test_of_very_many_verified_time_entries_the_newest_are_remembered() -> None:
    count = 2 * VERIFIED_TIMES_MAX
    disk = full_log(count, index_interval_bytes=0)
    for number in range(2, count):
        disk.log.find_timestamp(1000 + number)
    remembered = disk.log.active.indexes._verified
    assert len(remembered) == VERIFIED_TIMES_MAX
    assert [entry.timestamp for entry in remembered][-1] == 1000 + count - 2


def test_passing_over_a_segment_costs_a_look_at_what_its_time_index_says_once() -> None:
    disk = full_log(200, segment_bytes=4096)
    disk.reopen()
    last = disk.log.segments[-2]
    trace, seam = SeekTrace(), Seam(disk)
    found = disk.log.traced(trace).find_timestamp(1000 + last.base_offset)
    assert found is not None
    assert found.offset == last.base_offset
    passed_over = disk.log.segments[:-2]
    assert trace.passed_over == len(passed_over)
    assert trace.files == [
        path
        for segment in (*passed_over, last)
        for path in (segment.time_index.path, segment.offset_index.path, segment.log_path)
    ]
    assert seam.files == set(trace.files)
    again = SeekTrace()
    assert disk.log.traced(again).find_timestamp(1000 + last.base_offset) == found
    assert set(again.files) == {last.time_index.path, last.offset_index.path, last.log_path}


def test_a_time_after_every_record_finds_none_and_the_trace_says_so() -> None:
    disk = full_log(200, segment_bytes=4096)
    trace = SeekTrace()
    assert disk.log.traced(trace).find_timestamp(2000) is None
    assert (trace.segment, trace.position, trace.record_offset) == (None, None, None)
    assert trace.passed_over == trace.segments == len(disk.log.segments)
    assert trace.why_segment == "no record is at or after 1970-01-01T00:00:02.000Z: a fetch waits at the end"


# --- Indexes and bytes that cannot be trusted -------------------------------------------------------------------------


def test_an_index_that_leads_astray_is_rebuilt_and_the_trace_says_so() -> None:
    disk = full_log(200, segment_bytes=4096)
    disk.reopen()
    first = disk.log.segments[0]
    middle = first.offset_index.count // 2
    flip_bit(disk.fs, INDEX, middle * OFFSET_ENTRY.size + 7, bit=2)
    wanted = int.from_bytes(first.offset_index.read()[middle * OFFSET_ENTRY.size :][:4], "big")
    trace, seam = traced(disk, wanted)
    assert trace.rebuilt_indexes
    assert len(trace.lookups) == 2, "before, and after"
    assert trace.read_bytes == seam.log_bytes > first.size
    assert seam.files <= set(trace.files)
    assert TIME_INDEX in trace.files, "both are made anew"
    again, _ = traced(disk, wanted)
    assert not again.rebuilt_indexes
    verify(disk.fs, disk.log)


# --- The same place as without a trace --------------------------------------------------------------------------------

appends = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 120), st.integers(-1, 30)),
    min_size=1,
    max_size=40,
)


@settings(max_examples=examples(60), deadline=None)
@given(appends, st.sampled_from([0, 100, 300]), st.booleans(), st.data())
def test_a_traced_seek_leads_where_an_untraced_one_leads(
    batches: list[tuple[int, int, int]], interval: int, restart: bool, data: st.DataObject
) -> None:
    disk = LogOnDisk(config(index_interval_bytes=interval, segment_bytes=1500))
    for records, size, timestamp in batches:
        disk.append(*[b"." * size] * records, timestamp=timestamp)
    if restart:
        disk.reopen()
    log = disk.log
    log.truncate_before(data.draw(st.integers(0, log.log_end_offset), label="log start"))
    stored = read_all(log)
    for offset in range(log.log_start_offset, log.log_end_offset):
        trace, seam = traced(disk, offset)
        assert trace.read_bytes == seam.log_bytes
        assert seam.files <= set(trace.files)
        found = log.read(offset, 1)
        assert found is not None
        assert (found.file.path, found.position, found.start_offset) == (
            trace.files[-1],
            trace.position,
            trace.base_offset,
        )
        found.release()
        largest = max(size for _, size, _ in batches) * 3 + 200
        assert trace.scanned_bytes <= interval + largest
        assert all(lookup.probes <= most_probes(lookup.entries) for lookup in trace.lookups)
    for wanted in range(31):
        trace, seam = SeekTrace(), Seam(disk)
        moment = log.traced(trace).find_timestamp(wanted)
        assert trace.read_bytes == seam.log_bytes
        assert seam.files <= set(trace.files)
        assert moment == log.find_timestamp(wanted)
        expected = next((r for r in stored if r.timestamp >= wanted), None)
        assert (trace.record_offset, trace.record_timestamp) == (
            (None, None) if expected is None else (expected.offset, expected.timestamp)
        )
        assert all(lookup.probes <= most_probes(lookup.entries) for lookup in trace.lookups)


@each_case(("count", "size"), [(POSITIONS_MAX + 50, 100), (5, 50_000)])
def test_of_a_long_scan_the_first_positions_are_kept(count: int, size: int) -> None:
    """Large batches are walked by their headers."""
    disk = LogOnDisk(config(index_interval_bytes=1 << 20))
    for _ in range(count):
        disk.append_batch(batch_of_size(size))
    trace, seam = traced(disk, count - 1)
    assert (trace.scanned_batches, trace.scanned_bytes) == (count, (count - 1) * size)
    assert len(trace.positions) == min(count, POSITIONS_MAX)
    assert trace.read_bytes == seam.log_bytes
    assert size == 100 or seam.log_bytes < 5_000


# --- One segment, traced and untraced ---------------------------------------------------------------------------------


def test_a_traced_seek_leaves_what_it_learned_and_no_trace() -> None:
    disk = full_log(200, segment_bytes=4096)
    disk.reopen()
    first = disk.log.segments[0]
    steps = first.log.steps
    assert not first.is_time_known
    disk.log.traced(SeekTrace()).find_timestamp(1000)
    assert first.is_time_known
    assert first.log.steps is steps
    flip_bit(disk.fs, first.log_path, 16)  # the magic of the first batch
    trace, seam = SeekTrace(), Seam(disk)
    with pytest.raises(CorruptRecordError) as raised:
        disk.log.traced(trace).seek(0)
    assert (raised.value.next_offset, trace.position, trace.read_bytes) == (1, None, seam.log_bytes)
    assert first.log.steps is steps
    seam = Seam(disk)
    with pytest.raises(CorruptRecordError) as raised:
        disk.log.read(0, 1 << 20, verify=True)
    assert raised.value.next_offset == 1
    assert seam.log_bytes == 0, "what it measured of damage is known to the next fetch"
