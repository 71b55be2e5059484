"""The boundary around every background task: an error in one partition affects no other partition.

After an ``OSError`` or a ``StorageError`` the partition has a problem, which ``ping`` reports, until the task succeeds
with it in a later round. Any other exception is a bug: it is logged with its traceback, and the task skips that
partition until the broker restarts. Only exceptions outside the boundary end the broker.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from seglog_broker.logger import get_logger
from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.io.os_errors import why
from seglog_protocol.errors import StorageError

log = get_logger()

_GIVEN_UP: Final = "a bug stopped it for this partition until the broker is restarted; the log has the traceback"


class TaskBoundary:
    """The boundary of one task, which lives as long as the task."""

    def __init__(self, task: str) -> None:
        """``task`` is its name in the log and in ``ping``."""
        self.task = task
        self._given_up: set[Partition] = set()

    async def run(self, partition: Partition, work: Callable[[Partition], Awaitable[object]]) -> bool:
        """Call ``work`` unless the partition is deleted or given up. Returns whether it succeeded."""
        if partition in self._given_up or partition.is_deleted:
            return False
        try:
            await work(partition)
        except (OSError, StorageError) as error:
            self.note_failure(partition, error)
        except Exception:
            if partition.is_deleted:
                return False  # deleted meanwhile, so the outcome does not matter
            log.exception("task_failed", task=self.task, topic=partition.topic, partition=partition.number)
            partition.problems[self.task] = _GIVEN_UP
            self._given_up.add(partition)
        else:
            if partition.problems.pop(self.task, None) is not None:
                log.info("task_resumed", task=self.task, topic=partition.topic, partition=partition.number)
            return True
        return False

    def note_failure(self, partition: Partition, error: OSError | StorageError) -> None:
        """Record an error of the disk as a problem of the partition; a new one is logged."""
        reason = why(error)
        if partition.is_deleted or partition.problems.get(self.task) == reason:
            return
        partition.problems[self.task] = reason
        log.warning("task_postponed", task=self.task, topic=partition.topic, partition=partition.number, reason=reason)
