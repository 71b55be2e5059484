"""The daemon's own log: events in the past tense, and facts, for people or for machines.

    log = structlog.get_logger()
    log.info("segment_rolled", topic="commits", base_offset=2048, reason="size")

Everything goes to standard error, one line an event; a traceback follows its line on the console and is a field of it
in JSON. The log never stops the broker: lines that are not taken are lost and counted (``log_queue``).
"""

import os
from typing import Final, Protocol

import structlog

from seglog_broker.runtime.log_queue import LogQueue

EVENT_WIDTH: Final = 24
"""Columns an event's name is padded to on the console, so that the facts stand in line."""

LOST_EVENT: Final = "log_lines_lost"

_STANDARD_ERROR: Final = 2

_queue: LogQueue | None = None  # of this process, once it has one


class LogStream(Protocol):
    """As much of a text stream as a log needs."""

    def write(self, text: str, /) -> object:
        """Take a line."""
        ...

    def flush(self) -> object:
        """Pass on what was taken."""
        ...

    def isatty(self) -> bool:
        """Whether a terminal shows it."""
        ...


def to_standard_error(log_format: str, level: str) -> LogQueue:
    """Set up structlog for the daemon. The result takes whatever else is to go to standard error, in order."""
    global _queue
    if _queue is None:
        _queue = LogQueue(_STANDARD_ERROR, _say_lost)
    configure(log_format, level, _queue)
    return _queue


def reconfigure(log_format: str, level: str) -> None:
    """Change format and level of the daemon's log; nothing where ``to_standard_error`` was not called."""
    if _queue is not None:
        configure(log_format, level, _queue)


def is_json() -> bool:
    """Whether the daemon's log is for machines."""
    return any(isinstance(p, structlog.processors.JSONRenderer) for p in structlog.get_config()["processors"])


def lines_lost() -> int:
    """How many lines of this process's log were not taken."""
    return 0 if _queue is None else _queue.lost_total


def configure(log_format: str, level: str, stream: LogStream) -> None:
    """Set up structlog to write to ``stream``.

    ``log_format`` and ``level`` are values of ``seglog.log.format`` (console, json) and ``seglog.log.level`` (debug,
    info, warning, error).
    Loggers that exist already follow, and a second call replaces the first.
    """
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        processors += [
            _disarm,
            structlog.dev.ConsoleRenderer(
                colors=_wants_colors(stream),
                # Not the renderer that structlog picks when `rich` happens to be installed: that one prints the local
                # variables of every frame, which are other people's records.
                exception_formatter=structlog.dev.plain_traceback,
                pad_event_to=EVENT_WIDTH,
                sort_keys=False,
            ),
        ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),  # type: ignore[arg-type] # all it needs of a file
        cache_logger_on_first_use=False,  # a cached logger would not see a later `configure`, nor a test's capture
    )


def _wants_colors(stream: LogStream) -> bool:
    """Colours on a terminal, unless its owner asked for none (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _disarm(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters: peers choose some of what is logged, and a terminal obeys what is written to it."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = repr(value)[1:-1]
    return event


def _say_lost(count: int) -> str:
    """The line that stands where lines are missing, written by the processors of all others."""
    line: object = {
        "event": LOST_EVENT,
        "lines": count,
        "reason": "standard error was not read, or did not take them",
    }
    for process in structlog.get_config()["processors"]:
        line = process(None, "error", line)
    return f"{line}\n"
