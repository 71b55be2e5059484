"""A segment's checksum: computed while bytes are appended, and kept in a file once the segment is closed.

Each append adds its batch, so that no byte is read again. The file is written when the segment closes and synced with
the next checkpoint, never during an append. It is only valid for unchanged bytes, so it is removed before bytes are
appended or cut.
"""

from seglog_broker.storage.io.filesystem import Buffer, FileSystem, read_file, write_all
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.segment.checksum import (
    NO_BYTES,
    MalformedChecksumError,
    RunningChecksum,
    SegmentChecksum,
    decode_segment_checksum,
    encode_segment_checksum,
)


class ChecksumFile:
    """``<stem>.checksum`` of one segment. ``running`` is None while appends are not counted."""

    def __init__(self, fs: FileSystem, handles: HandlePool, path: str, *, exists: bool) -> None:
        self.path = path
        self.exists = exists
        self.is_dirty = False  # written since it was last known to be synced
        self.running: RunningChecksum | None = None
        self._fs = fs
        self._handles = handles

    def begin(self, so_far: SegmentChecksum = NO_BYTES) -> None:
        """Begin to count, after the bytes that ``so_far`` covers."""
        self.running = RunningChecksum(so_far)

    def update(self, data: Buffer) -> None:
        """Count appended bytes, if counting has begun."""
        if self.running is not None:
            self.running.update(data)

    def read(self) -> SegmentChecksum | None:
        """The checksum in the file; None when the file is missing or malformed."""
        if not self.exists:
            return None
        try:
            return decode_segment_checksum(read_file(self._fs, self.path))
        except MalformedChecksumError:
            return None

    def save(self) -> None:
        """Write the checksum to the file and stop counting; after an OSError it can be called again."""
        if self.running is None:
            return
        content = encode_segment_checksum(self.running.value)
        file = self._fs.open(self.path, create=True)
        try:
            self.exists = self.is_dirty = True
            file.truncate(0)
            write_all(file, [content], 0)
        finally:
            file.close()
        self.running = None

    def drop(self) -> bool:
        """Remove the file, if it exists, and stop counting, because the log changes; whether there was a file."""
        self.running = None
        if not self.exists:
            return False
        self._handles.forget(self.path)
        self._fs.unlink(self.path)
        self.exists = self.is_dirty = False
        return True
