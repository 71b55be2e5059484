"""Stores that are object stores: S3 and its like, Google Cloud Storage, Azure, as for backups; by obstore.

An object is there when all of it is. Files of the run itself, at the top of the archive, are replaced only while they
are as this run saw them last: that is compared first, which every store can, and asked of the store as a condition of
the write, which some ignore and some refuse. See ``claims`` for what holds anyway.
"""

import os
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import obstore
from obstore import exceptions
from obstore.store import from_url

from seglog.cli.exits import InputError
from seglog_protocol.object_stores import is_missing, library_options, sentence_of
from seglog_spark.tables.claims import RENEW_SECONDS, Claim
from seglog_spark.tables.stores import Check

_READ_BYTES: Final = 256 * 1024
"""Of a request for a part of an object: Parquet's readers ask for footers, and for columns at once."""


@lru_cache
def _opened(place: str) -> Any:
    try:
        return from_url(place, **library_options(os.environ))
    except exceptions.BaseError as error:
        raise OSError(sentence_of("open", place, error)) from None


@dataclass(frozen=True, slots=True)
class Bucket:
    """The objects below ``place``, such as ``s3://bucket/path``. See ``Store`` for its methods."""

    place: str
    given: Any = None
    """A store of the library's in place of the one at ``place``, whose credentials are from the environment."""
    _seen: dict[str, str | None] = field(default_factory=dict, compare=False)
    """Tags of what this run has read or written last of files of its own; None of those that were not there."""

    @property
    def _objects(self) -> Any:
        return _opened(self.place) if self.given is None else self.given

    def read(self, name: str) -> bytes:
        """Implements ``Store``."""
        try:
            with self._failing("read", name):
                found = obstore.get(self._objects, name)
                content = bytes(found.bytes())
        except FileNotFoundError:
            self._see(name, None)
            raise
        self._see(name, found.meta)
        return content

    def write(self, name: str, content: bytes) -> None:
        """Implements ``Store``. InputError where a file of the run's own has been changed by another run."""
        if name not in self._seen:
            self._put(name, content)
            return
        seen = self._seen[name]
        try:
            if self._tag(name) != seen:
                raise self._changed(name)
            self._put(name, content, mode="create" if seen is None else {"e_tag": seen})
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            if self.read(name) != content:  # else the write was answered too late, and tried again
                raise self._changed(name) from None
        except (exceptions.NotSupportedError, NotImplementedError):  # a store that knows no conditions
            self._put(name, content)

    def _put(self, name: str, content: bytes, **more: Any) -> None:
        with self._failing("write", name):
            self._see(name, obstore.put(self._objects, name, content, use_multipart=False, **more))

    def _tag(self, name: str) -> str | None:
        with suppress(FileNotFoundError), self._failing("read", name):
            return obstore.head(self._objects, name)["e_tag"]
        return None

    def _see(self, name: str, found: Any) -> None:
        if "/" not in name and (found is None or found["e_tag"] is not None):
            self._seen[name] = None if found is None else found["e_tag"]

    def _changed(self, name: str) -> InputError:
        return InputError(
            f"{self.place}/{name} was written by another run meanwhile: nothing of it is replaced; see that one run at "
            "a time writes there, and run the same command again"
        )

    @contextmanager
    def new(self, name: str) -> Iterator[Path]:
        """Implements ``Store``."""
        with tempfile.TemporaryDirectory(prefix="seglog-") as folder:
            path = Path(folder) / "file"
            yield path
            with self._failing("write", name):
                obstore.put(self._objects, name, path)

    def open(self, name: str) -> Any:
        """Implements ``Store``. FileNotFoundError when there is no such object."""
        with self._failing("read", name):
            return _Opened(obstore.open_reader(self._objects, name, buffer_size=_READ_BYTES))

    def size(self, name: str) -> int:
        """Implements ``Store``."""
        with self._failing("read", name):
            return int(obstore.head(self._objects, name)["size"])

    def remove(self, name: str) -> None:
        """Implements ``Store``."""
        self._seen.pop(name, None)
        with suppress(FileNotFoundError), self._failing("remove", name):
            obstore.delete(self._objects, name)

    def names(self, below: str = "") -> Iterator[str]:
        """Implements ``Store``."""
        with self._failing("list", below):
            for page in obstore.list(self._objects, below or None):
                yield from (entry["path"] for entry in page)

    def settle(self, names: Iterable[str]) -> None:
        """Implements ``Store``: an object that is there stays."""

    @contextmanager
    def claimed(self) -> Iterator[Check]:
        """Implements ``Store``, by a ``Claim``: after a run that was killed it waits until that is dead."""
        claim = Claim(self)
        claim.take()
        is_over = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(claim, is_over), daemon=True)
        renewing.start()
        try:
            yield claim.check
        finally:
            is_over.set()
            renewing.join()
            with suppress(OSError):
                claim.release()

    @staticmethod
    def _renew(claim: Claim, is_over: threading.Event) -> None:
        while not is_over.wait(RENEW_SECONDS):
            with suppress(InputError, OSError):  # lost, which the check before the next commit says; or tried again
                claim.renew()

    @contextmanager
    def _failing(self, doing: str, name: str) -> Iterator[None]:
        """Raise errors of the library as OSErrors in words."""
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotSupportedError):
            raise
        except (exceptions.BaseError, FileNotFoundError) as error:
            if doing in {"read", "remove"} and is_missing(error):
                raise FileNotFoundError(f"there is no {self.place}/{name}") from None
            if doing == "write" and "501 Not Implemented" in str(error):
                raise NotImplementedError from None
            raise OSError(sentence_of(doing, f"{self.place}/{name}".rstrip("/"), error)) from None


class _Opened:
    """An open file of the library's, with what pyarrow asks of one besides."""

    closed: Final = False

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
