import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from seglog_broker.backup.destination import SHORT_BYTES, Destination, DestinationError, NewFile, put_files
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.encrypted_destination import EncryptedDestination
from seglog_broker.backup.key_file import BackupKey
from seglog_broker.backup.object_store import ObjectStoreDestination
from seglog_broker.storage.io.clock import SharedThrottle
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem


def _destinations(path: Path) -> Iterator[Destination]:
    fs = PosixFileSystem()
    for threads in (1, 2, 8):
        yield DirectoryDestination(fs, f"{path}/{threads}", puts_at_once=threads)
    yield ObjectStoreDestination(fs, MemoryStore(), "s3://bucket")
    yield EncryptedDestination(fs, ObjectStoreDestination(fs, MemoryStore(), "s3://bucket"), BackupKey(bytes(32)))


def test_many_files_are_put_short_ones_side_by_side(tmp_path: Path) -> None:
    contents = {f"files/{number % 3}/{number}": bytes([number]) * (number + 1) for number in range(100)}
    contents["files/long"] = bytes(SHORT_BYTES + 1)
    (tmp_path / "source").mkdir()
    new = []
    for number, (name, content) in enumerate(contents.items()):
        (tmp_path / "source" / str(number)).write_bytes(content + b"tail")
        new.append(NewFile(name, f"{tmp_path}/source/{number}", len(content)))
    for destination in _destinations(tmp_path):
        put_files(destination, iter(new))
        assert sorted(name for name, _ in destination.names()) == sorted(contents)
        assert {name: b"".join(destination.read(name)) for name in contents} == contents


def test_the_first_failure_is_raised_and_no_half_file_is_there(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    new = [NewFile(f"files/{number}", str(source), 7) for number in range(50)]
    new[20] = NewFile("files/20", f"{tmp_path}/nowhere", 7)
    for destination in _destinations(tmp_path):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            put_files(destination, new)
        assert all(b"".join(destination.read(name)) == b"content" for name, _ in destination.names())
        assert "files/20" not in [name for name, _ in destination.names()]
    assert not any("ThreadPool" in thread.name for thread in threading.enumerate())


def test_one_after_the_other_where_only_one_is_worth_while() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/data/a": b"content"})
    fs.inject(Fault("rename", "/files/2.tmp", error=5))
    with pytest.raises(DestinationError, match="cannot write /backup/files/2"):
        put_files(
            DirectoryDestination(fs, "/backup"), [NewFile(f"files/{n}", "/data/a", 7, link=True) for n in range(4)]
        )
    assert sorted(fs.snapshot()) == ["/backup/files/0", "/backup/files/1", "/data/a"]


def test_a_throttle_is_one_for_all_threads() -> None:
    now = 0.0
    inside = 0

    def sleep(seconds: float) -> None:
        nonlocal now, inside
        inside += 1
        assert inside == 1, "while one sleeps, no other one does"
        now += seconds
        inside -= 1

    throttle = SharedThrottle(1e6, lambda: now, sleep)

    def count() -> None:
        for _ in range(500):
            throttle.note(1000)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert throttle.total == 2_000_000
    assert now == pytest.approx(2.0, rel=0.01)
