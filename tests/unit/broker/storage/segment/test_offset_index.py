"""The offset index against a sorted list, at the edges of its file, its memory and its range."""

import errno
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.segment.offset_index import OffsetIndex
from seglog_broker.storage.segment.sparse_index import TAIL_BYTES_MAX, IndexOrderError
from seglog_broker.testing.forgetful import Fault
from seglog_protocol.segment_files import RELATIVE_OFFSET_MAX
from tests.support import each_case
from tests.unit.broker.storage.segment.indexes import Indexes

_PATH = "/p-0/00000000000000000000.index"
_SIZES = [1, 2, 511, 512, 513, 1023, 1024, 1025, 1026, 8191, 8192, 8193, 8704]
"""Entries around what is written at a time (512), around Kafka's warm section, and around what memory holds (8192)."""


def indexes_of(base: int = 0, *, bytes_max: int = 1 << 20, handles_max: int = 512) -> Indexes[OffsetIndex]:
    return Indexes(OffsetIndex, _PATH, base, bytes_max=bytes_max, handles_max=handles_max)


def test_an_empty_index_answers_the_beginning_of_the_segment() -> None:
    index = indexes_of(base=70).new()
    assert index.lookup(70) == (70, 0)
    assert index.lookup(1000) == (70, 0)
    assert index.last is None
    assert index.lookup_position(10) is None
    assert index.read() == b""
    assert index.problem(0) is None


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


@each_case("count", _SIZES)
def test_indexes_of_every_size_answer_alike_live_and_reopened(count: int) -> None:
    indexes = indexes_of()
    index = indexes.new()
    for number in range(count):
        index.append(2 * number + 1, 10 * number)
    assert index.count == count
    expected = index.read()
    assert len(expected) == 8 * count
    targets = [0, 1, 2, count // 2, count, 2 * count - 2, 2 * count - 1, 2 * count, 5 * count]
    answers = [index.lookup(target) for target in targets]
    for target, answer in zip(targets, answers, strict=True):
        number = (target + 1) // 2 - 1
        number = min(number, count - 1)
        assert answer == ((2 * number + 1, 10 * number) if number >= 0 else (0, 0))
    assert len(indexes.file) == count * 8 // 4096 * 4096, "written by steps"
    index.trim()
    assert indexes.file == expected == index.read()
    reopened = indexes.reopened()
    assert reopened.count == count
    assert [reopened.lookup(target) for target in targets] == answers


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
