"""Object stores without a server of one: the library's own store in memory, and answers that a server gives.

tests/interop/test_object_stores.py has a real server, and faults in the middle.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from obstore.store import MemoryStore

from seglog_broker.backup.destination import Destination, DestinationError, MissingFileError, StoredFile
from seglog_broker.backup.object_store import PART_BYTES, ObjectStoreDestination, open_object_store
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.support import each_case

SECRET = "what-nobody-is-to-see"


def _in_memory(fs: ForgetfulFileSystem | None = None, throttle: Throttle | None = None) -> Destination:
    return ObjectStoreDestination(fs or ForgetfulFileSystem(), MemoryStore(), "s3://bucket/path", throttle=throttle)


@each_case("size", [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES + 5])
def test_what_is_put_is_read(size: int) -> None:
    throttle = Throttle(None, lambda: 0.0, lambda _: None)
    content = os.urandom(size)
    fs = ForgetfulFileSystem()
    fs.load({"/data/a": content + b"tail"})
    destination = _in_memory(fs, throttle)
    destination.put_file("files/a", "/data/a", size=size, link=True)
    destination.put("files/b", [content[:5], content[5:]])
    assert b"".join(destination.read("files/a")) == content
    assert b"".join(destination.read("files/b")) == content
    assert throttle.total == 4 * size
    assert list(destination.names()) == [StoredFile("files/a", size), StoredFile("files/b", size)]
    assert list(destination.names("files/b")) == [StoredFile("files/b", size)]
    destination.delete("files/a")
    destination.delete("files/a")
    with pytest.raises(MissingFileError, match=r"in s3://bucket/path has no files/a$"):
        list(destination.read("files/a"))
    destination.discard_unfinished()
    destination.close()


def test_a_new_file_is_put_where_there_is_none() -> None:
    throttle = Throttle(None, lambda: 0.0, lambda _: None)
    destination = _in_memory(throttle=throttle)
    assert [destination.put_new("lease/1", [b"mi", b"ne"]), destination.put_new("lease/1", [b"more"])] == [True, False]
    assert b"".join(destination.read("lease/1")) == b"mine"
    assert throttle.total == 4 + 4 + 4


@pytest.mark.parametrize("before", [0, 3 * PART_BYTES])
def test_a_source_that_fails_is_no_failure_of_the_store(before: int) -> None:
    destination = _in_memory()

    def broken() -> Iterator[bytes]:
        yield bytes(before)
        raise FileNotFoundError(2, "gone", "/data/segment")

    with pytest.raises(FileNotFoundError, match="gone"):
        destination.put("files/a", broken())
    assert list(destination.names()) == []


@each_case("name", ["", "/a", "../a", "a/../b", ".hidden"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    for attempt in (lambda: _in_memory().put(name, [b""]), lambda: list(_in_memory().read(name))):
        with pytest.raises(ValueError, match="is no name for a file of a backup"):
            attempt()


@contextmanager
def _answering(status: int, body: str) -> Iterator[str]:
    """A server that answers every request so; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the base class's names

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
            """Silent."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _xml(code: str) -> str:
    more = f"<AWSAccessKeyId>id</AWSAccessKeyId><SignatureProvided>{SECRET}</SignatureProvided>"
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>In its words.</Message>{more}</Error>"


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return monkeypatch


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (
            403,
            _xml("AccessDenied"),
            r"refuses these credentials \(AccessDenied: In its words\): set those of an account",
        ),
        (403, _xml("SomethingNew"), r"refuses these credentials \(SomethingNew: In its words\)"),
        (403, "no XML at all", r"refuses these credentials \(.*403 Forbidden: no XML at all\)"),
        (
            404,
            _xml("NoSuchBucket"),
            r"there is no such bucket \(NoSuchBucket: In its words\): make it, or name another$",
        ),
        (400, _xml("EntityTooLarge"), r"files/a: EntityTooLarge: In its words: see that the store can be reached, and"),
        (
            503,
            _xml("SlowDown"),
            r"files/a: SlowDown: In its words: see that the store can be reached, and run the same",
        ),
        (200, "no XML at all", r"^cannot list .*: see that the store can be reached"),
    ],
)
def test_what_the_store_answers_is_a_sentence_without_secrets(
    credentials: pytest.MonkeyPatch, status: int, body: str, sentence: str
) -> None:
    with _answering(status, body) as address:
        credentials.setenv("AWS_ENDPOINT_URL", address)
        destination = open_object_store(ForgetfulFileSystem(), "s3://bucket/path/", retry_seconds=0.2)
        attempt = (lambda: destination.put("files/a", [b""])) if status != 200 else lambda: list(destination.names())
        with pytest.raises(DestinationError, match=sentence) as caught:
            attempt()
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_file_that_is_missing_is_told_from_a_bucket_that_is(credentials: pytest.MonkeyPatch) -> None:
    with _answering(404, _xml("NoSuchKey")) as address:
        credentials.setenv("AWS_ENDPOINT_URL", address)
        destination = open_object_store(ForgetfulFileSystem(), "s3://bucket/path", retry_seconds=0.2)
        with pytest.raises(MissingFileError, match=r"in s3://bucket/path has no files/a$"):
            list(destination.read("files/a"))
        destination.delete("files/a")


def test_missing_credentials_name_the_variables(credentials: pytest.MonkeyPatch) -> None:
    credentials.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(DestinationError, match=r"there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACC"):
        open_object_store(ForgetfulFileSystem(), "s3://bucket/path")
    credentials.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(DestinationError, match=r"there are no credentials: set AZURE_STORAGE_ACCOUNT_NAME"):
        open_object_store(ForgetfulFileSystem(), "az://container/path", retry_seconds=0.2).put("files/a", [b""])


def test_plain_http_is_for_an_endpoint_that_says_so(credentials: pytest.MonkeyPatch) -> None:
    credentials.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    destination = open_object_store(ForgetfulFileSystem(), "s3://bucket/path", retry_seconds=0.2)
    with pytest.raises(DestinationError, match=r"Connection refused"):
        destination.put("files/a", [b""])
