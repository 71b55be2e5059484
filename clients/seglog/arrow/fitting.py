"""Conversion of columns of values, some of which may not fit; knows no format."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

_ROWS: Final = 1024
"""Rows at a time: Python looks through all objects there are when there are many more of them."""


class Unfit(ValueError):  # noqa: N818 - it is no failure of the program
    """A value does not fit; the message says why, to follow "the value is"."""


class Misfit(NamedTuple):
    """A record that does not fit: its place, the reason, which follows "the value is", and the value, None for null."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: bytes | None


class Format:
    """What values hold. Both methods raise Unfit, and what they say of a value does not depend on its neighbours."""

    type: pa.DataType
    """The type of the column."""

    def check(self, value: bytes) -> Any:
        """The value in the form that ``convert`` takes."""
        raise NotImplementedError

    def convert(self, values: Sequence[Any]) -> pa.Array:
        """As many rows of checked values, null for None; here of Python's objects."""
        try:
            return pa.array(values, self.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise Unfit(f"beyond its type ({error})") from None


def fitted(column: pa.Array, format_: Format) -> tuple[pa.Array, list[tuple[int, str]]]:
    """A column of bytes in a format, and the rows that do not fit, with reasons; those are null, as null is."""
    parts: list[pa.Array] = []
    misfits: list[tuple[int, str]] = []
    for first in range(0, len(column), _ROWS):
        rows = column.slice(first, _ROWS).to_pylist()
        wrong: dict[int, str] = {}
        for number, row in enumerate(rows):
            if row is not None:
                try:
                    rows[number] = format_.check(row)
                except Unfit as error:
                    rows[number], wrong[number] = None, str(error)
        try:
            parts.append(format_.convert(rows))
        except Unfit:
            for number, row in enumerate(rows):
                try:
                    format_.convert([row])
                except Unfit as error:
                    rows[number], wrong[number] = None, str(error)
            parts.append(format_.convert(rows))
        misfits += [(first + number, wrong[number]) for number in sorted(wrong)]
    return pa.concat_arrays(parts) if parts else pa.nulls(0, format_.type), misfits


def text_of(value: bytes) -> str:
    """The text of bytes. Raises Unfit."""
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise Unfit(f"no UTF-8 (byte 0x{value[error.start]:02x} at {error.start})") from None


class Text(Format):
    """Text in UTF-8."""

    type = pa.string()

    def check(self, value: bytes) -> str:
        """The text. Raises Unfit."""
        return text_of(value)
