"""Puts new bytes of files to a destination, many pieces of files as one object, with a checksum of each piece.

A file may be replaced or removed while it is read. Its path leads to the same file before and after that, or the piece
is left out, and the bytes that were sent of it belong to nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from seglog_broker.backup.destination import Destination
from seglog_broker.backup.source import SourceFile
from seglog_broker.backup.store import FileEntry
from seglog_broker.storage.io.copying import SourceTooShortError, read_chunks
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.segment.awaited import Part
from seglog_protocol.checksum import crc32c

ReadContent = Callable[[], bytes]


class Piece(NamedTuple):
    """Bytes that the destination lacks of a file: all behind the parts ``kept``.

    ``content`` makes the bytes of a short file, which has other bytes in a backup than on the disk; None for bytes that
    are as they are there.
    """

    file: SourceFile
    kept: tuple[Part, ...]
    content: ReadContent | None = None

    @property
    def start(self) -> int:
        """Where in the file it begins."""
        return sum(part.size for part in self.kept)

    @property
    def size(self) -> int:
        """Bytes that are new; of a short file those that it had when this was planned."""
        return self.file.size - self.start


def upload(fs: FileSystem, root: str, destination: Destination, name: str, pieces: Sequence[Piece]) -> list[FileEntry]:
    """Put ``pieces``, of files below ``root``, as the object ``name``; returns the files as the place has them now.

    Those of which the file was replaced, removed or cut meanwhile are missing. Raises DestinationError, OSError.
    """
    entries: list[FileEntry] = []

    def chunks() -> Iterator[bytes]:
        position = 0
        for piece in pieces:
            size = crc = 0
            is_sound = True
            try:
                for chunk in _chunks_of(fs, root, piece):
                    crc = crc32c(chunk, crc)
                    size += len(chunk)
                    yield chunk
                is_sound = piece.content is not None or _is_in_place(fs, root, piece.file)
            except (FileNotFoundError, SourceTooShortError):
                is_sound = False
            if is_sound:
                part = (Part(name, position, size, crc),) if size else ()
                entries.append(FileEntry(*piece.file._replace(size=piece.start + size), (*piece.kept, *part)))
            position += size

    destination.put(name, chunks())
    return entries


def _chunks_of(fs: FileSystem, root: str, piece: Piece) -> Iterator[bytes]:
    if piece.content is not None:
        return iter((piece.content(),))
    return read_chunks(fs, f"{root}/{piece.file.path}", piece.file.size, start=piece.start)


def _is_in_place(fs: FileSystem, root: str, file: SourceFile) -> bool:
    """True if the path leads to the same file still, which may have grown."""
    found = fs.stat(f"{root}/{file.path}")
    return found.inode == file.inode and found.size >= file.size


def count_sound(fs: FileSystem, root: str, file: SourceFile, before: FileEntry) -> int:
    """How many of the first parts of ``before`` are what the file begins with.

    An append-only file that was cut and has grown again differs where it was cut, so that for the same inode the last
    part tells. Raises OSError.
    """
    ends, end = [], 0
    for part in before.parts:
        end += part.size
        ends.append(end)
    within = sum(end <= file.size for end in ends)

    def is_sound(number: int) -> bool:
        part, crc = before.parts[number], 0
        for chunk in read_chunks(fs, f"{root}/{file.path}", ends[number], start=ends[number] - part.size):
            crc = crc32c(chunk, crc)
        return crc == part.crc

    if within and before.inode == file.inode and within == len(ends) and is_sound(within - 1):
        return within
    return next((number for number in range(within) if not is_sound(number)), within)
