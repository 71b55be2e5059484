"""Hooks for msgspec: how errors travel, and values of subclasses of plain types; and what it raises."""

from collections.abc import Callable, Mapping
from operator import index
from typing import Any, Final, SupportsIndex

import msgspec

from seglog_protocol.errors import SeglogError, error_from_wire, error_to_wire

REFUSED: Final = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What msgspec raises for values and bytes that are not what they should be, and what a hook or Python adds to it."""


_PLAIN: Final[Mapping[Any, Callable[[Any], Any]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
    list: list.copy,
    dict: dict.copy,
    Mapping: dict,
}


def encode_other(value: Any) -> Any:
    """The map for an error in a message, and plain values for those of subclasses, such as text of a caller's own type.

    Raises TypeError for what msgpack has nothing for.
    """
    if isinstance(value, SeglogError):
        return error_to_wire(value)
    for kind, plain in _PLAIN.items():
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, SupportsIndex):
        return index(value)
    raise TypeError(f"msgpack has nothing for {type(value).__name__}")


def decode_error(kind: type, value: Any) -> Any:
    """The error for a map in a message. Raises TypeError for anything else than a map."""
    if kind is not SeglogError or not isinstance(value, Mapping):
        raise TypeError("an error is a map")
    return error_from_wire(value)
