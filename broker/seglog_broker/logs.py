"""The daemon's own log: events in the past tense, and facts, for people or for machines.

    log = structlog.get_logger()
    log.info("segment_rolled", topic="commits", base_offset=2048, reason="size")

Everything goes to standard error, one line an event; a traceback follows its line on the console and is a field of it
in JSON. The log never stops the broker: when nobody can take a line any more, the line is dropped.
"""

import os
import sys
from typing import Final, TextIO

import structlog

EVENT_WIDTH: Final = 24
"""Columns an event's name is padded to on the console, so that the facts stand in line."""


def configure(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Set up structlog for this process; ``stream`` is standard error unless given.

    ``log_format`` and ``level`` are values of ``seglog.log.format`` (console, json) and ``seglog.log.level`` (debug,
    info, warning, error).
    Loggers that exist already follow, and a second call replaces the first.
    """
    stream = sys.stderr if stream is None else stream
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
        logger_factory=structlog.WriteLoggerFactory(_Unbreakable(stream)),  # type: ignore[arg-type] # all it needs of a file
        cache_logger_on_first_use=False,  # a cached logger would not see a later `configure`, nor a test's capture
    )


def _wants_colors(stream: TextIO) -> bool:
    """Colours on a terminal, unless its owner asked for none (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _disarm(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters: peers choose some of what is logged, and a terminal obeys whoever writes to it."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = repr(value)[1:-1]
    return event


class _Unbreakable:
    """A text stream whose reader may go away, or whose disk may fill up, without the writer noticing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except (OSError, ValueError):  # ValueError: closed
            return

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            return
