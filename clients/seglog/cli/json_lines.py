"""One line of JSON -> key and timestamp. The line itself is the record's value, byte for byte."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NoReturn

from seglog.cli.exits import InputError
from seglog.moments import to_epoch_ms

_INT64_MAX = 2**63 - 1


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Which fields mean something."""

    key_field: str | None = None
    timestamp_field: str | None = None
    timestamp_unit: str = "ms"

    def parse(self, line: bytes) -> tuple[bytes | None, int | None]:
        """The key, and the timestamp in epoch ms (None where no field was named); InputError for a bad line."""
        try:
            value = _decoder.decode(line.decode())
        except UnicodeDecodeError as error:
            raise InputError(f"not UTF-8 at byte {error.start}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON: {error}") from None
        if self.key_field is None and self.timestamp_field is None:
            return None, None
        if not isinstance(value, dict):
            raise InputError("not a JSON object, so it has no fields")
        key = None if self.key_field is None else _key(_field(value, self.key_field))
        if self.timestamp_field is None:
            return key, None
        return key, self._timestamp(_field(value, self.timestamp_field))

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
        if not 0 <= timestamp <= _INT64_MAX:
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
