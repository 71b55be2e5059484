"""A partition that is read while the disk has no room for its recovery.

The recovery is made, but on an ``Overlay``: it cuts what is torn, rebuilds indexes and begins an epoch in memory alone.
What is read is what the recovery on the disk will leave. That one still has to be made, from the beginning, before
anything is appended.
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
"""Files and copies of indexes that a view keeps at a time."""


class ReadOnlyView:
    """``log`` is for reading only; ``close`` it before or after its partition is recovered on the disk."""

    def __init__(self, fs: FileSystem, clock: Clock, job: RecoveryJob, config: TopicConfig) -> None:
        """Read what the recovery would: as long as that takes. Raises what ``load`` raises.

        Nothing of it is used elsewhere before this returns, so a thread may do it.
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
        """Let go of every file; those who hold a lease read on undisturbed."""
        self.log.release()
        self._handles.close()
