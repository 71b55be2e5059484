"""Records as they are printed, and lines of JSON as records: key, timestamp, and why one is bad."""

import json
from datetime import UTC

import pytest

from seglog.cli.consume import json_formatter, raw_formatter, text_formatter
from seglog.cli.exits import InputError
from seglog.cli.input_records import JsonLines
from seglog.core.records import Record
from tests.support import each_case


def record(
    key: bytes | None = b"k", value: bytes | None = b"v", headers: tuple[tuple[str, bytes | None], ...] = ()
) -> Record:
    return Record("t", 1, 7, 1546300800000, key, value, headers)


def test_json_has_exactly_the_promised_keys() -> None:
    assert list(json.loads(json_formatter()(record(None, None))).items()) == [
        ("topic", "t"),
        ("partition", 1),
        ("offset", 7),
        ("timestamp", 1546300800000),
        ("key", None),
        ("value", None),
        ("headers", []),
    ]


def test_what_is_not_utf_8_is_base64_under_a_name_that_says_so() -> None:
    shown = json.loads(json_formatter()(record(b"\xff", b"\xfe", (("h", b"\xfd"), ("h", None), ("i", b"x")))))
    assert (shown["key_base64"], shown["value_base64"]) == ("/w==", "/g==")
    assert "key" not in shown
    assert shown["headers"] == [
        {"key": "h", "value_base64": "/Q=="},
        {"key": "h", "value": None},
        {"key": "i", "value": "x"},
    ]


def test_text_shows_what_was_asked_for_and_raw_the_value_alone() -> None:
    one = record(None, b"v", (("a", b"1"), ("b", None)))
    assert text_formatter(keys=False, headers=False, offsets=False, zone=UTC)(one) == b"v\n"
    assert (
        text_formatter(keys=True, headers=True, offsets=True, zone=UTC)(one)
        == b"1:7\t2019-01-01T00:00:00.000Z\ta=1,b=null\tnull\tv\n"
    )
    assert raw_formatter()(one) == b"v"
    assert raw_formatter()(record(value=None)) == b""


# --- One line of JSON: its key, its timestamp, and why it is bad ------------------------------------------------------


TS = 1312242084000


@each_case(
    ("line", "key"),
    [
        (b'{"k":"a"}', b"a"),
        ('{"k":"ä"}'.encode(), "ä".encode()),
        (b'{"k":"\\u00e4"}', "ä".encode()),
        (b'{"k":""}', b""),
        (b'{"k":null}', None),
        (b'{"k":7}', b"7"),
        (b'{"k":1.5}', b"1.5"),
        (b'{"k":true}', b"true"),
        (b'{"k":{"a": [1, "\xc3\xa4"]}}', '{"a":[1,"ä"]}'.encode()),
    ],
)
def test_a_key_is_text_as_it_is_or_json(line: bytes, key: bytes | None) -> None:
    assert JsonLines(key_field="k").parse(line)[:3] == (key, line, None)


@each_case(
    ("unit", "text", "timestamp"),
    [
        ("ms", "1312242084000", TS),
        ("ms", "1312242084000.0", TS),
        ("ms", "0", 0),
        ("s", "1312242084", TS),
        ("s", "1312242084.0006", TS + 1),
        ("iso", '"2011-08-01T23:41:24Z"', TS),
        ("iso", '"2011-08-01T23:41:24"', TS),
        ("iso", '"2011-08-02T01:41:24+02:00"', TS),
    ],
)
def test_a_timestamp_in_every_unit(unit: str, text: str, timestamp: int) -> None:
    line = f'{{"t":{text}}}'.encode()
    assert JsonLines(None, "t", unit).parse(line) == (None, line, timestamp, ())


@each_case(
    ("unit", "line", "complaint"),
    [
        ("ms", b"{", "not JSON"),
        ("ms", b"{} {}", "not JSON"),
        ("ms", b'{"t":NaN}', "not JSON"),
        ("ms", b'{"t":"\xff"}', "not UTF-8 at byte 6"),
        ("ms", b"[" * 100_000, "not JSON"),
        ("ms", b'{"t":' + b"9" * 5000 + b"}", "not JSON"),
        ("ms", b"[1]", "not a JSON object"),
        ("ms", b'"t"', "not a JSON object"),
        ("ms", b"{}", "no field 't'"),
        ("ms", b'{"t":"1"}', "not a number"),
        ("ms", b'{"t":true}', "not a number"),
        ("ms", b'{"t":null}', "not a number"),
        ("ms", b'{"t":1.5}', "not a whole number"),
        ("ms", b'{"t":1e400}', "not a number"),
        ("ms", b'{"t":-1}', "not a time since 1970"),
        ("ms", b'{"t":9223372036854775808}', "not a time since 1970"),
        ("s", b'{"t":9223372036854775807}', "not a time since 1970"),
        ("iso", b'{"t":"yesterday"}', "not an ISO 8601"),
        ("iso", b'{"t":1}', "not an ISO 8601"),
        ("iso", b'{"t":"1969-12-31"}', "not a time since 1970"),
    ],
)
def test_why_a_line_is_bad(unit: str, line: bytes, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        JsonLines(None, "t", unit).parse(line)


def test_without_fields_any_json_will_do() -> None:
    assert JsonLines().parse(b"[1]") == (None, b"[1]", None, ())
    with pytest.raises(InputError):
        JsonLines().parse(b"nope")
