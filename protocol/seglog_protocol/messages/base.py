"""What every message is: a msgspec struct, whose fields travel as a msgpack map; and the kinds of fields there are."""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, dataclass_transform
from uuid import UUID

import msgspec

from seglog_protocol.messages.hooks import REFUSED, decode_error, encode_other
from seglog_protocol.messages.refusals import refusal

PROTOCOL_NAME: Final = "seglog"
NATIVE_PORT: Final = 9192

ITEMS_MAX: Final = 10_000
"""Items allowed in a list or map of a request, so that many tiny items cannot make a request expensive."""

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

ValueT = TypeVar("ValueT")

Int31 = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
Int32 = Annotated[int, msgspec.Meta(ge=-INT32_MAX - 1, le=INT32_MAX)]
Int63 = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=-INT64_MAX - 1, le=INT64_MAX)]
Items = Annotated[list[ValueT], msgspec.Meta(max_length=ITEMS_MAX)]
"""A list of a request; a reply is limited by its frame only."""
Entries = Annotated[dict[str, ValueT], msgspec.Meta(max_length=ITEMS_MAX)]
"""A map of a request."""


def default(value: ValueT) -> ValueT:
    """What a missing field means, for a field that is always sent; lists and maps are made anew.

    A struct leaves out what *is* its default, and that would be any small number that equals it. What comes from a
    function is never left out.
    """
    make: Callable[[], Any] = value.copy if isinstance(value, (list, dict)) else lambda: value
    made: ValueT = msgspec.field(default_factory=make)
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fields that travel as a msgpack map. Those that are None, which is their default then, are left out."""

    __hash__ = None  # type: ignore[assignment]  # most hold lists

    def to_wire(self) -> dict[str, Any]:
        """The msgpack map; fields that are None are left out, errors become nested maps."""
        wire: dict[str, Any] = as_wire(self)
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """The message for a map.

        Raises InvalidRequestError, naming the field that is missing, of a wrong type, out of range or, in a request,
        unknown.
        """
        try:
            return msgspec.convert(wire, cls, builtin_types=_BYTES, dec_hook=decode_error)
        except REFUSED as error:
            raise refusal(error) from error


class Request(Message, forbid_unknown_fields=True):
    """A request of ``api``; ``version`` is the newest of that api."""

    api: ClassVar[str]
    version: ClassVar[int] = 1
    added: ClassVar[str | None] = None
    """The field that version 2 added."""
    is_plain: ClassVar[bool] = False
    """True if its makers pass values of plain types only; other requests are converted when they are sent."""

    def version_needed(self) -> int:
        """The lowest version that has every field in use; it is sent as that, so that older brokers accept it."""
        return 1 if self.added is None or getattr(self, self.added) is None else 2


class RequestPart(Message, forbid_unknown_fields=True, gc=False):
    """A map in a list of a request; numbers and text alone, of which the garbage collector need not know."""


_BYTES: Final = (bytes, bytearray, memoryview)
_NOT_CONVERTED: Final = (*_BYTES, datetime, date, time, timedelta, Decimal, UUID)
"""Bytes, and what msgspec has a text for, and msgpack nothing."""


def as_wire(value: Any) -> Any:
    """A message, or the value of a field, as it travels, but for what msgpack has no type for."""
    return msgspec.to_builtins(value, builtin_types=_NOT_CONVERTED, enc_hook=encode_other)
