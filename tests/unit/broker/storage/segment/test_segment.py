"""One segment: its running state across a stop, its searches, what it does about indexes that lie."""

import errno
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.log_files import DeletedSegments
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.damage import DamagedRange, HeaderWalk, next_damage
from seglog_broker.storage.segment.segment import BEHIND_READS_MAX, Segment
from seglog_broker.storage.segment.segment_log import BATCHES_MIN, TailCache, TailRange
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.errors import CorruptRecordError, StorageError
from seglog_protocol.record_batch import parse_header, rewrite_offset_and_epoch, seal_batch
from seglog_protocol.segment_files import encode_offset_entry, encode_time_entry, offset_entries
from tests.logs import LogOnDisk, batch, batch_of_size, flip_bit
from tests.support import each_case
from tests.unit.broker.storage.steps import piece_at

_BASE = 1000
_STEM = "/p-0/00000000000000001000"


class OnDisk:
    """A segment with base 1000 and the disk it lies on; batches of 100 bytes, entries every three of them."""

    def __init__(self, *, interval: int = 250, index_bytes_max: int = 1 << 20, handles_max: int = 512) -> None:
        self.fs = ForgetfulFileSystem()
        self.fs.load({"/p-0/": b""})
        self.handles = HandlePool(self.fs, handles_max)
        self.interval = interval
        self.index_bytes_max = index_bytes_max
        self.segment = self._segment(())
        self.segment.create()
        self.next_offset = _BASE

    def _segment(self, existing: "tuple[str, ...] | list[str]") -> Segment:
        return Segment(
            self.fs,
            self.handles,
            "/p-0",
            _BASE,
            index_bytes_max=self.index_bytes_max,
            index_interval=self.interval,
            existing=existing,
        )

    def append(self, encoded: bytes, *, at: int | None = None) -> int:
        buffer = bytearray(encoded)
        rewrite_offset_and_epoch(buffer, 0, self.next_offset if at is None else at, 3)
        header = parse_header(buffer)
        self.next_offset = header.next_offset
        return self.segment.append((buffer,), ((len(buffer), header.last_offset, header.max_timestamp),))

    def fill(self, count: int = 20, *, timestamps: list[int] | None = None) -> None:
        for number in range(count):
            self.append(batch_of_size(100, timestamps[number] if timestamps else -1))

    def closed(self) -> Segment:
        """The segment as the next process finds it after a clean stop."""
        if self.segment.log.is_active:
            self.segment.close()
        self.handles.close()
        self.segment = self._segment(self.fs.list_directory("/p-0"))
        return self.segment

    def put(self, suffix: str, data: bytes) -> None:
        """Replace a file behind the segment's back."""
        self.handles.close()
        self.fs.unlink(f"{_STEM}{suffix}")
        self.fs.load({f"{_STEM}{suffix}": data})

    def file(self, suffix: str) -> bytes:
        return self.fs.snapshot()[f"{_STEM}{suffix}"]


def place(segment: Segment, offset: int) -> tuple[int, int]:
    """(position, base offset) of the batch that has the offset, or follows it."""
    found = segment.find(offset)
    assert found is not None
    return found.position, found.header.base_offset


def test_a_new_segment_has_all_three_files_at_once_and_empty_whatever_was_left_over() -> None:
    disk = OnDisk()
    for _ in range(2):
        assert disk.fs.snapshot() == {f"{_STEM}.index": b"", f"{_STEM}.log": b"", f"{_STEM}.timeindex": b""}
        assert disk.segment.log.is_active
        assert disk.segment.find(_BASE) is None
        assert (disk.segment.max_timestamp, disk.segment.first_timestamp) == ((-1, _BASE), -1)
        disk.segment.release()
        for suffix in (".log", ".index", ".timeindex"):
            disk.put(suffix, b"left over")
        disk.segment = disk._segment(())
        disk.segment.create()
    assert disk.segment.activate() == _BASE
    disk.segment.release()
    disk.handles.close()
    assert disk.fs.open_files == [], "activated again, it holds its file once"


@each_case(("interval", "first"), [(0, 1), (99, 1), (100, 2), (199, 2), (200, 3), (250, 3)])
def test_an_entry_is_due_when_more_than_the_interval_was_written_since_the_last(interval: int, first: int) -> None:
    disk = OnDisk(interval=interval)
    disk.fill(10)
    expected = [(number, number * 100) for number in range(first, 10, first)]
    assert list(offset_entries(disk.segment.offset_index.read())) == expected


def test_every_offset_is_found_in_its_batch_and_gaps_lead_to_the_next() -> None:
    disk = OnDisk()
    for base in range(_BASE, _BASE + 300, 10):  # five offsets there, five not
        disk.append(batch(*[b"value"] * 5), at=base)
    for segment in (disk.segment, disk.closed()):
        for offset in range(_BASE, _BASE + 295):
            assert place(segment, offset)[1] == _BASE + -(-(offset - _BASE - 4) // 10) * 10
        assert segment.find(_BASE + 295) is None


def test_an_active_index_that_is_ahead_of_its_log_is_not_believed() -> None:
    """Kafka takes the segment's base as its end then, and repeats the offsets of every record in it."""
    disk = OnDisk()
    disk.fill(20)
    disk.closed()
    sound = disk.file(".index")
    for stray in (encode_offset_entry(25, 1950), encode_offset_entry(25, 2500), encode_offset_entry(40, 1900)):
        disk.put(".index", sound + stray)
        assert disk.closed().activate() == _BASE + 20
        assert disk.segment.offset_index.read() == sound


@each_case("handles_max", [1, 512])
@each_case(
    "index",
    [
        b"",
        b"xy",
        bytes(80),
        encode_offset_entry(3, 300) + bytes(80),
        encode_offset_entry(3, 301) + encode_offset_entry(6, 601),  # no batch begins there
        encode_offset_entry(3, 600) + encode_offset_entry(6, 900),  # a batch of higher offsets begins there
        encode_offset_entry(2**31 - 1, 2**31 - 1),
        encode_offset_entry(-5, -100) + encode_offset_entry(6, 600),
        encode_offset_entry(6, -100),
        encode_offset_entry(3, 1990) + encode_offset_entry(6, 1999),
    ],
)
def test_no_offset_index_whatever_is_in_it_hides_a_record(index: bytes, handles_max: int) -> None:
    disk = OnDisk(handles_max=handles_max)
    disk.fill(20)
    disk.closed()
    disk.put(".index", index)
    segment = disk.closed()
    for offset in (7, 3, 19, 0, 12, 4, 18):
        assert place(segment, _BASE + offset)[0] == offset * 100


@each_case(
    ("suffix", "index"),
    [
        (".index", None),
        (".timeindex", None),
        *((".timeindex", content) for content in (b"", bytes(13), bytes(24), encode_time_entry(5, -1))),
        (".timeindex", encode_time_entry(9, 4) + encode_time_entry(8, 5)),
    ],
)
def test_an_index_that_is_missing_or_implausible_comes_back_byte_for_byte(suffix: str, index: bytes | None) -> None:
    disk = OnDisk()
    disk.fill(20, timestamps=[5, 3, 9, 9, 12, 1, *range(14)])
    disk.closed()
    before = disk.fs.snapshot()
    disk.put(suffix, index or b"")
    if index is None:
        disk.fs.unlink(_STEM + suffix)
    segment = disk.closed()
    assert segment.max_timestamp == (13, _BASE + 19)
    segment.indexes.ensure()
    assert disk.fs.snapshot() == before


def test_a_closed_segment_without_timestamps_has_none_whatever_its_file_says() -> None:
    disk = OnDisk()
    disk.fs.now_ms = 10**12
    disk.fill(5)
    assert disk.closed().max_timestamp == (-1, _BASE)
    assert disk.segment.find_timestamp(0, _BASE) is None


def test_a_full_index_stays_full_and_the_rest_is_found_by_scanning() -> None:
    disk = OnDisk(interval=0, index_bytes_max=3 * 8)
    disk.fill(20)
    assert disk.segment.indexes.writer.is_full
    assert disk.segment.offset_index.count == 3
    assert place(disk.segment, _BASE + 15)[0] == 1500
    before = disk.segment.offset_index.read()
    disk.segment.indexes.rebuild()
    assert disk.segment.offset_index.read() == before


@each_case("codec", list(Codec))
def test_a_timestamp_leads_to_the_first_record_at_or_after_it(codec: Codec) -> None:
    disk = OnDisk(interval=0)
    stamps = [100, 90, 300, 250, 250, 400, 120, 500]
    for first, second in zip(stamps[::2], stamps[1::2], strict=True):
        disk.append(encode_batch([(first, None, b"a", ()), (second, None, b"b", ())], codec=codec))
    for segment in (disk.segment, disk.closed()):
        for wanted in range(80, 520) if codec is Codec.NONE else sorted({t + d for t in stamps for d in (-1, 0, 1)}):
            for lowest in range(9):
                expected = next(
                    ((t, _BASE + n, 3) for n, t in enumerate(stamps) if t >= wanted and n >= lowest),
                    None,
                )
                assert segment.find_timestamp(wanted, _BASE + lowest) == expected


def test_a_timestamp_within_unreadable_records() -> None:
    """Unreadable records under a right checksum answer a timestamp with their batch."""
    disk = OnDisk()
    header = parse_header(batch(b"a", b"b", timestamp=50))
    disk.append(seal_batch(header, b"\xff" * 30))
    disk.append(batch(b"c", timestamp=60))
    assert disk.segment.find_timestamp(40, _BASE) == (50, _BASE, 3)
    assert disk.segment.find_timestamp(40, _BASE + 1) == (50, _BASE + 1, 3)
    assert disk.segment.find_timestamp(51, _BASE) == (60, _BASE + 2, 3)


def test_boundaries_are_those_of_whole_batches() -> None:
    for interval in (0, 250, 10**6):
        disk = OnDisk(interval=interval)
        disk.fill(20)
        for segment in (disk.segment, disk.closed()):
            for size in (0, 1, 99):
                assert segment.boundary_at_most(500, size) == 500
            assert segment.boundary_at_most(500, 100) == 600
            assert segment.boundary_at_most(0, 5000) == 2000
            assert segment.boundary_at_most(1900, 100) == 2000
            for size in range(100, 1600, 37):
                end = segment.boundary_at_most(500, size)
                assert end % 100 == 0
                assert 500 < end <= 500 + size
                assert end > 500 + size - 100 - 300, "no further back than one index entry"


def read_through(segment: Segment, *, bytes_max: int) -> list[tuple[int, int]]:
    """(offset asked for, position found) of each read from first to last, one going on where the other ended."""
    seen, offset = [], _BASE
    while (found := segment.find(offset)) is not None:
        seen.append((offset, found.position))
        position = segment.boundary_at_most(found.position, bytes_max)
        last = [each for each in segment.log.batches() if each.position < position][-1]
        offset = last.header.next_offset
    return seen


def test_the_places_behind_the_latest_reads_are_remembered_and_no_others() -> None:
    disk = OnDisk()
    disk.fill(105)
    segment = disk.closed()
    for position in range(0, 8_000, 100):
        segment.boundary_at_most(position, 1_000)
    assert 0 < sum(segment.remembers(_BASE + number) for number in range(105)) <= BEHIND_READS_MAX + 1, "and the tail"


def test_a_read_that_goes_on_where_another_ended_does_without_the_index() -> None:
    disk = OnDisk()
    disk.fill(105)
    segment = disk.closed()
    expected = [(_BASE + number, number * 100) for number in range(0, 105, 9)]  # every third batch has an entry
    assert read_through(segment, bytes_max=1_000) == expected
    followed, position = _BASE + 99, 9_900
    assert segment.remembers(followed)
    disk.fs.reads.clear()
    assert place(segment, followed) == (position, followed)
    assert disk.fs.reads == []
    assert not segment.remembers(_BASE + 9), "only the last few places are kept"
    assert segment.find(_BASE + 9) == next(
        each for each in segment.log.batches() if each.header.base_offset == _BASE + 9
    )


def measured(segment: Segment, position: int, start_offset: int, next_base: int) -> DamagedRange:
    """What is found there, known from now on, as it is with the damage map of a log."""
    damage = segment.measure_damage(position, start_offset, next_base)
    segment.damaged.append(damage)
    return damage


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda segment: segment.cut(9_000), id="cut"),
        pytest.param(lambda segment: measured(segment, 9_900, -1, _BASE + 105), id="damaged"),
    ],
)
def test_what_a_read_left_behind_is_forgotten_where_the_bytes_are_cut_or_damaged(
    spoil: Callable[[Segment], object],
) -> None:
    disk = OnDisk()
    disk.fill(105)
    segment = disk.closed()
    read_through(segment, bytes_max=1_000)
    assert segment.remembers(_BASE + 99)
    spoil(segment)
    assert not segment.remembers(_BASE + 99)


def test_a_scan_that_meets_bytes_that_are_no_batch_says_where() -> None:
    disk = OnDisk(interval=10**6)
    disk.fill(20)
    disk.closed()
    flip_bit(disk.fs, f"{_STEM}.log", 716)  # the magic of batch 7
    segment = disk.closed()
    assert segment.find(_BASE + 6) is not None
    with pytest.raises(CorruptRecordError) as caught:
        segment.find(_BASE + 12)
    assert (caught.value.position, caught.value.start_offset) == (700, _BASE + 7)
    damage = measured(segment, 700, _BASE + 7, _BASE + 20)
    assert damage == DamagedRange(_BASE + 7, _BASE + 8, _BASE, 700, 800)
    assert place(segment, _BASE + 12)[0] == 1200
    assert segment.boundary_at_most(500, 1000) == 700
    assert segment.boundary_at_most(800, 1000) == 1800


def test_damage_that_a_scan_begins_with_is_measured_from_what_lies_before() -> None:
    disk = OnDisk(interval=10**6)
    disk.fill(20)
    disk.closed()
    flip_bit(disk.fs, f"{_STEM}.log", 16)
    flip_bit(disk.fs, f"{_STEM}.log", 116)
    segment = disk.closed()
    assert measured(segment, 0, -1, _BASE + 20) == DamagedRange(_BASE, _BASE + 2, _BASE, 0, 200)
    flip_bit(disk.fs, f"{_STEM}.log", 716)
    assert measured(segment, 700, -1, _BASE + 20) == DamagedRange(_BASE + 7, _BASE + 8, _BASE, 700, 800)
    assert [found.header.base_offset - _BASE for found in segment.log.batches(strict=True)] == [
        *range(2, 7),
        *range(8, 20),
    ]


def test_a_batch_inside_a_damaged_batchs_value_is_not_taken_for_one_of_the_log() -> None:
    disk = OnDisk()
    inner = bytearray(batch(b"inner"))
    rewrite_offset_and_epoch(inner, 0, _BASE + 1, 0)
    disk.append(batch(b"before"))
    start = disk.append(batch(bytes(inner)))
    end = disk.append(batch(b"behind"))
    disk.closed()
    flip_bit(disk.fs, f"{_STEM}.log", start + 17)  # its checksum
    segment = disk.closed()
    assert measured(segment, start, _BASE + 1, _BASE + 3) == DamagedRange(_BASE + 1, _BASE + 2, _BASE, start, end)


def test_indexes_of_a_log_with_a_wrong_offset() -> None:
    """Checksums leave out the base offset. Indexes made in good faith would lead past every batch behind it."""
    disk = OnDisk(interval=0)
    disk.fill(20)
    disk.closed()
    for bit in (3, 7):
        flip_bit(disk.fs, f"{_STEM}.log", 700 + 4, bit)  # 2^27 and 2^31 offsets up
        disk.handles.close()
        disk.fs.unlink(f"{_STEM}.index")
        segment = disk.closed()
        with pytest.raises(CorruptRecordError) as caught:
            segment.find(_BASE + 3)
        assert caught.value.position == 700
        measured(segment, 700, _BASE + 7, _BASE + 20)
        assert segment.find(_BASE + 3) is not None
        assert segment.offset_index.lookup(_BASE + 19).offset == _BASE + 19
        flip_bit(disk.fs, f"{_STEM}.log", 700 + 4, bit)


def test_a_tail_that_is_no_batch_is_not_appended_to() -> None:
    disk = OnDisk()
    disk.fill(5)
    disk.closed()
    disk.put(".log", disk.file(".log") + b"garbage")
    with pytest.raises(CorruptRecordError) as caught:
        disk.closed().activate()
    assert (caught.value.position, caught.value.start_offset) == (500, _BASE + 5)


def test_the_first_timestamp_is_the_largest_of_the_first_batch() -> None:
    disk = OnDisk()
    disk.append(encode_batch([(70, None, b"a", ()), (90, None, b"b", ()), (80, None, b"c", ())]))
    disk.append(batch(b"d", timestamp=10))
    assert disk.segment.first_timestamp == disk.closed().first_timestamp == 90


def test_a_deleted_segment_serves_who_holds_it_and_leaves_no_file() -> None:
    disk = OnDisk()
    disk.fill(5)
    segment = disk.closed()
    segment.find(_BASE)
    lease = segment.log.lease()
    segment.forget()
    doomed = DeletedSegments(disk.fs, "/p-0", [segment.base_offset])
    doomed.set_aside()
    assert sorted(disk.fs.snapshot()) == [
        f"{_STEM}.index.deleted",
        f"{_STEM}.log.deleted",
        f"{_STEM}.timeindex.deleted",
    ]
    doomed.remove()
    assert disk.fs.snapshot() == {"/p-0/": b""}
    assert len(lease.resource.pread(1000, 0)) == 500
    lease.release()
    assert disk.fs.open_files == []


# --- The cache of the last batches: it agrees with a plain list, and is empty when it could be wrong ------------------


LOG = "/topic-0/00000000000000000000.log"


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(61, 200)), max_size=40),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
    st.data(),
)
def test_it_finds_what_a_list_of_all_batches_gives(
    batches: list[tuple[int, int]], first_offset: int, first_position: int, data: st.DataObject
) -> None:
    tail = TailCache()
    offset, position = first_offset, first_position
    plain: list[tuple[int, int, int, int]] = []
    for records, size in batches:
        plain.append((offset, offset + records, position, position + size))
        offset, position = offset + records, position + size
    done = 0
    while done < len(plain):
        noted = plain[done : done + data.draw(st.integers(1, len(plain)))]
        tail.note([base for base, _, _, _ in noted], [begin for _, _, begin, _ in noted], noted[-1][1], noted[-1][3])
        done += len(noted)
    asked = data.draw(st.integers(max(0, first_offset - 3), offset + 3))
    bytes_max = data.draw(st.integers(0, position - first_position + 10))
    min_one = data.draw(st.booleans())
    found = tail.find(asked, bytes_max, min_one)
    rest = [batch for batch in plain if batch[1] > asked]
    if not first_offset <= asked < offset:
        assert found is None
        return
    fitting = [end for _, _, _, end in rest if end - rest[0][2] <= bytes_max]
    end = max(fitting, default=rest[0][3] if min_one else rest[0][2])
    assert found == TailRange(rest[0][2], end, rest[0][0])


def test_it_forgets_the_older_half_when_it_is_full_and_never_the_newest() -> None:
    tail = TailCache()
    longest = 0
    for number in range(5 * BATCHES_MIN):
        tail.note([number], [number * 70], number + 1, number * 70 + 70)
        longest = max(longest, len(tail))
        oldest = max(0, number - BATCHES_MIN + 1)
        assert tail.find(oldest, 70) == TailRange(oldest * 70, oldest * 70 + 70, oldest)
        assert tail.find(number, 70) == TailRange(number * 70, number * 70 + 70, number)
    assert longest == 2 * BATCHES_MIN
    assert tail.find(0, 70) is None


@pytest.mark.parametrize("next_batch", [(5, 6, 80, 150), (3, 4, 100, 170)], ids=["of offsets", "of bytes"])
def test_what_lies_before_a_hole_is_forgotten(next_batch: tuple[int, int, int, int]) -> None:
    tail = TailCache()
    tail.note([0], [0], 3, 80)
    base, next_offset, position, end = next_batch
    tail.note([base], [position], next_offset, end)
    assert tail.find(0, 1000) is None
    assert tail.find(base, 1000) == TailRange(position, end, base)


# --- In a log ---------------------------------------------------------------------------------------------------------


def place_in(log: PartitionLog, offset: int) -> tuple[int, int]:
    """(start offset, position) of the batch that a read finds."""
    return piece_at(log, offset, 1)[:2]


def near_and_plain(log: PartitionLog, offset: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The position of the batch with ``offset``, with the cache and without it."""
    near = place_in(log, offset)
    log.active.tail.forget()
    return near, place_in(log, offset)


def test_a_reader_at_the_end_needs_no_index_and_the_second_one_no_file() -> None:
    disk = LogOnDisk(TopicConfig(index_interval_bytes=100))
    for number in range(50):
        disk.append(b"%d" % number)
    disk.log.active.offset_index.reset()  # with it, a look-up would begin at the first batch
    disk.double.reads.clear()
    found = start, position, size = piece_at(disk.log, 45, 1 << 20)
    assert (start, position + size) == (45, disk.log.active.size)
    assert all(read.position >= position for read in disk.double.reads)
    disk.double.reads.clear()
    assert piece_at(disk.log, 45, 1 << 20) == found
    assert disk.double.reads == []


def test_a_batch_that_could_not_be_written_is_not_remembered() -> None:
    disk = LogOnDisk(TopicConfig())
    disk.append(b"a")
    disk.double.inject(Fault("pwritev", LOG, short=30))
    disk.double.inject(Fault("pwritev", LOG, error=errno.ENOSPC, nth=2))
    with pytest.raises(StorageError):
        disk.append(b"lost")
    assert disk.log.active.tail.find(1, 1000) is None
    disk.append(b"b")
    near, plain = near_and_plain(disk.log, 1)
    assert near == plain


def test_damage_at_the_end_is_met_all_the_same() -> None:
    disk = LogOnDisk(TopicConfig())
    for value in (b"a", b"b", b"c"):
        disk.append(value)
    flip_bit(disk.fs, LOG, place_in(disk.log, 1)[1] + 16)
    assert place_in(disk.log, 0) == (0, 0)
    with pytest.raises(CorruptRecordError):
        disk.log.read(1, 1)
    assert len(disk.log.active.tail) == 0
    near, plain = near_and_plain(disk.log, 2)
    assert near == plain


# --- A walk over headers steps over damage that is known, and says where it met other bytes ---------------------------


SIZE = 100


class _Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


def _log(count: int, *destroyed: int) -> _Bytes:
    """Batches of one record each, offsets from 0 on; ``destroyed`` are numbers of those that are none any more."""
    data = b""
    for number in range(count):
        batch = bytearray(batch_of_size(SIZE))
        rewrite_offset_and_epoch(batch, 0, number, 0)
        data += b"\xff" * SIZE if number in destroyed else bytes(batch)
    return _Bytes(data)


def _damage(first: int, end: int) -> DamagedRange:
    return DamagedRange(first, end, 0, first * SIZE, end * SIZE)


_MISSING = DamagedRange(1, 5, 0, 100, 100, "missing")
_TWO = (_damage(1, 2), _damage(3, 5))


@each_case(
    ("file", "damaged", "where", "found", "left"),
    [
        # Without damage it ends at the end.
        (_log(4), (), (), [0, 1, 2, 3], (400, 4)),
        (_log(4), (), (100, 300), [1, 2], (300, 3)),
        (_log(4), (), (200, 200, 2), [], (200, 2)),
        # Known damage is stepped over, whether it looks like a batch or not: also from within and to within it.
        *(
            (file, _TWO, *rest)
            for file in (_log(6), _log(6, 1, 3, 4))
            for rest in (
                ((), [0, 2, 5], (600, 6)),
                ((350,), [5], (600, 6)),
                ((0, 400), [0, 2], (500, 5)),
                ((0, 300), [0, 2], (300, 3)),
            )
        ),
        # Damage to the end leaves nothing.
        (_log(3, 2), (_damage(2, 3),), (), [0, 1], (300, 3)),
        (_log(2, 0, 1), (DamagedRange(0, 9, 0, 0, 200),), (), [], (200, 9)),
        # It stops at damage that is not known, and names the offset due there; also right behind damage that is.
        (_log(4, 2), (), (), [0, 1], (200, 2)),
        (_log(4, 0), (), (), [], (0, -1)),
        (_log(6, 1, 4), (_damage(1, 2),), (), [0, 2, 3], (400, 4)),
        (_log(4, 1, 2), (_damage(1, 2),), (), [0], (200, 2)),
        # Missing offsets are no bytes to step over.
        (_log(3), (_MISSING,), (), [0, 1, 2], (300, 3)),
    ],
)
def test_a_walk_steps_over_known_damage_and_stops_at_other_bytes(
    file: _Bytes, damaged: Sequence[DamagedRange], where: tuple[int, ...], found: list[int], left: tuple[int, int]
) -> None:
    position, end, expected = (*where, *(0, len(file.data), -1)[len(where) :])
    walk = HeaderWalk(file, position, end, damaged, expected)
    assert [batch.header.base_offset for batch in walk] == found
    assert (walk.position, walk.expected) == left


def test_the_next_damage_is_the_one_that_a_position_lies_in_or_before() -> None:
    found = [next_damage(_TWO, position) for position in (0, 100, 199, 200, 499, 500)]
    assert found == [*[_TWO[0]] * 3, *[_TWO[1]] * 2, None]
    assert next_damage([_MISSING], 50) is None
