"""Messages with random contents, of every kind and version in the table."""

import string
from random import Random
from typing import Any, Final

from seglog_protocol.kafka import messages
from seglog_protocol.kafka.definitions import Definition, Field, StructDefinition, definition, message_names
from seglog_protocol.kafka.structs import Message, Struct

MESSAGES: Final = message_names()
VERSIONS: Final = [(name, version) for name in MESSAGES for version in definition(name).versions]

NEWEST: Final = {
    (f"{api}{kind}", version)
    for api, version in (("ApiVersions", 5), ("TxnOffsetCommit", 6), ("DeleteGroups", 3))
    for kind in ("Request", "Response")
}
"""Messages of Kafka 4.4.0 that other libraries do not have yet."""

SEEDS: Final = range(5)
"""Of the instances of each version that every run of the tests tries; `make soak` tries others."""

_INTEGERS: Final = {"int8": (-7, 7), "int16": (-15, 15), "uint16": (0, 16), "int32": (-31, 31), "int64": (-63, 63)}
_LETTERS: Final = string.printable + "äß€😀\0"
_ERROR_CODES: Final = range(-1, 120)
"""Those that everyone knows."""
_MILLISECONDS: Final = 1 << 41


class Instances:
    """``Instances(seed).message(...)``; every call makes another one.

    Times and error codes are such as other libraries have types for, which know fewer of them than fit into a field.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def message(self, name: str, version: int) -> Message:
        """Only fields of ``version`` differ from their defaults."""
        described = definition(name)
        made: Message = self._fill(getattr(messages, name), described.struct, described, version)
        return made

    def _fill(self, cls: type[Any], struct: StructDefinition, message: Definition, version: int) -> Any:
        return cls(
            **{
                field.name: self._value(field, message, version)
                for field in struct.fields
                if version in field.versions and not (version in field.tagged and self._random.random() < 0.3)
            }
        )

    def _value(self, field: Field, message: Definition, version: int) -> Any:
        if version in field.nullable and self._random.random() < 0.25:
            return None
        if not field.is_array:
            return self._single(field, field.type, message, version)
        element = field.type.removeprefix("[]")
        longest = 200 if element not in message.structs and self._random.random() < 0.05 else 3
        return [self._single(field, element, message, version) for _ in range(self._random.randint(0, longest))]

    def _single(self, field: Field, type_: str, message: Definition, version: int) -> Any:
        random = self._random
        if type_ in message.structs:
            return self._struct(field, type_, message, version)
        match type_:
            case "bool":
                return random.random() < 0.5
            case "float64":
                return random.choice([0.0, -1.5, random.uniform(-1e300, 1e300)])
            case "uuid":
                return random.choice([bytes(16), random.randbytes(16)])
            case "string":
                return "".join(random.choices(_LETTERS, k=random.choice([0, 1, 5, 20, 130])))
            case "bytes":
                return random.randbytes(random.choice([0, 1, 20, 300]))
            case "records":
                return memoryview(random.randbytes(random.choice([0, 1, 61, 300])))
        return self._integer(field, type_)

    def _integer(self, field: Field, type_: str) -> int:
        random = self._random
        if field.name.endswith("error_code"):
            return random.choice(_ERROR_CODES)
        if type_ == "int64" and ("time" in field.name or field.name.endswith("_ms")):
            return random.choice([-1, random.randrange(_MILLISECONDS)])
        low, high = _INTEGERS[type_]
        least, most = -(1 << -low) if low else 0, (1 << high) - 1
        return random.choice([0, 1, least, most, random.randint(least, most)])

    def _struct(self, field: Field, type_: str, message: Definition, version: int) -> Struct:
        cls = getattr(getattr(messages, message.struct.name), type_)
        made: Struct = self._fill(cls, message.structs[type_], message, version)
        while field.is_optional_struct and made == cls():  # which is written as nothing at all, and read as None
            made = self._fill(cls, message.structs[type_], message, version)
        return made
