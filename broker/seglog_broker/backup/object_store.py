"""A destination that is an object store: S3 and its like, Google Cloud Storage, Azure, by obstore; and its errors.

Credentials and endpoints are from the environment, by the names that the providers' own tools have, or those of the
machine's role; an address never has them. Files longer than PART_BYTES are uploaded in parts, some at a time; the
object is there when all are. Of an upload that was interrupted the parts may stay, which no listing shows: a lifecycle
rule of the bucket removes them.

Codes of S3 and Azure are in the XML of their answers, which the library puts into its own error's text. Nothing of what
may be secret is in the sentences: no queries of addresses, which may be signatures, and of an answer the code and the
message alone.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import from_url

from seglog_broker.backup.destination import Destination, DestinationError, MissingFileError, StoredFile, check_name
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import FileSystem

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


PART_BYTES: Final = 8 * 1024 * 1024
"""Of a part of a long file. S3 wants 5 MiB or more, and no more than 10,000 of them, enough for 80 GiB."""

PARTS_AT_ONCE: Final = 4
"""Parts that are uploaded side by side, and held in memory."""

RETRY_SECONDS: Final = 120
"""How long a request that fails, for the network or the store's trouble, is tried again."""

REQUEST_SECONDS: Final = 300
"""After which a request has failed: a part takes that long at 30 kB/s."""

_SCHEMES: Final = {"s3": "Amazon S3", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}

_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_REGION, and AWS_ENDPOINT_URL where it is not Amazon's",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Variables of the environment that credentials are from."""

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")


def open_object_store(
    fs: FileSystem, url: str, *, throttle: Throttle | None = None, retry_seconds: float = RETRY_SECONDS
) -> "ObjectStoreDestination":
    """The destination at ``s3://BUCKET/PATH``, ``gs://BUCKET/PATH`` or ``az://CONTAINER/PATH``.

    Asks nothing yet. Raises DestinationError for an address that is none of these, without showing what it may hold.
    """
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}:// ({what})" for name, what in _SCHEMES.items())
        raise DestinationError(f"there is no kind of destination {scheme}://: name a directory, or one of {known}")
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise DestinationError(
            f"an address of a destination has bucket and path alone, as {scheme}://BUCKET/PATH: credentials are from "
            f"the environment ({_CREDENTIALS[scheme]})"
        )
    if not parts.netloc:
        raise DestinationError(f"{url} names no bucket: it has to be {scheme}://BUCKET/PATH")
    place = url.rstrip("/")
    retry: RetryConfig = {"max_retries": 10, "retry_timeout": timedelta(seconds=retry_seconds)}
    client: ClientConfig = {
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=min(10.0, retry_seconds)),
        # Without TLS only where the operator has named such an endpoint.
        "allow_http": any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS),
    }
    try:
        store = from_url(place, retry_config=retry, client_options=client)
    except exceptions.BaseError as error:
        raise store_error("open", place, error, _CREDENTIALS[scheme]) from None
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

    def read(self, name: str) -> Iterator[bytes]:
        """As the chunks arrive."""
        check_name(name)
        with self._failing("read", name):
            stream = iter(obstore.get(self._store, name).stream(min_chunk_size=1024 * 1024))
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
        except (exceptions.BaseError, FileNotFoundError) as error:  # the library has Python's own class for a 404
            if doing in {"read", "remove"} and is_missing(error):
                raise MissingFileError(f"the backup in {self.place} has no {name}") from None
            where = f"{self.place}/{name}".rstrip("/")
            credentials = _CREDENTIALS[self.place.partition("://")[0]]
            # The cause may show addresses with signatures in them.
            raise store_error(doing, where, error, credentials) from None


_CODE: Final = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,400})")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_SYSTEM_MESSAGE: Final = re.compile(r'message: "([^"]{1,100})"')
"""In the library's list of causes: the operating system's."""

_QUERY: Final = re.compile(r"\?\S*")
_RETRIES: Final = re.compile(r"(?:Generic \w+ error: )|(?:, max_retries: \d+, retry_timeout: [\w.]+(?= ))")
_DETAIL_MAX: Final = 300

_METADATA_ADDRESSES: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""Metadata services of clouds, which are asked for a role where the environment has no credentials."""

_NO_CREDENTIALS: Final = ("Missing AccessKeyId", "Missing SecretAccessKey", "Account must be specified")

_NO_FILE: Final = frozenset({"NoSuchKey", "BlobNotFound"})
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})
_REFUSED: Final = frozenset(
    {
        "AccessDenied",
        "AuthenticationFailed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
    }
)
_REFUSED_STATUSES: Final = frozenset({"401", "403"})


def is_missing(error: Exception) -> bool:
    """Whether the store has no object of that name, and nothing else is wrong."""
    code = _CODE.search(_answer(error))
    return isinstance(error, FileNotFoundError) and (code is None or code[1] in _NO_FILE)


def store_error(doing: str, where: str, error: Exception, credentials: str) -> DestinationError:
    """The error for one of the library's; ``credentials`` says where those are from."""
    answer = _answer(error)
    code, status = _CODE.search(answer), _STATUS.search(answer)
    if any(address in answer for address in _METADATA_ADDRESSES) or any(text in answer for text in _NO_CREDENTIALS):
        return DestinationError(
            f"cannot {doing} {where}: there are no credentials: set {credentials} in the environment, or run where the "
            "machine has a role"
        )
    detail = _detail(error)
    # Where a file is written, or files are listed, only the bucket can be missing.
    if code[1] in _NO_BUCKET if code is not None else isinstance(error, FileNotFoundError):
        return DestinationError(f"cannot {doing} {where}: there is no such bucket ({detail}): make it, or name another")
    if (code is not None and code[1] in _REFUSED) or (status is not None and status[1] in _REFUSED_STATUSES):
        return DestinationError(
            f"cannot {doing} {where}: the store refuses these credentials ({detail}): set those of an account that may "
            f"list, read, write and delete there ({credentials})"
        )
    if isinstance(error, exceptions.UnknownConfigurationKeyError):
        return DestinationError(f"cannot {doing} {where}: {detail}")
    return DestinationError(
        f"cannot {doing} {where}: {detail}: see that the store can be reached, and run the same command again"
    )


def _answer(error: Exception) -> str:
    """What the library says, without its list of causes."""
    return str(error).partition("\n\nDebug source:")[0]


def _detail(error: Exception) -> str:
    """What the store, or else the library says, in a line."""
    answer = _answer(error)
    code, message = _CODE.search(answer), _MESSAGE.search(answer)
    if code is not None:
        if message is None:
            return code[1]
        words, _, _ = message[1].partition("\n")  # Azure adds the number of the request, and the time
        return f"{code[1]}: {words.strip().rstrip('.')}"
    found = _SYSTEM_MESSAGE.search(str(error))
    because = f" ({found[1]})" if found is not None else ""
    return _RETRIES.sub("", _QUERY.sub("", " ".join(answer.split())))[:_DETAIL_MAX].rstrip(" .:") + because
