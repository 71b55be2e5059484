"""The table of Kafka's messages, read: which fields there are, of which types, in which versions.

``definitions.txt`` has a block for each message and a line for each field; its first lines explain them. A block is
parsed when its message is first asked for.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pkgutil import get_data
from typing import Final, NamedTuple

LAST_VERSION: Final = 0x7FFF
"""The last that an int16 can say: where ``3+`` ends."""


class Field(NamedTuple):
    """A field of a struct, in all versions."""

    name: str
    """In Python's spelling: ``high_watermark`` for ``HighWatermark``."""
    type: str
    """As Kafka spells it: ``int32``, ``string``, the name of a struct; with ``[]`` before it, an array of these."""
    versions: range
    nullable: range
    tag: int | None
    tagged: range
    """The versions in which the field is a tagged one."""
    flexible: range | None
    """The versions in which its length is a varint, where that is not as in the rest of the message."""
    default: str
    """As the table has it; empty for the zero of its type."""
    is_struct: bool

    @property
    def is_array(self) -> bool:
        """Whether the value is a list."""
        return self.type.startswith("[]")

    @property
    def is_optional_struct(self) -> bool:
        """Whether it is a tagged struct that Kafka has no null for: it is None when it is not there."""
        return self.is_struct and not self.is_array and self.tag is not None and not self.nullable


class StructDefinition(NamedTuple):
    """A struct: a message, or what stands in one."""

    name: str
    fields: tuple[Field, ...]


class Definition(NamedTuple):
    """A message, in all versions."""

    struct: StructDefinition
    kind: str
    """``request``, ``response`` or ``data``."""
    api_key: int | None
    versions: range
    flexible: range
    structs: Mapping[str, StructDefinition]
    """The structs in it, by name, at whatever depth; each after those that its fields need."""

    @property
    def is_of_a_record(self) -> bool:
        """Whether it is the key or the value of a record that a broker itself writes, such as OffsetCommitValue."""
        return self.kind == "data" and self.struct.name.endswith(("Key", "Value"))


class Api(NamedTuple):
    """A request and its response, by their names, and the versions that they share."""

    request: str
    response: str
    versions: range
    flexible: range


def message_names() -> tuple[str, ...]:
    """All messages, in the order of the table: requests and responses by their api key, then data."""
    return tuple(_blocks())


@cache
def definition(name: str) -> Definition:
    """The message ``name``; KeyError if there is none."""
    head, *lines = _blocks()[name].splitlines()
    _, kind, api_key, versions, flexible = head.split()
    structs: dict[str, StructDefinition] = {}
    names = {
        line.split()[1].removeprefix("[]") for line, after in pairwise([*lines, ""]) if _depth(after) > _depth(line)
    }
    fields = tuple(_parse_fields(deque(lines), 1, structs, names))
    return Definition(
        StructDefinition(name, fields),
        kind,
        None if api_key == "-" else int(api_key),
        _versions(versions),
        _versions(flexible),
        structs,
    )


@cache
def has_field(name: str, field: str, version: int) -> bool:
    """Whether the message ``name`` has ``field`` itself, not in one of its structs, in a version."""
    return any(known.name == field and version in known.versions for known in definition(name).struct.fields)


@cache
def apis() -> Mapping[int, Api]:
    """All apis, by key."""
    found = {}
    for name, block in _blocks().items():
        _, kind, api_key, versions, flexible = block.partition("\n")[0].split()
        if kind == "request":
            response = name.removesuffix("Request") + "Response"
            found[int(api_key)] = Api(name, response, _versions(versions), _versions(flexible))
    return found


@cache
def _blocks() -> dict[str, str]:
    """The text of each message, by its name."""
    text = get_data(__package__, "definitions.txt")
    assert text is not None, "the loader of this package has no data"
    _, *blocks = text.decode().split("\n\n")
    return {block.partition(" ")[0]: block for block in blocks}


def _depth(line: str) -> int:
    return (len(line) - len(line.lstrip(" "))) // 2


def _parse_fields(
    lines: deque[str], depth: int, structs: dict[str, StructDefinition], struct_names: set[str]
) -> Iterator[Field]:
    while lines and _depth(lines[0]) == depth:
        name, type_, versions, *options = lines.popleft().split()
        inner = tuple(_parse_fields(lines, depth + 1, structs, struct_names))
        struct_name = type_.removeprefix("[]")
        if inner:
            structs[struct_name] = StructDefinition(struct_name, inner)
        if name != "struct":
            given = dict(option.split(":", 1) for option in options)
            yield Field(
                re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower(),
                type_,
                _versions(versions),
                _versions(given.get("nullable", "none")),
                int(given["tag"]) if "tag" in given else None,
                _versions(given.get("tagged", "none")),
                _versions(given["flexible"]) if "flexible" in given else None,
                given.get("default", ""),
                struct_name in struct_names,
            )


def _versions(text: str) -> range:
    """``3-7``, ``3+``, ``3`` or ``none``."""
    if text == "none":
        return range(0)
    first, dash, last = text.partition("-")
    if first.endswith("+"):
        return range(int(first[:-1]), LAST_VERSION + 1)
    return range(int(first), int(last if dash else first) + 1)
