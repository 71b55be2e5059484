"""Sums in place of lines: events that clients can cause as often as they like do not fill the daemon's log.

The first lines of such an event are logged as they are. Further ones of the same window are counted, and one line says
how many they were when the window is over: the event again, with ``more`` and ``seconds``.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from seglog_broker.logger import get_logger

WINDOW_SECONDS: Final = 10.0
"""How long lines of one kind are counted together."""

LINES_MAX: Final = 5
"""Lines of one kind that a window lets through before it counts."""

KINDS_MAX: Final = 1_000
"""Kinds that are counted apart in one window; of further ones each event is one kind."""

SUMMED: Final[Mapping[str, tuple[str, ...]]] = {
    "segment_rolled": ("topic", "reason"),
    "segment_expired": ("topic",),
    "log_start_moved": ("topic",),
    "append_failed": ("topic",),
    "damage_read": ("topic", "partition"),
    "disk_not_measured": (),
    "coordinator_key_not_swept": (),
    "committed_offsets_not_corrected": (),
    "topic_not_created": (),
    "group_member_timed_out": ("group",),
    "request_failed": ("api",),
    "request_crashed": ("api",),
    "connection_refused": (),
    "connection_cut": (),
    "connection_idle": (),
    "fetch_cut_short": (),
    "client_authenticated": ("principal",),
    "authentication_failed": ("host",),
    "authorization_refused": ("principal",),
    "tls_handshake_failed": (),
}
"""Each event that is summed, and the facts that tell its kinds apart."""

_Kind = tuple[str, ...]


class _Window:
    __slots__ = ("began", "facts", "level", "lines", "more")

    def __init__(self, began: float, level: str, facts: dict[str, object]) -> None:
        self.began = began
        self.level = level
        self.facts = facts  # that all lines of the kind have in common
        self.lines = 0
        self.more = 0


class LogSums:
    """A processor for structlog. It may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[_Kind, _Window] = {}

    def __call__(self, _logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Let the line through, or count it and raise DropEvent."""
        name = str(event["event"])
        distinguishing = SUMMED.get(name)
        if distinguishing is None or "more" in event:
            return event
        facts = {fact: event[fact] for fact in distinguishing if fact in event}
        kind = (name, *map(str, facts.values()))
        with self._lock:
            if kind not in self._windows and len(self._windows) >= KINDS_MAX:
                kind, facts = (name,), {}
            window = self._windows.get(kind)
            if window is None:
                window = self._windows[kind] = _Window(self._clock(), method, facts)
            if window.lines < LINES_MAX:
                window.lines += 1
                return event
            window.more += 1
        raise structlog.DropEvent

    def log_finished(self, *, all_of_them: bool = False) -> None:
        """Log the sum of each window that is over, or of all, and forget those windows."""
        now = self._clock()
        with self._lock:
            over = [kind for kind, w in self._windows.items() if all_of_them or now - w.began >= WINDOW_SECONDS]
            finished = [(kind[0], self._windows.pop(kind)) for kind in over]
        log = get_logger()
        for name, window in finished:
            if window.more:
                write = getattr(log, window.level)
                write(name, **window.facts, more=window.more, seconds=round(now - window.began, 1))

    async def run(self) -> None:
        """Log the sums of finished windows until cancelled, and then all of them."""
        try:
            while True:
                await trio.sleep(WINDOW_SECONDS / 4)
                self.log_finished()
        finally:
            self.log_finished(all_of_them=True)
