"""One class for each struct, with the fields of all its versions; made from the table when it is first asked for.

A field that a version does not have keeps its default when read in that version, and is not written in it. Values are
``int``, ``bool``, ``float``, ``str``, ``list``, other structs, and

- ``bytes``, for Kafka's bytes, and 16 of them for its uuids;
- for records: read, a memoryview of the frame; written, whatever has a length in bytes;
- None, where Kafka has null. A tagged struct that is not there is None, too, where Kafka makes one of defaults; but
  where it can be null, which is written, it is one of defaults.
"""

from functools import cache
from typing import Any, ClassVar, Final, dataclass_transform

from seglog_protocol.kafka.definitions import Field, StructDefinition, definition

_SHOWN_BYTES: Final = 32
_NO_UUID: Final = bytes(16)


@dataclass_transform(kw_only_default=True)
class Struct:
    """A struct in a message: fields by keyword, each with the default that Kafka gives it."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # fields change

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"


class Message(Struct):
    """A request, a response, or another struct with versions of its own."""

    __slots__ = ()
    VERSIONS: ClassVar[range]


class Request(Message):
    """A request of a client."""

    __slots__ = ()
    API_KEY: ClassVar[int]


class Response(Message):
    """The response to a request."""

    __slots__ = ()
    API_KEY: ClassVar[int]


_BASES: Final[dict[str, type[Message]]] = {"request": Request, "response": Response, "data": Message}


def _shown(value: object) -> str:
    if isinstance(value, bytes | memoryview):
        return repr(bytes(value)) if len(value) <= _SHOWN_BYTES else f"<{len(value)} bytes>"
    return repr(value)


@cache
def message_class(name: str) -> type[Message]:
    """The class of a message, with those of the structs in it as attributes; KeyError if there is no such message."""
    described = definition(name)
    values = {"VERSIONS": described.versions, **struct_classes(name)}
    if described.api_key is not None:
        values["API_KEY"] = described.api_key
    made: type[Message] = _make_class(described.struct, _BASES[described.kind], name, struct_classes(name), values)
    return made


@cache
def struct_classes(name: str) -> dict[str, type[Struct]]:
    """The classes of the structs in a message, by their own names."""
    made: dict[str, type[Struct]] = {}
    for struct in definition(name).structs.values():
        made[struct.name] = _make_class(struct, Struct, f"{name}.{struct.name}", made, {})
    return made


def default_text(field: Field) -> str:
    """The default of a field, as Python."""
    if field.is_optional_struct or field.default == "null" or (field.type == "records" and field.nullable):
        return "None"
    if field.is_array:
        return "[]"
    if field.is_struct:
        return f"{field.type}()"
    if field.type == "bool":
        return str(field.default == "true")
    empty = {"string": "''", "bytes": "b''", "records": "b''", "uuid": repr(_NO_UUID), "float64": "0.0"}
    return field.default or empty.get(field.type, "0")


def _make_class(
    struct: StructDefinition,
    base: type[Any],
    qualified_name: str,
    known: dict[str, type[Struct]],
    values: dict[str, Any],
) -> type[Any]:
    """A class with ``struct``'s fields as slots. Readers give its ``__init__`` all fields in order, people by name."""
    parameters, lines = [], []
    for field in struct.fields:
        default = default_text(field)
        if field.is_array or field.is_struct:  # each instance gets its own
            parameters.append(f"{field.name}=_OWN")
            lines.append(f" self.{field.name} = {default} if {field.name} is _OWN else {field.name}")
        else:
            parameters.append(f"{field.name}={default}")
            lines.append(f" self.{field.name} = {field.name}")
    source = "\n".join([f"def __init__({', '.join(['self', *parameters])}):", *lines, " pass"])
    names: dict[str, Any] = {"_OWN": object(), **known}
    exec(compile(source, f"<{qualified_name}.__init__>", "exec"), names)  # noqa: S102 - from our own table
    slots = tuple(field.name for field in struct.fields)
    return type(
        struct.name,
        (base,),
        {
            "__slots__": slots,
            "__init__": names["__init__"],
            "__module__": "seglog_protocol.kafka.messages",
            "__qualname__": qualified_name,
            **values,
        },
    )
