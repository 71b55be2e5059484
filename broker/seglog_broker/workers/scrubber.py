"""The scrubber process: ``python -m seglog_broker.workers.scrubber`` reads closed segments beside the broker.

Each line on stdin is a ``ScrubJob``, in JSON; for each one goes out on stdout: a ``ScrubVerdict`` or
``{"error": kind, "message": text}``. It keeps to the rate of its jobs and stands back for everybody who wants the
processor. When stdin ends nobody wants it any more, and it ends at once: what it leaves are ``.tmp`` files at most.
"""

import time

from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.io.throttle import Throttle
from seglog_broker.workers.closed_segment import scrub_segment
from seglog_broker.workers.scrub_job import ScrubJob
from seglog_broker.workers.worker import serve_jobs


def main() -> None:
    """Answer one job after the other; never returns."""
    fs = PosixFileSystem()
    throttle: Throttle | None = None
    rate = 0

    def scrub(job: ScrubJob) -> str:
        nonlocal throttle, rate
        if throttle is None or rate != job.bytes_per_second:
            rate = job.bytes_per_second
            throttle = Throttle(rate, time.monotonic, time.sleep)
        return scrub_segment(fs, job, throttle).to_json()

    serve_jobs(ScrubJob.from_json, scrub)


if __name__ == "__main__":
    main()
