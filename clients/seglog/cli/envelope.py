"""A record as one line of JSON, with everything that belongs to it: ``seglog consume --format json`` and back.

    {"topic": "t", "partition": 0, "offset": 7, "timestamp": 1546300800000, "key": "k", "value_base64": "/w==",
     "headers": [{"key": "h", "value": "v"}]}

Bytes are text, or base64 under ``key_base64`` and ``value_base64`` where they are not UTF-8; null is null.
``timestamp`` is in ms since 1970, -1 for none.
"""

import binascii
import json
from typing import Any, Final

from seglog.cli.exits import InputError
from seglog.cli.input_records import INT64_MAX, InputRecord, decode_json
from seglog.core.records import Record
from seglog_protocol.texts import bytes_as_json

_PLAIN: Final = {"topic", "partition", "offset", "timestamp", "headers"}


def to_json(record: Record) -> str:
    """The line of a record, without its end."""
    return json.dumps(to_map(record), ensure_ascii=False)


def to_map(record: Record) -> dict[str, Any]:
    """The fields of that line."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **bytes_as_json("key", record.key),
        **bytes_as_json("value", record.value),
        "headers": [{"key": name, **bytes_as_json("value", content)} for name, content in record.headers],
    }


def is_envelope(line: bytes) -> bool:
    """Whether a line has exactly the fields of one, each of its type: other JSON that happens to is most unlikely."""
    try:
        value = decode_json(line)
        parse(line)
    except InputError:
        return False
    kinds = [(name, type(value.get(name))) for name in ("topic", "partition", "offset")]
    return value.keys() >= _PLAIN and kinds == [("topic", str), ("partition", int), ("offset", int)]


def parse(line: bytes) -> InputRecord:
    """The record of a line; InputError for a bad one.

    ``topic``, ``partition`` and ``offset`` say where it was. All fields but the value may be left out.
    """
    value = decode_json(line)
    if not isinstance(value, dict):
        raise InputError("not a JSON object, so it is no record")
    unknown = value.keys() - _PLAIN - {"key", "key_base64", "value", "value_base64"}
    if unknown:
        raise InputError(f"a record has no field {min(unknown)!r}")
    timestamp, headers = value.get("timestamp"), value.get("headers", [])
    if timestamp is not None and (type(timestamp) is not int or not -1 <= timestamp <= INT64_MAX):
        raise InputError("field 'timestamp' is not a whole number of milliseconds since 1970, or -1")
    if not isinstance(headers, list):
        raise InputError("field 'headers' is not a list")
    key = _content(value, "key") if value.keys() & {"key", "key_base64"} else None
    return InputRecord(key, _content(value, "value"), timestamp, tuple(map(_header, headers)))


def _header(value: Any) -> tuple[str, bytes | None]:
    if not isinstance(value, dict) or not isinstance(value.get("key"), str):
        raise InputError("a header is not an object with a text 'key'")
    if value.keys() - {"key", "value", "value_base64"}:
        raise InputError("a header has 'key' and 'value' or 'value_base64', and no other field")
    _text(value["key"], "key")
    return value["key"], _content(value, "value")


def _content(value: dict[str, Any], name: str) -> bytes | None:
    """The bytes under ``name`` or ``NAME_base64``, of which exactly one must be there."""
    encoded = f"{name}_base64"
    if (name in value) == (encoded in value):
        raise InputError(f"a record and a header have either {name!r} or {encoded!r}")
    content = value[name] if name in value else value[encoded]
    if content is None and name in value:
        return None
    if not isinstance(content, str):
        raise InputError(f"field {name if name in value else encoded!r} is not text")
    if name in value:
        return _text(content, name)
    try:
        return binascii.a2b_base64(content.encode("ascii"), strict_mode=True)
    except ValueError:  # binascii.Error and UnicodeEncodeError
        raise InputError(f"field {encoded!r} is not base64") from None


def _text(content: str, name: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise InputError(f"field {name!r} holds half a surrogate pair") from None
