"""What the client has to say beside results and errors, as lines of the command: its log, and its warnings."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from seglog.cli import complain


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


@contextmanager
def told_on_stderr() -> Iterator[None]:
    """Within this block the client's log and warnings are sentences on stderr, without names of modules and lines."""
    log, lines = logging.getLogger("seglog"), _Lines(logging.WARNING)
    with warnings.catch_warnings():
        warnings.showwarning = _show
        log.addHandler(lines)
        try:
            yield
        finally:
            log.removeHandler(lines)


def _show(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001 - the signature is that of warnings.showwarning
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    complain(f"warning: {message}")
