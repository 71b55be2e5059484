"""Delayed deletion: files of deleted segments and topics are removed after ``file.delete.delay.ms``.

A reader that has such a file open can finish, however long that takes: only the name is removed. While the disk is
full, files are removed at once, and slow readers are disconnected (``free_space``). Files that still wait when the
broker stops are removed by the next start.
"""

from collections.abc import Iterable
from typing import Final, Protocol

import structlog

from seglog_broker.partitions.pending_deletions import PendingDeletion, PendingDeletions
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.os_errors import why

log = structlog.get_logger()

RETRY_SECONDS: Final = 60.0
"""Time until a failed deletion is tried again."""


class Services(Protocol):
    """What this task uses of the broker."""

    deletions: PendingDeletions
    directory: LogDirectory
    offload: Offload

    def remove_later(self, directories: Iterable[str], /) -> None:
        """Have the directories of deleted topics removed after the broker's ``file.delete.delay.ms``."""
        ...


async def run_deletions(broker: Services) -> None:
    """Remove files when they are due, one deletion at a time. Directories left by the last run wait once more."""
    broker.remove_later(broker.directory.report.deleted_directories)
    while True:
        deletion = await broker.deletions.next_due()
        try:
            if deletion.partition is None:
                await _remove(broker, deletion)
            else:
                async with deletion.partition.maintenance:  # the directory keeps its name meanwhile
                    if not deletion.partition.is_deleted:
                        await _remove(broker, deletion)
        except OSError as error:
            log.warning("deletion_postponed", what=deletion.what, reason=why(error), seconds=RETRY_SECONDS)
            broker.deletions.add(deletion, RETRY_SECONDS, has_failed=True)
        except Exception:
            log.exception("deletion_failed", what=deletion.what, until="the next start")


async def _remove(broker: Services, deletion: PendingDeletion) -> None:
    freed = await broker.offload.maintenance(broker.directory.space.with_ballast, deletion.remove)
    if deletion.is_logged:
        log.info("files_removed", what=deletion.what, **({} if freed is None else {"bytes": freed}))
