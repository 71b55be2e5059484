"""Bytes of others as text: the kind that is chosen, each kind in a line and in lines, and what hostile bytes cost."""

from html import escape
from itertools import product
from types import SimpleNamespace

import msgpack
import pytest

from seglog_console import values
from seglog_console.values import KINDS, PARSED_BYTES_MAX, shown
from tests.support import each_case


@each_case(
    ("content", "kind", "line", "lines"),
    [
        (None, "none", "", ""),
        (b"", "text", "", ""),
        (b"a b", "text", "a b", "a b"),
        ("Grüße".encode(), "text", "Grüße", "Grüße"),
        (b'{"a": 1.10,"a":[2, {}],"b":[]}', "json", '{"a": 1.10, "a": [2, {}], "b": []}', None),
        (b'{"not": JSON}', "text", '{"not": JSON}', '{"not": JSON}'),
        (b"\x00\x01\xffab", "hex", "00 01 ff 61 62  |...ab|", None),
        (b"\x1b[31mred\nx", "text", "\\x1b[31mred\\nx", "\\x1b[31mred\nx"),
        ("\u202eturned".encode(), "text", "\\u202eturned", "\\u202eturned"),
        (msgpack.packb({"a": b"\x00", 1: None}), "msgpack", "{\"a\": h'00', 1: null}", None),
        (b"\x91\xc1", "hex", "91 c1  |..|", None),
        (msgpack.packb([msgpack.Timestamp(1, 5), msgpack.ExtType(4, b"\xff")]), "msgpack", None, None),
    ],
)
def test_the_kind_of_a_value_is_chosen_by_its_bytes(
    content: bytes | None, kind: str, line: str | None, lines: str | None
) -> None:
    short, long = shown(content, "auto", 500, is_long=False), shown(content, "auto", 500, is_long=True)
    assert (short.kind, long.kind, short.is_cut, short.note) == (kind, kind, False, "")
    assert line is None or short.text == line
    assert lines is None or long.text == lines


def test_json_is_indented_as_it_was_written() -> None:
    text = shown(b'{"a":1.10,"b":[1,{}],"c":[]}', "json", 500, is_long=True).text
    assert text == '{\n  "a": 1.10,\n  "b": [\n    1,\n    {}\n  ],\n  "c": []\n}'


def test_hex_has_a_column_of_ascii() -> None:
    assert shown(bytes(range(60, 80)), "hex", 500, is_long=True).text.split("\n") == [
        "00000000  3c 3d 3e 3f 40 41 42 43  44 45 46 47 48 49 4a 4b  |<=>?@ABCDEFGHIJK|",
        "00000010  4c 4d 4e 4f                                       |LMNO|",
    ]


@each_case("kind", ["json", "msgpack"])
@each_case("content", [b"plain text", b"\xc1", b"x" * (PARSED_BYTES_MAX + 1)])
def test_what_is_not_of_the_kind_that_was_chosen_says_so_and_is_hex(kind: str, content: bytes) -> None:
    found = shown(content, kind, 500, is_long=False)
    assert found.kind == "hex"
    assert found.note.startswith(f"not {kind}: ")


HOSTILE = {
    "markup": b"<script>alert(1)</script>" * 50_000,
    "quotes": b'"' * 300_000,
    "controls": b"\x1b]0;title\x07" * 50_000,
    "deep JSON": b"[" * 100_000 + b"]" * 100_000,
    "wide JSON": b"[" * 200 + b"1," * 60_000 + b"1" + b"]" * 200,
    "deep msgpack": b"\x91" * 100_000 + b"\xc0",
    "deep as far as it goes": b"\x91" * 1000 + b"\xc0",
    "a length beyond the end": b"\xdd\xff\xff\xff\xff\x01",
    "not UTF-8": b"\xc3\x28" * 200_000,
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "large": bytes(10_000_000),
}


@each_case("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_whatever_a_value_is_its_html_is_bounded_and_has_no_control_characters(content: bytes) -> None:
    for kind, is_long in product(KINDS, (False, True)):
        found = shown(content, kind, 700, is_long=is_long)
        assert len(escape(found.text).encode()) <= 700
        assert all(character.isprintable() or character == "\n" for character in found.text)
        assert found.is_cut or len(content) < 2000


def test_no_more_of_a_large_value_is_made_text_than_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def dumps(value: int, **_: object) -> str:
        made.append(value)
        return "1"

    monkeypatch.setattr(values, "json", SimpleNamespace(dumps=dumps))
    assert shown(b"\xdd\x00\x03\x00\x00" + b"\x01" * 0x30000, "auto", 600, is_long=False).kind == "msgpack"
    assert len(made) < 1000
