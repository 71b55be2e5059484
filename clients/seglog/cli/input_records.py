"""Records from the lines that ``seglog produce`` reads: text with a key and headers before the value, and JSON."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, NamedTuple, NoReturn

from seglog.cli.exits import InputError
from seglog.core.moments import to_epoch_ms

INT64_MAX: Final = 2**63 - 1


class InputRecord(NamedTuple):
    """A record to be sent; ``timestamp`` is epoch ms, -1 for none, and None for the time of sending."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TextLines:
    """Lines of text: headers and key, if they are there, each with ``separator`` behind it, then the value.

    This is what ``consume --headers --keys`` prints. ``null``: what a key, a value or the value of a header is where
    there is none.
    """

    keys: bool = False
    headers: bool = False
    separator: bytes = b"\t"
    null: bytes | None = None

    def parse(self, line: bytes) -> InputRecord:
        """The record of a line; InputError for a bad one."""
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if self.headers:
            some, line = self._cut(line, "headers")
            headers = tuple(map(self._header, some.split(b","))) if some else ()
        if not self.keys:
            return InputRecord(None, self._content(line), headers=headers)
        key, value = self._cut(line, "key")
        return InputRecord(self._content(key), self._content(value), headers=headers)

    def _cut(self, line: bytes, what: str) -> tuple[bytes, bytes]:
        before, separator, rest = line.partition(self.separator)
        if not separator:
            raise InputError(f"no {self.separator.decode()!r} after the {what}")
        return before, rest

    def _header(self, text: bytes) -> tuple[str, bytes | None]:
        name, equals, content = text.partition(b"=")
        if not equals:
            raise InputError("a header is not NAME=VALUE")
        try:
            return name.decode(), self._content(content)
        except UnicodeDecodeError:
            raise InputError("the name of a header is not UTF-8") from None

    def _content(self, content: bytes) -> bytes | None:
        return None if content == self.null else content


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def decode_json(line: bytes) -> Any:
    """The value of a line of JSON; InputError for one that is none."""
    try:
        return _decoder.decode(line.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Lines of JSON, each a record's value byte for byte, and which of their fields mean something."""

    key_field: str | None = None
    timestamp_field: str | None = None
    timestamp_unit: str = "ms"

    def parse(self, line: bytes) -> InputRecord:
        """The record of a line; InputError for a bad one."""
        value = decode_json(line)
        if self.key_field is None and self.timestamp_field is None:
            return InputRecord(None, line)
        if not isinstance(value, dict):
            raise InputError("not a JSON object, so it has no fields")
        key = None if self.key_field is None else _key(_field(value, self.key_field))
        if self.timestamp_field is None:
            return InputRecord(key, line)
        return InputRecord(key, line, self._timestamp(_field(value, self.timestamp_field)))

    def _timestamp(self, value: Any) -> int:
        name = self.timestamp_field
        if self.timestamp_unit == "iso":
            try:
                moment = datetime.fromisoformat(value)
            except (TypeError, ValueError):
                raise InputError(f"field {name!r} is not an ISO 8601 time: {_shown(value)}") from None
            timestamp = to_epoch_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
        elif isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise InputError(f"field {name!r} is not a number: {_shown(value)}")
        elif self.timestamp_unit == "s":
            timestamp = value * 1000 if isinstance(value, int) else round(value * 1000)
        elif value != int(value):
            raise InputError(f"field {name!r} is not a whole number of milliseconds: {_shown(value)}")
        else:
            timestamp = int(value)
        if not 0 <= timestamp <= INT64_MAX:
            raise InputError(f"field {name!r} is not a time since 1970: {_shown(value)}")
        return timestamp


def _field(value: dict[str, Any], name: str) -> Any:
    try:
        return value[name]
    except KeyError:
        raise InputError(f"no field {name!r}") from None


def _key(value: Any) -> bytes | None:
    """Text as it is, null for no key, anything else as JSON."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError(f"the key {_shown(value)} holds half a surrogate pair") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
