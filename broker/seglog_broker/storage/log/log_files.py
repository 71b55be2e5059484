"""Where one partition's log is, how its files are reached, and the offsets between which it lies."""

from dataclasses import dataclass

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import StorageError


@dataclass(slots=True)
class LogFiles:
    """The directory of a log, and the seam and the pool through which its files are opened."""

    fs: FileSystem
    handles: HandlePool
    directory: str


@dataclass(slots=True)
class LogSettings:
    """The configuration of the topic that is in force now."""

    config: TopicConfig


@dataclass(slots=True)
class LogOffsets:
    """Records of [start, end) can be read; those below ``durable_end`` survive a power cut."""

    start: int = 0
    end: int = 0
    durable_end: int = 0


def unreadable(segment: Segment, error: OSError) -> StorageError:
    """What a reader is answered whose segment's ``.log`` could not be opened or read."""
    return storage_error(f"{segment.log_path} could not be read: {why(error)}", error)
