"""Dataclasses read back from the JSON that goes between processes, with every field checked."""

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

ValueT = TypeVar("ValueT")


def decoded(kind: type[ValueT], item: Any) -> ValueT:
    """The dataclass of type ``kind`` that ``dataclasses.asdict`` and JSON turned into ``item``.

    Fields may be numbers, texts, tuples, None and dataclasses. Raises ValueError naming a field that does not fit.
    """
    if not isinstance(item, dict):
        raise ValueError(f"{kind.__name__}: {item!r} is not an object")  # noqa: TRY004 - a wrong value, as JSON has it
    hints = get_type_hints(kind)
    assert is_dataclass(kind)
    known = {field.name for field in fields(kind)}
    if item.keys() != known:
        raise ValueError(f"{kind.__name__}: {', '.join(sorted(known ^ item.keys()))} missing or unknown")
    return kind(**{name: _value(hints[name], value, f"{kind.__name__}.{name}") for name, value in item.items()})


def _value(kind: Any, item: Any, name: str) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        return decoded(kind, item)
    if get_origin(kind) is tuple and isinstance(item, list):
        return tuple(_value(get_args(kind)[0], one, name) for one in item)
    if get_origin(kind) is UnionType:  # something or None
        return None if item is None else _value(get_args(kind)[0], item, name)
    if kind is float and type(item) is int:
        return float(item)
    if type(item) is not kind:
        raise ValueError(f"{name} is {item!r}, no {getattr(kind, '__name__', kind)}")
    return item
