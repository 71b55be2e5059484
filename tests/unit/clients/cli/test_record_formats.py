"""Records as they are printed."""

import json
from datetime import UTC

from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.consume import json_formatter, raw_formatter, text_formatter
from seglog.core.records import Record


def record(
    key: bytes | None = b"k", value: bytes | None = b"v", headers: tuple[tuple[str, bytes | None], ...] = ()
) -> Record:
    return Record("t", 1, 7, 1546300800000, key, value, headers)


def test_json_has_exactly_the_promised_keys() -> None:
    assert list(json.loads(json_formatter()(record()))) == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    ]
    assert json.loads(json_formatter()(record(None, None))) == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "timestamp": 1546300800000,
        "key": None,
        "value": None,
        "headers": [],
    }


def test_what_is_not_utf_8_is_base64_under_a_name_that_says_so() -> None:
    shown = json.loads(json_formatter()(record(b"\xff", b"\xfe", (("h", b"\xfd"), ("h", None), ("i", b"x")))))
    assert (shown["key_base64"], shown["value_base64"]) == ("/w==", "/g==")
    assert "key" not in shown
    assert shown["headers"] == [
        {"key": "h", "value_base64": "/Q=="},
        {"key": "h", "value": None},
        {"key": "i", "value": "x"},
    ]


@given(st.none() | st.binary(), st.none() | st.binary())
def test_one_record_is_always_one_line_of_valid_json(key: bytes | None, value: bytes | None) -> None:
    line = json_formatter()(record(key, value))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    json.loads(line)


def test_text_shows_what_was_asked_for_and_raw_the_value_alone() -> None:
    one = record(None, b"v", (("a", b"1"), ("b", None)))
    assert text_formatter(keys=False, headers=False, offsets=False, zone=UTC)(one) == b"v\n"
    assert (
        text_formatter(keys=True, headers=True, offsets=True, zone=UTC)(one)
        == b"1:7\t2019-01-01T00:00:00.000Z\ta=1,b=null\tnull\tv\n"
    )
    assert raw_formatter()(one) == b"v"
    assert raw_formatter()(record(value=None)) == b""
