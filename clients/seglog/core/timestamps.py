"""Checks of record timestamps: past the topic's retention, or in seconds instead of milliseconds.

Such records are acknowledged like any other, and retention deletes them soon after. The limit comes with every append
result (``AppendResult.expired_before``); before the first result, and at ack "none", from the topic's configuration.
"""

import inspect
import time
import warnings
from collections.abc import Mapping
from typing import Final

from seglog.core.errors import duration_of
from seglog.core.moments import format_time
from seglog_protocol.messages import AppendResult, ConfigEntry

NO_TIMESTAMP: Final = -1

_SECONDS_FROM: Final = 946_684_800  # 2000-01-01, in seconds; as milliseconds it is the 11th of January 1970
_SECONDS_AHEAD_MAX: Final = 366 * 86_400
_SECONDS_BELOW: Final = 4_102_444_800  # 2100-01-01; larger timestamps are not in seconds
_OURS: Final = {"seglog", "seglog_spark"}


class TimestampWarning(UserWarning):
    """Records expire on arrival, or their timestamps look like seconds; issued once per topic and client."""


def looks_like_seconds(timestamp: int, now_ms: int) -> bool:
    """Whether a timestamp is in January 1970, but as seconds would be between 2000 and a year from now."""
    return _SECONDS_FROM <= timestamp <= now_ms // 1000 + _SECONDS_AHEAD_MAX


class TimestampWatch:
    """Timestamp checks of one topic, with the warnings already issued; one per topic and client.

    Any thread may use it: at worst a warning is issued twice.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.expired_before = 0
        """Records with a timestamp below this (epoch ms) expire on arrival; 0: none, or unknown."""
        self.suspicious_below = _SECONDS_BELOW
        """Timestamps from this one on need no ``check``, nor does -1."""
        self._is_stamped = False  # LogAppendTime: the broker replaces the timestamps
        self._warned: set[str] = set()

    def learn_config(self, config: Mapping[str, ConfigEntry] | None) -> None:
        """Set the limit from a topic's configuration."""
        values = {key: entry.value for key, entry in (config or {}).items()}
        is_stamped = values.get("message.timestamp.type") == "LogAppendTime"
        retention = values.get("retention.ms", "-1")
        is_timed = "delete" in values.get("cleanup.policy", "delete") and retention.isdecimal() and not is_stamped
        now_ms = time.time_ns() // 1_000_000
        self._update(max(0, now_ms - int(retention)) if is_timed else 0, is_stamped=is_stamped)

    def learn(self, result: AppendResult) -> int:
        """Set the limit from an append result; returns ``expired_before``."""
        if result.expired_before is not None:
            self._update(result.expired_before, is_stamped=(result.timestamp or -1) >= 0)
        return self.expired_before

    def _update(self, expired_before: int, *, is_stamped: bool) -> None:
        self.expired_before, self._is_stamped = expired_before, is_stamped
        self.suspicious_below = 0 if is_stamped else max(expired_before, _SECONDS_BELOW)

    def check(self, timestamp: int) -> bool:
        """Whether a record with this timestamp expires on arrival; may issue a TimestampWarning to the caller."""
        if timestamp == NO_TIMESTAMP or self._is_stamped:
            return False
        has_expired = timestamp < self.expired_before
        now_ms = time.time_ns() // 1_000_000
        if looks_like_seconds(timestamp, now_ms):
            follows = ", and it expires on arrival" if has_expired else ""
            self._warn(
                "seconds",
                f"a record for {self.topic} has the timestamp {timestamp}, in milliseconds {format_time(timestamp)}"
                f"{follows}; if seconds are meant ({format_time(timestamp * 1000)}), multiply them by 1000",
            )
        elif has_expired:
            self._warn(
                "expired",
                f"a record for {self.topic} has the timestamp {timestamp} ({format_time(timestamp)}) and expires on "
                f"arrival: the topic keeps {duration_of(now_ms - self.expired_before)} (retention.ms), and deletes "
                "what is older; retention.ms=-1 keeps all",
            )
        return has_expired

    def _warn(self, kind: str, sentence: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(sentence, TimestampWarning, stacklevel=_caller_level())


def _caller_level() -> int:
    """The ``stacklevel`` of the nearest caller outside the client."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame = frame.f_back
        level += 1
    return level
