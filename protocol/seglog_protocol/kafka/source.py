"""Python source that is being generated: lines, blocks, and runs of fixed-width values that share one Struct."""

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any, ClassVar, Final

PIECE_BYTES: Final = 16 * 1024
"""Of a message that is read or written in pieces: up to ten thousand elements, some milliseconds."""

Run = tuple[tuple[int, str], ...]
"""Sizes of values that follow one another, each with its field."""


class Source:
    """One function. ``self(text)`` adds a line; lines that read or write fixed-width values are added for them.

    Fixed-width values are collected until the next line, because one call for all of them is faster than one for each.
    """

    place: ClassVar[str]
    """The expression for the bytes that were read or written so far."""

    def __init__(self, *, in_pieces: bool = False) -> None:
        self.in_pieces = in_pieces
        """Whether the function is a generator, which yields whenever it has read or written PIECE_BYTES more."""
        self.is_bounded = True
        """Whether arrays have at most so many elements (``varints``): peers send the message."""
        self.names: dict[str, Any] = {}
        """The globals of the function."""
        self.field = ""
        """The field that lines are now about, with dots."""
        self.fields: dict[int, Run] = {}
        """The values that each line reads or writes, with their fields, by line number."""
        self._lines: list[str] = []
        self._indent = ""
        self._run: list[tuple[str, str, str]] = []
        self._variables = 0

    def __call__(self, text: str) -> None:
        """Add a line."""
        self.end_run()
        self.ahead(text)

    def ahead(self, text: str, run: Run = ()) -> None:
        """Add a line before fixed-width values that are still being collected."""
        self._lines.append(self._indent + text)
        self.fields[len(self._lines)] = run or ((0, self.field),)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """The lines in ``with`` belong to the statement ``head``."""
        self(head)
        self._indent += " "
        yield
        self.end_run()
        self._indent = self._indent[:-1]

    @contextmanager
    def about(self, name: str) -> Iterator[None]:
        """The lines in ``with`` are about the field ``name`` of the one that lines are about."""
        before = self.field
        self.field = f"{before}.{name}" if before else name
        yield
        self.field = before

    def pause(self) -> None:
        """Add the lines that yield when a piece is done, if the function does its work in pieces."""
        if self.in_pieces:
            with self.block(f"if {self.place} > mark:"):
                self(f"yield {self.place}")
                self(f"mark = {self.place} + {PIECE_BYTES}")

    def count(self, size: int) -> None:
        """Add the line that counts ``size`` bytes more for the piece."""
        if self.in_pieces:
            self(f"mark -= {size}")

    def begin_pieces(self) -> None:
        """Add the lines before the first piece."""
        if self.in_pieces:
            self(f"yield {self.place}")
            self(f"mark = {self.place} + {PIECE_BYTES}")

    def variable(self, stem: str) -> str:
        """The name of a new variable."""
        self._variables += 1
        return f"{stem}{self._variables}"

    def constant(self, stem: str, value: object) -> str:
        """The name of a new global with this value."""
        name = self.variable(stem)
        self.names[name] = value
        return name

    def fixed(self, code: str, expression: str) -> None:
        """Read the variable ``expression``, or write its value, with ``code`` of :mod:`struct`."""
        self._run.append((code, expression, self.field))

    def end_run(self) -> None:
        """Add the line that reads or writes what was collected."""
        run, self._run = self._run, []
        if run:
            layout = Struct(">" + "".join(code for code, _, _ in run))
            sizes = tuple((Struct(">" + code).size, field) for code, _, field in run)
            self._add_run(layout, [expression for _, expression, _ in run if expression], sizes)

    def _add_run(self, layout: Struct, expressions: list[str], sizes: Run) -> None:
        raise NotImplementedError

    def compile(self, title: str) -> Any:
        """The function, whose name is that of its ``def``."""
        self.end_run()
        text = "\n".join(self._lines)
        exec(compile(text, f"<{title}>", "exec"), self.names)  # noqa: S102 - generated from our own table
        return self.names["generated"]


class ReaderSource(Source):
    """A function that reads at ``p`` of ``frame``."""

    place = "p"

    def _add_run(self, layout: Struct, expressions: list[str], sizes: Run) -> None:
        if layout.format == ">B":
            self.ahead(f"{expressions[0]} = frame[p]", sizes)
        else:
            unpack = self.constant("unpack", layout.unpack_from)
            self.ahead(f"{', '.join(expressions)}, = {unpack}(frame, p)", sizes)
        self.ahead(f"p += {layout.size}")


class WriterSource(Source):
    """A function that writes to the end of the bytearray ``w``."""

    place = "len(w)"

    def _add_run(self, layout: Struct, expressions: list[str], sizes: Run) -> None:
        if expressions:
            pack = self.constant("pack", layout.pack)
            self.ahead(f"w += {pack}({', '.join(expressions)})", sizes)
        else:
            self.ahead(f"w += {bytes(layout.size)!r}", sizes)
