"""Where the files of an archive lie, by names below one place, such as ``commits-0/…parquet``.

A name stands for a whole file at every moment: its content comes under another name, and is put in its place when it is
complete. One run at a time has the claim of a store; the others are told who.
"""

import errno
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from seglog.cli.exits import InputError

_LOCK: Final = "_lock"

Check = Callable[[], None]
"""Raises InputError when the claim of a store is not this run's any more; called before each commit."""


class Store(Protocol):
    """A folder, or a path of a bucket; travels to tasks. All methods raise OSError."""

    @property
    def place(self) -> str:
        """Its path or address, for people, and for libraries that open tables."""

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically; when this returns it survives a power cut."""

    def new(self, name: str) -> AbstractContextManager[Path]:
        """A path of this machine to write to; its file becomes ``name`` when the block ends, is gone if that fails."""

    def open(self, name: str) -> Any:
        """A file to read, for ``pyarrow.parquet.ParquetFile``."""

    def size(self, name: str) -> int:
        """The bytes of a file. Raises FileNotFoundError."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def names(self, below: str = "") -> Iterator[str]:
        """The names of all files, or of those below a folder; in no order."""

    def settle(self, names: Iterable[str]) -> None:
        """Make files survive a power cut that a library has written."""

    def claimed(self) -> AbstractContextManager[Check]:
        """Make the store if it is absent, and hold its claim. InputError if another run has it.

        Temporary files of runs that were killed are gone then.
        """


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine, or of one that all machines see at this absolute path."""

    path: Path
    _synced: set[Path] = field(default_factory=set, compare=False, repr=False)
    """Folders on the way to files whose names are on the disk."""

    @property
    def place(self) -> str:
        """Implements ``Store``."""
        return str(self.path)

    def read(self, name: str) -> bytes:
        """Implements ``Store``."""
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Implements ``Store``."""
        with self.new(name) as temporary:
            temporary.write_bytes(content)

    @contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Implements ``Store``. The names of all folders on the way survive a power cut, too."""
        for parent in reversed(Path(name).parents[:-1]):
            if parent not in self._synced:
                _make_folder(self.path / parent)
                self._synced.add(parent)
        with whole_file(self.path / name) as temporary:
            yield temporary

    def open(self, name: str) -> Any:
        """Implements ``Store``."""
        return self.path / name

    def size(self, name: str) -> int:
        """Implements ``Store``."""
        return (self.path / name).stat().st_size

    def remove(self, name: str) -> None:
        """Implements ``Store``."""
        (self.path / name).unlink(missing_ok=True)

    def names(self, below: str = "") -> Iterator[str]:
        """Implements ``Store``."""
        for folder, _, files in os.walk(self.path / below):
            yield from (str((Path(folder) / file).relative_to(self.path)) for file in files)

    def settle(self, names: Iterable[str]) -> None:
        """Implements ``Store``."""
        for name in names:
            _sync(self.path / name)
            _sync((self.path / name).parent)

    @contextmanager
    def claimed(self) -> Iterator[Check]:
        """Implements ``Store``. The system releases it when this process ends, however it ends."""
        _make_folder(self.path)
        handle = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                    raise
                raise is_taken(self.place, json.loads(os.pread(handle, 1000, 0) or "{}")) from None
            os.truncate(handle, 0)
            os.pwrite(handle, json.dumps(owner()).encode(), 0)
            for entry in self.path.rglob(".*.tmp"):
                entry.unlink(missing_ok=True)
            yield lambda: None
        finally:
            os.close(handle)


def owner() -> dict[str, Any]:
    """This run, for others that want the same store."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "since": since}


def is_taken(place: str, found: Mapping[str, Any]) -> InputError:
    """The error of a run that another one, ``found``, keeps from a store; empty where that is not known."""
    who = f" (process {found['pid']} on {found['host']}, since {found['since']})" if "pid" in found else ""
    return InputError(f"another run{who} is writing to {place}; wait until it has ended")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to; renamed to ``path``, durably, when the block ends, removed if the block fails."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make_folder(folder: Path) -> None:
    """Make the folder if it is absent. Its name survives a power cut when this returns, whichever run made it."""
    folder.mkdir(parents=True, exist_ok=True)
    _sync(folder.parent)
