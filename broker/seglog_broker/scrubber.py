"""The scrubber process: ``python -m seglog_broker.scrubber`` reads closed segments beside the broker.

Each line on stdin is a ``ScrubJob``, in JSON; for each one goes out on stdout: a ``ScrubVerdict`` or
``{"error": kind, "message": text}``. It keeps to the rate of its jobs and stands back for everybody who wants the
processor. When stdin ends nobody wants it any more, and it ends at once: what it leaves are ``.tmp`` files at most.
"""

import os
import signal
import sys
import threading
import time
import traceback
from queue import SimpleQueue
from typing import Final

from seglog_broker.check.closed_segment import scrub_segment
from seglog_broker.scrub_job import ScrubJob
from seglog_broker.storage.filesystem import PosixFileSystem
from seglog_broker.storage.throttle import Throttle
from seglog_broker.worker import BUG, MALFORMED_JOB, NICENESS, STORAGE, failure_line

_STDIN: Final = 0
_READ_BYTES: Final = 64 * 1024
_ABANDONED_STATUS: Final = 3


def main() -> int:
    """Answer one job after the other; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the broker gets it too, and decides
    jobs: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_lines, args=(jobs,), daemon=True).start()
    os.nice(NICENESS)
    fs = PosixFileSystem()
    throttle: Throttle | None = None
    rate = 0
    while True:
        line = jobs.get()
        try:
            job = ScrubJob.from_json(line)
        except ValueError as error:
            _say(failure_line(MALFORMED_JOB, error))
            continue
        if throttle is None or rate != job.bytes_per_second:
            rate = job.bytes_per_second
            throttle = Throttle(rate, time.monotonic, time.sleep)
        try:
            _say(scrub_segment(fs, job, throttle).to_json())
        except OSError as error:
            _say(failure_line(STORAGE, error))
        except Exception as error:  # noqa: BLE001 - whoever asked must hear of it, whatever it is
            traceback.print_exc()
            _say(failure_line(BUG, error))


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this is how it answers


def _read_lines(jobs: "SimpleQueue[bytes]") -> None:
    """Hand the lines of stdin on, and end the process with it."""
    begun = b""
    while data := os.read(_STDIN, _READ_BYTES):
        *lines, begun = (begun + data).split(b"\n")
        for line in lines:
            jobs.put(line)
    os._exit(_ABANDONED_STATUS)


if __name__ == "__main__":
    sys.exit(main())
