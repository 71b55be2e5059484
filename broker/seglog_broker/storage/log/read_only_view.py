"""Read-only access to a partition whose recovery does not fit on the full disk.

The recovery runs on an ``Overlay``, which keeps its changes in memory: truncated tail, rebuilt indexes, new epoch.
Readers get what the recovery on the disk will leave. That recovery must still run, from the beginning, before anything
is appended.
"""

from typing import Final

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.overlay import Overlay
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery_job import RecoveryJob

HANDLES: Final = 16
"""Files and copies of indexes that a view keeps open."""


class ReadOnlyView:
    """``log`` is for reading only; ``close`` it before or after its partition is recovered on the disk."""

    def __init__(self, fs: FileSystem, clock: Clock, job: RecoveryJob, config: TopicConfig) -> None:
        """Recover in memory, which reads as much as the recovery itself. Raises what ``load`` raises.

        May run in a thread.
        """
        overlay = Overlay(fs)
        self._handles = HandlePool(overlay, HANDLES, readahead=False)
        try:
            loaded = load(
                overlay,
                self._handles,
                clock,
                job.directory,
                config,
                clean=False,
                recovery_point=job.recovery_point,
                log_start=job.log_start,
                first_dirty_offset=job.compacted_before or None,
                producer_expiration_ms=job.producer_expiration_ms,
            )
        except BaseException:
            self._handles.close()
            raise
        self.log = PartitionLog(loaded)

    def close(self) -> None:
        """Close every file, except those with a lease, when that is released."""
        self.log.release()
        self._handles.close()
