"""``--watch``: a terminal that is redrawn every second, and left as it was."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Final, NoReturn, Self, TextIO

SECONDS: Final = 1.0
"""From the beginning of one frame to that of the next."""

# The alternate screen without a cursor; a frame is shown at once, where the terminal knows how to.
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
_REST_OF_LINE: Final = "\x1b[K"

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
"""What ends or stops us, beside Ctrl-C: the terminal is put back first."""

Frame = Callable[[int, int], Sequence[str]]
"""The lines for a terminal of so many columns and lines."""


class Screen:
    """A terminal that shows frames until the ``with`` block ends; then the last frame stays on the ordinary screen."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last: Sequence[str] = ()

    def __enter__(self) -> Self:
        self._handlers = [(number, signal.signal(number, self._leave_by)) for number in _SIGNALS]
        self._write(_ENTER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._handlers:
            signal.signal(number, handler)
        self._write(_LEAVE + "".join(f"{line}\n" for line in self._last))

    def draw(self, lines: Sequence[str]) -> None:
        """Replace what is shown, without a moment in which nothing is."""
        self._last = lines
        self._write(_BEGIN + "\n".join(line + _REST_OF_LINE for line in lines) + _END)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def _leave_by(self, number: int, _: FrameType | None) -> None:
        """Do what the signal does, with the terminal as it was; after a stop we come back here."""
        os.write(self._out.fileno(), _LEAVE.encode())  # not through its buffer, which may be in use
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
            os.write(self._out.fileno(), _ENTER.encode())
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def watch(frame: Frame, *, sleep: Callable[[float], None] = time.sleep) -> NoReturn:
    """Show frames until Ctrl-C, which is raised as KeyboardInterrupt. ``sleep`` waits for the next one."""
    with Screen(sys.stdout) as screen:
        while True:
            begun = time.monotonic()
            columns, lines = shutil.get_terminal_size()
            screen.draw(frame(columns, lines)[:lines])
            sleep(max(0.0, begun + SECONDS - time.monotonic()))
