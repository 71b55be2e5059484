"""The page docs/MESSAGES.md: each message of the native protocol and its fields, from the structs, with their meanings.

What stands above the tables is in docs/MESSAGES.md, the meaning of a field in messages.toml beside this script, and the
exchange in bytes with the tests, which hold it against a broker. A test refuses a field without a meaning.
``scripts.pages`` writes the page.
"""

import inspect
import json
import re
import tomllib
import types
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from scripts.event_tables import WRITTEN_FROM_HERE
from seglog_protocol import messages
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import INT64_MAX, Message, Request

REPOSITORY: Final = Path(__file__).resolve().parent.parent
EXCHANGE: Final = REPOSITORY / "tests" / "unit" / "protocol" / "exchange.txt"

REQUIRED: Final = object()

_ANY_INT64: Final = (-INT64_MAX - 1, INT64_MAX)
_LIMITS: Final = {2**31 - 1: "2^31-1", 2**63 - 1: "2^63-1", -(2**31): "-2^31"}
_HEAD: Final = ["| field | type | range | default | meaning |", "|---|---|---|---|---|"]


class Field(NamedTuple):
    """``type`` is without limits; ``range`` is that of a number, None for one of any 64 bits and for what is none."""

    name: str
    type: Any
    range: tuple[int, int] | None
    default: Any


def page() -> str:
    """The whole page, ending with a line feed."""
    text = (REPOSITORY / "docs" / "MESSAGES.md").read_text(encoding="utf-8").partition(WRITTEN_FROM_HERE)[0]
    kinds = {kind.__name__: kind for kind in message_classes()}
    for api, messages_of_api in meanings_by_api().items():
        text += f"## {api}\n\n"
        text += "".join(f"#### {name}\n\n{block(kinds[name], meant)}\n" for name, meant in messages_of_api.items())
    return text + EXCHANGE.read_text(encoding="utf-8")


def meanings_by_api() -> dict[str, dict[str, dict[str, str]]]:
    """The meaning of each field, by api and message, in the order of the page."""
    return tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))


def message_classes() -> list[type[Message]]:
    """Every message, and every map within one, in the order of their definition."""
    kinds = [kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Message)]
    return [kind for kind in kinds if kind not in {Message, Request}]


def block(kind: type[Message], meant: dict[str, str]) -> str:
    """What stands under the heading of a message."""
    sentence = re.split(r"(?<=\.)\s", inspect.getdoc(kind) or "", maxsplit=1)[0]
    lines = [re.sub(r"\bNone\b", "absent", " ".join(sentence.split())).replace("``", "`")]
    if fields(kind):
        lines += ["", *_HEAD]
    for field in fields(kind):
        cells = (f"`{field.name}`", type_in_words(field.type), range_in_words(field), default_in_words(field))
        lines.append(f"| {' | '.join((*cells, meant.get(field.name, '')))} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


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
    return None if found in {(None, None), _ANY_INT64} else found


def _default(field: Any) -> Any:
    if field.required:
        return REQUIRED
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def type_in_words(hint: Any) -> str:
    """A type as the tables have it: ``list of text``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in {types.UnionType, Union}:
        return " or ".join(type_in_words(kind) for kind in arguments if kind is not type(None))
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in arguments)
    if origin is list:
        return f"list of {type_in_words(arguments[0])}"
    if origin is dict:
        return f"map of text to {type_in_words(arguments[1])}"
    if hint is SeglogError:
        return "error map"
    return {str: "text", int: "int", float: "float", bool: "bool"}.get(hint) or str(hint.__name__)


def default_in_words(field: Field) -> str:
    """What the tables say where a field is left out."""
    if field.default is REQUIRED:
        return "required"
    return "absent" if field.default is None else f"`{json.dumps(field.default)}`"


def range_in_words(field: Field) -> str:
    """The range of a number, empty for any."""
    return "" if field.range is None else " to ".join(_LIMITS.get(limit, f"{limit}") for limit in field.range)
