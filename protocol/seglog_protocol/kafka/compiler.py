"""From the table to functions: a reader and a writer for each message and version, generated when first used.

A reader is called with a memoryview and the position where the message begins, and returns the message and the position
where it ends; it raises nothing but Malformed. A writer is called with a message, a bytearray to which it is appended,
and a list, to which go that bytearray and the records whenever records follow. It returns the bytearray that is to be
the last chunk. A value that its field cannot hold is a bug of the caller: TypeError, ValueError or struct.error.
"""

from collections.abc import Callable, Generator, Mapping
from functools import cache
from struct import error as StructError  # noqa: N812 - an exception
from typing import Any, Final

from seglog_protocol.kafka import wire_types
from seglog_protocol.kafka.definitions import Definition, Field, StructDefinition, definition
from seglog_protocol.kafka.errors import Malformed
from seglog_protocol.kafka.source import ReaderSource, Run, WriterSource
from seglog_protocol.kafka.structs import Struct, default_text, message_class, struct_classes
from seglog_protocol.kafka.varints import ELEMENTS_IN_ALL_MAX, Refused

Reader = Callable[[memoryview, int], tuple[Any, int]]
Writer = Callable[[Any, bytearray, list[Any]], bytearray]
ReaderInPieces = Callable[[memoryview, int], Generator[int, None, tuple[Any, int]]]
WriterInPieces = Callable[[Any, bytearray, list[Any]], Generator[int, None, bytearray]]
"""Generators of the same results. Before each piece they yield how many bytes of the chunk are read or written."""

_REFUSALS: Final = (Refused, IndexError, StructError, UnicodeDecodeError)
"""What the lines of a reader raise for bytes that are no message."""


@cache
def message_reader(name: str, version: int, *, in_pieces: bool = False) -> Any:
    """The function that reads the message ``name`` in ``version``, which its definition has: a ``Reader``.

    With ``in_pieces``, for a large message, a ``ReaderInPieces``.
    """
    out = ReaderSource(in_pieces=in_pieces)
    out.is_bounded = not definition(name).is_of_a_record
    out.names.update(
        wire_types.HELPERS, refusals=_REFUSALS, malformed=_Blame(name, version, out.fields), **struct_classes(name)
    )
    with out.block("def generated(frame, p):"):
        with out.block("try:"):
            out("end = len(frame)")
            if out.in_pieces and out.is_bounded:
                out(f"left = {ELEMENTS_IN_ALL_MAX}")
            out.begin_pieces()
            structure(name, version).read(out, "message")
            out("return message, p")
        with out.block("except refusals as error:"):
            out("raise malformed(error, len(frame) - p) from None")
    return out.compile(f"{name} v{version} reader")


@cache
def message_writer(name: str, version: int, *, in_pieces: bool = False) -> Any:
    """The ``Writer``, or ``WriterInPieces``, of a message, likewise."""
    out = WriterSource(in_pieces=in_pieces)
    out.names.update(wire_types.HELPERS)
    with out.block("def generated(message, w, chunks):"):
        out.begin_pieces()
        structure(name, version).write(out, "message")
        out("return w")
    return out.compile(f"{name} v{version} writer")


class _Blame:
    """The Malformed for what a reader's line raised, with so many bytes left: the line says which field it is.

    The line's variables are not looked at: they would be kept, and with them the frame, until garbage is collected.
    """

    def __init__(self, message: str, version: int, fields: Mapping[int, Run]) -> None:
        self._message = message
        self._version = version
        self._fields = fields

    def __call__(self, error: Exception, left: int) -> Malformed:
        assert error.__traceback__ is not None, "the error was raised"
        blamed = ""
        for size, field in self._fields[error.__traceback__.tb_lineno]:
            blamed = field
            left -= size
            if left < 0:
                break
        return Malformed(self._message, self._version, blamed, _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    return "the frame ends here"


def structure(name: str, version: int) -> wire_types.Structure:
    """The wire type of a whole message."""
    described = definition(name)
    if version not in described.versions:
        raise ValueError(f"{name} has no version {version}, only {described.versions}")
    return _structure(described, described.struct, message_class(name), version, null=None)


def _structure(
    message: Definition, struct: StructDefinition, cls: type[Struct], version: int, *, null: int | None
) -> wire_types.Structure:
    members = [
        wire_types.Member(
            field.name, _field_type(message, field, version), field.tag if version in field.tagged else None
        )
        for field in struct.fields
        if version in field.versions
    ]
    return wire_types.Structure(
        cls,
        {field.name: default_text(field) for field in struct.fields},
        members,
        flexible=version in message.flexible,
        null=null,
    )


def _field_type(message: Definition, field: Field, version: int) -> wire_types.WireType:
    flexible = version in (message.flexible if field.flexible is None else field.flexible)
    nullable = version in field.nullable
    if field.is_struct and not field.is_array:
        null = None if not nullable else 0 if version in field.tagged else -1
        cls = struct_classes(message.struct.name)[field.type]
        return _structure(message, message.structs[field.type], cls, version, null=null)
    if not field.is_array:
        return _single_type(message, field.type, version, flexible=flexible, nullable=nullable)
    element = _single_type(message, field.type.removeprefix("[]"), version, flexible=flexible, nullable=False)
    return wire_types.Array(wire_types.Length("i", flexible=flexible, nullable=nullable), element)


def _single_type(
    message: Definition, type_: str, version: int, *, flexible: bool, nullable: bool
) -> wire_types.WireType:
    if type_ in wire_types.FIXED:
        return wire_types.Fixed(wire_types.FIXED[type_])
    if type_ in message.structs:
        cls = struct_classes(message.struct.name)[type_]
        return _structure(message, message.structs[type_], cls, version, null=None)
    if type_ == "string":
        return wire_types.Text(wire_types.TextLength("h", flexible=flexible, nullable=nullable))
    length = wire_types.Length("i", flexible=flexible, nullable=nullable)
    return wire_types.Records(length) if type_ == "records" else wire_types.Data(length)
