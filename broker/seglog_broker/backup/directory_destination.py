"""A destination that is a directory: files that are written under another name, synced, and renamed."""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from seglog_broker.backup.destination import (
    Destination,
    DestinationError,
    MissingFileError,
    StoredFile,
    check_name,
    no_conditions,
)
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.copying import (
    UNFINISHED_SUFFIX,
    PieceSync,
    SourceTooShortError,
    copy_file,
    read_chunks,
    remove_if_there,
)
from seglog_broker.storage.io.filenames import is_neighbour
from seglog_broker.storage.io.filesystem import CANNOT_LINK, File, FileSystem, parent, write_all
from seglog_broker.storage.io.os_errors import is_no_room, why


class DirectoryDestination(Destination):
    """The directory ``path``, which is made with the first file, for its owner alone. See ``Destination``.

    The one above it has to be there: it is missing where a disk is not mounted, whose place must not be filled.
    """

    def __init__(self, fs: FileSystem, path: str, *, throttle: Throttle | None = None) -> None:
        super().__init__(fs, path.rstrip("/") or "/", throttle=throttle)
        self._made: set[str] = set()

    def put_file(self, name: str, source: str, *, size: int, link: bool = False) -> None:
        """By a second name, shared blocks or a copy: see ``copy_file``."""
        self._fs.stat(source)  # a missing source is not the destination's failure
        with self._failing("write", name):
            target = self._place_for(name)
            copy_file(self._fs, source, target, size=size, link=link, throttle=self._throttle)
            self._fs.sync_directory(parent(target))

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Written and synced under another name, renamed, and its directory synced."""
        with self._unfinished(name, UNFINISHED_SUFFIX, chunks) as (unfinished, target):
            self._fs.rename(unfinished, target)
            self._fs.sync_directory(parent(target))

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        """Written and synced under a name of its own, of which the name wanted is made the second (link(2))."""
        with self._unfinished(name, f".{uuid.uuid4().hex}{UNFINISHED_SUFFIX}", chunks) as (unfinished, target):
            try:
                self._fs.link(unfinished, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in CANNOT_LINK:
                    raise
                what = f"is on a file system that gives files no second names ({why(error)})"
                raise no_conditions(self.place, what) from error
            finally:
                self._fs.unlink(unfinished)
            self._fs.sync_directory(parent(target))
            return True

    @contextmanager
    def _unfinished(self, name: str, suffix: str, chunks: Iterable[bytes]) -> Iterator[tuple[str, str]]:
        """Paths of a file of these bytes, and of where it is to be; it is gone after an error."""
        with self._failing("write", name):
            target = self._place_for(name)
            unfinished = target + suffix
            remove_if_there(self._fs, unfinished)
            file = self._fs.open(unfinished, create=True)
        try:
            with file:
                self._write(name, file, chunks)
            with self._failing("write", name):
                yield unfinished, target
        except BaseException:
            with suppress(OSError):  # else left for ``discard_unfinished``
                remove_if_there(self._fs, unfinished)
            raise

    def read(self, name: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """As ``read_chunks``."""
        with self._failing("read", name), suppress(SourceTooShortError):
            for chunk in read_chunks(self._fs, self._path_of(name), end, start=start):
                self._note(len(chunk))
                yield chunk

    def names(self, prefix: str = "") -> Iterator[StoredFile]:
        """All below the directory, but for what begins with a dot. No more directories are read than have to be."""
        below = prefix[: prefix.rfind("/") + 1]
        yield from sorted(
            StoredFile(name, size)
            for name, size in self._walk(below)
            if name.startswith(prefix) and not name.endswith(UNFINISHED_SUFFIX)
        )

    def delete(self, name: str) -> None:
        """Gone for good when this returns, so that what names a file can be deleted before the file."""
        with self._failing("remove", name):
            path = self._path_of(name)
            if self._fs.exists(path):
                self._fs.unlink(path)
                self._fs.sync_directory(parent(path))

    def discard_unfinished(self) -> None:
        """Those with UNFINISHED_SUFFIX."""
        for name, _ in list(self._walk("")):
            if name.endswith(UNFINISHED_SUFFIX):
                self.delete(name)

    def _path_of(self, name: str) -> str:
        check_name(name)
        return f"{self.place}/{name}"

    def _place_for(self, name: str) -> str:
        """The path for a new file, whose directories are made."""
        path = self._path_of(name)
        self._make(parent(path))
        return path

    def _make(self, path: str) -> None:
        if path in self._made:
            return
        above = parent(path)
        if not self._fs.exists(path):
            if path != self.place:
                self._make(above)
            elif not self._fs.exists(above):
                raise DestinationError(
                    f"there is no directory {above} for {path}: make it, or mount the disk that it is on"
                )
            with suppress(FileExistsError):  # another writer was faster
                self._fs.make_directory(path)
        # Also for one that is there: a crash may have come between its making and this.
        self._fs.sync_directory(above)
        self._made.add(path)

    def _write(self, name: str, file: File, chunks: Iterable[bytes]) -> None:
        position = 0
        syncs = PieceSync(file)
        for chunk in chunks:  # an error of the source is not the destination's failure
            with self._failing("write", name):
                position += write_all(file, [chunk], position) if chunk else 0
                syncs.note(len(chunk))
            self._note(len(chunk))
        with self._failing("write", name):
            file.fdatasync()

    def _walk(self, below: str) -> Iterator[tuple[str, int]]:
        """Name and size of each file below a directory of the destination, by its name and ``/``, or ``""``."""
        with self._failing("list", below.rstrip("/")):
            directory = f"{self.place}/{below}".rstrip("/") or "/"
            if not self._fs.exists(directory):
                return
            for entry in self._fs.list_directory(directory):
                if entry.startswith(".") or is_neighbour(entry):
                    continue
                try:
                    found = self._fs.stat(f"{directory}/{entry}")
                except FileNotFoundError:  # another writer has removed it, or given it its name
                    continue
                if found.is_directory:
                    yield from self._walk(f"{below}{entry}/")
                else:
                    yield below + entry, found.size

    @contextmanager
    def _failing(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if doing == "read":
                raise MissingFileError(f"the backup in {self.place} has no {name}") from error
            raise self._error(doing, name, error) from error
        except OSError as error:
            raise self._error(doing, name, error) from error

    def _error(self, doing: str, name: str, error: OSError) -> DestinationError:
        what_now = ": make room there, and run the same command again" if is_no_room(error) else ""
        what = f"{self.place}/{name}" if name else self.place
        return DestinationError(f"cannot {doing} {what}: {why(error)}{what_now}")
