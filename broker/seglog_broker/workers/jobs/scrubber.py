"""The scrubber: reads closed segments, one after the other, below the rate given in each job.

If it is interrupted, it may leave ``.tmp`` files, which a start removes.
"""

from typing import Final

from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.workers.jobs.scrub_job import ScrubJob, ScrubResult
from seglog_broker.workers.kinds import JobKind, Progress, Tools, WorkerKind


def _scrub(tools: Tools, job: ScrubJob, _payload: Buffer, _progress: Progress) -> ScrubResult:
    from seglog_broker.workers.jobs.closed_segment import scrub_segment  # noqa: PLC0415 - for scrubbers only

    return scrub_segment(tools.fs, job, tools.throttle(job.bytes_per_second))


SCRUB: Final = JobKind("scrub", ScrubJob, ScrubResult, _scrub)
WORKER: Final = WorkerKind("scrubber", (SCRUB,))
