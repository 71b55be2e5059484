"""The log directory of a standby: what differs between what it has and a state of a place is written into it.

Until it is finished (``restoring.finish``) ``seglog-format`` says so, and every start of a broker refuses it.

    seglog-standby.json      what the directory has: a manifest, whose id is empty where that is no state of the place
    seglog-standby-touched   a line for each change since: by path, how many of its first bytes are left as they were

The second file is synced before anything is changed, and everything changed is synced before the first is written anew.
So after a crash, or a power cut, the first file less what the second names is there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from seglog_broker.backup.counting import BytesDone
from seglog_broker.backup.destination import Destination
from seglog_broker.backup.points import State, difference
from seglog_broker.backup.restoring import ROOM_BYTES, make_durable, pieces_of, write_pieces
from seglog_broker.backup.store import BackupError, FileEntry, Manifest, Part, decode_manifest
from seglog_broker.storage.directory.identity import begin_following, is_followed, root_names
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.copying import remove_if_there
from seglog_broker.storage.io.filesystem import FileSystem, parent, read_file, write_all, write_file_atomically
from seglog_protocol.errors import LogDirectoryError
from seglog_protocol.segment_files import TEMPORARY_SUFFIX, parse_segment_file_name

STATE_FILE: Final = "seglog-standby.json"
TOUCHED_FILE: Final = "seglog-standby-touched"

OWN_FILES: Final = (TOUCHED_FILE, f"{STATE_FILE}{TEMPORARY_SUFFIX}", STATE_FILE)
"""To be removed when the directory is no standby's any more."""

SLICE_BYTES: Final = 1024 * 1024 * 1024
"""Written at most, but for a longer file, before it is noted what is there: a killed standby writes no more again."""

_AT_ITS_BEGINNING: Final = frozenset(
    {filenames.LOCK_FILE, filenames.STANDBY_SOCKET, f"{filenames.FORMAT_FILE}{TEMPORARY_SUFFIX}"}
)
"""Files of a standby that was killed at once."""


class StandbyDirectory:
    """The directory ``path``, which is there, and locked. ``slice_bytes`` is SLICE_BYTES but in tests.

    Raises LogDirectoryError for one that is not empty and no standby's, BackupError, OSError.
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
        state = self._file(STATE_FILE)
        self.applied = Manifest("", 0, "", "", "", (), ())
        """What was applied last; its id is empty while the directory has something else."""
        if fs.exists(state):
            self.applied = decode_manifest(read_file(fs, state), state)
        self._there = State.of(self.applied)
        self._noted_bytes = fs.stat(state).size if fs.exists(state) else 0
        self._touched_bytes = self._written = 0  # since the state was noted
        self._dirty: dict[str, None] = {}  # paths touched since
        self._take_back()

    def apply(self, target: Manifest, destination: Destination, done: BytesDone = lambda _size: None) -> None:
        """Make the directory what ``target`` says. After any error, also one that ``done`` raises, call it again.

        Raises BackupError, DestinationError, OSError.
        """
        wanted = {file.path: file for file in target.files if file.path != filenames.FORMAT_FILE}
        target = replace(target, files=tuple(wanted.values()))
        change = difference(self._there, target)
        if change.files or change.removed:
            self.applied = replace(self.applied, id="")
        more, room = target.size - sum(file.size for file in self._there.files.values()), self._fs.free_bytes(self.path)
        if more > 0 and more + ROOM_BYTES > room:
            raise BackupError(
                f"there is room for {room:,} bytes where {self.path} is, and {more + ROOM_BYTES:,} are needed to go "
                "on: make room there"
            )
        self._remove(change.removed)
        first = {file.path: file.kept for file in change.files}
        for some in _slices([wanted[path] for path in first], first, self._slice_bytes):
            self._write(some, first, destination, done)
            if self._written >= self._slice_bytes:
                self.note()
        self.applied = target
        if self._touched_bytes > self._noted_bytes:
            self.note()

    def note(self) -> None:
        """Make everything durable, and note what is there. Raises OSError."""
        dirty = [self._there.files[path] for path in self._dirty if self._is_there(path)]
        make_durable(self._fs, self.path, dirty)
        content = replace(self.applied, files=tuple(self._there.files.values())).encode()
        write_file_atomically(self._fs, self._file(STATE_FILE), content)
        remove_if_there(self._fs, self._file(TOUCHED_FILE))
        self._dirty.clear()
        self._noted_bytes, self._touched_bytes, self._written = len(content), 0, 0

    def touch_small_files(self) -> None:
        """Have all files but those of segments be written anew by the next ``apply``. Raises OSError."""
        self._touch({path: 0 for path in self._there.files if parse_segment_file_name(path.rpartition("/")[2]) is None})

    def _take_back(self) -> None:
        """After a start: of each file counts what was there when the state was noted and was not touched since."""
        touched = self._file(TOUCHED_FILE)
        kept: dict[str, int] = {}
        for line in read_file(self._fs, touched).splitlines(keepends=True) if self._fs.exists(touched) else []:
            try:
                found: dict[str, int] = json.loads(line)
            except ValueError:
                break  # torn: it was not synced, so nothing of it was touched
            kept |= {path: min(size, kept.get(path, size)) for path, size in found.items()}
            self._touched_bytes += len(line)
        for path in [*self._there.files, *(kept.keys() - self._there.files)]:
            entry = self._there.files.get(path, _nothing_of(path))
            size = self._fs.stat(self._file(path)).size if self._is_there(path) else -1
            if path in kept or size < entry.size:
                self._there.files[path] = _cut(entry, min(size, kept.get(path, entry.size)))
                self.applied = replace(self.applied, id="")
        self._dirty.update(dict.fromkeys(kept))

    def _touch(self, kept: Mapping[str, int]) -> None:
        """Note that of these files no more than so many bytes stay as they are; durable when this returns."""
        if not kept:
            return
        line = f"{json.dumps(kept)}\n".encode()
        with self._fs.open(self._file(TOUCHED_FILE), create=True) as file:
            write_all(file, [line], self._touched_bytes)
            file.fdatasync()
        if not self._touched_bytes:
            self._fs.sync_directory(self.path)
        self._touched_bytes += len(line)
        self._dirty.update(dict.fromkeys(kept))
        for path, size in kept.items():
            self._there.files[path] = _cut(self._there.files.get(path, _nothing_of(path)), size)

    def _remove(self, paths: Iterable[str]) -> None:
        self._touch(dict.fromkeys(paths, 0))
        left = {parent(path) for path in self._there.files.keys() - set(paths) if "/" in path}
        for directory in {parent(path) for path in paths if "/" in path} - left:
            if self._is_there(directory):
                self._fs.remove_tree(self._file(directory))
        for path in paths:
            if self._is_there(path):
                self._fs.unlink(self._file(path))
            del self._there.files[path]

    def _write(
        self, files: list[FileEntry], first: Mapping[str, int], destination: Destination, done: BytesDone
    ) -> None:
        """Write files, each from its part number ``first`` on."""
        kept = {file.path: _size_of(file.parts[: first[file.path]]) for file in files}
        self._touch(kept)
        for directory in {parent(file.path) for file in files if "/" in file.path}:
            if not self._is_there(directory):
                self._fs.make_directory(self._file(directory))
        for file in files:
            self._fs.open(self._file(file.path), create=True).close()
        for name, pieces in pieces_of(files, first).items():
            write_pieces(self._fs, destination, name, pieces, self.path, done)
        for file in files:
            with self._fs.open(self._file(file.path), writable=True) as opened:
                opened.truncate(file.size)
            self._there.files[file.path] = file
            self._written += file.size - kept[file.path]

    def _is_there(self, path: str) -> bool:
        return self._fs.exists(self._file(path))

    def _file(self, path: str) -> str:
        return f"{self.path}/{path}"


def _nothing_of(path: str) -> FileEntry:
    return FileEntry(path, 0, 0, 0, ())


def _size_of(parts: Iterable[Part]) -> int:
    return sum(part.size for part in parts)


def _cut(entry: FileEntry, size: int) -> FileEntry:
    """The whole parts of a file within its first ``size`` bytes."""
    if 0 < entry.size <= size:
        return entry
    parts: list[Part] = []
    for part in entry.parts:
        if _size_of(parts) + part.size > size:
            break
        parts.append(part)
    return FileEntry(entry.path, _size_of(parts), 0, 0, tuple(parts))


def _slices(files: Iterable[FileEntry], first: Mapping[str, int], least: int) -> Iterator[list[FileEntry]]:
    """The files in lists, each but the last with ``least`` bytes to be written; ``first`` as for ``pieces_of``."""
    some: list[FileEntry] = []
    size = 0
    for file in files:
        some.append(file)
        size += _size_of(file.parts[first[file.path] :])
        if size >= least:
            yield some
            some, size = [], 0
    if some:
        yield some
