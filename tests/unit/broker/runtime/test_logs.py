"""The daemon's own log: lines for people, objects for machines."""

import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from seglog_broker.runtime import logs


@pytest.fixture(autouse=True)
def _defaults_again() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(log_format: str, level: str = "info", stream: io.StringIO | None = None) -> list[str]:
    stream = io.StringIO() if stream is None else stream
    logs.configure(log_format, level, stream)
    log = structlog.get_logger().bind(topic="commits")
    log.debug("index_probed", position=4100)
    log.info("segment_rolled", base_offset=2048, reason="size")
    return stream.getvalue().splitlines()


def test_json_is_one_object_a_line_with_time_level_event_and_facts() -> None:
    [line] = written("json")
    entry = json.loads(line)
    assert list(entry) == ["timestamp", "level", "event", "topic", "base_offset", "reason"]
    assert datetime.fromisoformat(entry.pop("timestamp")).tzinfo == UTC
    assert entry == {
        "event": "segment_rolled",
        "level": "info",
        "topic": "commits",
        "base_offset": 2048,
        "reason": "size",
    }


def test_console_is_one_readable_line_in_the_order_of_the_facts() -> None:
    [line] = written("console")
    assert line.split("]", 1)[1].split() == ["segment_rolled", "topic=commits", "base_offset=2048", "reason=size"]


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_the_level_is_the_least_that_is_written(log_format: str) -> None:
    assert len(written(log_format, "debug")) == 2
    assert written(log_format, "warning") == []


def test_colours_are_for_terminals_whose_owner_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" not in written("console")[0]
    assert "\x1b[" in written("console", stream=Terminal())[0]
    assert "\x1b[" not in written("json", stream=Terminal())[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in written("console", stream=Terminal())[0]


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_is_written_without_the_values_of_variables(log_format: str) -> None:
    stream = io.StringIO()
    logs.configure(log_format, "info", stream)
    record = "somebody's " + "record"
    try:
        len(record) / 0
    except ZeroDivisionError:
        structlog.get_logger().exception("request_crashed")
    text = stream.getvalue()
    assert "ZeroDivisionError" in text
    assert "somebody's record" not in text
    assert log_format == "console" or len(text.splitlines()) == 1


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_each_line_for_the_journal_begins_with_its_priority(
    log_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines of a traceback, too, because the journal takes each for an entry of its own."""
    with (tmp_path / "journal").open("w+") as journal, (tmp_path / "other").open("w+") as other:
        status = os.fstat(journal.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        for stream in (other, journal):
            logs.configure(log_format, "debug", stream)
            log = structlog.get_logger()
            for write in (log.debug, log.info, log.warning, log.critical):
                write("something_happened")
            log.error("request_crashed", exc_info=ValueError("two\nlines"))
            stream.seek(0)
        lines = journal.read().splitlines()
        assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<2>", *["<3>"] * (len(lines) - 4)]
        assert "two" in "".join(lines[4:])
        assert not any(line.startswith("<") for line in other.read().splitlines())


def test_bytes_from_a_peer_cannot_control_the_terminal() -> None:
    stream = Terminal()
    logs.configure("console", "info", stream)
    structlog.get_logger().info("connection_refused", reason="\x1b]0;owned\x07", topic="one\ntwo")
    assert "\x1b]0" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1
