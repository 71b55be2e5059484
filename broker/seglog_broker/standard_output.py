"""Standard output of commands that print and end, and what they say beside it on standard error.

Standard output may be a broken pipe, a full device, or closed. None of these gives a traceback: a broken pipe ends the
printing in silence, the others one sentence.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from seglog_protocol.texts import disarmed_json, printable

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
"""Of most commands; one that cannot print has failed, too."""

STANDARD_ERROR: Final = 2

_CLEAR_LINE: Final = "\r\x1b[K"

_PRIORITIES: Final = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}  # of syslog, by level of the log


def run_printing(program: str, work: Callable[[], int], *, when_piped: int) -> int:
    """Call ``work``, which prints by ``print_lines`` or ``print_line``, and return its exit code.

    Returns ``when_piped`` if the reader of standard output closes it, as ``| head`` does.
    """
    if sys.stdout is None:
        complain(program, "standard output is closed; redirect it, /dev/null will do")
        return EXIT_FAILED
    try:
        code = work()
        print_lines([])
    except BrokenPipeError:
        return when_piped
    except OutputError as error:
        complain(program, f"standard output takes no more: {error}")
        return EXIT_FAILED
    return code


def print_and_end(program: str, lines: Iterable[str], code: int) -> int:
    """Print ``lines``, all that a command prints. Returns its exit code: ``code``, or another one if printing fails."""

    def work() -> int:
        print_lines(lines)
        return code

    return run_printing(program, work, when_piped=code)


class OutputError(Exception):
    """Standard output failed; the message is the reason."""


def print_lines(lines: Iterable[str]) -> None:
    """Print lines and flush. Raises OutputError, and BrokenPipeError if the reader has closed the pipe."""
    for line in lines:
        print_line(line)
    with _output():
        sys.stdout.flush()


def print_line(line: str) -> None:
    """Print a line into the buffer, which ``run_printing`` flushes in the end. Raises as ``print_lines``.

    On a terminal control characters in it are escaped. A line of JSON stays JSON.
    """
    with _output():
        # File names need not be UTF-8. As JSON's own escapes they stay JSON; elsewhere they are escaped already.
        shown = disarmed_json(line) if sys.stdout.isatty() else line
        sys.stdout.buffer.write(shown.encode(errors="backslashreplace") + b"\n")


def columns_of_terminal() -> int | None:
    """The width of the terminal that standard output is; None where it is none, and lines may have any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def complain(program: str, sentence: str, level: str = "error") -> None:
    """Print one sentence to standard error, if it is open and works; ``level`` is for the journal."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(as_error_line(f"{program}: {printable(sentence)}", level))
            sys.stderr.flush()


def refuse(program: str, sentence: str, code: int) -> int:
    """As ``complain``. Returns ``code``, the exit code of the command that ends so."""
    complain(program, sentence)
    return code


def as_error_line(sentence: str, level: str) -> str:
    """A line for standard error, with its priority where that is the journal's."""
    return (with_priority(sentence, level) if is_journal(STANDARD_ERROR) else sentence) + "\n"


def is_journal(descriptor: int) -> bool:
    """Whether systemd's journal reads what is written there, by JOURNAL_STREAM of systemd.exec(5).

    The variable is inherited by programs whose standard error leads elsewhere: it names the device and inode.
    """
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
    return False


def with_priority(text: str, level: str) -> str:
    """``text`` with the priority of sd-daemon(3) before each line: to the journal each is an entry of its own."""
    prefix = f"<{_PRIORITIES[level]}>"
    return prefix + text.replace("\n", f"\n{prefix}")


class ProgressLine:
    """A line on standard error that is overwritten each time. Shown only in a terminal."""

    def __init__(self, pause_seconds: float = 0.0) -> None:
        """``pause_seconds`` is the least time between two of them."""
        self._pause_seconds = pause_seconds
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._is_there = False
        self._next = 0.0  # when it may be overwritten

    def show(self, text: Callable[[], str]) -> None:
        """Show what ``text`` returns; it is not called while nothing is to be shown."""
        if self._is_shown and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._pause_seconds
            sys.stderr.write(f"{_CLEAR_LINE}{text()}")
            sys.stderr.flush()
            self._is_there = True

    def clear(self) -> None:
        """Remove the line, before something else is printed, or in the end."""
        if self._is_there:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._is_there = False


@contextlib.contextmanager
def _output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # what is left in the buffer must not raise at the end of the process
        os.close(null)
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(error.strerror or str(error)) from error
