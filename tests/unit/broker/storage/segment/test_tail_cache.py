"""The cache of the last batches: it agrees with a plain list, and is empty when it could be wrong."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.segment_log import BATCHES_MIN, TailCache, TailRange
from seglog_broker.testing.forgetful import Fault
from seglog_protocol.errors import CorruptRecordError, StorageError
from tests.logs import LogOnDisk, flip_bit
from tests.unit.broker.storage.steps import piece_at

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


def place(log: PartitionLog, offset: int) -> tuple[int, int]:
    """(start offset, position) of the batch that a read finds."""
    return piece_at(log, offset, 1)[:2]


def near_and_plain(log: PartitionLog, offset: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The position of the batch with ``offset``, with the cache and without it."""
    near = place(log, offset)
    log.active.tail.forget()
    return near, place(log, offset)


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
    flip_bit(disk.fs, LOG, place(disk.log, 1)[1] + 16)
    assert place(disk.log, 0) == (0, 0)
    with pytest.raises(CorruptRecordError):
        disk.log.read(1, 1)
    assert len(disk.log.active.tail) == 0
    near, plain = near_and_plain(disk.log, 2)
    assert near == plain
