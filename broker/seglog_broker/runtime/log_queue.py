"""The way of the daemon's log lines to standard error: a queue with a bound, and one thread that writes.

A terminal under Ctrl-S, or a pipe that its reader left alone, takes no more bytes, and a write to it waits without end.
On the loop that would stop the broker, so there lines are only queued. When ``QUEUED_BYTES_MAX`` are waiting, or the
system refuses a write (the reader has gone, the disk of a log file is full), lines are lost. They are counted, and
where they are missing a line says so as soon as something can be written again.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

QUEUED_BYTES_MAX: Final = 1024 * 1024
"""Of lines that wait: some 4,000 of ordinary length. One longer line is taken when no other is waiting."""

DRAIN_SECONDS: Final = 1.0
"""How long the end of the process waits for lines to be taken."""

_WRITE_BYTES: Final = 64 * 1024

_Item = bytes | int  # a line, or how many are missing at this place


class LogQueue:
    """A text stream, as far as a logger needs one, that never makes its writer wait.

    ``say_lost(count)`` is the line for lines that are missing. The thread is started with the first line, and never
    keeps the process from ending: call ``drain`` before.
    """

    def __init__(self, descriptor: int, say_lost: Callable[[int], str]) -> None:
        self.lost_total = 0  # lines
        self._descriptor = descriptor
        self._say_lost = say_lost
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._size = 0  # bytes of the lines that wait or are being written
        self._lost = 0  # lines since the last one that was taken, not told of yet
        self._is_writing = False
        self._is_started = False

    def write(self, text: str) -> None:
        """Queue a line, or lose it."""
        line = text.encode(errors="backslashreplace")
        with self._changed:
            if self._size and self._size + len(line) > QUEUED_BYTES_MAX:
                self._lose(1)
                return
            if self._lost:
                self._waiting.append(self._lost)
                self._lost = 0
            self._waiting.append(line)
            self._size += len(line)
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._run, name="log writer", daemon=True).start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Nothing: lines go out as fast as they are taken."""

    def isatty(self) -> bool:
        """Whether a terminal takes the lines."""
        return os.isatty(self._descriptor)

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Return when every line is written, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_writing, seconds)

    def _lose(self, count: int) -> None:
        self._lost += count
        self.lost_total += count

    # --- In the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                lines, gap = self._take()
                self._is_writing = True
            is_gap_told = gap > 0 and self._write(self._say_lost(gap).encode())
            are_written = bool(lines) and self._write(b"".join(lines))
            with self._changed:
                self._is_writing = False
                self._size -= sum(map(len, lines))
                if not is_gap_told:
                    self._lost += gap
                if not are_written:
                    self._lose(len(lines))
                if self._lost and not self._waiting and (are_written or is_gap_told):  # no later line tells of them
                    self._waiting.append(self._lost)
                    self._lost = 0
                self._changed.notify_all()

    def _take(self) -> tuple[list[bytes], int]:
        """The next lines, up to where some are missing, and how many are missing before them."""
        gap = 0
        lines: list[bytes] = []
        size = 0
        while self._waiting and size < _WRITE_BYTES:
            item = self._waiting[0]
            if isinstance(item, bytes):
                lines.append(item)
                size += len(item)
            elif lines:
                break
            else:
                gap += item
            self._waiting.popleft()
        return lines, gap

    def _write(self, data: bytes) -> bool:
        """Whether all of ``data`` is written, however long that takes."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another program has made the terminal or the pipe non-blocking
                waiting = select.poll()
                waiting.register(self._descriptor, select.POLLOUT)
                waiting.poll()
            except OSError:
                return False
        return True
