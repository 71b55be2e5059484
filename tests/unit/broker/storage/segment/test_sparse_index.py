"""Both indexes against sorted lists, at the edges of file, memory and range; Kafka's bytes; and indexes that lie."""

import errno
from bisect import bisect_right
from typing import Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.roller import RollReason
from seglog_broker.storage.segment.offset_index import OffsetIndex
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.storage.segment.sparse_index import TAIL_BYTES_MAX, WRITE_BYTES, IndexOrderError
from seglog_broker.storage.segment.time_index import TimeIndex
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from seglog_protocol.segment_files import RELATIVE_OFFSET_MAX
from tests.logs import DIRECTORY, LogOnDisk, contents, flip_bit
from tests.support import each_case

IndexT = TypeVar("IndexT", bound=OffsetIndex | TimeIndex)


class Indexes(Generic[IndexT]):
    """A disk and whatever indexes of a kind are opened on it."""

    def __init__(
        self, kind: type[IndexT], path: str, base: int = 0, *, bytes_max: int = 1 << 20, handles_max: int = 512
    ) -> None:
        self.fs = ForgetfulFileSystem()
        self.fs.load({"/p-0/": b""})
        self.handles = HandlePool(self.fs, handles_max)
        self.kind = kind
        self.path = path
        self.base = base
        self.bytes_max = bytes_max
        self.write_bytes, self.tail_bytes_max = WRITE_BYTES, TAIL_BYTES_MAX

    def new(self) -> IndexT:
        index = self._index(exists=False)
        index.create()
        return index

    def _index(self, *, exists: bool) -> IndexT:
        index = self.kind(self.fs, self.handles, self.path, self.base, bytes_max=self.bytes_max, exists=exists)
        index.write_bytes, index.tail_bytes_max = self.write_bytes, self.tail_bytes_max
        return index

    def reopened(self) -> IndexT:
        self.handles.close()
        return self._index(exists=True)

    @property
    def file(self) -> bytes:
        return self.fs.snapshot()[self.path]


_PATH = "/p-0/00000000000000000000.index"


def indexes_of(base: int = 0, *, bytes_max: int = 1 << 20, handles_max: int = 512) -> Indexes[OffsetIndex]:
    return Indexes(OffsetIndex, _PATH, base, bytes_max=bytes_max, handles_max=handles_max)


def test_a_position_gives_the_entry_whose_batch_begins_at_or_below() -> None:
    index = indexes_of().new()
    for offset, position in ((45, 0), (46, 10), (47, 23), (48, 37)):
        index.append(offset, position)
    assert [index.lookup_position(position) for position in (0, 9, 10, 22, 23, 36, 37, 1000)] == [
        (45, 0),
        (45, 0),
        (46, 10),
        (46, 10),
        (47, 23),
        (47, 23),
        (48, 37),
        (48, 37),
    ]


def test_a_full_index_refuses_the_next_entry_and_still_answers() -> None:
    indexes = indexes_of(bytes_max=3 * 8 + 7)
    index = indexes.new()
    assert index.entries_max == 3
    for number in range(1, 4):
        assert not index.is_full
        index.append(number, number * 10)
    assert index.is_full
    with pytest.raises(IndexOrderError, match="is full with 3 entries"):
        index.append(4, 40)
    assert index.lookup(4) == (3, 30)
    index.trim()
    assert indexes.reopened().is_full


@each_case("base", [0, 1, 100, 2**31])
def test_offsets_from_the_base_to_the_largest_relative_one_fit(base: int) -> None:
    index = indexes_of(base).new()
    with pytest.raises(IndexOrderError, match="does not fit"):
        index.append(base - 1, 5)
    with pytest.raises(IndexOrderError, match="does not fit"):
        index.append(base + RELATIVE_OFFSET_MAX + 1, 5)
    index.append(base, 5)  # an empty index takes the base itself
    index.append(base + RELATIVE_OFFSET_MAX, RELATIVE_OFFSET_MAX)
    assert index.lookup(base + RELATIVE_OFFSET_MAX) == (base + RELATIVE_OFFSET_MAX, RELATIVE_OFFSET_MAX)
    assert index.lookup(base + RELATIVE_OFFSET_MAX - 1) == (base, 5)


def test_an_offset_that_does_not_rise_is_refused_and_nothing_changes_after_a_restart_too() -> None:
    indexes = indexes_of()
    index = indexes.new()
    index.append(5, 50)
    before = index.read()
    index.trim()
    for each in (index, indexes.reopened()):
        for offset in (5, 4, 0):
            with pytest.raises(IndexOrderError, match="not above"):
                each.append(offset, 60)
        assert each.read() == before


def test_an_odd_length_gives_the_whole_entries_and_fails_the_check() -> None:
    indexes = indexes_of()
    index = indexes.new()
    index.append(1, 10)
    index.append(2, 20)
    index.trim()
    indexes.fs.open(_PATH, writable=True).pwritev([b"half."], 16)
    reopened = indexes.reopened()
    assert (reopened.count, reopened.last) == (2, (2, 20))
    assert reopened.problem(1000) == "it ends with 5 bytes of half an entry"
    reopened.append(3, 30)
    reopened.trim()
    assert len(indexes.file) == 24, "the half entry is overwritten"
    assert indexes.reopened().problem(1000) is None


def test_an_index_is_judged_by_both_its_ends() -> None:
    indexes = indexes_of()
    index = indexes.new()
    for number in range(1, 1000):
        index.append(number, number * 10)
    assert index.problem(10_000) is None
    assert index.problem(9990) == "its last entry points at 9990, the log ends at 9990"
    index.trim()
    reads = len(indexes.fs.reads)
    assert index.problem(10_000) is None
    assert len(indexes.fs.reads) - reads <= 2, "a stat and a map, however large it is"


def test_what_memory_holds_is_bounded() -> None:
    indexes = indexes_of()
    index = indexes.new()
    for number in range(3 * 8192):
        index.append(number, number)
        assert len(index._tail) <= TAIL_BYTES_MAX


def test_a_lookup_in_recent_entries_does_not_touch_the_disk() -> None:
    indexes = indexes_of()
    index = indexes.new()
    for number in range(1, 9000):
        index.append(number, number)
    indexes.fs.reads.clear()
    assert index.lookup(8990) == (8990, 8990)
    assert indexes.fs.reads == []
    assert index.lookup(3) == (3, 3)
    assert [read.name for read in indexes.fs.reads] == ["map"]


def test_a_write_that_fails_loses_no_entry() -> None:
    indexes = indexes_of()
    indexes.write_bytes, indexes.tail_bytes_max = 16, 64
    index = indexes.new()
    indexes.fs.inject(Fault("pwritev", ".index", short=5))
    indexes.fs.inject(Fault("pwritev", ".index", error=errno.ENOSPC, nth=2, sticky=True))
    for number in range(1, 21):
        index.append(number, number * 10)
    assert indexes.file == b"\0\0\0\1\0"
    assert [index.lookup(number).position for number in range(21)] == [number * 10 for number in range(21)]
    with pytest.raises(OSError, match="ENOSPC"):
        index.trim()
    assert index.count == 20
    indexes.fs.heal()
    index.append(21, 210)
    index.trim()
    assert len(indexes.file) == 21 * 8
    assert indexes.reopened().lookup(17) == (17, 170)


@pytest.mark.parametrize("handles_max", [1, 512])
@given(data=st.data())
def test_it_answers_as_a_sorted_list_does(handles_max: int, data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([0, 1000, 2**40]))
    indexes = indexes_of(base, handles_max=handles_max)
    indexes.write_bytes = data.draw(st.sampled_from([8, 24, 40]))
    indexes.tail_bytes_max = data.draw(st.sampled_from([40, 80]))
    index = indexes.new()
    model: list[int] = []
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["append"] * 8 + ["reopen", "trim"]))
        if action == "append":
            offset = (model[-1] if model else base - 1) + data.draw(st.integers(1, 3))
            index.append(offset, (offset - base) * 7)
            model.append(offset)
        else:
            index.trim()
            if action == "reopen":
                index = indexes.reopened()
        target = base + data.draw(st.integers(0, 150))
        at = bisect_right(model, target) - 1
        assert index.lookup(target) == ((model[at], (model[at] - base) * 7) if at >= 0 else (base, 0))
        assert index.count == len(model)
        assert (index.last.offset if index.last else None) == (model[-1] if model else None)
    index.trim()
    assert len(indexes.file) == 8 * len(model)


# --- By time ----------------------------------------------------------------------------------------------------------


TIME_PATH = "/p-0/00000000000000000000.timeindex"


def time_indexes(base: int = 0, *, bytes_max: int = 1 << 20, handles_max: int = 512) -> Indexes[TimeIndex]:
    return Indexes(TimeIndex, TIME_PATH, base, bytes_max=bytes_max, handles_max=handles_max)


def test_one_slot_is_kept_for_the_closing_entry() -> None:
    index = time_indexes(bytes_max=30 * 12 + 11).new()
    for number in range(29):
        assert not index.is_full
        index.offer(100 + number, number)
    assert index.is_full
    with pytest.raises(IndexOrderError, match="is full with 29 entries"):
        index.offer(1000, 50)
    index.offer(1000, 50, closing=True)
    assert index.count == 30
    assert index.last == (1000, 50)


@pytest.mark.parametrize("closing", [False, True])
def test_offset_and_timestamp_never_fall_even_at_closing(closing: bool) -> None:
    index = time_indexes().new()
    index.offer(100, 10)
    with pytest.raises(IndexOrderError, match="offset 9 is below"):
        index.offer(101, 9, closing=closing)
    with pytest.raises(IndexOrderError, match="timestamp 99 is below"):
        index.offer(99, 11, closing=closing)
    assert index.last == (100, 10)


def test_an_odd_length_of_a_time_index_fails_the_check() -> None:
    indexes = time_indexes()
    indexes.fs.load({TIME_PATH: bytes(13)})
    assert indexes.reopened().problem() == "it ends with 1 bytes of half an entry"


@pytest.mark.parametrize("handles_max", [1, 512])
@given(data=st.data())
def test_a_time_index_answers_as_a_sorted_list_does(handles_max: int, data: st.DataObject) -> None:
    indexes = time_indexes(500, handles_max=handles_max)
    indexes.write_bytes = data.draw(st.sampled_from([12, 36]))
    indexes.tail_bytes_max = data.draw(st.sampled_from([36, 84]))
    index = indexes.new()
    model: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 60))):
        action = data.draw(st.sampled_from(["offer"] * 8 + ["drop", "reopen"]))
        if action == "offer":
            timestamp, offset = model[-1] if model else (-1, 500)
            timestamp, offset = timestamp + data.draw(st.integers(0, 3)), offset + data.draw(st.integers(0, 2))
            index.offer(timestamp, offset)
            if timestamp > (model[-1][0] if model else -1):
                model.append((timestamp, offset))
        elif action == "drop" and model:
            index.drop_last()
            model.pop()
        elif action == "reopen":
            index.trim()
            index = indexes.reopened()
        target = data.draw(st.integers(-1, 150))
        at = bisect_right([entry[0] for entry in model], target) - 1
        assert index.lookup(target) == (model[at] if at >= 0 else (-1, 500))
        assert index.last == (model[-1] if model else (-1, 500))
        assert index.count == len(model)


def test_real_appends_give_kafkas_own_index_bytes() -> None:
    """A8: base 1000, interval 100, six batches of two records and 117 bytes; closed after the last."""
    fs = ForgetfulFileSystem()
    fs.load({"/p-0/": b""})
    handles = HandlePool(fs)
    segment = Segment(fs, handles, "/p-0", 1000, index_bytes_max=10_485_760, index_interval=100)
    segment.create()
    for number, timestamp in enumerate((1000, 1001, 1002, 5000, 1004, 1005)):
        encoded = bytearray(encode_batch([(timestamp, None, b"." * 21, ()), (timestamp, None, b"." * 21, ())]))
        assert len(encoded) == 117
        rewrite_offset_and_epoch(encoded, 0, 1000 + 2 * number, 0)
        assert segment.append((encoded,), ((len(encoded), 1001 + 2 * number, timestamp),)) == 117 * number
    segment.close()
    disk = fs.snapshot()
    assert disk["/p-0/00000000000000001000.index"].hex() == (
        "000000030000007500000005000000ea000000070000015f00000009000001d40000000b00000249"
    )
    assert disk["/p-0/00000000000000001000.timeindex"].hex() == (
        "00000000000003e90000000300000000000003ea00000005000000000000138800000007"
    )
    assert segment.max_timestamp == (5000, 1007)
    handles.close()
    assert fs.open_files == []


# --- An index that lies -----------------------------------------------------------------------------------------------


def _timed(stamps: list[int], *, closed: bool) -> LogOnDisk:
    """A batch for each timestamp in the first segment; with ``closed`` another segment follows."""
    disk = LogOnDisk(TopicConfig(index_interval_bytes=150))
    for stamp in stamps:
        disk.append(b"value", timestamp=stamp)
    if closed:
        disk.log.roller.roll(disk.log.log_end_offset, RollReason.SIZE)
        disk.append(b"behind", timestamp=max(stamps) + 10)
    disk.log.close()
    return disk


_STAMPS = [
    [1000 + 10 * number for number in range(24)],
    [1000 + number * 37 % 101 for number in range(24)],
    [1000 + number // 6 for number in range(24)],
    [1000] * 12 + [5000] + [1000] * 11,
]


@pytest.mark.soak
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("stamps", _STAMPS)
def test_no_bit_of_a_time_index_sends_a_look_up_past_a_record(stamps: list[int], closed: bool) -> None:
    disk = _timed(stamps, closed=closed)
    files = contents(disk.fs)
    path = f"{DIRECTORY}/{0:020d}.timeindex"
    everything = [*stamps, *([max(stamps) + 10] if closed else [])]
    wanted = sorted({stamp + change for stamp in everything for change in (-1, 0, 1)})
    assert len(files[path]) >= 12
    for position in range(len(files[path])):
        for bit in range(8):
            fs = ForgetfulFileSystem()
            fs.load(files)
            flip_bit(fs, path, position, bit)
            disk.fs = fs
            log = disk._open(clean=True)
            for moment in wanted:
                found = log.find_timestamp(moment)
                expected = next((number for number, stamp in enumerate(everything) if stamp >= moment), None)
                assert (found.offset if found else None) == expected, f"byte {position}, bit {bit}, {moment}"
            assert log.segments[0].largest_timestamp == max(stamps), f"byte {position}, bit {bit}"
            log.release()


def test_a_lying_closing_entry_is_made_again_byte_for_byte() -> None:
    disk = _timed(_STAMPS[0], closed=True)
    path = f"{DIRECTORY}/{0:020d}.timeindex"
    sound = contents(disk.fs)[path]
    flip_bit(disk.fs, path, len(sound) - 5, 3)
    disk._open(clean=True)
    assert disk.log.segments[0].largest_timestamp == max(_STAMPS[0])
    assert contents(disk.fs)[path] == sound


def test_the_proof_of_an_entry_reads_no_more_than_lies_between_two_offset_entries() -> None:
    disk = LogOnDisk(TopicConfig(index_interval_bytes=4096))
    for number in range(3000):
        disk.append(b"x" * 100, timestamp=1000 + number)
    disk.reopen()
    double = disk.fs
    assert isinstance(double, ForgetfulFileSystem)
    for moment in (1000, 1001, 2500, 3998, 3999):
        double.reads.clear()
        found = disk.log.find_timestamp(moment)
        assert found is not None
        assert found.offset == moment - 1000
        read = sum(look.size for look in double.reads if look.name == "pread" and look.path.endswith(".log"))
        assert read < 8 * 4096 + 64 * 170


def test_an_entry_that_no_file_can_hold_is_an_error_of_its_own() -> None:
    disk = LogOnDisk()
    index = disk.log.active.time_index
    for timestamp, offset in ((5, 2**31), (2**63, 1)):
        with pytest.raises(IndexOrderError):
            index.offer(timestamp, offset)
    assert index.count == 0
