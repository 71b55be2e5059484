"""What ``consume`` prints, ``produce`` sends again: the same records, as JSON and as text with keys and headers."""

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.cli import main
from seglog.cli.consume import text_formatter
from seglog.cli.envelope import is_envelope, parse, to_json
from seglog.cli.exits import InputError
from seglog.cli.input_records import TextLines
from seglog.core.records import Record
from seglog_protocol.batch_builder import encode_batch
from tests.pages import reference
from tests.processes import Daemon, clean_environment, seglog
from tests.support import each_case, examples
from tests.unit.clients.fake_broker import FakeBroker, FakePartition, fake_broker

Headers = tuple[tuple[str, bytes | None], ...]
Sent = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp, key, value, headers."""

_CONTENTS = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
_NAMES = st.sampled_from(["h", "", "\x1b", "ä=,\t"]) | st.text(max_size=10)
_HEADERS = st.lists(st.tuples(_NAMES, _CONTENTS), max_size=4).map(tuple)
_RECORDS = st.tuples(st.integers(-1, 4_000_000_000_000), _CONTENTS, _CONTENTS, _HEADERS)


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with fake_broker(topics={"t": 1, "again": 1}) as running:
        yield running


def _run(broker: FakeBroker, *arguments: str, stdin: bytes = b"") -> bytes:
    """A command in this process that succeeds; its standard output."""
    out, before = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with redirect_stdout(out):
            assert main(["--server", broker.address, *arguments]) == 0
    finally:
        sys.stdin = before
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue()


def _filled(broker: FakeBroker, records: Sequence[Sent]) -> None:
    with broker.changed:
        broker.logs = {"t": [FakePartition()], "again": [FakePartition()]}
        broker.logs["t"][0].append(encode_batch(list(records)))


def _kept(broker: FakeBroker) -> list[Sent]:
    with broker.changed:
        records = broker.logs["again"][0].records()
    return [(record.timestamp, record.key, record.value, record.headers) for record in records]


# --- JSON -------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(st.lists(_RECORDS, min_size=1, max_size=5))
def test_json_that_was_printed_is_sent_as_the_same_records(broker: FakeBroker, records: list[Sent]) -> None:
    _filled(broker, records)
    printed = _run(broker, "consume", "t", "--format", "json")
    _run(broker, "produce", "again", "--format", "json", stdin=printed)
    assert _kept(broker) == records


@given(_RECORDS)
def test_the_line_of_a_record_is_known_and_gives_it_back(sent: Sent) -> None:
    timestamp, key, value, headers = sent
    line = to_json(Record("t", 3, 7, timestamp, key, value, headers)).encode()
    assert b"\n" not in line
    assert is_envelope(line)
    assert parse(line) == (key, value, timestamp, headers)


@each_case(
    "change",
    [{"more": 1}, {"timestamp": "1"}, {"offset": "7"}, {"partition": None}, {"topic": 1}, {"headers": {}}, {"key": 1}],
    ids=str,
)
def test_json_that_is_not_quite_a_record_is_a_value(broker: FakeBroker, change: dict[str, object]) -> None:
    line = json.dumps(json.loads(to_json(Record("t", 0, 7, 5, b"k", b"v", ()))) | change).encode()
    assert not is_envelope(line)
    _filled(broker, [(0, None, line, ())])
    _run(broker, "produce", "again", "--format", "json", stdin=line)
    assert [(key, value) for _, key, value, _ in _kept(broker)] == [(None, line)]


def test_a_record_as_json_can_be_a_value_if_that_is_asked_for(broker: FakeBroker) -> None:
    line = to_json(Record("t", 0, 7, 5, b"k", b"v", ())).encode()
    for more in (("--no-envelope",), ("--key-field", "key")):
        _filled(broker, [(0, None, b"", ())])
        _run(broker, "produce", "again", "--format", "json", *more, stdin=line)
        assert [value for _, _, value, _ in _kept(broker)] == [line], more


def test_what_is_sent_as_records_is_said(emptied: Daemon) -> None:
    line = to_json(Record("t", 0, 7, 5, b"k", None, (("h", b"\xff"), ("h", None)))).encode()
    done = seglog(emptied.address, "produce", "t", "--format", "json", "--header", "x=1", stdin=line)
    assert (done.returncode, b"--no-envelope sends the lines themselves" in done.stderr) == (0, True)
    assert b"note" not in seglog(emptied.address, "produce", "t", "--format", "json", "--envelope", stdin=line).stderr
    printed = seglog(emptied.address, "consume", "t", "--format", "json", "--from", "0", "--count", "1").stdout
    assert json.loads(printed) == json.loads(line) | {
        "offset": 0,
        "headers": [{"key": "h", "value_base64": "/w=="}, {"key": "h", "value": None}, {"key": "x", "value": "1"}],
    }


@each_case(
    ("line", "why"),
    [
        ("[1]", "not a JSON object"),
        ("{", "not JSON"),
        ("{}", "either 'value' or 'value_base64'"),
        ('{"value": 1}', "'value' is not text"),
        ('{"value_base64": null}', "'value_base64' is not text"),
        ('{"value_base64": "YQ"}', "'value_base64' is not base64"),
        (r'{"value": "\ud800"}', "half a surrogate pair"),
        ('{"value": "a", "vlaue": 1}', "no field 'vlaue'"),
        ('{"value": "a", "timestamp": 1.5}', "'timestamp' is not a whole number"),
        ('{"value": "a", "timestamp": -2}', "'timestamp' is not a whole number"),
        ('{"value": "a", "headers": 1}', "'headers' is not a list"),
        ('{"value": "a", "headers": [1]}', "a header is not an object"),
        ('{"value": "a", "headers": [{"key": "h"}]}', "either 'value' or 'value_base64'"),
        ('{"value": "a", "headers": [{"key": "h", "value": "a", "x": 1}]}', "no other field"),
        (r'{"value": "a", "headers": [{"key": "\ud800", "value": "a"}]}', "half a surrogate pair"),
    ],
)
def test_why_a_line_is_no_record(line: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse(line.encode())


def test_a_record_by_hand_needs_a_value_alone() -> None:
    assert parse(b'{"value": null}') == (None, None, None, ())
    assert parse(b'{"key": "k", "value": "v"}') == (b"k", b"v", None, ())


# --- Text -------------------------------------------------------------------------------------------------------------

_SIMPLE = st.none() | st.binary(max_size=10).filter(lambda b: b != b"NULL" and not set(b) & set(b"\r\n|=,"))
_SIMPLE_NAMES = st.text(max_size=5).filter(lambda name: not set(name) & set("\r\n|=,"))


@given(_SIMPLE, _SIMPLE, st.lists(st.tuples(_SIMPLE_NAMES, _SIMPLE), max_size=3).map(tuple))
def test_text_with_a_separator_that_is_in_none_of_it(key: bytes | None, value: bytes | None, headers: Headers) -> None:
    form = text_formatter(keys=True, headers=True, offsets=False, zone=None, separator="|", null="NULL")
    line = form(Record("t", 0, 0, 0, key, value, headers))
    lines = TextLines(keys=True, headers=True, separator=b"|", null=b"NULL")
    assert lines.parse(line.removesuffix(b"\n")) == (key, value, None, headers)


def test_keyed_text_with_headers_and_tombstones_in_and_out(emptied: Daemon) -> None:
    lines = b"a=1,a=2\tk\tv\tw\n\tgone\tnull\nb=null\tnull\t\n"
    sent = seglog(emptied.address, "produce", "t", "--keys", "--headers", "--null", "null", stdin=lines)
    assert sent.returncode == 0, sent.stderr
    assert seglog(emptied.address, "consume", "t", "--keys", "--headers").stdout == lines
    shown = seglog(emptied.address, "consume", "t", "--key-separator", " -> ", "--null", "-").stdout
    assert shown == b"k -> v\tw\ngone -> -\n- -> \n"
    kept = [json.loads(line) for line in seglog(emptied.address, "consume", "t", "--json").stdout.splitlines()]
    assert [(record["key"], record["value"]) for record in kept] == [("k", "v\tw"), ("gone", None), (None, "")]
    assert kept[0]["headers"] == [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]


@pytest.mark.parametrize(
    ("arguments", "lines", "why"),
    [
        (("--keys",), b"a\tb\nno\n", "line 2 is bad: no '\\t' after the key; 1 record before it sent"),
        (("--headers",), b"no\n", "line 1 is bad: no '\\t' after the headers"),
        (("--headers",), b"no\tv\n", "line 1 is bad: a header is not NAME=VALUE"),
        (("--headers",), b"\xff=1\tv\n", "line 1 is bad: the name of a header is not UTF-8"),
        (("--key-separator", ":"), b"\n", "line 1 is bad: no ':' after the key"),
    ],
    ids=str,
)
def test_text_without_what_was_said_to_be_there_is_bad(
    broker: FakeBroker, arguments: tuple[str, ...], lines: bytes, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
        assert main(["--server", broker.address, "produce", "t", *arguments]) == 1
    assert why in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--envelope",),
        ("--no-envelope",),
        ("--format", "json", "--envelope", "--key-field", "k"),
        ("--format", "json", "--keys"),
        ("--format", "raw", "--null", "x"),
        ("--key-separator", ""),
    ],
    ids=str,
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "t", *arguments]) == 2


def test_the_page_of_the_command_line_shows_what_is_printed(emptied: Daemon) -> None:
    page = reference("The command line")
    found = re.search(r"^```sh\n(printf .*?)^```\n\n```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    script = f'set -euo pipefail\nseglog() {{ {sys.executable} -m seglog.cli "$@"; }}\n{found[1]}'
    environment = clean_environment(SEGLOG_SERVER=emptied.address)
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == found[2]
    copies = [seglog(emptied.address, "consume", topic, "--keys", "--headers").stdout for topic in ("readings", "copy")]
    assert copies[0] == copies[1] != b""
