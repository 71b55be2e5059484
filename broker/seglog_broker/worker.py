"""What processes that work beside the loop have in common: how they stand back, and how they say that they failed."""

import json
from typing import IO, Final

NICENESS: Final = 5
"""How much a worker stands back when there is not processor time for all."""

MALFORMED_JOB: Final = "malformed job"
STORAGE: Final = "storage"
BUG: Final = "bug"
DIED: Final = "died"

_LAST_WORDS_BYTES: Final = 2000


class WorkerError(Exception):
    """A job that was not done. ``kind`` is one of those above: "died" is a process that ended without an answer."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


def failure_line(kind: str, error: Exception) -> str:
    """How a worker tells it: one line of JSON."""
    return json.dumps({"error": kind, "message": str(error) or type(error).__name__})


def failure_told(answer: bytes) -> WorkerError | None:
    """What a worker told, None if it told of no failure."""
    try:
        told = json.loads(answer)
        return WorkerError(str(told["error"]), str(told["message"]))
    except (ValueError, TypeError, KeyError):
        return None


def last_words(said: IO[bytes]) -> str:
    """The end of what a worker wrote to stderr."""
    said.seek(0)
    return said.read()[-_LAST_WORDS_BYTES:].decode(errors="replace").strip()
