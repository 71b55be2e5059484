"""The queue of log lines to a reader that may be slow, stuck or gone."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from seglog_broker.runtime import logs
from seglog_broker.runtime.logs import LogQueue

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


def test_draining_to_a_reader_that_is_stuck_ends(pipe: Pipe) -> None:
    queue = pipe.queue
    for number in range(2 * PIPE_BYTES // len(LINE)):
        queue.write(numbered(number))
    queue.drain(0.01)
