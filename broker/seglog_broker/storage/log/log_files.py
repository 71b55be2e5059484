"""One log's directory and file access, its topic configuration, and its offsets."""

from dataclasses import dataclass

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import StorageError


@dataclass(slots=True)
class LogFiles:
    """The directory of a log, and the file system and handle pool that open its files."""

    fs: FileSystem
    handles: HandlePool
    directory: str


@dataclass(slots=True)
class LogSettings:
    """The topic configuration in force."""

    config: TopicConfig


@dataclass(slots=True)
class LogOffsets:
    """Records in [start, end) can be read; those below ``durable_end`` survive a power cut."""

    start: int = 0
    end: int = 0
    durable_end: int = 0

    def stable_end(self, first_unstable: int | None) -> int:
        """The last stable offset, where the first open transaction begins at ``first_unstable``, None without one."""
        return self.end if first_unstable is None else min(max(first_unstable, self.start), self.end)


def unreadable(segment: Segment, error: OSError) -> StorageError:
    """The error for a segment whose ``.log`` could not be opened or read."""
    return storage_error(f"{segment.log_path} could not be read: {why(error)}", error)
