"""Facts as JSON lines: one object each, ``kind`` first, so that a log of any size can be streamed.

Keys and values are text, or base64 under ``key_base64`` and ``value_base64`` if they are not UTF-8, or null. ``seglog
consume --format json`` shows records in the same way.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from seglog_broker.inspect.dump.facts import Fact, RecordFound


def json_lines(facts: Iterable[Fact]) -> Iterator[str]:
    """A line for every fact, without its newline."""
    for fact in facts:
        shown = (
            _record(fact) if isinstance(fact, RecordFound) else {f.name: getattr(fact, f.name) for f in fields(fact)}
        )
        yield json.dumps({"kind": fact.kind} | shown, ensure_ascii=False)


def _record(record: RecordFound) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_field("key", record.key),
        **_field("value", record.value),
        "headers": [{"key": name, **_field("value", content)} for name, content in record.headers],
    }
    if record.marker is not None:
        shown |= {"marker": record.marker, "coordinator_epoch": record.coordinator_epoch}
    return shown


def _field(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
