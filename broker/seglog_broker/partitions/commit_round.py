"""A round of group commit: the partitions that it syncs, and who waits for it."""

from collections.abc import Callable

import trio

from seglog_broker.storage.io.flushes import Flush
from seglog_protocol.errors import SeglogError, StorageError


class Flushable:
    """A partition, as far as a round uses it."""

    def begin_flush(self) -> Flush | None:
        """The flush of this partition for the round; None if there is nothing to sync. Raises StorageError."""
        raise NotImplementedError

    def end_flush(self, flush: Flush, error: OSError | None) -> StorageError | None:
        """Record the outcome of the flush. Returns the error for the waiting requests if it is retriable, else None."""
        raise NotImplementedError

    def with_partition(self, error: SeglogError) -> SeglogError:
        """``error`` with the topic and the partition as fields."""
        raise NotImplementedError


class Round:
    """One round, from the first partition that is added to it to its end."""

    __slots__ = ("ended", "failures", "has_leader", "listeners", "partitions")

    def __init__(self) -> None:
        self.partitions: dict[Flushable, None] = {}  # in the order in which they were added
        self.failures: dict[Flushable, StorageError] = {}
        self.has_leader = False
        self.listeners: list[Callable[[], None]] = []
        self.ended = trio.Event()

    def listen(self, listener: Callable[[], None]) -> bool:
        """Call ``listener`` when the round ends, with or without errors. It must not raise.

        Returns False, and does nothing, if the round has ended or has no leader yet: then the caller has to wait.
        """
        if not self.has_leader or self.ended.is_set():
            return False
        self.listeners.append(listener)
        return True
