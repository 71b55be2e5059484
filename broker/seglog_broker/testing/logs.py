"""The log of a broker inside somebody else's process: kept in memory, structlog's configuration untouched."""

from collections import deque
from typing import Any, Final

import structlog

LINES_MAX: Final = 10_000
"""Lines that are kept; of more, the newest."""


class KeptLog:
    """A structlog logger, and the lines that went to it."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=LINES_MAX)
        self.logger: Any = structlog.wrap_logger(
            None,
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                self._keep,
            ],
            wrapper_class=structlog.make_filtering_bound_logger("info"),
            context_class=dict,
            cache_logger_on_first_use=False,
        )

    def _keep(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        self._events.append(dict(event))
        raise structlog.DropEvent

    def lines(self) -> list[dict[str, Any]]:
        """The newest ``LINES_MAX`` lines: each an event and its facts."""
        return list(self._events)
