"""Kafka's checkpoint format: written, read, and malformed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.io.small_files import read_offsets
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.checkpoint_files import (
    MalformedCheckpointError,
    decode_checkpoint,
    decode_offsets,
    encode_checkpoint,
    encode_offsets,
)
from tests.support import each_case


def test_offsets_are_written_as_kafka_does() -> None:
    golden = b"0\n2\na 0 5\nb-c 12 7\n"  # A10
    offsets = {("b-c", 12): 7, ("a", 0): 5}
    assert encode_offsets(offsets) == golden
    assert decode_offsets(golden) == offsets


def test_leader_epochs_are_written_as_kafka_does() -> None:
    golden = b"0\n2\n0 0\n3 17\n"  # A10
    assert encode_checkpoint([(0, 0), (3, 17)]) == golden
    assert decode_checkpoint(golden, 2) == [["0", "0"], ["3", "17"]]


def test_no_entries_are_a_count_of_zero() -> None:
    assert encode_offsets({}) == b"0\n0\n"
    assert decode_offsets(b"0\n0\n") == {}


@each_case("content", [b"", b"0", b"0\n", b"0\n0", b" 0 \n 0 \n"])
def test_an_empty_file_and_one_with_only_a_version_have_no_entries(content: bytes) -> None:
    assert decode_offsets(content) == {}


@each_case(
    "content", [b"0\n1\na.b-c   3\t 7\n", b"0\n1\na.b-c 3 7", b"0\r\n1\r\na.b-c 3 7\r\n", b" 0\n1 \n a.b-c 3 7 \n"]
)
def test_any_white_space_separates(content: bytes) -> None:
    assert decode_offsets(content) == {("a.b-c", 3): 7}


@each_case(
    ("content", "problem"),
    [
        (b"1\n0\n", "not version 0"),
        (b"\n", "not version 0"),
        (b"x\n", "not version 0"),
        (b"0\n2\na 0 5\n", "announces '2' entries, there are 1"),
        (b"0\n0\na 0 5\n", "announces '0' entries, there are 1"),
        (b"0\nx\na 0 5\n", "announces 'x'"),
        (b"0\n-1\n", "announces '-1'"),
        (b"0\n1\na 0\n", "line 3 has 2 fields, not 3"),
        (b"0\n2\na 0 1\na 1 2 3\n", "line 4 has 4 fields, not 3"),
        (b"0\n2\na 0 1\n\n", "line 4 has 0 fields"),
        (b"0\n1\na x 5\n", "invalid literal"),
        (b"0\n1\na 0 5.0\n", "invalid literal"),
        (b"0\n1\na 0 -1\n", "is not a valid partition and offset"),
        (b"0\n1\na -1 0\n", "is not a valid partition and offset"),
        (b"0\n1\na 0 9223372036854775808\n", "is not a valid partition and offset"),
        (b"\xff\xfe", "not UTF-8"),
        (bytes(20), "not version 0"),
    ],
)
def test_a_malformed_file_is_an_error_that_says_where(content: bytes, problem: str) -> None:
    with pytest.raises(MalformedCheckpointError, match=problem):
        decode_offsets(content)


@given(
    st.dictionaries(
        st.tuples(st.text("ab.-_9", min_size=1, max_size=10), st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)
    )
)
def test_every_map_is_read_back(offsets: dict[tuple[str, int], int]) -> None:
    assert decode_offsets(encode_offsets(offsets)) == offsets


@given(st.one_of(st.binary(max_size=60), st.text("012 a-\n", max_size=30).map(str.encode)))
def test_any_bytes_give_offsets_or_the_one_error(content: bytes) -> None:
    try:
        decode_offsets(content)
    except MalformedCheckpointError:
        return


def test_where_there_is_no_file_there_are_no_offsets() -> None:
    fs = ForgetfulFileSystem()
    assert read_offsets(fs, "/recovery-point-offset-checkpoint") == {}
    fs.load({"/recovery-point-offset-checkpoint": b"0\n1\na 0 5\n"})
    assert read_offsets(fs, "/recovery-point-offset-checkpoint") == {("a", 0): 5}
