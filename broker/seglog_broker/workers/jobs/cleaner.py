"""The cleaner: goes through the records of one round of compaction.

What it leaves when it is interrupted are ``.cleaned`` files, which the next start or the next cleaning removes.
"""

from typing import Final

from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult
from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.workers.kinds import JobKind, Progress, Tools, WorkerKind


def _clean(tools: Tools, job: CleaningJob, _payload: Buffer, _progress: Progress) -> CleaningResult:
    from seglog_broker.storage.compaction.cleaner import clean  # noqa: PLC0415 - numpy is for cleaners only

    return clean(tools.fs, job, tools.throttle(job.bytes_per_second))


CLEANING: Final = JobKind("cleaning", CleaningJob, CleaningResult, _clean)
WORKER: Final = WorkerKind("cleaner", (CLEANING,))
