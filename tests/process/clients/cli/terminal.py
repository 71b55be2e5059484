"""A terminal of a test's own, what a command shows on it, and the frames of a page that is drawn again and again."""

import os
import pty
import select
import subprocess
import termios
from collections.abc import Callable, Sequence

from tests.processes import PATIENCE_SECONDS, clean_environment

ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"
BEGIN, END = b"\x1b[?2026h\x1b[H", b"\x1b[?2026l"


class Terminal:
    """A command on a terminal of 80 columns and 24 lines, which may be resized."""

    def __init__(self, command: Sequence[str], **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=clean_environment(TERM="xterm", PYTHONIOENCODING="utf-8", **variables),
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self._ours, (lines, columns))

    def until(self, condition: Callable[[bytes], bool]) -> bytes:
        """Everything that was shown, once that is so."""
        while not condition(self.shown):
            readable, _, _ = select.select([self._ours], [], [], PATIENCE_SECONDS)
            assert readable, self.shown
            self.shown += os.read(self._ours, 1 << 16)
        return self.shown

    def rest(self) -> bytes:
        """Everything that was shown, once the command has ended."""
        try:
            while data := os.read(self._ours, 1 << 16):
                self.shown += data
        except OSError:  # what a terminal answers that nobody has open any more
            pass
        self.process.wait()
        return self.shown

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


def frames(shown: bytes) -> list[bytes]:
    return [part.partition(END)[0] for part in shown.split(BEGIN)[1:] if END in part]
