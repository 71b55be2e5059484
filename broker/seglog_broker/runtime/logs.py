"""The daemon's log: events with facts, as text or as JSON. Event names are in the past tense.

    log = structlog.get_logger()
    log.info("segment_rolled", topic="commits", base_offset=2048, reason="size")

Everything goes to standard error, one line an event. A traceback follows its line on the console and is a field in
JSON. Lines for systemd's journal begin with their priority. The log never blocks the broker: lines that cannot be
written are dropped and counted (``log_queue``). Of events that clients can cause as often as they like, most are
counted instead (``log_sums``).
"""

import os
from typing import Final, TextIO

import structlog

from seglog_broker.runtime.log_queue import LogQueue
from seglog_broker.runtime.log_sums import LogSums
from seglog_broker.standard_output import STANDARD_ERROR, is_journal, with_priority

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
            colors=_wants_colors(stream),
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


def _wants_colors(stream: LogQueue | TextIO) -> bool:
    """Colours on a terminal, unless its user wants none (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


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
    line: object = {
        "event": LOST_EVENT,
        "lines": count,
        "reason": "standard error was not read, or did not take them",
    }
    for process in structlog.get_config()["processors"]:
        line = process(None, "error", line)
    return f"{line}\n"
