"""The terminal of the commands. Every line of standard output goes through here, but for records that are piped.

What brokers and other people's records say must not move the cursor or change the title of a window: where standard
output is a terminal, control characters are shown as escapes. In a pipe or a file nothing is changed. Colours are for a
terminal, too, unless its user wants none (no-color.org).
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TextIO

from seglog_protocol.texts import disarmed


def print_line(line: str = "", **style: Any) -> None:
    """Print a line; ``style`` is that of ``click.style``, such as ``bold=True``."""
    shown = disarmed(line) if is_terminal() else line
    print(styled(shown, sys.stdout, **style))  # noqa: T201 - the one place


def draw_line(line: str) -> None:
    """On standard error, which is a terminal: this line in place of the last one; "" removes it."""
    sys.stderr.write(f"\r\x1b[K{line}")
    sys.stderr.flush()


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


@contextmanager
def handled(handler: "Callable[[int, FrameType | None], Any]", *numbers: signal.Signals) -> Iterator[None]:
    """Inside ``with``, these signals call ``handler``. For the main thread alone."""
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def columns_of_terminal() -> int | None:
    """The width of the terminal that standard output is; None where it is none, and lines may have any length."""
    if not is_terminal():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def styled(text: str, stream: TextIO, **style: Any) -> str:
    """``text`` in colours where ``stream`` has them. It must not have control characters of others."""
    if not (style and text and has_colors(stream)):
        return text
    import click

    return click.style(text, **style)


def has_colors(stream: TextIO) -> bool:
    """Whether to write colours to ``stream``, by the same rule as the daemon's log."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
