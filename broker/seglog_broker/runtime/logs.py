"""The daemon's log: events with facts, as text or as JSON. Event names are in the past tense.

    log = structlog.get_logger()
    log.info("segment_rolled", topic="commits", base_offset=2048, reason="size")

Everything goes to standard error, one line an event. A traceback follows its line on the console and is a field in
JSON. Lines for systemd's journal begin with their priority. The log never blocks the broker: lines that cannot be
written are dropped and counted.

Of an event that clients can cause as often as they like the first lines are logged as they are. Further ones of the
same window are counted, and one line says how many they were when the window is over: the event again, with ``more``
and ``seconds``.

A write to a terminal under Ctrl-S, or to a pipe that is not read, blocks without limit. On the loop that would stop the
broker, so lines are only queued there. Lines are lost when ``QUEUED_BYTES_MAX`` are queued, or when a write fails (the
reader has gone, the disk of a log file is full). They are counted, and a line in their place says how many, as soon as
something can be written again.
"""

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TextIO

import structlog
import trio

from seglog_broker.logger import get_logger
from seglog_broker.standard_output import STANDARD_ERROR, is_journal, with_priority

QUEUED_BYTES_MAX: Final = 1024 * 1024
"""Bytes of queued lines: some 4,000 of ordinary length. A longer line is accepted if the queue is empty."""

DRAIN_SECONDS: Final = 1.0
"""How long the end of the process waits for queued lines to be written."""

_WRITE_BYTES: Final = 64 * 1024

_Item = bytes | int  # a line, or the number of lines missing here


class LogQueue:
    """A text stream for a logger whose ``write`` never blocks.

    ``say_lost(count)`` returns the line for missing lines. The thread is started with the first line, and does not keep
    the process alive: call ``drain`` before the end.
    """

    def __init__(self, descriptor: int, say_lost: Callable[[int], str]) -> None:
        self.lost_total = 0  # lines
        self._descriptor = descriptor
        self._say_lost = say_lost
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._size = 0  # bytes of the lines queued or being written
        self._lost = 0  # lines since the last one queued, not reported yet
        self._is_writing = False
        self._is_started = False

    def write(self, text: str) -> None:
        """Queue a line, or count it as lost."""
        line = text.encode(errors="backslashreplace")
        with self._changed:
            if self._size and self._size + len(line) > QUEUED_BYTES_MAX:
                self._lose(1)
                return
            if self._lost:
                self._waiting.append(self._lost)
                self._lost = 0
            self._waiting.append(line)
            self._size += len(line)
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._run, name="log writer", daemon=True).start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Do nothing: the thread writes lines as fast as it can."""

    def isatty(self) -> bool:
        """Whether the lines go to a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor that lines are written to."""
        return self._descriptor

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Return when every line is written, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_writing, seconds)

    def _lose(self, count: int) -> None:
        self._lost += count
        self.lost_total += count

    # --- In the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                lines, gap = self._take()
                self._is_writing = True
            is_gap_reported = gap > 0 and self._write(self._say_lost(gap).encode())
            are_written = bool(lines) and self._write(b"".join(lines))
            with self._changed:
                self._is_writing = False
                self._size -= sum(map(len, lines))
                if not is_gap_reported:
                    self._lost += gap
                if not are_written:
                    self._lose(len(lines))
                if self._lost and not self._waiting and (are_written or is_gap_reported):  # no later line does
                    self._waiting.append(self._lost)
                    self._lost = 0
                self._changed.notify_all()

    def _take(self) -> tuple[list[bytes], int]:
        """The next lines, up to the next missing ones, and the number missing before them."""
        gap = 0
        lines: list[bytes] = []
        size = 0
        while self._waiting and size < _WRITE_BYTES:
            item = self._waiting[0]
            if isinstance(item, bytes):
                lines.append(item)
                size += len(item)
            elif lines:
                break
            else:
                gap += item
            self._waiting.popleft()
        return lines, gap

    def _write(self, data: bytes) -> bool:
        """Write all of ``data``, however long that takes; return whether it succeeded."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another program has made the terminal or the pipe non-blocking
                waiting = select.poll()
                waiting.register(self._descriptor, select.POLLOUT)
                waiting.poll()
            except OSError:
                return False
        return True


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


@dataclass(slots=True)
class _Window:
    began: float
    level: str
    facts: dict[str, object]  # that all lines of the kind have in common
    lines: int = 0
    more: int = 0


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


EVENT_WIDTH: Final = 24
"""Columns that an event's name is padded to on the console, so that the facts are aligned."""

LOST_EVENT: Final = "log_lines_lost"

_queue: LogQueue | None = None  # of this process, once set up

sums: Final = LogSums()
"""Of the lines that this process writes to standard error."""


def to_standard_error(log_format: str, level: str) -> LogQueue:
    """Set up structlog for the daemon. Write all other output for standard error to the result, to keep its order."""
    global _queue
    if _queue is None:
        _queue = LogQueue(STANDARD_ERROR, _say_lost)
    configure(log_format, level, _queue, sums)
    return _queue


def reconfigure(log_format: str, level: str) -> None:
    """Change format and level of the daemon's log. Does nothing if ``to_standard_error`` was not called."""
    if _queue is not None:
        configure(log_format, level, _queue, sums)


def is_json() -> bool:
    """Whether the daemon's log is JSON."""
    return _in_order in structlog.get_config()["processors"]


def lines_lost() -> int:
    """How many lines of this process's log were lost."""
    return 0 if _queue is None else _queue.lost_total


def configure(log_format: str, level: str, stream: LogQueue | TextIO, counted: LogSums | None = None) -> None:
    """Set up structlog to write to ``stream``; without ``counted``, every line.

    ``log_format`` and ``level`` are values of ``seglog.log.format`` (console, json) and ``seglog.log.level`` (debug,
    info, warning, error).
    Existing loggers follow, and a second call replaces the first.
    """
    processors: list[structlog.typing.Processor] = [
        *([] if counted is None else [counted]),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: structlog.typing.Processor
    if log_format == "json":
        processors += [structlog.processors.format_exc_info, _in_order]
        render = structlog.processors.JSONRenderer()
    else:
        processors.append(_disarm)
        render = structlog.dev.ConsoleRenderer(
            # On a terminal, unless its user wants none (no-color.org).
            colors=stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
            # Not the renderer that structlog picks when `rich` is installed: it prints the local variables of every
            # frame, among them users' records.
            exception_formatter=structlog.dev.plain_traceback,
            pad_event_to=EVENT_WIDTH,
            sort_keys=False,
        )
    processors.append(_with_priority(render) if _is_journal(stream) else render)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),  # type: ignore[arg-type] # all it needs of a file
        cache_logger_on_first_use=False,  # a cached logger would not see a later `configure`, nor a test's capture
    )


def _is_journal(stream: LogQueue | TextIO) -> bool:
    try:
        return is_journal(stream.fileno())
    except OSError:
        return False  # a stream in memory


def _with_priority(render: structlog.typing.Processor) -> structlog.typing.Processor:
    """The renderer of lines for the journal."""

    def prioritized(logger: object, method: str, event: structlog.typing.EventDict) -> str:
        level = event["level"]  # the console's renderer takes it out
        return with_priority(str(render(logger, method, event)), level)

    return prioritized


def _in_order(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Time, level and event first, then the facts in the order in which they were given."""
    return {name: event[name] for name in ("timestamp", "level", "event")} | dict(event)


def _disarm(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters: some logged values come from peers, and a terminal would obey them."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = repr(value)[1:-1]
    return event


def _say_lost(count: int) -> str:
    """The line in place of missing lines, made by the same processors."""
    line: object = {"event": LOST_EVENT, "lines": count, "reason": "standard error was not read, or did not take them"}
    for process in structlog.get_config()["processors"]:
        line = process(None, "error", line)
    return f"{line}\n"
