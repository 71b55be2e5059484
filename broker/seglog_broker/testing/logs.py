"""The log of a broker inside somebody else's process: kept in memory, structlog's configuration untouched."""

from collections import deque
from typing import Any, Final

import structlog

LINES_MAX: Final = 10_000
"""Lines that are kept; of more, the newest."""


class KeptLog:
    """A structlog logger, and the lines that went to it."""

    def __init__(self) -> None:
        self.total = 0
        """Lines so far, also those that are no longer kept."""
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
        self.total += 1
        self._events.append(dict(event))
        raise structlog.DropEvent

    def since(self, total: int) -> list[dict[str, Any]]:
        """The lines after the first ``total``, those that are kept: each an event and its facts."""
        kept = list(self._events)
        return kept[max(0, len(kept) - max(0, self.total - total)) :]
