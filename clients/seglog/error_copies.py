"""Copies of errors."""

from collections.abc import Mapping
from typing import Any, TypeVar

from seglog_protocol.errors import SeglogError

ErrorT = TypeVar("ErrorT", bound=SeglogError)


def copied(error: ErrorT, facts: Mapping[str, Any] | None = None) -> ErrorT:
    """A copy to raise, with ``facts`` in place of the error's own if given.

    One object raised for many callers would collect the traceback frames and notes of them all.
    """
    copy = type(error)(error.message, **(error.facts if facts is None else facts))
    copy.retriable = error.retriable
    return copy
