import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from seglog_broker.backup.destination import Destination, DestinationError, MissingFileError, StoredFile
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.storage.io.copying import READ_BYTES, SYNC_BYTES
from seglog_broker.storage.io.filesystem import PosixFileSystem
from seglog_broker.testing.forgetful import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    Fault,
    ForgetfulFileSystem,
    SimulatedCrash,
)
from tests.support import each_case


def test_files_are_put_read_listed_and_deleted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"segment and a tail")
    (tmp_path / "made").mkdir()
    destination: Destination = DirectoryDestination(PosixFileSystem(), f"{tmp_path}/made/backup/")
    assert list(destination.names()) == []
    content = os.urandom(READ_BYTES + 3)
    destination.put("files/b", [content[:10], b"", content[10:]])
    destination.put_file("files/a", str(source), size=7)
    destination.put_file("files/linked", str(source), size=18, link=True)
    destination.put("top.json", [b"{}"])
    assert list(destination.names()) == [
        StoredFile("files/a", 7),
        StoredFile("files/b", READ_BYTES + 3),
        StoredFile("files/linked", 18),
        StoredFile("top.json", 2),
    ]
    assert list(destination.names("files/b")) == [StoredFile("files/b", READ_BYTES + 3)]
    assert list(destination.names("lease/")) == []
    assert b"".join(destination.read("files/a")) == b"segment"
    assert [len(chunk) for chunk in destination.read("files/b")] == [READ_BYTES, 3]
    assert (tmp_path / "made/backup/files/linked").samefile(source)
    destination.put("top.json", [b"new"])
    assert b"".join(destination.read("top.json")) == b"new"
    destination.delete("top.json")
    destination.delete("top.json")
    with pytest.raises(MissingFileError, match=r"made/backup has no top.json$"):
        list(destination.read("top.json"))
    destination.close()


@each_case("policy", [PROCESS_KILL, POWER_LOSS, *map(RANDOM, range(10))])
def test_a_crash_in_a_put_of_a_new_file_leaves_it_whole_or_not_at_all(policy: CrashPolicy) -> None:
    for number in range(100):
        fs = ForgetfulFileSystem()
        fs.crash_after(number)
        is_put = False
        with suppress(SimulatedCrash):
            is_put = DirectoryDestination(fs, "/backup").put_new("lease/1", [b"mine"])
        destination = DirectoryDestination(fs.found_after(policy), "/backup")
        destination.discard_unfinished()
        found = list(destination.names())
        assert found == [StoredFile("lease/1", 4)] or (found == [] and not is_put)
        assert destination.put_new("lease/1", [b"more"]) == (found == [])
        if is_put:
            return
    pytest.fail("it never ended")


def test_a_file_system_without_second_names_is_said_to_have_none() -> None:
    fs = ForgetfulFileSystem()
    fs.inject(Fault("link", lambda _path: True, errno.EPERM))
    with pytest.raises(
        DestinationError, match="/backup cannot have a lease: it is on a file system that gives files no"
    ):
        DirectoryDestination(fs, "/backup").put_new("lease/1", [b"mine"])
    assert [path for path in fs.snapshot() if "lease/" in path and not path.endswith("/")] == []


def test_what_it_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    destination = DirectoryDestination(PosixFileSystem(), f"{tmp_path}/backup")
    destination.put("files/a", [b"secret"])
    for path, mode in [("backup", 0o700), ("backup/files", 0o700), ("backup/files/a", 0o600)]:
        assert (tmp_path / path).stat().st_mode & 0o777 == mode


@each_case("name", ["", "/a", "../a", "a/../b", "a//b", ".hidden", "a/.", "a/"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    destination = DirectoryDestination(ForgetfulFileSystem(), "/backup")
    with pytest.raises(ValueError, match="is no name for a file of a backup"):
        destination.put(name, [b""])


def test_a_failure_of_the_destination_says_where_and_what_now() -> None:
    fs = ForgetfulFileSystem()
    destination = DirectoryDestination(fs, "/backup")
    fs.limit_free_bytes(2)
    with pytest.raises(DestinationError, match=r"^cannot write /backup/files/a: .*: make room there, and run the same"):
        destination.put("files/a", [b"longer"])
    assert list(destination.names()) == []
    fs.limit_free_bytes(None)
    destination.put("files/a", [b"longer"])
    fs.inject(Fault("pread", error=errno.EIO))
    with pytest.raises(DestinationError, match=r"^cannot read /backup/files/a: .*EIO"):
        list(destination.read("files/a"))


def test_a_failure_of_the_source_is_not_one_of_the_destination() -> None:
    fs = ForgetfulFileSystem()
    destination = DirectoryDestination(fs, "/backup")
    with pytest.raises(FileNotFoundError):
        destination.put_file("files/a", "/nowhere", size=3)

    def broken() -> Iterator[bytes]:
        yield b"a part"
        raise OSError(errno.EIO, "bad sector", "/data/segment")

    with pytest.raises(OSError, match="bad sector"):
        destination.put("files/a", broken())
    assert list(destination.names()) == []
    assert [path for path in fs.snapshot() if path.endswith(".tmp")] == []


def _fill(fs: ForgetfulFileSystem) -> list[str]:
    """Put files as a backup does; the names of those whose puts have returned."""
    done: list[str] = []
    destination = DirectoryDestination(fs, "/backup")
    try:
        destination.put("files/a", [b"aaaa", b"aaaa"])
        done.append("files/a")
        destination.put_file("files/b", "/data/b", size=4)
        done.append("files/b")
        destination.put_file("files/c", "/data/b", size=6, link=True)
        done.append("files/c")
        destination.put("backups/1.json", [b"manifest"])
        done.append("backups/1.json")
    except SimulatedCrash:
        pass
    return done


_CONTENTS = {"files/a": b"aaaaaaaa", "files/b": b"bbbb", "files/c": b"bbbbbb", "backups/1.json": b"manifest"}


@each_case("policy", [PROCESS_KILL, POWER_LOSS, *map(RANDOM, range(20))])
def test_a_crash_at_any_moment_leaves_whole_files_alone_and_all_that_were_put(policy: CrashPolicy) -> None:
    for number in range(100):
        fs = ForgetfulFileSystem()
        fs.load({"/data/b": b"bbbbbb"})
        fs.crash_after(number)
        done = _fill(fs)
        left = fs.found_after(policy)
        destination = DirectoryDestination(left, "/backup")
        found = {name: b"".join(destination.read(name)) for name, _ in destination.names()}
        assert found.items() <= _CONTENTS.items()
        assert set(done) <= set(found)
        destination.discard_unfinished()
        assert [path for path in left.snapshot() if path.endswith(".tmp")] == []
        assert _fill(left) == list(_CONTENTS), "the same again completes it"
        if len(done) == len(_CONTENTS):
            return
    pytest.fail("it never ended")


def test_a_long_file_of_chunks_is_synced_while_it_is_written() -> None:
    fs = ForgetfulFileSystem()
    DirectoryDestination(fs, "/backup").put("files/a", (bytes(READ_BYTES) for _ in range(3 * SYNC_BYTES // READ_BYTES)))
    names = [operation.name for operation in fs.operations if operation.name in {"pwritev", "fdatasync"}]
    assert names == [*(["pwritev"] * (SYNC_BYTES // READ_BYTES) + ["fdatasync"]) * 3, "fdatasync"]
