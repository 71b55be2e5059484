"""The fields of messages as their declarations have them: name, type, range, default."""

import types
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from seglog_protocol.messages import INT64_MAX, Message

REQUIRED: Final = object()

ANY_INT64: Final = (-INT64_MAX - 1, INT64_MAX)
"""What an int may be that has no range of its own."""


class Field(NamedTuple):
    """``type`` is without limits; ``range`` is that of a number, None for one of any 64 bits and for what is none."""

    name: str
    type: Any
    range: tuple[int, int] | None
    default: Any


def fields(kind: type[Message]) -> list[Field]:
    """Of a message, in the order they travel in."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        Field(field.name, plain(hints[field.name]), _range(hints[field.name]), _default(field))
        for field in msgspec.structs.fields(kind)
    ]


def plain(hint: Any) -> Any:
    """A type without limits at any depth."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return plain(arguments[0])
    if origin in {types.UnionType, Union}:
        return reduce(or_, map(plain, arguments))
    if origin in {list, dict}:
        return origin[tuple(map(plain, arguments))]
    return hint


def _range(hint: Any) -> tuple[int, int] | None:
    if get_origin(hint) in {types.UnionType, Union}:
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return _range(kinds[0]) if len(kinds) == 1 else None
    if get_origin(hint) is not Annotated:
        return None
    limits = get_args(hint)[1]
    found = (limits.ge, limits.le)
    return None if found in {(None, None), ANY_INT64} else found


def _default(field: Any) -> Any:
    if field.required:
        return REQUIRED
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
