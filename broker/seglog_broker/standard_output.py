"""Standard output of commands that print and end: its reader may have enough, its device be full, it may be closed.

None of these is worth a traceback. A broken pipe ends the printing in silence, the rest is one sentence.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

EXIT_NOT_PRINTED: Final = 1


def run_printing(program: str, work: Callable[[], int], *, when_piped: int) -> int:
    """What ``work()`` returns, which prints by ``print_lines``, and whose exit code that is.

    ``when_piped`` where the reader of standard output went away, as ``| head`` does.
    """
    if sys.stdout is None:
        complain(program, "standard output is closed; redirect it, /dev/null will do")
        return EXIT_NOT_PRINTED
    try:
        code = work()
        print_lines([])
    except BrokenPipeError:
        return when_piped
    except OutputError as error:
        complain(program, f"standard output takes no more: {error}")
        return EXIT_NOT_PRINTED
    return code


class OutputError(Exception):
    """Standard output did not take what was printed; the message says why."""


def print_lines(lines: Iterable[str]) -> None:
    """Print these and everything before. Raises OutputError, and BrokenPipeError when there is no reader any more."""
    for line in lines:
        print_line(line)
    with _output():
        sys.stdout.flush()


def print_line(line: str) -> None:
    """Print this, not at once: ``print_lines`` and the end of ``run_printing`` do. Raises as ``print_lines``."""
    with _output():
        # File names need not be UTF-8. As JSON's own escapes they stay JSON; elsewhere they are escaped already.
        sys.stdout.buffer.write(line.encode(errors="backslashreplace") + b"\n")


def complain(program: str, sentence: str) -> None:
    """One sentence on standard error, if that takes it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{program}: {sentence}\n")
            sys.stderr.flush()


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
