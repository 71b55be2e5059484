"""Headers are walked as far as they are plausible, with few and short reads."""

from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.header_scan import SEEK_WINDOW, HeaderScan, Windowed
from seglog_protocol.record_batch import HEADER_SIZE
from tests.logs import batch_of_size
from tests.support import each_case
from tests.unit.protocol.files import ReadFile


@each_case("window", [100, 1000, SEEK_WINDOW, 1 << 16])
def test_every_batch_is_found_whatever_the_window(window: int) -> None:
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
