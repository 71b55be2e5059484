"""Why a map is no message, in a sentence that names the field.

msgspec has refused the map by then; its own sentences name a path and the types of msgspec. This looks for the first
field that is wrong, in the order of the map, and runs only for what is refused.
"""

import functools
import re
import reprlib
import types
import typing
from collections.abc import Mapping, Sized
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from seglog_protocol.errors import InvalidRequestError, SeglogError
from seglog_protocol.messages.hooks import REFUSED, decode_error


def refusal(cls: type[msgspec.Struct], wire: Mapping[str, Any]) -> InvalidRequestError:
    """What is wrong with ``wire`` as a ``cls``."""
    try:
        _check_map(cls, wire)
    except InvalidRequestError as found:
        return found
    return InvalidRequestError(f"this is no {cls.__name__}", field="")


def refusal_of_value(value: Any, name: str, hint: Any) -> InvalidRequestError:
    """What is wrong with ``value``, called ``name``, as a ``hint``."""
    try:
        _check(value, name, hint)
    except InvalidRequestError as found:
        return found
    return InvalidRequestError(f"{name} is not of its type", field=name)


def refusal_of_large(size: int, reason: str) -> InvalidRequestError:
    """What is wrong with a request whose header has ``size`` bytes, by msgspec's own sentence.

    That names the place at its end, without the numbers of items: "... - at `$.partitions[...].topic`".
    """
    what, at, path = reason.rpartition(" - at ")
    if not at:
        what, path = reason, ""
    named = _FIELD.search(what)
    field = named[1] if named else (_NAME.findall(path) or [""])[-1]
    too_many = _TOO_MANY.match(what)
    if too_many:
        sentence = f"field {shown(field)} has more than {too_many[1]} items, one request takes that many: send several"
    else:
        what = _KIND.sub(lambda kind: _KINDS.get(kind[1], kind[1]), what)
        place = f" at {cut(path.strip('`'))}" if path else ""
        sentence = f"of a header of {size} bytes, this is wrong{place}: {what[:_REASON_CHARACTERS]}"
    return InvalidRequestError(sentence, field=cut(field))


_REASON_CHARACTERS: Final = 100
_FIELD: Final = re.compile(r"field `(.*)`$", re.DOTALL)
_NAME: Final = re.compile(r"\.(\w+)")
_TOO_MANY: Final = re.compile(r"Expected `(?:array|object)` of length <= (\d+)")
_KIND: Final = re.compile(r"`(\w{1,20})`")
_KINDS: Final[Mapping[str, str]] = {"object": "a map", "array": "a list", "str": "text", "int": "a whole number"}


def shown(value: Any) -> str:
    """The repr of a peer's value for an error message: short, and limited in depth."""
    return cut(_SHORT.repr(value))


def cut(value: Any) -> str:
    """A peer's name as a fact of an error, cut to 60 characters; the repr if it is not text."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 60

_NO_LIMITS: Final = msgspec.Meta()
_WORDS: Final[Mapping[Any, str]] = {str: "text", bool: "true or false"}


@functools.cache
def _hints(cls: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in cls.__struct_fields__}


def _check_map(cls: type[msgspec.Struct], wire: Mapping[str, Any]) -> None:
    hints = _hints(cls)
    for name, value in wire.items():
        if name in hints:
            _check(value, name, hints[name])
        elif cls.__struct_config__.forbid_unknown_fields:
            raise InvalidRequestError(
                f"unknown field {shown(name)}; {cls.__name__} has {', '.join(hints)}", field=cut(name)
            )
    for field in msgspec.structs.fields(cls):
        if field.required and field.name not in wire:
            raise InvalidRequestError(f"{cls.__name__} needs the field {field.name!r}", field=field.name)


def _check(value: Any, name: str, hint: Any, limits: msgspec.Meta = _NO_LIMITS) -> None:
    """Raise the error for a value that is not of type ``hint``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        _check(value, name, *arguments)
    elif origin in {types.UnionType, typing.Union}:
        kinds = [kind for kind in arguments if kind is not type(None)]
        if value is None and len(kinds) < len(arguments):
            return
        if len(kinds) == 1:
            _check(value, name, kinds[0])
        elif type(value) not in kinds:
            raise _wrong(name, " or ".join(kind.__name__ for kind in kinds), value)
    elif origin is Literal:
        if value not in arguments:
            raise _wrong(name, f"one of {', '.join(map(str, arguments))}", value)
    elif origin is list:
        if type(value) is not list:
            raise _wrong(name, "a list", value)
        _check_count(name, value, limits)
        for item in value:
            if not _fits(item, arguments[0]):
                _check(item, name, arguments[0])
    elif origin is dict:
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise _wrong(name, "a map with text keys", value)
        _check_count(name, value, limits)
        for key, item in value.items():
            if not _fits(item, arguments[1]):
                _check(item, f"{name}.{key}", arguments[1])
    elif issubclass(hint, msgspec.Struct):
        if type(value) is not dict:
            raise _wrong(name, "a map", value)
        _check_map(hint, value)
    elif issubclass(hint, SeglogError):
        if not isinstance(value, Mapping):
            raise _wrong(name, "an error map", value)
    elif limits.ge is not None and limits.le is not None:
        if type(value) is not hint or not limits.ge <= value <= limits.le:
            raise _wrong(name, f"a whole number from {limits.ge} to {limits.le}", value)
    elif type(value) is not hint:  # exact: True is no int here
        raise _wrong(name, _WORDS.get(hint, hint.__name__), value)


def _fits(value: Any, hint: Any) -> bool:
    """Whether msgspec takes it: of ten thousand items it finds the wrong one in a tenth of the time."""
    try:
        msgspec.convert(value, hint, dec_hook=decode_error)
    except REFUSED:
        return False
    return True


def _check_count(name: str, items: Sized, limits: msgspec.Meta) -> None:
    if limits.max_length is not None and len(items) > limits.max_length:
        raise InvalidRequestError(
            f"field {shown(name)} has {len(items)} items, one request takes {limits.max_length}: send several requests",
            field=cut(name),
        )


def _wrong(name: str, expected: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(f"field {shown(name)} must be {expected}, not {shown(value)}", field=cut(name))
