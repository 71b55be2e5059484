"""Waiting for what is still to come, and what of it is shown."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from seglog.core.records import Record
from seglog.testing.errors import BrokerStoppedError
from seglog_protocol import errors

WAIT_SECONDS: Final = 10.0
"""How long tests wait, if they do not say."""

POLL_SECONDS_MIN: Final = 0.002
POLL_SECONDS_MAX: Final = 0.05
"""The pause between two looks at a topic, which doubles from the one to the other."""

STABLE: Final = "Stable"
"""The state of a group whose members all have their partitions."""

AWAY: Final = (BrokerStoppedError, errors.ClientClosedError, errors.ConnectionLostError, errors.NotReachableError)
"""What is met while the broker is stopped, or as it stops."""

SHOWN_MAX: Final = 5
VALUE_CHARACTERS_MAX: Final = 80


def looks(timeout: float, check_open: Callable[[], None]) -> Iterator[None]:
    """One item for each look, with longer and longer pauses between them, for ``timeout`` seconds."""
    deadline, pause = time.monotonic() + timeout, POLL_SECONDS_MIN
    while True:
        check_open()
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(2 * pause, POLL_SECONDS_MAX)


def describe_record(record: Record) -> str:
    """One record in one line."""
    parts = [f"  {record.topic}-{record.partition} offset {record.offset}:"]
    if record.key is not None:
        parts.append(f"key {_shown(record.key)},")
    parts.append("no value (a tombstone)" if record.value is None else f"value {_shown(record.value)}")
    if record.headers:
        parts.append(f"headers {dict(record.headers)!r}"[:VALUE_CHARACTERS_MAX])
    return " ".join(parts)


def _shown(data: bytes) -> str:
    shown = repr(data)
    return shown if len(shown) <= VALUE_CHARACTERS_MAX else f"{shown[:VALUE_CHARACTERS_MAX]}… ({len(data)} bytes)"
