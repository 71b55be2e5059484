"""A destination that is an object store: S3 and its like, Google Cloud Storage, Azure, by obstore.

Files longer than PART_BYTES are uploaded in parts, some at a time; the object is there when all are. Of an upload that
was interrupted the parts may stay, which no listing shows: a lifecycle rule of the bucket removes them.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Final

import obstore
from obstore import exceptions
from obstore.store import from_url

from seglog_broker.backup.destination import (
    Destination,
    DestinationError,
    MissingFileError,
    StoredFile,
    check_name,
    no_conditions,
)
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol.object_stores import RETRY_SECONDS, is_missing, library_options, place_at, sentence_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore


PART_BYTES: Final = 8 * 1024 * 1024
"""Of a part of a long file. S3 wants 5 MiB or more, and no more than 10,000 of them, enough for 80 GiB."""

PARTS_AT_ONCE: Final = 4
"""Parts that are uploaded side by side, and held in memory."""


def open_object_store(
    fs: FileSystem, url: str, *, throttle: Throttle | None = None, retry_seconds: float = RETRY_SECONDS
) -> "ObjectStoreDestination":
    """The destination at ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or ``az://CONTAINER/PATH``.

    Asks nothing yet. Raises DestinationError for an address that is none of these, without showing what it may hold.
    """
    try:
        place = place_at(url, os.environ)
    except ValueError as error:
        raise DestinationError(str(error)) from None
    try:
        store = from_url(place, **library_options(os.environ, retry_seconds))
    except exceptions.BaseError as error:
        raise DestinationError(sentence_of("open", place, error)) from None
    return ObjectStoreDestination(fs, store, place, throttle=throttle)


class ObjectStoreDestination(Destination):
    """The objects of ``store``, which has the path of the backup as its prefix. See ``Destination``."""

    def __init__(self, fs: FileSystem, store: "ObjectStore", place: str, *, throttle: Throttle | None = None) -> None:
        super().__init__(fs, place, throttle=throttle)
        self._store = store

    def put(self, name: str, chunks: Iterable[bytes]) -> None:
        """In one request, or in parts where they are more than PART_BYTES."""
        check_name(name)
        remaining = iter(chunks)
        beginning = bytearray()
        for chunk in remaining:
            beginning += chunk
            if len(beginning) > PART_BYTES:
                break
        else:
            with self._failing("write", name):
                self._note(len(beginning))
                obstore.put(self._store, name, bytes(beginning), use_multipart=False)
            return
        failure: OSError | None = None

        def counted() -> Iterator[bytes]:
            """The chunks; remembers what making them raised, which is no failure of the store."""
            nonlocal failure
            try:
                for chunk in chain([bytes(beginning)], remaining):
                    self._note(len(chunk))
                    yield chunk
            except OSError as error:
                failure = error
                raise

        try:
            with self._failing("write", name):
                obstore.put(self._store, name, counted(), chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
        except DestinationError:
            if failure is not None:
                raise failure from None
            raise

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        """In one request, with the condition that there is none."""
        check_name(name)
        content = b"".join(chunks)
        self._note(len(content))
        try:
            with self._failing("write", name):
                obstore.put(self._store, name, content, mode="create", use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            return False
        except (exceptions.NotSupportedError, NotImplementedError):
            raise no_conditions(self.place, "refuses to write a file only if there is none") from None
        return True

    def read(self, name: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """As the chunks arrive."""
        check_name(name)
        asked: obstore.GetOptions = {}
        if start or end is not None:
            asked["range"] = {"offset": start} if end is None else (start, end)
        with self._failing("read", name):
            stream = iter(obstore.get(self._store, name, options=asked).stream(min_chunk_size=1024 * 1024))
        while True:
            with self._failing("read", name):
                chunk = next(stream, None)
            if chunk is None:
                return
            self._note(len(chunk))
            yield bytes(chunk)

    def names(self, prefix: str = "") -> Iterator[StoredFile]:
        """Listed page by page, and sorted here: not every store sorts."""
        found: list[StoredFile] = []
        with self._failing("list", prefix):
            for page in obstore.list(self._store, prefix.rpartition("/")[0] or None):
                found += [StoredFile(entry["path"], entry["size"]) for entry in page]
        yield from sorted(entry for entry in found if entry.name.startswith(prefix))

    def delete(self, name: str) -> None:
        """One request."""
        check_name(name)
        with suppress(MissingFileError), self._failing("remove", name):
            obstore.delete(self._store, name)

    @contextmanager
    def _failing(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, exceptions.NotSupportedError):
            raise
        except (exceptions.BaseError, FileNotFoundError) as error:  # the library has Python's own class for a 404
            if doing in {"read", "remove"} and is_missing(error):
                raise MissingFileError(f"the backup in {self.place} has no {name}") from None
            where = f"{self.place}/{name}".rstrip("/")
            # The cause may show addresses with signatures in them.
            raise DestinationError(sentence_of(doing, where, error)) from None
