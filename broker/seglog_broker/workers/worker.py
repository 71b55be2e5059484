"""What processes that work beside the loop have in common: how they take jobs, stand back, and say that they failed."""

import json
import os
import signal
import threading
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from typing import IO, Final, NoReturn, TypeVar

from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_protocol.errors import SeglogError

NICENESS: Final = 5
"""How much a worker stands back when there is not processor time for all."""

MALFORMED_JOB: Final = "malformed job"
STORAGE: Final = "storage"
NO_ROOM: Final = "no room"
BUG: Final = "bug"
DIED: Final = "died"

_LAST_WORDS_BYTES: Final = 2000
_STDIN: Final = 0
_READ_BYTES: Final = 64 * 1024
_ABANDONED_STATUS: Final = 3

JobT = TypeVar("JobT")


class WorkerError(Exception):
    """A job that was not done. ``kind`` is one of those above: "died" is a process that ended without an answer."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


def failure_line(kind: str, error: Exception) -> str:
    """How a worker tells it: one line of JSON."""
    return json.dumps({"error": kind, "message": why(error)})


def storage_kind(error: OSError | SeglogError) -> str:
    """Of a failure of the disk: whether it had no room."""
    return NO_ROOM if is_no_room(error) else STORAGE


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


# --- In the process ---------------------------------------------------------------------------------------------------


def leave_signals_to_broker() -> None:
    """Go on through signals that a terminal or a service manager sends to all processes of the broker at once.

    The broker gets them too, and decides. A worker that ended by itself would be missed by what is finished in good
    order. It ends with the broker in any case, for then its stdin ends.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def serve_jobs(parse: Callable[[bytes], JobT], work: Callable[[JobT], str]) -> NoReturn:
    """Answer every line of stdin, a job, with what ``work`` returns or how it failed; end the process with stdin.

    Then nobody wants it any more: it ends at once, whatever it is at.
    """
    leave_signals_to_broker()
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    os.nice(NICENESS)
    while True:
        line = lines.get()
        try:
            job = parse(line)
        except ValueError as error:
            say(failure_line(MALFORMED_JOB, error))
            continue
        try:
            say(work(job))
        except (OSError, SeglogError) as error:
            say(failure_line(storage_kind(error), error))
        except Exception as error:  # noqa: BLE001 - whoever asked must hear of it, whatever it is
            traceback.print_exc()
            say(failure_line(BUG, error))


def say(line: str) -> None:
    """Tell whoever asked."""
    print(line, flush=True)  # noqa: T201 - this is how it answers


def _read_lines(lines: "SimpleQueue[bytes]") -> None:
    """Hand the lines of stdin on, and end the process with it."""
    begun = b""
    while data := os.read(_STDIN, _READ_BYTES):
        *whole, begun = (begun + data).split(b"\n")
        for line in whole:
            lines.put(line)
    os._exit(_ABANDONED_STATUS)
