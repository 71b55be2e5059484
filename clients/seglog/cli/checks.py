"""What one argument may be: functions for argparse, which turn text into a value or say what is wrong with it."""

import argparse


def count(text: str) -> int:
    """A whole number from 0 on."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def partition_offset(text: str) -> tuple[int, int | None]:
    """``PARTITION:OFFSET``; None for ``end``."""
    partition, colon, offset = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not written PARTITION:OFFSET, for example 0:5000 or 0:end")
    return count(partition), None if offset == "end" else count(offset)


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def duration(text: str) -> float:
    """A number from 0 on; what its unit is, the option says."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration")
    return value


def some_seconds(text: str) -> float:
    """More than 0 seconds."""
    value = duration(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def amount(text: str) -> float:
    """A number from 0 on."""
    try:
        return duration(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on") from None


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not written KEY=VALUE")
    return key, value
