"""JSON files with a checksum: every flipped bit is noticed."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from seglog_broker.storage.io.small_files import MalformedJsonError, seal, seal_members, unseal
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
