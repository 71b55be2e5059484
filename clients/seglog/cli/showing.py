"""``--picture`` of commands whose answers can be drawn: on a terminal, in a pipe."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Option
from seglog.cli.exits import OK, UsageError

if TYPE_CHECKING:
    from seglog.cli.pictures.model import Picture

WIDTH_ELSEWHERE: Final = 120
"""Columns, where the output is not a terminal and COLUMNS is not set."""

_ROWS_MAX: Final = 40
"""Bars of one picture."""

Pictures = Callable[[int], "Sequence[Picture]"]
"""Asks the broker, and makes pictures with at most so many bars each."""


def picture_options() -> list[click.Parameter]:
    """The options that draw."""
    return [Option(["--picture"], is_flag=True, help="Draw it.")]


def wants_picture(options: Options) -> bool:
    """Whether any of them is given. Raises UsageError if it does not go with the others."""
    if options.picture and options.json:
        raise UsageError("--picture and --json exclude each other")
    return bool(options.picture)


def show(options: Options, pictures: Pictures) -> int:
    """Draw, as the options say; the exit code."""
    del options
    print("\n".join(_lines(pictures(_ROWS_MAX), width_of_output())))
    return OK


def width_of_output() -> int:
    """Columns of the terminal."""
    return shutil.get_terminal_size((WIDTH_ELSEWHERE, 0)).columns


def _lines(pictures: "Sequence[Picture]", width: int) -> list[str]:
    from seglog.cli.pictures.text import glyphs_for, lines_of

    glyphs, colours = glyphs_for(sys.stdout.encoding), _wants_colours()
    lines: list[str] = []
    for picture in pictures:
        lines += [*([""] if lines else []), *lines_of(picture, width, glyphs, colours=colours)]
    return lines


def _wants_colours() -> bool:
    """Colours on a terminal, unless its user wants none (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
