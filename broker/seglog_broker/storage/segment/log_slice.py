"""The result of a read of a log: a range of whole batches in a file that is held open."""

from seglog_broker.storage.io.filesystem import File
from seglog_broker.storage.io.handle_pool import Lease
from seglog_broker.storage.segment.tail_cache import TailRange


class LogSlice:
    """Whole batches: [position, position + size) of a leased ``.log`` file, the first with base ``start_offset``."""

    __slots__ = ("_lease", "file", "position", "size", "start_offset")

    def __init__(self, lease: Lease[File], position: int, size: int, start_offset: int) -> None:
        self._lease = lease
        self.file = lease.resource
        self.position = position
        self.size = size
        self.start_offset = start_offset

    def is_of(self, near: TailRange) -> bool:
        """Whether the same batches are the given range of the log's tail cache."""
        return self.start_offset == near.start_offset and self.size == near.end - near.position

    @property
    def is_removed(self) -> bool:
        """Whether the file has left the log since the read."""
        return self._lease.is_forgotten

    def __len__(self) -> int:
        return self.size

    def release(self) -> None:
        """Release the lease. A second release does nothing."""
        self._lease.release()
