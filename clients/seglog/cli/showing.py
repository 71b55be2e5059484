"""``--picture``, ``--svg`` and ``--watch`` of commands whose answers can be drawn."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import click

from seglog.cli.arguments import Options
from seglog.cli.commands import Option
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
        Option(["--picture"], is_flag=True, help="Draw it, in the terminal's width."),
        Option(["--svg"], metavar="FILE", help="Draw it into this file, as SVG; - is standard output."),
        Option(["--watch"], is_flag=True, help="Draw it anew every second, until Ctrl-C."),
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

        _write(options.svg, svg_of(pictures(_SVG_ROWS_MAX)))
    elif options.watch:
        from seglog.cli.watching import watch

        watch(lambda columns, height: _fitting(pictures, columns, height))
    else:
        print("\n".join(_lines(pictures(_ROWS_MAX), width_of_output())))
    return OK


def _write(name: str, document: str) -> None:
    if name == "-":
        print(document, end="")
    else:
        with open(name, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is not imported for --help
            file.write(document)


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
