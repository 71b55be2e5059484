"""Destinations that lie about new files, each in its way, and such that do not."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Barrier, Lock

import pytest
from obstore.store import MemoryStore

from seglog_broker.backup.conditions import probe_conditions
from seglog_broker.backup.destination import Destination, DestinationError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.encrypted_destination import BackupKey, EncryptedDestination
from seglog_broker.backup.object_store import ObjectStoreDestination
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.support import each_case

FS = ForgetfulFileSystem()


class Honest(Destination):
    """Files in memory."""

    def __init__(self) -> None:
        super().__init__(FS, "s3://bucket/path")
        self.files: dict[str, bytes] = {}
        self.lock = Lock()

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        with self.lock:
            is_new = name not in self.files
            self.files.setdefault(name, b"".join(chunks))
            return is_new

    def read(self, name: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        yield self.files[name][start:end]

    def delete(self, name: str) -> None:
        del self.files[name]


class Ignoring(Honest):
    """Writes, and says that it did."""

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        self.files[name] = b"".join(chunks)
        return True


class Agreeing(Honest):
    """Keeps the old one, and says yes all the same."""

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        super().put_new(name, chunks)
        return True


class Looking(Honest):
    """Looks first, and then writes, as two writers who look at once do."""

    def __init__(self) -> None:
        super().__init__()
        self.known = ""
        self.both = Barrier(8)

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        with self.lock:
            self.known = self.known or name
            if name in self.files:
                return False
        if name != self.known:  # the first one has one writer at a time
            self.both.wait()
        self.files[name] = b"".join(chunks)
        return True


class Unheard(Honest):
    """Its answers to who was the first get lost, and the library asks again."""

    def put_new(self, name: str, chunks: Iterable[bytes]) -> bool:
        return super().put_new(name, chunks) and False


def test_a_destination_that_does_as_it_says_passes_and_keeps_nothing(tmp_path: Path) -> None:
    for destination in (Honest(), Unheard()):
        probe_conditions(destination)
        assert destination.files == {}
    directory = DirectoryDestination(PosixFileSystem(), f"{tmp_path}/place")
    store = ObjectStoreDestination(FS, MemoryStore(), "s3://bucket/path")
    for other in (directory, store, EncryptedDestination(FS, store, BackupKey(bytes(32)))):
        probe_conditions(other)
        assert list(other.names()) == []
    assert list((tmp_path / "place/probe").iterdir()) == []


@each_case(
    ("lying", "what"),
    [
        (Ignoring, "replaces a file that was to be written if there is none"),
        (Agreeing, "says of a file that was to be written if there is none that it was"),
        (Looking, "says of a file that was to be written if there is none that it was"),
    ],
)
def test_a_destination_that_lies_is_found_out_and_told_what_now(lying: type[Honest], what: str) -> None:
    destination = lying()
    with pytest.raises(
        DestinationError, match=f"s3://bucket/path cannot have a lease: it {what}, .* Name a directory, or"
    ):
        probe_conditions(destination)
    assert destination.files == {}
