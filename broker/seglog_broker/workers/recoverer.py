"""The recoverer process: ``python -m seglog_broker.workers.recoverer`` recovers partitions beside the broker.

Each line on stdin is a ``RecoveryJob``, in JSON; for each there go out on stdout a line ``{"read": bytes}`` now and
then, and at last a ``RecoveryOutcome`` or ``{"error": kind, "message": text}``. When stdin ends the broker is gone, and
it ends at once: a recovery that was interrupted is simply made again.
"""

import json

from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.storage.log.recovery_job import RecoveryJob, recover_partition
from seglog_broker.workers.worker import say, serve_jobs

_READ = "read"


def main() -> None:
    """Do one job after the other; never returns."""
    serve_jobs(RecoveryJob.from_json, _recover)


def _recover(job: RecoveryJob) -> str:
    def progress(count: int) -> None:
        say(json.dumps({_READ: count}))

    return recover_partition(PosixFileSystem(), SystemClock(), job, progress).to_json()


def read_bytes_told(line: bytes) -> int | None:
    """How many bytes more a line says were read; None when it says something else."""
    told = json.loads(line)
    return int(told[_READ]) if told.keys() == {_READ} else None


if __name__ == "__main__":
    main()
