"""What one argument may be: functions for argparse, which turn text into a value or say what is wrong with it."""

import argparse
from fractions import Fraction
from typing import Final

from seglog_protocol.quantities import Unit, parse_quantity

_AMOUNT_MAX: Final = 1e9


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def place_of_partition(text: str) -> tuple[int | None, str]:
    """``PARTITION:MOMENT``, or ``MOMENT`` alone, with None, for all partitions; a time may itself hold colons."""
    partition, colon, place = text.partition(":")
    if colon and partition.isascii() and partition.isdecimal():
        return int(partition), place
    return None, text


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def seconds(text: str) -> float:
    """A duration in seconds from 0 on, or with its unit: ``1.5``, ``500ms``, ``2m``."""
    return _duration(text, Unit.SECONDS)


def milliseconds(text: str) -> float:
    """A duration in milliseconds from 0 on, or with its unit: ``5``, ``0.5s``."""
    return _duration(text, Unit.MILLISECONDS)


def some_seconds(text: str) -> float:
    """As ``seconds``, but more than 0."""
    value = seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def size(text: str) -> int:
    """A number of bytes from 1 on, or with its unit: ``65536``, ``64KiB``."""
    quantity = parse_quantity(text, Unit.BYTES)
    if quantity is None and text.isascii() and text.isdecimal():
        quantity = Fraction(text)
    if not quantity or quantity.denominator != 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes from 1 on, such as 65536, 64KiB or 1MB")
    return int(quantity)


def mebibytes(text: str) -> int:
    """A number of MiB from 1 on, or a size with its unit that is one: ``128``, ``1GiB``."""
    if parse_quantity(text, Unit.BYTES) is None:
        return positive(text)
    count, rest = divmod(size(text), 1 << 20)
    if rest:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of MiB")
    return count


def amount(text: str) -> float:
    """A number from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < _AMOUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return value


def _duration(text: str, unit: Unit) -> float:
    quantity = parse_quantity(text, unit)
    try:
        value = amount(text) if quantity is None else float(quantity)
    except argparse.ArgumentTypeError:
        value = _AMOUNT_MAX
    if value >= _AMOUNT_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no duration: write a number of {unit.value}, or one with a unit, such as 500ms, 10s or 2m"
        )
    return value


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not written KEY=VALUE")
    return key, value
