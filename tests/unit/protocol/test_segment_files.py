"""Segment file names, and index entries and their search held against plain lists."""

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol import segment_files as files
from tests.support import each_case

_GOLDEN_INDEX = bytes.fromhex(
    "000000030000007500000005000000ea000000070000015f00000009000001d40000000b00000249"  # A8, base 1000
)
_GOLDEN_TIME_INDEX = bytes.fromhex("00000000000003e90000000300000000000003ea00000005000000000000138800000007")


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (0, "00000000000000000000.log"),
        (42, "00000000000000000042.log"),
        (2**63 - 1, "09223372036854775807.log"),
    ],
)
def test_a_file_name_is_the_base_offset_in_twenty_digits(base: int, name: str) -> None:
    assert files.segment_file_name(base, files.LOG_SUFFIX) == name
    assert files.parse_segment_file_name(name) == (base, ".log")


def test_names_sort_as_their_offsets_do() -> None:
    offsets = [0, 9, 10, 99, 2**31, 2**32 + 1, 2**63 - 1]
    assert sorted(files.segment_file_name(offset, ".log") for offset in reversed(offsets)) == [
        files.segment_file_name(offset, ".log") for offset in offsets
    ]


@given(st.integers(0, files.OFFSET_MAX), st.sampled_from(files.SEGMENT_SUFFIXES), st.sampled_from(["", ".swap"]))
def test_every_name_is_parsed_back(base: int, suffix: str, marker: str) -> None:
    name = files.segment_file_name(base, suffix) + marker
    assert files.parse_segment_file_name(name) == (base, suffix + marker)


@each_case(
    "name",
    [
        "",
        ".log",
        "42.log",
        "0000000000000000042.log",
        "000000000000000000042.log",
        "00000000000000000042",
        "00000000000000000042.",
        "0000000000000000004x.log",
        "-0000000000000000042.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤٢.log",  # digits, but not ours
        "09223372036854775808.log",  # one above the largest offset
        "99999999999999999999.log",
        "leader-epoch-checkpoint",
        "00000000000000000042.log\n",
        "x00000000000000000042.log",
    ],
)
def test_other_names_are_no_segment_files(name: str) -> None:
    assert files.parse_segment_file_name(name) is None


def test_the_golden_offset_index_says_what_kafka_put_into_it() -> None:
    entries = [(3, 117), (5, 234), (7, 351), (9, 468), (11, 585)]
    assert list(files.offset_entries(_GOLDEN_INDEX)) == entries
    assert b"".join(files.encode_offset_entry(*entry) for entry in entries) == _GOLDEN_INDEX
    assert files.offset_index_problem(_GOLDEN_INDEX, 702) is None


def test_the_golden_time_index_says_what_kafka_put_into_it() -> None:
    entries = [(1001, 3), (1002, 5), (5000, 7)]
    assert list(files.time_entries(_GOLDEN_TIME_INDEX)) == entries
    assert b"".join(files.encode_time_entry(*entry) for entry in entries) == _GOLDEN_TIME_INDEX
    assert files.time_index_problem(_GOLDEN_TIME_INDEX) is None


@given(
    st.lists(st.integers(0, files.RELATIVE_OFFSET_MAX), unique=True, max_size=50).map(sorted),
    st.lists(st.integers(-1, files.RELATIVE_OFFSET_MAX), min_size=1, max_size=10),
)
def test_the_offset_floor_is_that_of_a_sorted_list(offsets: list[int], wanted: list[int]) -> None:
    data = b"".join(files.encode_offset_entry(offset, 10 * number) for number, offset in enumerate(offsets))
    for target in (*wanted, *offsets):
        assert files.find_offset_floor(data, len(offsets), target) == bisect_right(offsets, target) - 1


@given(
    st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=50).map(sorted),
    st.lists(st.integers(-1, 2**31), min_size=1, max_size=10),
)
def test_the_position_floor_is_that_of_a_sorted_list(positions: list[int], wanted: list[int]) -> None:
    data = b"".join(files.encode_offset_entry(number, position) for number, position in enumerate(positions))
    for target in (*wanted, *positions):
        assert files.find_position_floor(data, len(positions), target) == bisect_right(positions, target) - 1


@given(
    st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=50).map(sorted),
    st.lists(st.integers(-1, 2**63 - 1), min_size=1, max_size=10),
)
def test_the_time_floor_is_that_of_a_sorted_list(times: list[int], wanted: list[int]) -> None:
    data = b"".join(files.encode_time_entry(time, number) for number, time in enumerate(times))
    for target in (*wanted, *times):
        assert files.find_time_floor(data, len(times), target) == bisect_right(times, target) - 1


def test_only_the_first_entries_are_searched_when_told_so() -> None:
    assert files.find_offset_floor(_GOLDEN_INDEX, 2, 100) == 1
    assert files.find_offset_floor(_GOLDEN_INDEX, 0, 100) == -1


def test_half_an_entry_at_the_end_is_not_listed() -> None:
    assert len(list(files.offset_entries(_GOLDEN_INDEX[:21]))) == 2
    assert len(list(files.time_entries(_GOLDEN_TIME_INDEX[:35]))) == 2


def _offset_index(*entries: tuple[int, int]) -> bytes:
    return b"".join(files.encode_offset_entry(*entry) for entry in entries)


def _time_index(*entries: tuple[int, int]) -> bytes:
    return b"".join(files.encode_time_entry(*entry) for entry in entries)


@each_case(
    ("data", "log_size"),
    [
        (b"", 0),
        (b"", 1000),
        (_offset_index((0, 1)), 2),  # an entry for the base offset itself passes
        (_offset_index((4, 41), (8, 82)), 83),
    ],
)
def test_sound_offset_indexes_have_no_problem(data: bytes, log_size: int) -> None:
    assert files.offset_index_problem(data, log_size) is None


@each_case(
    ("data", "log_size", "problem"),
    [
        (bytes(21), 1000, "its size 21 is not a multiple of 8"),
        (b"xy", 1000, "its size 2 is not a multiple of 8"),
        (_offset_index((4, 41), (8, 82)), 82, "its last entry points at 82, the log ends at 82"),
        (_offset_index((4, 41)), 0, "its last entry points at 41, the log ends at 0"),
        (_offset_index((-1, 41)), 100, "its first entry is negative"),
        (_offset_index((1, -41)), 100, "its first entry is negative"),
        (_offset_index((4, 41), (4, 82)), 100, "its entries do not rise"),
        (_offset_index((4, 41), (8, 41)), 100, "its entries do not rise"),
        (_offset_index((4, 41)) + bytes(8), 100, "its entries do not rise"),  # zeros that Kafka did not trim
        (bytes(16), 100, "its entries do not rise"),
    ],
)
def test_an_unsound_offset_index_is_named(data: bytes, log_size: int, problem: str) -> None:
    assert files.offset_index_problem(data, log_size) == problem


@each_case("data", [b"", _time_index((5, 0)), _time_index((5, 3), (6, 3)), _time_index((0, 0), (6, 3))])
def test_sound_time_indexes_have_no_problem(data: bytes) -> None:
    assert files.time_index_problem(data) is None


@each_case(
    ("data", "problem"),
    [
        (bytes(13), "its size 13 is not a multiple of 12"),
        (_time_index((5, -1)), "an entry names an offset below the base"),
        (_time_index((5, 1), (6, -1)), "an entry names an offset below the base"),
        (_time_index((5, 1), (5, 2)), "its entries do not rise"),
        (_time_index((5, 2), (6, 1)), "its entries do not rise"),
        (_time_index((5, 2)) + bytes(12), "its entries do not rise"),
    ],
)
def test_an_unsound_time_index_is_named(data: bytes, problem: str) -> None:
    assert files.time_index_problem(data) == problem


@given(st.binary(max_size=100), st.integers(0, 2**31))
def test_any_bytes_are_judged_and_searched_without_an_error(data: bytes, target: int) -> None:
    files.offset_index_problem(data, target)
    files.time_index_problem(data)
    assert -1 <= files.find_offset_floor(data, len(data) // 8, target) < max(len(data) // 8, 1)
    assert -1 <= files.find_position_floor(data, len(data) // 8, target) < max(len(data) // 8, 1)
    assert -1 <= files.find_time_floor(data, len(data) // 12, target) < max(len(data) // 12, 1)
