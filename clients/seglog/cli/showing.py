"""``--picture``, ``--svg`` and ``--watch`` of commands whose answers can be drawn, on a terminal drawn every second."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn, Self, TextIO

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Option, flag
from seglog.cli.exits import OK, UsageError
from seglog.cli.terminal import has_colors

if TYPE_CHECKING:
    from seglog.cli.pictures.model import Picture


WIDTH_ELSEWHERE: Final = 120
"""Columns, where the output is not a terminal and COLUMNS is not set."""

_ROWS_MAX: Final = 40
"""Bars of one picture in a terminal."""
_SVG_ROWS_MAX: Final = 200

Pictures = Callable[[int], "Sequence[Picture]"]
"""Asks the broker, and makes pictures with at most so many bars each."""


def picture_options() -> list[click.Parameter]:
    """The options that draw."""
    return [
        flag("--picture", "Draw it, in the terminal's width."),
        Option(["--svg"], metavar="FILE", help="Draw it into this file, as SVG; - is standard output."),
        flag("--watch", "Draw it anew every second, until Ctrl-C."),
    ]


def wants_picture(options: Options) -> bool:
    """Whether any of them is given. Raises UsageError if it does not go with the others, or with the output."""
    wanted = [f"--{name}" for name in ("picture", "svg", "watch") if options.values[name]]
    if wanted and options.json:
        raise UsageError(f"{wanted[0]} and --json exclude each other")
    if options.svg and options.watch:
        raise UsageError("--svg and --watch exclude each other")
    if options.watch and not (sys.stdout.isatty() and os.environ.get("TERM") != "dumb"):
        raise UsageError("--watch: needs a terminal that it can draw on; --picture draws once, wherever it is printed")
    return bool(wanted)


def show(options: Options, pictures: Pictures) -> int:
    """Draw, as the options say; the exit code. Raises KeyboardInterrupt when a watch is ended."""
    if options.svg:
        from seglog.cli.pictures.svg import svg_of

        document = svg_of(pictures(_SVG_ROWS_MAX))
        if options.svg == "-":
            print(document, end="")
        else:
            with open(options.svg, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is not imported for --help
                file.write(document)
    elif options.watch:
        watch(lambda columns, height: _fitting(pictures, columns, height))
    else:
        print("\n".join(_lines(pictures(_ROWS_MAX), width_of_output())))
    return OK


def _fitting(pictures: Pictures, columns: int, height: int) -> list[str]:
    """The lines of the largest pictures that are not higher than the terminal, else of the smallest."""
    rows, lines = _ROWS_MAX, _lines(pictures(_ROWS_MAX), columns)
    while len(lines) > height and rows > 2:
        rows //= 2
        lines = _lines(pictures(rows), columns)
    return lines


def width_of_output() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size((WIDTH_ELSEWHERE, 0)).columns


def _lines(pictures: "Sequence[Picture]", width: int) -> list[str]:
    from seglog.cli.pictures.text import glyphs_for, lines_of

    glyphs, colours = glyphs_for(sys.stdout.encoding), has_colors(sys.stdout)
    lines: list[str] = []
    for picture in pictures:
        lines += [*([""] if lines else []), *lines_of(picture, width, glyphs, colours=colours)]
    return lines


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

    def __exit__(self, *_: object) -> None:
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
