"""``<stem>.checksum``: the size of a closed ``.log`` and the CRC-32C of all its bytes.

A batch's own checksum does not cover the first 21 bytes of its header; this one covers all bytes. The file is beside
its segment, is renamed and deleted with it, and Kafka ignores it. A segment without one is not covered, which is no
error. The checksum is computed while bytes are appended, so that no byte is read again, and written when the segment
closes; it is synced with the next checkpoint, never during an append.

    line 1   version, "0"
    line 2   size of the .log in bytes, a space, its CRC-32C in 8 hex digits
    line 3   CRC-32C of the two lines above, in 8 hex digits, so that a bit flipped in this file is not mistaken for one
             flipped in the log
"""

from dataclasses import dataclass
from typing import Final

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_all, write_file_atomically
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_protocol.checksum import Buffer, crc32c
from seglog_protocol.header_scan import Readable
from seglog_protocol.segment_files import CHECKSUM_SUFFIX, LOG_SUFFIX, segment_file_name

_VERSION: Final = "0"
_READ_BYTES: Final = 1024 * 1024


class MalformedChecksumError(ValueError):
    """A checksum file that does not follow its format; the message says why."""


@dataclass(frozen=True, slots=True)
class SegmentChecksum:
    """The size and CRC-32C of a ``.log``."""

    size: int
    crc: int


NO_BYTES: Final = SegmentChecksum(0, 0)
"""The checksum of an empty log."""


class RunningChecksum:
    """The checksum of an active log, updated with each batch."""

    __slots__ = ("_crc", "_size")

    def __init__(self, so_far: SegmentChecksum = NO_BYTES) -> None:
        """``so_far``: size and checksum to continue from."""
        self._size, self._crc = so_far.size, so_far.crc

    def update(self, data: Buffer) -> None:
        """Add appended bytes."""
        self._crc = crc32c(data, self._crc)
        self._size += len(data)

    @property
    def value(self) -> SegmentChecksum:
        """Size and checksum of all bytes so far."""
        return SegmentChecksum(self._size, self._crc)


def encode_segment_checksum(checksum: SegmentChecksum) -> bytes:
    """The content of the file."""
    text = f"{_VERSION}\n{checksum.size} {checksum.crc:08x}\n".encode()
    return text + f"{crc32c(text):08x}\n".encode()


def decode_segment_checksum(content: bytes) -> SegmentChecksum:
    """Parse a file. Raises MalformedChecksumError unless it is byte for byte as it is written."""
    lines = content.split(b"\n")
    if lines[0] != _VERSION.encode():
        raise MalformedChecksumError(f"line 1 is {lines[0][:20]!r}, not version {_VERSION}")
    try:
        size, crc = lines[1].split(b" ")
        found = SegmentChecksum(int(size), int(crc, 16))
    except (ValueError, IndexError) as error:
        raise MalformedChecksumError("line 2 is not a size and a checksum") from error
    if content != encode_segment_checksum(found):
        raise MalformedChecksumError("its own checksum, in line 3, does not match")
    return found


def checksum_path(directory: str, base_offset: int) -> str:
    """The path of a segment's checksum file."""
    return f"{directory}/{segment_file_name(base_offset, CHECKSUM_SUFFIX)}"


def read_segment_checksum(fs: FileSystem, directory: str, base_offset: int) -> SegmentChecksum | None:
    """The recorded checksum of a segment, None when it has no checksum file. Raises MalformedChecksumError."""
    path = checksum_path(directory, base_offset)
    return decode_segment_checksum(read_file(fs, path)) if fs.exists(path) else None


def write_segment_checksum(fs: FileSystem, directory: str, base_offset: int, checksum: SegmentChecksum) -> None:
    """Replace the file; returns when it survives a power cut."""
    write_file_atomically(fs, checksum_path(directory, base_offset), encode_segment_checksum(checksum))


def measure_segment(fs: FileSystem, directory: str, base_offset: int) -> SegmentChecksum:
    """Read the whole ``.log`` and compute its checksum."""
    with fs.open(f"{directory}/{segment_file_name(base_offset, LOG_SUFFIX)}") as file:
        return measure(file, file.size())


def measure(file: Readable, size: int, so_far: SegmentChecksum = NO_BYTES) -> SegmentChecksum:
    """The checksum of the first ``size`` bytes; those that ``so_far`` covers are not read."""
    running = RunningChecksum(so_far)
    while data := file.pread(min(_READ_BYTES, size - running.value.size), running.value.size):
        running.update(data)
    return running.value


class ChecksumFile:
    """``<stem>.checksum`` of one segment. ``running`` is None while appends are not counted.

    The file is only valid for unchanged bytes, so it is removed before bytes are appended or cut.
    """

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
        with self._fs.open(self.path, create=True) as file:
            self.exists = self.is_dirty = True
            file.truncate(0)
            write_all(file, [content], 0)
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
