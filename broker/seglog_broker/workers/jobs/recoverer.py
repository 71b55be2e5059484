"""The recoverer: recovers partitions, one after the other; progress is bytes read.

An interrupted recovery is done again from the start.
"""

from typing import Final

from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.storage.log.recovery_job import RecoveryJob, RecoveryOutcome, recover_partition
from seglog_broker.workers.kinds import JobKind, Progress, Tools, WorkerKind


def _recover(tools: Tools, job: RecoveryJob, _payload: Buffer, progress: Progress) -> RecoveryOutcome:
    return recover_partition(tools.fs, tools.clock, job, progress)


RECOVERY: Final = JobKind("recovery", RecoveryJob, RecoveryOutcome, _recover)
WORKER: Final = WorkerKind("recoverer", (RECOVERY,))
