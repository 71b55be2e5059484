"""Writes the daemon's log lines to standard error: a bounded queue and one writer thread.

A write to a terminal under Ctrl-S, or to a pipe that is not read, blocks without limit. On the loop that would stop the
broker, so lines are only queued there. Lines are lost when ``QUEUED_BYTES_MAX`` are queued, or when a write fails (the
reader has gone, the disk of a log file is full). They are counted, and a line in their place says how many, as soon as
something can be written again.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

QUEUED_BYTES_MAX: Final = 1024 * 1024
"""Bytes of queued lines: some 4,000 of ordinary length. A longer line is accepted if the queue is empty."""

DRAIN_SECONDS: Final = 1.0
"""How long the end of the process waits for queued lines to be written."""

_WRITE_BYTES: Final = 64 * 1024

_Item = bytes | int  # a line, or the number of lines missing here


class LogQueue:
    """A text stream for a logger whose ``write`` never blocks.

    ``say_lost(count)`` returns the line for missing lines. The thread is started with the first line, and does not keep
    the process alive: call ``drain`` before the end.
    """

    def __init__(self, descriptor: int, say_lost: Callable[[int], str]) -> None:
        self.lost_total = 0  # lines
        self._descriptor = descriptor
        self._say_lost = say_lost
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._size = 0  # bytes of the lines queued or being written
        self._lost = 0  # lines since the last one queued, not reported yet
        self._is_writing = False
        self._is_started = False

    def write(self, text: str) -> None:
        """Queue a line, or count it as lost."""
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
        """Do nothing: the thread writes lines as fast as it can."""

    def isatty(self) -> bool:
        """Whether the lines go to a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor that lines are written to."""
        return self._descriptor

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
            is_gap_reported = gap > 0 and self._write(self._say_lost(gap).encode())
            are_written = bool(lines) and self._write(b"".join(lines))
            with self._changed:
                self._is_writing = False
                self._size -= sum(map(len, lines))
                if not is_gap_reported:
                    self._lost += gap
                if not are_written:
                    self._lose(len(lines))
                if self._lost and not self._waiting and (are_written or is_gap_reported):  # no later line does
                    self._waiting.append(self._lost)
                    self._lost = 0
                self._changed.notify_all()

    def _take(self) -> tuple[list[bytes], int]:
        """The next lines, up to the next missing ones, and the number missing before them."""
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
        """Write all of ``data``, however long that takes; return whether it succeeded."""
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
