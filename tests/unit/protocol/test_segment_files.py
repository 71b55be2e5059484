"""Segment file names, and index entries and their search held against plain lists."""

from bisect import bisect_right
from collections.abc import Callable

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


@each_case(
    ("find", "encode", "most"),
    [
        (files.find_offset_floor, files.encode_offset_entry, files.RELATIVE_OFFSET_MAX),
        (files.find_position_floor, lambda value, number: files.encode_offset_entry(number, value), 2**31 - 1),
        (files.find_time_floor, files.encode_time_entry, 2**63 - 1),
    ],
)
@given(data=st.data())
def test_a_floor_is_that_of_a_sorted_list(
    find: Callable[[bytes, int, int], int], encode: Callable[[int, int], bytes], most: int, data: st.DataObject
) -> None:
    values = sorted(data.draw(st.sets(st.integers(0, most), max_size=50)))
    entries = b"".join(encode(value, number) for number, value in enumerate(values))
    for target in (*data.draw(st.lists(st.integers(-1, most), min_size=1, max_size=10)), *values):
        assert find(entries, len(values), target) == bisect_right(values, target) - 1


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
    ("data", "log_size", "problem"),
    [
        (b"", 0, None),
        (b"", 1000, None),
        (_offset_index((0, 1)), 2, None),  # an entry for the base offset itself passes
        (_offset_index((4, 41), (8, 82)), 83, None),
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
def test_an_unsound_offset_index_is_named(data: bytes, log_size: int, problem: str | None) -> None:
    assert files.offset_index_problem(data, log_size) == problem


@each_case(
    ("data", "problem"),
    [
        (b"", None),
        (_time_index((5, 0)), None),
        (_time_index((5, 3), (6, 3)), None),
        (_time_index((0, 0), (6, 3)), None),
        (bytes(13), "its size 13 is not a multiple of 12"),
        (_time_index((5, -1)), "an entry names an offset below the base"),
        (_time_index((5, 1), (6, -1)), "an entry names an offset below the base"),
        (_time_index((5, 1), (5, 2)), "its entries do not rise"),
        (_time_index((5, 2), (6, 1)), "its entries do not rise"),
        (_time_index((5, 2)) + bytes(12), "its entries do not rise"),
    ],
)
def test_an_unsound_time_index_is_named(data: bytes, problem: str | None) -> None:
    assert files.time_index_problem(data) == problem


@given(st.binary(max_size=100), st.integers(0, 2**31))
def test_any_bytes_are_judged_and_searched_without_an_error(data: bytes, target: int) -> None:
    files.offset_index_problem(data, target)
    files.time_index_problem(data)
    assert -1 <= files.find_offset_floor(data, len(data) // 8, target) < max(len(data) // 8, 1)
    assert -1 <= files.find_position_floor(data, len(data) // 8, target) < max(len(data) // 8, 1)
    assert -1 <= files.find_time_floor(data, len(data) // 12, target) < max(len(data) // 12, 1)
