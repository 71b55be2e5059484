"""The daemon's own log: lines for people, objects for machines, sums of many lines, and the queue to a slow reader."""

import io
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import LogCapture

from seglog_broker.runtime import logs
from seglog_broker.runtime.logs import KINDS_MAX, LINES_MAX, WINDOW_SECONDS, LogQueue, LogSums


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


# --- Lines about events that clients cause are counted once there are many, and the sum is logged ---------------------


class Now:
    """A clock that is set by hand."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def logged(now: Now) -> Any:
    """What passes: ``sums`` and the lines behind it."""
    sums, capture = LogSums(now), LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[sums, capture])
    try:
        yield sums, capture.entries
    finally:
        structlog.configure(**before)


def test_the_first_lines_are_whole_and_the_others_one_sum(now: Now, logged: Any) -> None:
    sums, lines = logged
    for base_offset in range(1_000):
        structlog.get_logger().info("segment_rolled", topic="t", base_offset=base_offset, reason="time")
    structlog.get_logger().info("segment_rolled", topic="u", base_offset=0, reason="time")
    assert [line["base_offset"] for line in lines] == [*range(LINES_MAX), 0]
    sums.log_finished()
    assert len(lines) == LINES_MAX + 1, "the window is not over"
    now.seconds = WINDOW_SECONDS
    sums.log_finished()
    assert lines[LINES_MAX + 1 :] == [
        {
            "event": "segment_rolled",
            "topic": "t",
            "reason": "time",
            "more": 1_000 - LINES_MAX,
            "seconds": WINDOW_SECONDS,
            "log_level": "info",
        }
    ]
    structlog.get_logger().info("segment_rolled", topic="t", base_offset=7, reason="time")
    assert lines[-1]["base_offset"] == 7, "a new window lets lines through"


def test_other_events_are_never_counted(logged: Any) -> None:
    _, lines = logged
    for number in range(100):
        structlog.get_logger().warning("topic_deleted", topic=str(number))
    assert len(lines) == 100


def test_any_number_of_kinds_is_counted_in_bounded_memory(now: Now, logged: Any) -> None:
    sums, lines = logged
    count = 3 * KINDS_MAX
    for number in range(count):
        structlog.get_logger().error("append_failed", topic=f"t{number}")
    assert len(lines) == KINDS_MAX + LINES_MAX
    now.seconds = WINDOW_SECONDS
    sums.log_finished()
    assert lines[-1]["more"] == count - KINDS_MAX - LINES_MAX
    assert "topic" not in lines[-1]


async def test_sums_are_logged_without_further_lines_and_at_the_end(autojump_clock: object, logged: Any) -> None:
    sums, lines = logged
    sums = LogSums(trio.current_time)
    structlog.configure(processors=[sums, *structlog.get_config()["processors"][1:]])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sums.run)
        for expected in (1, 2):
            for number in range(LINES_MAX + 3):
                structlog.get_logger().info("connection_refused", peer=str(number))
            if expected == 1:
                await trio.sleep(2 * WINDOW_SECONDS)
                assert [line["more"] for line in lines if "more" in line] == [3]
        nursery.cancel_scope.cancel()
    assert [line["more"] for line in lines if "more" in line] == [3, 3]


# --- The queue of log lines to a reader that may be slow, stuck or gone -----------------------------------------------


PIPE_BYTES = 64 * 1024
LINE = "a line of a hundred characters".ljust(99, ".") + "\n"


class Pipe:
    """A pipe with a log queue at its writing end; nothing is written after ``close`` returns."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.queue = queue_to(self.writer)
        self._is_open = True

    def hang_up(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self.reader)

    def close(self) -> None:
        self.hang_up()
        self.queue.drain(60)
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def queue_to(descriptor: int) -> LogQueue:
    return LogQueue(descriptor, lambda count: f"{count} lost\n")


def numbered(number: int) -> str:
    return f"{number:06d} {LINE}"


def read_until(reader: int, end: str) -> list[str]:
    data = b""
    while not data.endswith(end.encode()):
        more = os.read(reader, 1 << 20)
        assert more, data[-200:]
        data += more
    return data.decode().splitlines()


def test_lines_come_out_in_order_and_are_drained(pipe: Pipe) -> None:
    reader, queue = pipe.reader, pipe.queue
    for number in range(500):
        queue.write(f"{number}\n")
    queue.drain()
    assert os.read(reader, 1 << 20).decode().split() == [str(number) for number in range(500)]
    assert queue.lost_total == 0


def test_a_reader_that_does_not_read_loses_lines(pipe: Pipe) -> None:
    """A reader that does not read loses lines but no time and the gap is marked in place."""
    reader, queue = pipe.reader, pipe.queue
    count = 3 * (logs.QUEUED_BYTES_MAX + PIPE_BYTES) // len(numbered(0))
    for number in range(count):
        queue.write(numbered(number))  # this returns, or the test never ends
    queue.drain(0.01)
    lost = queue.lost_total
    assert count / 2 < lost < count
    end = "the end\n"

    def write_the_end() -> None:
        queue.drain(60)
        queue.write(end)

    more = threading.Thread(target=write_the_end)
    more.start()
    lines = read_until(reader, end)
    more.join()
    kept = count - lost
    assert [int(line.split()[0]) for line in lines[:kept]] == list(range(kept))
    assert lines[kept:] == [f"{lost} lost", end.strip()]
    assert queue.lost_total == lost


def test_lines_lost_at_the_very_end_are_reported_without_a_later_line(pipe: Pipe) -> None:
    reader, queue = pipe.reader, pipe.queue
    for number in range(2 * logs.QUEUED_BYTES_MAX // len(LINE)):
        queue.write(numbered(number))
    lines = read_until(reader, " lost\n")
    assert lines[-1] == f"{queue.lost_total} lost"


def test_a_line_longer_than_the_whole_queue_is_taken_when_it_is_alone(pipe: Pipe) -> None:
    reader, queue = pipe.reader, pipe.queue
    long = "x" * (2 * logs.QUEUED_BYTES_MAX) + "\n"
    queue.write(long)
    queue.write("lost\n")
    assert queue.lost_total == 1
    assert read_until(reader, "1 lost\n") == [long.strip(), "1 lost"]


def test_a_reader_that_went_away_stops_nothing(pipe: Pipe) -> None:
    pipe.hang_up()
    queue = pipe.queue
    for number in range(10):
        queue.write(f"{number}\n")
    queue.drain()
    assert queue.lost_total == 10


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_lines_lost_on_a_full_disk_are_counted_and_reported_when_there_is_room_again(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(full, (changing := os.dup(file)))
    queue = queue_to(changing)
    for _ in range(2):
        for number in range(10):
            queue.write(f"{number}\n")
        queue.drain()
    assert queue.lost_total == 20
    os.dup2(file, changing)
    queue.write("room\n")
    queue.drain()
    assert (tmp_path / "log").read_text() == "20 lost\nroom\n"
    for descriptor in (full, file, changing):
        os.close(descriptor)


def test_a_pipe_that_another_program_made_non_blocking_is_waited_for(pipe: Pipe) -> None:
    reader, queue = pipe.reader, pipe.queue
    os.set_blocking(pipe.writer, False)
    count = 4 * PIPE_BYTES // len(LINE)
    for number in range(count):
        queue.write(numbered(number))
    queue.write("the end\n")
    lines = read_until(reader, "the end\n")
    assert [int(line.split()[0]) for line in lines[:-1]] == list(range(count))
