"""The logger of every module: structlog's, as the process has set it up, or that of the broker that runs in the thread.

The daemon sets up structlog for its whole process (``runtime.logs``). A broker inside somebody else's process leaves
structlog as it is there: its thread has a logger of its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog


class _OfThread(threading.local):
    logger: Any = None


_of_thread = _OfThread()


class Logger:
    """Logs by the methods of a structlog logger, chosen at each call."""

    def __getattr__(self, name: str) -> Any:
        logger = _of_thread.logger
        return getattr(structlog.get_logger() if logger is None else logger, name)


def get_logger() -> Any:
    """A logger, as ``structlog.get_logger`` returns one."""
    return Logger()


@contextmanager
def logging_to(logger: Any) -> Iterator[None]:
    """Within this block, what this thread logs goes to ``logger``, a structlog logger."""
    before, _of_thread.logger = _of_thread.logger, logger
    try:
        yield
    finally:
        _of_thread.logger = before
