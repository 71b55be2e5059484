"""Delayed deletion: what has left a log or the registry stays on the disk for ``file.delete.delay.ms``, then goes.

A reader of such a file holds it open and finishes, however long that takes: only its name is gone;
but while the disk is full it is cut, and nothing waits, see ``free_space``. What is still waiting when the broker stops
is removed by the next start.
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
"""After which a deletion that failed is tried again."""


class Services(Protocol):
    """What this task uses of the broker."""

    deletions: PendingDeletions
    directory: LogDirectory
    offload: Offload

    def remove_later(self, directories: Iterable[str], /) -> None:
        """Have the directories of deleted topics removed after the broker's ``file.delete.delay.ms``."""
        ...


async def run_deletions(broker: Services) -> None:
    """Remove what is due, one after the other; what an earlier run left is put off once more."""
    broker.remove_later(broker.directory.report.deleted_directories)
    while True:
        deletion = await broker.deletions.next_due()
        try:
            if deletion.partition is None:
                await _remove(broker, deletion)
            else:
                async with deletion.partition.maintenance:  # the directory keeps its name as long as this is held
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
