"""The cleaner process: ``python -m seglog_broker.workers.cleaner`` does one job of compaction beside the broker.

One line of JSON comes in on stdin, a ``CleaningJob``; one goes out on stdout: a ``CleaningResult``, or, with exit
status 1, ``{"error": kind, "message": text}``. It lives in a process of its own because a busy Python thread would hold
up the broker's loop. When stdin ends the broker is gone, and so is the cleaner, at once: what it leaves are
``.cleaned`` files, which the next start or the next cleaning removes.
"""

import os
import sys
import threading
import time
import traceback
from typing import Final

from seglog_broker.storage.compaction.cleaner import clean
from seglog_broker.storage.compaction.job import CleaningJob
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.io.throttle import Throttle
from seglog_broker.workers.worker import BUG, MALFORMED_JOB, NICENESS, STORAGE, failure_line, leave_signals_to_broker

_STDIN: Final = 0
_READ_BYTES: Final = 64 * 1024
_ABANDONED_STATUS: Final = 3


def main() -> int:
    """Do the job on stdin; the exit status."""
    leave_signals_to_broker()
    line = _read_line()
    threading.Thread(target=_leave_when_abandoned, daemon=True).start()
    os.nice(NICENESS)
    try:
        job = CleaningJob.from_json(line)
    except ValueError as error:
        return _fail(MALFORMED_JOB, error)
    try:
        result = clean(PosixFileSystem(), job, Throttle(job.bytes_per_second, time.monotonic, time.sleep))
    except OSError as error:
        return _fail(STORAGE, error)
    except Exception as error:  # noqa: BLE001 - whoever asked must hear of it, whatever it is
        traceback.print_exc()
        return _fail(BUG, error)
    print(result.to_json(), flush=True)  # noqa: T201 - this is how it answers
    return 0


def _fail(kind: str, error: Exception) -> int:
    print(failure_line(kind, error), flush=True)  # noqa: T201
    return 1


def _read_line() -> bytes:
    """The first line of stdin, past Python's buffers, which the watching thread could not share."""
    line = b""
    while not line.endswith(b"\n") and (data := os.read(_STDIN, _READ_BYTES)):
        line += data
    return line


def _leave_when_abandoned() -> None:
    while os.read(_STDIN, _READ_BYTES):
        pass
    os._exit(_ABANDONED_STATUS)


if __name__ == "__main__":
    sys.exit(main())
