"""Checks of arguments: an error names the argument, what it can be, and what was given."""

from numbers import Real
from typing import Final

from seglog_protocol.isolation import ISOLATIONS

SECONDS_MAX: Final = 2**31 // 1000
"""The longest time that a request can hold: some 24 days, in milliseconds of 32 bits."""


def check_text(name: str, value: object) -> None:
    """Raises TypeError for what is not text, ValueError for an empty one."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {value!r}")
    if not value:
        raise ValueError(f"{name} must not be empty")


def check_flag(name: str, value: object) -> None:
    """Raises TypeError for what is neither True nor False: a text such as "no" would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} is True or False, not {value!r}")


def check_isolation(value: object) -> None:
    """Raises ValueError for what is no isolation."""
    if value not in ISOLATIONS:
        raise ValueError(f"isolation is {' or '.join(map(repr, ISOLATIONS))}, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Raises TypeError for what is neither None nor can be called."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} is a function or None, not {value!r}")


def check_seconds(name: str, value: object) -> None:
    """Raises TypeError for anything but a number, ValueError unless it is above 0 and at most ``SECONDS_MAX``."""
    if not 0 < _number(name, value) <= SECONDS_MAX:
        raise ValueError(f"{name} is more than 0 s and at most {SECONDS_MAX:,} s, not {value!r}")


def check_patience(name: str, value: object) -> None:
    """As ``check_seconds``, for a time that is never sent: 0 and infinity are such times, too."""
    if not _number(name, value) >= 0:
        raise ValueError(f"{name} is 0 s or more, not {value!r}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is a number of seconds, not {value!r}")
    return float(value)
