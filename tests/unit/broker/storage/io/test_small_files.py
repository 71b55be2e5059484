"""Small files: JSON with a checksum, of which every flipped bit is noticed, and Kafka's checkpoints."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.io.small_files import MalformedJsonError, read_offsets, seal, seal_members, unseal
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.checkpoint_files import (
    MalformedCheckpointError,
    decode_checkpoint,
    decode_offsets,
    encode_checkpoint,
    encode_offsets,
)
from tests.support import each_case

_FACTS = {"version": 1, "next": 2000, "names": ["crc", 'a "quoted" }']}


def seal_lines(facts: dict[str, Any]) -> bytes:
    return seal_members(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())


@pytest.mark.parametrize("write", [seal, seal_lines])
def test_what_was_sealed_is_json_and_is_read_back(write: Callable[[dict[str, Any]], bytes]) -> None:
    content = write(_FACTS)
    assert content.endswith(b"}\n")
    assert json.loads(content) | {"crc": ""} == _FACTS | {"crc": ""}
    assert unseal(content, ()) == _FACTS


@pytest.mark.parametrize("write", [seal, seal_lines])
def test_every_bit_that_turns_and_every_cut_is_noticed(write: Callable[[dict[str, Any]], bytes]) -> None:
    content = write(_FACTS)
    for position in range(len(content)):
        for bit in range(8):
            turned = bytearray(content)
            turned[position] ^= 1 << bit
            with pytest.raises(MalformedJsonError):
                unseal(bytes(turned), _FACTS)
        with pytest.raises(MalformedJsonError):
            unseal(content[:position], _FACTS)


def test_a_file_of_an_earlier_version_is_read_but_not_with_a_key_that_is_unknown() -> None:
    assert unseal(b'{"version": 1, "next": 5}', {"version", "next"}) == {"version": 1, "next": 5}
    with pytest.raises(MalformedJsonError, match="'nexu'"):
        unseal(b'{"version": 1, "nexu": 5}', {"version", "next"})


@each_case("content", [b"", b"{", b"[]", b"3", b"\xff", b'{"crc": 5}', b'{"crc": "00000000"}\n'])
def test_what_is_no_such_file_is_refused(content: bytes) -> None:
    with pytest.raises(MalformedJsonError):
        unseal(content, ())


# --- Kafka's checkpoint format: written, read, and malformed ----------------------------------------------------------


def test_offsets_and_epochs_are_written_as_kafka_does() -> None:
    golden = b"0\n2\na 0 5\nb-c 12 7\n"  # A10
    assert encode_offsets({("b-c", 12): 7, ("a", 0): 5}) == golden
    assert decode_offsets(golden) == {("b-c", 12): 7, ("a", 0): 5}
    assert encode_offsets({}) == b"0\n0\n"
    golden = b"0\n2\n0 0\n3 17\n"  # A10
    assert encode_checkpoint([(0, 0), (3, 17)]) == golden
    assert decode_checkpoint(golden, 2) == [["0", "0"], ["3", "17"]]


@each_case(
    ("content", "offsets"),
    [
        *((content, {}) for content in (b"", b"0", b"0\n", b"0\n0", b"0\n0\n", b" 0 \n 0 \n")),
        *(  # any white space separates
            (content, {("a.b-c", 3): 7})
            for content in (
                *(b"0\n1\na.b-c   3\t 7\n", b"0\n1\na.b-c 3 7"),
                *(b"0\r\n1\r\na.b-c 3 7\r\n", b" 0\n1 \n a.b-c 3 7 \n"),
            )
        ),
    ],
)
def test_an_empty_file_has_no_entries_and_any_white_space_separates(
    content: bytes, offsets: dict[tuple[str, int], int]
) -> None:
    assert decode_offsets(content) == offsets


@each_case(
    ("content", "problem"),
    [
        (b"1\n0\n", "not version 0"),
        (b"0\n2\na 0 5\n", "announces '2' entries, there are 1"),
        (b"0\nx\na 0 5\n", "announces 'x'"),
        (b"0\n2\na 0 1\na 1 2 3\n", "line 4 has 4 fields, not 3"),
        (b"0\n1\na x 5\n", "invalid literal"),
        (b"0\n1\na 0 -1\n", "is not a valid partition and offset"),
        (b"0\n1\na -1 0\n", "is not a valid partition and offset"),
        (b"0\n1\na 0 9223372036854775808\n", "is not a valid partition and offset"),
        (b"\xff\xfe", "not UTF-8"),
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
