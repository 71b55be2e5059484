"""The values of a request as its caller wrote them, as the plain types that msgpack has.

msgspec would also send what msgpack has no type for, such as a date, as text of its own choice.
"""

import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex, TypeVar

import msgspec

from seglog_protocol.errors import InvalidRequestError
from seglog_protocol.messages.refusals import cut, shown

RequestT = TypeVar("RequestT", bound=msgspec.Struct)

_KEPT = frozenset({bool, int, float, bytes, type(None)})


def plain_request(request: RequestT) -> RequestT:
    """The same request of plain values: a subclass of ``str`` becomes ``str``, an integer of numpy ``int``.

    Raises InvalidRequestError, naming the field, for a value that no plain one stands for.
    """
    made: RequestT = _plain_struct(request)
    return made


def _plain_struct(value: Any) -> Any:
    fields = type(value).__struct_fields__
    return type(value)(**{field: _plain(getattr(value, field), field) for field in fields})


def _plain(value: Any, name: str) -> Any:
    if type(value) in _KEPT:
        return value
    if isinstance(value, str):
        return _text(value, name)
    if isinstance(value, msgspec.Struct):
        return _plain_struct(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            problem = f"field {shown(name)} must be a map with text keys, not {shown(value)}"
            raise InvalidRequestError(problem, field=cut(name))
        return {_text(key, name): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, name) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    problem = f"field {shown(name)} is {shown(value)}: a {type(value).__name__} cannot be sent, text or a number can"
    raise InvalidRequestError(problem, field=cut(name))


def _text(value: str, name: str) -> str:
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"field {shown(name)} is {shown(text)}, which is no text that UTF-8 can write", field=cut(name)
        ) from error
    return text
