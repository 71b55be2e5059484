"""Producing by a form: the record that comes of it, and of one that is sent again."""

import html
import re

import pytest

import seglog
from seglog_console.changes import Fields, argv_of
from seglog_console.pages import BadInputError
from seglog_console.produce import CHANGES
from tests.support import each_case
from tests.unit.clients.console.conftest import Visitor

RECORDS: dict[str, tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = {
    "text": (b"k", b"two\nlines\tand <b>&amp;", [("h", b"v=w")]),
    "json": (None, b'{"a": 1.10, "b": "\\u00e9"}', []),
    "empty": (b"", b"", [("", b"")]),
    "tombstone": (b"gone", None, []),
    "bytes": (
        b"\x00\xff",
        b"\xff\x00",
        [("none", None), ("bytes", b"\xfe"), ("a=b", b"c"), ("{", b"}"), ("s", b" x ")],
    ),
    "line ends": (b"a\r\nb", b"\n\nbegins with lines\r\n", [("h", b"a\nb")]),
    "shell": (b"$(id) `id` 'q'", b'it\'s "quoted" \\ $HOME %s !', [("$x", b"'")]),
    "controls": (b"\x1b[31m", "\u202eturned".encode(), []),
}


@each_case("name", RECORDS)
def test_a_record_that_is_sent_again_is_the_same(visitor: Visitor, client: seglog.Client, name: str) -> None:
    key, value, headers = RECORDS[name]
    topic = f"again-{name.replace(' ', '-')}"
    client.create_topic(topic, 2)
    with client.producer(topic) as producer:
        producer.send(value, key=key, partition=1, headers=headers)
    visitor.see(f"/topics/{topic}/1/records/0")
    assert "Send offset 0 again" in visitor.see(f"/topics/{topic}/produce?partition=1&like=0")
    visitor.send("/change/produce", **fields_of(visitor.html))
    assert visitor.send("/change/produce").count("It has ended well") == 1
    with client.consumer(topic) as consumer:
        first, second = consumer
    assert (second.partition, second.offset) == (1, 1)
    assert (second.key, second.value, second.headers) == (first.key, first.value, first.headers)


def fields_of(page: str) -> dict[str, str]:
    """What a browser would send of the form of a page."""
    areas = re.findall(r'<textarea [^>]*name="(\w+)"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    inputs = re.findall(r'<input id="\w+" name="(\w+)"(?: type="\w+"[^>]*?)? value="([^"]*)"', page)
    return {name: html.unescape(text).replace("\n", "\r\n") for name, text in areas + inputs}


def test_a_large_record_is_sent_again_by_a_command(visitor: Visitor, client: seglog.Client) -> None:
    client.create_topic("large")
    with client.producer("large") as producer:
        producer.send(b"x" * 50_000)
    page = visitor.see("/topics/large/produce?partition=0&like=0")
    assert "too large for a form" in page
    assert re.search(r"--from 0 --count 1 --format json \| seglog --server [\w.:]+ produce large --format json", page)
    assert "<textarea" not in visitor.html
    visitor.see("/topics/large/produce?partition=0&like=1")
    assert visitor.status == 400


@each_case(
    ("fields", "line"),
    [
        ({"value": "x"}, '{"value": "x"}'),
        ({}, '{"value": ""}'),
        ({"rest": '{"value_base64": "AP8="}'}, '{"value_base64": "AP8="}'),
        ({"rest": '{"value": null, "timestamp": 5}', "key": "k"}, '{"key": "k", "value": null, "timestamp": 5}'),
    ],
)
def test_fields_become_a_record_that_consume_would_print(fields: dict[str, str], line: str) -> None:
    [produce] = CHANGES
    assert produce.given is not None
    given = Fields({"topic": "t", "partition": "2"} | fields)
    assert produce.given(given) == line
    assert argv_of(produce.command, given) == ["produce", "t", "--format", "json", "--envelope", "--partition", "2"]


@each_case(
    "fields",
    [{"rest": "{"}, {"rest": "[]"}, {"rest": '{"color": 1}'}, {"value": "x", "rest": '{"value_base64": "AP8="}'}],
)
def test_what_is_wrong_is_said_before_a_command_is_shown(fields: dict[str, str]) -> None:
    assert CHANGES[0].given is not None
    with pytest.raises(BadInputError):
        CHANGES[0].given(Fields(fields))
