"""The log directory of a standby: what differs between what it has and a state of a place is written into it.

Until it is finished (``restoring.finish``) ``seglog-format`` says so, and every start of a broker refuses it.

A file gets its time of change only when all of its bytes are on the disk. So after a start, whatever came before it, a
file of the size and time that are wanted is whole; of any other one the checksums of its parts say what is there.
Compaction may leave a segment its time and its size, but not the ``.checksum`` beside it, by whose own bytes that is
known: it is written after the ``.log``, of which what does not stay is cut off before.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from seglog_broker.backup.counting import BytesDone
from seglog_broker.backup.destination import Destination
from seglog_broker.backup.points import count_common
from seglog_broker.backup.restoring import ROOM_BYTES, write_files
from seglog_broker.backup.source import SourceFile
from seglog_broker.backup.store import BackupError, FileEntry, Manifest
from seglog_broker.backup.uploading import count_sound
from seglog_broker.storage.directory.identity import begin_following, is_followed, root_names
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, parent
from seglog_broker.storage.segment.awaited import Part
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.segment_files import CHECKSUM_SUFFIX, LOG_SUFFIX, TEMPORARY_SUFFIX

PLAN_FILE: Final = "seglog-promote.json"
"""A promotion that has begun, see ``promoting.py``."""

SLICE_BYTES: Final = 1024 * 1024 * 1024
"""Written at most, but for a longer file, before it is synced: by checksums a start reads no more than that."""

_AT_ITS_BEGINNING: Final = frozenset(
    {filenames.LOCK_FILE, filenames.STANDBY_SOCKET, f"{filenames.FORMAT_FILE}{TEMPORARY_SUFFIX}"}
)
"""Files of a standby that was killed at once."""

_OF_NO_STATE: Final = _AT_ITS_BEGINNING | {filenames.FORMAT_FILE, PLAN_FILE}


class StandbyDirectory:
    """The directory ``path``, which is there, and locked. ``slice_bytes`` is SLICE_BYTES but in tests.

    Raises LogDirectoryError for one that is not empty and no standby's, OSError.
    """

    def __init__(self, fs: FileSystem, path: str, *, slice_bytes: int = SLICE_BYTES) -> None:
        self._fs = fs
        self.path = path
        self._slice_bytes = slice_bytes
        if not is_followed(fs, path):
            found = [name for name in root_names(fs, path) if name not in _AT_ITS_BEGINNING]
            if found:
                raise LogDirectoryError(
                    f"{path} is not empty ({found[0]} is there), and no standby has made it: name a directory that is "
                    "empty or not there yet",
                    path=path,
                )
            begin_following(fs, path)
        self.applied = ""
        """The id of the state that was applied last; empty while the directory has something else."""
        self._there: dict[str, FileEntry] | None = None  # by path; None where that is to be looked at

    def apply(self, target: Manifest, destination: Destination, done: BytesDone = lambda _size: None) -> None:
        """Make the directory what ``target`` says, durably. After any error, also of ``done``, call it again.

        Raises BackupError, DestinationError, OSError.
        """
        wanted = {file.path: file for file in target.files if file.path != filenames.FORMAT_FILE}
        there = self._found(wanted) if self._there is None else self._there
        self.applied, self._there = "", None
        more, room = target.size - sum(file.size for file in there.values()), self._fs.free_bytes(self.path)
        if more > 0 and more + ROOM_BYTES > room:
            raise BackupError(
                f"there is room for {room:,} bytes where {self.path} is, and {more + ROOM_BYTES:,} are needed to go "
                "on: make room there"
            )
        self._remove(there.keys() - wanted.keys(), {parent(path) for path in wanted})
        first = {path: count_common(there.get(path), file) for path, file in wanted.items() if there.get(path) != file}
        in_order = sorted(first, key=lambda path: path.endswith(CHECKSUM_SUFFIX))
        for some in self._slices([wanted[path] for path in in_order], first):
            write_files(self._fs, destination, self.path, some, done, first)
        self.applied, self._there = target.id, wanted

    def _found(self, wanted: Mapping[str, FileEntry]) -> dict[str, FileEntry]:
        """The files that are there, each with those of the parts wanted that it begins with."""
        found: dict[str, FileEntry] = {}
        for path in self._paths():
            there, entry = self._fs.stat(self._file(path)), wanted.get(path, FileEntry(path, -1, 0, 0, ()))
            told_by = path.removesuffix(LOG_SUFFIX) + CHECKSUM_SUFFIX if path.endswith(LOG_SUFFIX) else path
            is_told = told_by in wanted and told_by.endswith(CHECKSUM_SUFFIX)
            if (there.size, there.mtime_ms) != (entry.size, entry.mtime_ms) or (
                is_told and self._sound_parts(wanted[told_by]) != wanted[told_by].parts
            ):
                entry = FileEntry(path, there.size, -1, -1, self._sound_parts(entry))
            found[path] = entry
        return found

    def _sound_parts(self, entry: FileEntry) -> tuple[Part, ...]:
        """Those of the parts that the file begins with, by their checksums; none where it is not there."""
        if not self._fs.exists(self._file(entry.path)):
            return ()
        file = SourceFile(entry.path, self._fs.stat(self._file(entry.path)).size, 0, -1)
        return entry.parts[: count_sound(self._fs, self.path, file, entry)]

    def _paths(self) -> Iterator[str]:
        for name in root_names(self._fs, self.path):
            if self._fs.stat(self._file(name)).is_directory:
                yield from (f"{name}/{file}" for file in self._fs.list_directory(self._file(name)))
            elif name not in _OF_NO_STATE:
                yield name

    def _remove(self, paths: Iterable[str], directories: Iterable[str]) -> None:
        """Remove files, and all directories but these."""
        for name in set(root_names(self._fs, self.path)).difference(directories):
            if self._fs.stat(self._file(name)).is_directory:
                self._fs.remove_tree(self._file(name))
        changed = {self.path}
        for path in paths:
            if self._fs.exists(self._file(path)):
                self._fs.unlink(self._file(path))
                changed.add(parent(self._file(path)))
        for directory in sorted(changed):
            self._fs.sync_directory(directory)

    def _slices(self, files: Iterable[FileEntry], first: Mapping[str, int]) -> Iterator[list[FileEntry]]:
        """The files in lists, each but the last with ``slice_bytes`` to be written, from the parts ``first`` on."""
        some: list[FileEntry] = []
        size = 0
        for file in files:
            some.append(file)
            size += sum(part.size for part in file.parts[first[file.path] :])
            if size >= self._slice_bytes:
                yield some
                some, size = [], 0
        if some:
            yield some

    def _file(self, path: str) -> str:
        return f"{self.path}/{path}"
