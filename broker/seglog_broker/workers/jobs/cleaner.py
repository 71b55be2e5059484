"""The cleaner: reads and rewrites the segments of one round of compaction.

If it is interrupted, it leaves ``.cleaned`` files, which the next round or the next start removes.
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
