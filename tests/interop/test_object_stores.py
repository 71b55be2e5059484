"""Destinations of backups on real servers of objects, with faults in the middle."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from seglog_broker.backup.conditions import probe_conditions
from seglog_broker.backup.destination import MARKER, Destination, DestinationError, MissingFileError, StoredFile
from seglog_broker.backup.object_store import PART_BYTES, open_object_store
from seglog_broker.storage.io.filesystem import PosixFileSystem
from tests.interop.object_stores import (
    ACCESS_KEY,
    AZURE_ACCOUNT,
    AZURE_KEY,
    SECRET_KEY,
    CuttingLink,
    Gateway,
    azurite,
    gateway,
    lying_store,
    old_store,
    seaweed,
)

pytestmark = [pytest.mark.timeout(400)]

FS: Final = PosixFileSystem()
LONG: Final = 5 * PART_BYTES + 123


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


def _variables(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
    }


def _azure_variables(port: int) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}",
        "AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY,
    }


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def _opened(port: int, path: str, *, retry_seconds: float = 60) -> Destination:
    with _environment(_variables(port)):
        return open_object_store(FS, f"s3://backups/{path}", retry_seconds=retry_seconds)


@pytest.fixture(params=["s3", "azure"])
def destination(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Destination]:
    if request.param == "azure":
        with azurite(tmp_path_factory.mktemp("azurite")) as port, _environment(_azure_variables(port)):
            yield open_object_store(FS, "az://backups/deep/path/")
        return
    yield _opened(request.getfixturevalue("server").port, "deep/path/")


def test_files_of_any_size_are_put_read_listed_and_deleted(destination: Destination, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(LONG + 5))
    assert list(destination.names()) == []
    contents = {size: os.urandom(size) for size in (0, 1, PART_BYTES, PART_BYTES + 1)}
    for size, content in contents.items():
        destination.put(f"files/{size:08}", [content[: size // 2], content[size // 2 :]])
    destination.put_file("files/long", str(source), size=LONG, link=True)
    destination.put("backups/1.json", [b"{}"])
    for size, content in contents.items():
        assert b"".join(destination.read(f"files/{size:08}")) == content
    assert b"".join(destination.read("files/long")) == source.read_bytes()[:LONG]
    names = [*(f"files/{size:08}" for size in contents), "files/long"]
    assert [name for name, _ in destination.names()] == ["backups/1.json", *names]
    assert [name for name, _ in destination.names("files/")] == names
    assert [name for name, _ in destination.names("files/l")] == ["files/long"]
    destination.put("backups/1.json", [b"new"])
    assert b"".join(destination.read("backups/1.json")) == b"new"
    destination.delete("files/long")
    destination.delete("files/long")
    with pytest.raises(MissingFileError, match=r"in \w+://backups/deep/[-\w]+ has no files/long$"):
        list(destination.read("files/long"))


@pytest.mark.parametrize(
    ("store", "what"),
    [
        ("gateway", None),
        ("seaweed", None),
        ("old", "replaces a file that was to be written if there is none"),
        ("lying", "(replaces|says of) a file that was to be written if there is none"),
    ],
)
def test_a_store_that_lies_about_conditions_is_found_out(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, what: str | None
) -> None:
    with ExitStack() as running:
        if store == "gateway":
            port = request.getfixturevalue("server").port
        else:
            port = running.enter_context({"seaweed": seaweed, "old": old_store, "lying": lying_store}[store](tmp_path))
        destination = _opened(port, "probed")
        if what is None:
            probe_conditions(destination)
        else:
            with pytest.raises(DestinationError, match=f"s3://backups/probed cannot have a lease: it {what}"):
                probe_conditions(destination)
        assert list(destination.names()) == []


def test_a_connection_that_breaks_in_an_upload_is_made_again(server: Gateway) -> None:
    content = os.urandom(LONG)
    with closing(CuttingLink(server.port)) as link:
        destination = _opened(link.port, "cut")
        for after in (1_000, PART_BYTES // 2, 3 * PART_BYTES):
            link.cut(after, stays_down=False)
            destination.put(f"files/{after}", [content])
        assert link.cuts == 3
        for name, size in destination.names():
            assert size == LONG
            assert b"".join(destination.read(name)) == content


def test_a_store_that_is_gone_in_the_middle_of_an_upload_is_a_sentence_and_no_half_file(server: Gateway) -> None:
    content = os.urandom(LONG)
    with closing(CuttingLink(server.port)) as link:
        destination = _opened(link.port, "gone", retry_seconds=1)
        link.cut(2 * PART_BYTES, stays_down=True)
        with pytest.raises(
            DestinationError,
            match=r"^cannot write s3://backups/gone/files/a: .*: see that the store can be reached, and",
        ) as caught:
            destination.put("files/a", [content])
        assert SECRET_KEY not in str(caught.value)
        assert "Signature" not in str(caught.value)
        with pytest.raises(DestinationError, match=r"^cannot list s3://backups/gone: "):
            list(destination.names())
        link.mend()
        assert list(destination.names()) == []
        destination.put("files/a", [content])
        assert list(destination.names()) == [StoredFile("files/a", LONG)]


def test_a_store_that_is_gone_in_the_middle_of_a_download_never_gives_a_short_file(server: Gateway) -> None:
    content = os.urandom(3 * LONG)
    _opened(server.port, "down").put("files/a", [content])
    with closing(CuttingLink(server.port)) as link:
        destination = _opened(link.port, "down", retry_seconds=1)
        chunks = destination.read("files/a")
        got = len(next(chunks))
        link.cut_now()
        with pytest.raises(DestinationError, match=r"^cannot read s3://backups/down/files/a: "):
            got += sum(map(len, chunks))
    assert 0 < got < len(content)


def test_a_source_that_fails_in_an_upload_leaves_no_parts(server: Gateway) -> None:
    destination = _opened(server.port, "broken-source")

    def chunks() -> Iterator[bytes]:
        yield bytes(3 * PART_BYTES)
        raise OSError(5, "bad sector", "/data/segment")

    before = server.sizes()
    with pytest.raises(OSError, match="bad sector"):
        destination.put("files/a", chunks())
    assert server.sizes().keys() == before.keys()


@pytest.mark.parametrize(
    ("container", "wrong", "sentence"),
    [
        ("nowhere", {}, "there is no such bucket .ContainerNotFound: [^:]*: make it, or name another$"),
        ("backups", {"AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}, "refuses these credentials .*AZURE_STORAGE_ACC"),
    ],
)
def test_what_is_configured_wrong_at_azure_is_said(
    tmp_path: Path, container: str, wrong: dict[str, str], sentence: str
) -> None:
    with azurite(tmp_path) as port, _environment(_azure_variables(port) | wrong):
        destination = open_object_store(FS, f"az://{container}/path", retry_seconds=0.5)
        for attempt in (
            lambda: list(destination.names()),
            lambda: list(destination.read(MARKER)),
            lambda: destination.put("files/long", [bytes(PART_BYTES + 1)]),
        ):
            with pytest.raises(DestinationError, match=sentence) as caught:
                attempt()
            assert not isinstance(caught.value, MissingFileError)
            assert AZURE_KEY not in str(caught.value)
