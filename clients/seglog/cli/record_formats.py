"""Records as ``consume`` prints them: text, JSON, raw."""

import base64
import json
from collections.abc import Callable
from datetime import tzinfo
from typing import Any

from seglog.core.moments import format_time
from seglog.core.records import Record

Formatter = Callable[[Record], bytes]


def as_json(record: Record) -> bytes:
    """One object a line: topic, partition, offset, timestamp (ms), key, value, headers.

    Bytes are text, or base64 under ``key_base64`` / ``value_base64`` where they are not UTF-8; null is null.
    """
    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_field("key", record.key),
        **_field("value", record.value),
        "headers": [{"key": name, **_field("value", content)} for name, content in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _field(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def as_raw(record: Record) -> bytes:
    """The value's bytes and nothing else."""
    return record.value or b""


def text_formatter(*, keys: bool, headers: bool, offsets: bool, zone: tzinfo | None) -> Formatter:
    """Tab-separated: partition:offset, time, headers and key as asked for, then the value; ``null`` where none is."""

    def as_text(record: Record) -> bytes:
        parts: list[bytes] = []
        if offsets:
            parts.append(f"{record.partition}:{record.offset}".encode())
            parts.append(format_time(record.timestamp, zone).encode())
        if headers:
            parts.append(b",".join(name.encode() + b"=" + _shown(content) for name, content in record.headers))
        if keys:
            parts.append(_shown(record.key))
        parts.append(_shown(record.value))
        return b"\t".join(parts) + b"\n"

    return as_text


def _shown(content: bytes | None) -> bytes:
    return b"null" if content is None else content
