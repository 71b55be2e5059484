"""Records as ``consume`` prints them: text, JSON, raw."""

import json
from collections.abc import Callable
from datetime import tzinfo
from typing import Any

from seglog.core.moments import format_time
from seglog.core.records import Record
from seglog_protocol.texts import bytes_as_json

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
        **bytes_as_json("key", record.key),
        **bytes_as_json("value", record.value),
        "headers": [{"key": name, **bytes_as_json("value", content)} for name, content in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


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
