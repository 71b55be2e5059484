"""A record as one line of JSON, with everything that belongs to it: ``seglog consume --format json``.

    {"topic": "t", "partition": 0, "offset": 7, "timestamp": 1546300800000, "key": "k", "value_base64": "/w==",
     "headers": [{"key": "h", "value": "v"}]}

Bytes are text, or base64 under ``key_base64`` and ``value_base64`` where they are not UTF-8; null is null.
``timestamp`` is in ms since 1970, -1 for none.
"""

import json
from typing import Any

from seglog.core.records import Record
from seglog_protocol.texts import bytes_as_json


def to_json(record: Record) -> str:
    """The line of a record, without its end."""
    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **bytes_as_json("key", record.key),
        **bytes_as_json("value", record.value),
        "headers": [{"key": name, **bytes_as_json("value", content)} for name, content in record.headers],
    }
    return json.dumps(shown, ensure_ascii=False)
