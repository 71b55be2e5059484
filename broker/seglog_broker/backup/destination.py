"""Where a backup is kept: named files, each written once, whole or not at all."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.copying import read_chunks
from seglog_broker.storage.io.filesystem import FileSystem

MARKER: Final = "seglog-backup.json"
"""The file that says that this is a backup, and whose; written first."""


class DestinationError(Exception):
    """The destination cannot be read or written; the message says which name, why, and what to do."""


class NoConditionsError(DestinationError):
    """The destination has no ``put_new`` that can be relied on."""


def no_conditions(place: str, what: str) -> NoConditionsError:
    """The error for a destination without ``put_new``; ``what`` says what it does instead."""
    return NoConditionsError(
        f"{place} cannot have a lease: it {what}, so that two brokers could acknowledge at once. Name a directory, or "
        "a store that honours If-None-Match, as those of Amazon, Google and Azure do; or go without a lease, with "
        "seglog.backup.lease.ms=0"
    )


class MissingFileError(DestinationError):
    """The destination has no file of that name."""


class StoredFile(NamedTuple):
    """A file of a destination: its name, and its size in bytes as it is kept there."""

    name: str
    size: int


class Destination:
    """Files by name. A name is a relative path with ``/``, of parts without ``.`` at their beginning.

    A file is there under its name only when it is whole, and then survives a power cut. One that is put again replaces
    the old one in one step. Each method raises DestinationError, and OSError for a source that cannot be read.
    """

    def __init__(self, fs: FileSystem, place: str, *, throttle: Throttle | None = None) -> None:
        self._fs = fs
        self.place = place
        """The destination as a person would name it: a path or an address, without secrets."""
        self._throttle = throttle

    def put_file(self, name: str, source: str, *, size: int, link: bool = False) -> None:
        """Put the first ``size`` bytes of the file at the path ``source``.

        With ``link`` the destination may keep a second name of the file instead of a copy, where it can: for files that
        are never changed again.
        """
        del link
        self.put(name, read_chunks(self._fs, source, size))

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """Put a file of these bytes, of any number, which are taken one chunk after the other."""
        raise NotImplementedError

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        """Put a short file if there is none of that name, in one step; False: there is one.

        That one may be of this very call, where an answer was lost on its way and the library has asked again. Of any
        number who do this at once one alone gets True. ``probe_conditions`` says of a place that it lies about that.
        """
        raise NotImplementedError

    def read(self, name: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes [start, end) of a file, by default to its end, in chunks of some MiB at most, with no others read.

        Fewer where the file ends before. Raises MissingFileError at the first.
        """
        raise NotImplementedError

    def names(self, prefix: str = "") -> Iterator[StoredFile]:
        """The files whose names begin with ``prefix``, sorted by name; those that are not whole are left out."""
        raise NotImplementedError

    def delete(self, name: str) -> None:
        """Remove a file, if there is one of that name; it is gone for good when this returns."""
        raise NotImplementedError

    def discard_unfinished(self) -> None:
        """Remove what interrupted puts have left. For the only writer, before its first put."""

    def close(self) -> None:
        """Let go of connections and descriptors."""

    def _note(self, size: int) -> None:
        if self._throttle is not None:
            self._throttle.note(size)


def check_name(name: str) -> None:
    """Raise ValueError for a name that could lead out of the destination, or to a hidden file."""
    if not all(part and not part.startswith(".") for part in name.split("/")):
        raise ValueError(f"{name!r} is no name for a file of a backup")
