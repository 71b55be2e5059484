"""Batches found by their checksums or headers, whatever stands before them and however the bytes are read."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.batch_scan import PLACES_A_TURN, SEARCHED_A_TURN, BatchScan
from seglog_protocol.header_scan import SEEK_WINDOW, HeaderScan, Windowed
from seglog_protocol.record_batch import HEADER_SIZE, MAGIC_POSITION, rewrite_offset_and_epoch
from tests.logs import batch_of_size
from tests.support import each_case


class ReadFile:
    """A file in memory that notes what is read of it.

    ``reads`` are (size, position) as asked for, ``read`` is the number of bytes found.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.read = 0
        self.reads: list[tuple[int, int]] = []

    def pread(self, size: int, position: int) -> bytes:
        self.reads.append((size, position))
        found = self.data[position : position + size]
        self.read += len(found)
        return found


SIZES = [80, 5000, 90, 20_000, 81, 200]
WINDOWS = [2 * HEADER_SIZE, 1000, 1 << 20]


class _TurnError(Exception):
    pass


class _Turns:
    """Stops a search each time it may stop."""

    def __init__(self) -> None:
        self.states: dict[tuple[Any, ...], Any] = {}

    def resume(self, question: tuple[Any, ...], start: Any) -> Any:
        return self.states.get(question, start)

    def pause(self, question: tuple[Any, ...], state: Any) -> None:
        self.states[question] = state
        raise _TurnError


def _log(*sizes: int) -> bytearray:
    """Batches of one record each, offsets from 0 on."""
    data = bytearray()
    for offset, size in enumerate(sizes):
        batch = bytearray(batch_of_size(size))
        rewrite_offset_and_epoch(batch, 0, offset, 0)
        data += batch
    return data


def _scan(data: bytes | bytearray, window: int, size: int | None = None) -> BatchScan:
    return BatchScan(ReadFile(bytes(data)), len(data) if size is None else size, window_bytes=window)


def _found(scan: BatchScan) -> list[tuple[int, int]]:
    """(position, base offset) of all batches."""
    found, position = [], 0
    while (batch := scan.at_or_after(position)) is not None:
        found.append((batch.position, batch.header.base_offset))
        position = batch.end
    return found


STARTS = [(sum(SIZES[:number]), number) for number in range(len(SIZES))]


@pytest.mark.parametrize("window", WINDOWS)
def test_every_batch_is_found_whatever_the_window(window: int) -> None:
    assert _found(_scan(_log(*SIZES), window)) == STARTS


@each_case("window", WINDOWS)
@each_case("number", range(len(SIZES)))
@each_case("part", ["value", "length", "magic"])
def test_only_a_damaged_batch_is_passed_over(part: str, number: int, window: int) -> None:
    data = _log(*SIZES)
    start = STARTS[number][0]
    position = {"value": start + SIZES[number] - 1, "length": start + 9, "magic": start + MAGIC_POSITION}[part]
    data[position] ^= 0x10
    assert _found(_scan(data, window)) == [*STARTS[:number], *STARTS[number + 1 :]]


@pytest.mark.parametrize("window", [*WINDOWS[:2], pytest.param(WINDOWS[2], marks=pytest.mark.soak)])
def test_bytes_between_batches_are_searched_one_by_one(window: int) -> None:
    first, second = _log(300), _log(300, 300)[300:]
    for between in (1, MAGIC_POSITION, HEADER_SIZE - 1, HEADER_SIZE, window - 1, window // 2 + 1):
        assert _found(_scan(first + b"\x02" * between + second, window)) == [(0, 0), (300 + between, 1)]


def test_a_batch_within_the_value_of_a_damaged_one_is_none_of_the_log() -> None:
    outer = bytearray(batch_of_size(600))
    outer[400:480] = _log(80)  # which makes its checksum wrong
    assert _found(_scan(outer + _log(100, 100)[100:], 1000)) == [(600, 1)]


def test_offsets_out_of_the_wanted_range_are_none() -> None:
    data = _log(100, 100, 100)
    scan = _scan(data, 1000)
    assert scan.batch_at(100, 1, 1) is not None
    assert scan.batch_at(100, 2) is None
    assert scan.batch_at(100, 0, 0) is None
    found = scan.at_or_after(0, 2, 2)
    assert found is not None
    assert found.position == 200


def test_bytes_behind_the_size_do_not_count() -> None:
    data = _log(100, 100)
    assert _found(_scan(data, 1000, 199)) == [(0, 0)]
    assert _found(_scan(data[:150], 1000, 200)) == [(0, 0)], "the file became shorter meanwhile"


def test_a_long_search_stops_for_others_and_goes_on_where_it_was() -> None:
    for lost in (b"\x02" * 50 * PLACES_A_TURN, bytes(20 * SEARCHED_A_TURN)):
        file, pauses = ReadFile(lost + _log(100)), _Turns()
        found, turns = None, 0
        while found is None and turns < 100:
            turns += 1
            before = file.read
            with suppress(_TurnError):
                found = BatchScan(file, len(file.data), pauses, window_bytes=50_000).next_batch(0)
            assert file.read - before < 3 * SEARCHED_A_TURN
        assert found is not None
        assert found.position == len(lost)
        assert 20 <= turns <= 60


# --- Headers are walked as far as they are plausible, with few and short reads ----------------------------------------


@each_case("window", [100, 1000, SEEK_WINDOW, 1 << 16])
def test_every_header_is_found_whatever_the_window(window: int) -> None:
    sizes = [80, 100, 5000, 90, 70_000, 81, 4096]
    file = ReadFile(b"".join(map(batch_of_size, sizes)))
    found = list(HeaderScan(file, 0, len(file.data), window))
    assert [each.header.size for each in found] == sizes
    assert [each.position for each in found] == [sum(sizes[:number]) for number in range(len(sizes))]
    assert found[-1].end == len(file.data)


def test_small_batches_are_read_by_the_window_and_large_ones_by_their_headers() -> None:
    small = ReadFile(batch_of_size(100) * 50)
    assert len(list(HeaderScan(small, 0, 5000, 2500))) == 50
    assert small.reads == [(2500, 0), (2500, 2500)]
    large = ReadFile(batch_of_size(10_000) * 4)
    assert len(list(HeaderScan(large, 0, 40_000, 2500))) == 4
    assert large.reads == [(2500, 0), (HEADER_SIZE, 10_000), (HEADER_SIZE, 20_000), (HEADER_SIZE, 30_000)]


def test_it_stops_where_no_batch_begins_or_the_last_one_is_cut() -> None:
    one = batch_of_size(100)
    for rest in (b"", bytes(70), b"\x02" * 90, one[:99], one[:30]):
        file = ReadFile(one * 2 + rest)
        assert [each.position for each in HeaderScan(file, 0, len(file.data))] == [0, 100]


def test_a_file_that_became_shorter_meanwhile_ends_the_walk() -> None:
    file = ReadFile(batch_of_size(100) * 2)
    assert [each.position for each in HeaderScan(file, 0, 1000, 100)] == [0, 100]


@given(st.lists(st.tuples(st.integers(0, 3 * SEEK_WINDOW), st.integers(0, 12_000)), max_size=20))
def test_reads_through_a_window_are_those_of_the_file(reads: list[tuple[int, int]]) -> None:
    data = bytes(number % 251 for number in range(10_000))
    file = ReadFile(data)
    windowed = Windowed(file)
    for size, position in reads:
        assert windowed.pread(size, position) == data[position : position + size]
    assert all(size >= SEEK_WINDOW for size, _ in file.reads)


def test_reads_that_follow_each_other_take_one_window() -> None:
    file = ReadFile(bytes(3 * SEEK_WINDOW))
    windowed = Windowed(file)
    for position in range(0, 2 * SEEK_WINDOW, 128):
        assert len(windowed.pread(128, position)) == 128
    assert file.reads == [(SEEK_WINDOW, 0), (SEEK_WINDOW, SEEK_WINDOW)]
    assert len(windowed.pread(2 * SEEK_WINDOW, 100)) == 2 * SEEK_WINDOW
    assert file.reads[2:] == [(2 * SEEK_WINDOW, 100)]
