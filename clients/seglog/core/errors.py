"""Errors: raised again as copies, and how their messages write counts and durations."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, TypeVar

from seglog_protocol.errors import SeglogError

ErrorT = TypeVar("ErrorT", bound=SeglogError)

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def copied(error: ErrorT, facts: Mapping[str, Any] | None = None) -> ErrorT:
    """A copy to raise, with ``facts`` in place of the error's own if given.

    One object raised for many callers would collect the traceback frames and notes of them all.
    """
    copy = type(error)(error.message, **(error.facts if facts is None else facts))
    copy.retriable = error.retriable
    return copy


def count_of(count: int, thing: str, *, many: str = "") -> str:
    """``1 record``, ``1,000 records``; ``many`` is an irregular plural."""
    return f"{count:,} {thing if count == 1 else many or f'{thing}s'}"


def seconds_of(seconds: float) -> str:
    """A duration as an error tells it, without the noise of clocks: ``5 s`` for 4.99999, ``0.25 s``."""
    return f"{round(seconds, 3 if seconds < 1 else 1):g} s"


def duration_of(milliseconds: int) -> str:
    """A duration in its two largest units, the smaller one unless it is 0: ``3 d 4 h``, ``5 min``, ``12 s``."""
    for (size, unit), (smaller, name) in pairwise(_UNITS):
        if milliseconds >= size:
            whole, rest = divmod(milliseconds, size)
            return f"{whole} {unit} {rest // smaller} {name}" if rest >= smaller else f"{whole} {unit}"
    return f"{milliseconds // 1000} s"
