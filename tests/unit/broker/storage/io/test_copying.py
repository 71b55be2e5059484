import errno
import os
from pathlib import Path

import pytest

from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.copying import SYNC_BYTES, SourceTooShortError, copy_file
from seglog_broker.storage.io.filesystem import File, PosixFileSystem
from seglog_broker.testing.forgetful import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    Fault,
    ForgetfulFileSystem,
    Operation,
    SimulatedCrash,
)
from tests.support import each_case


class _NoKernelHelp(PosixFileSystem):
    """A file system on which neither links nor the kernel's copies work."""

    def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
        opened = super().open(path, create=create, writable=writable)
        return _Plain(path, os.dup(opened.fileno()))

    def link(self, path: str, new: str) -> None:
        raise OSError(errno.EXDEV, "another file system", path, None, new)


class _Plain(File):
    def fileno(self) -> int:
        return os.open("/", os.O_RDONLY)  # nothing that the kernel could copy between

    def clone_from(self, source: File) -> bool:
        return False

    def copy_from(self, source: File, position: int, size: int) -> int:
        return self.pwritev([source.pread(size, position)], position)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("fs", [PosixFileSystem(), _NoKernelHelp()], ids=["kernel", "by hand"])
@pytest.mark.parametrize("size", [0, 1, 4 << 20, (9 << 20) + 5])
def test_a_copy_has_the_first_bytes_of_its_source(tmp_path: Path, fs: PosixFileSystem, size: int) -> None:
    content = os.urandom((9 << 20) + 5)
    (tmp_path / "from").write_bytes(content)
    noted = Throttle(None, lambda: 0.0, lambda _: None)
    copy_file(fs, f"{tmp_path}/from", f"{tmp_path}/to", size=size, throttle=noted)
    assert (tmp_path / "to").read_bytes() == content[:size]
    assert (tmp_path / "to").stat().st_mode & 0o777 == 0o600
    assert noted.total in {0, size}, "either the blocks are shared, or all bytes were counted"
    assert _names(tmp_path) == ["from", "to"]


def test_a_whole_file_is_linked_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"segment")
    fs = PosixFileSystem()
    for _ in range(2):  # the second time the target is the same file already
        copy_file(fs, f"{tmp_path}/from", f"{tmp_path}/to", size=7, link=True)
        assert (tmp_path / "to").samefile(tmp_path / "from")
        assert _names(tmp_path) == ["from", "to"]
    copy_file(fs, f"{tmp_path}/from", f"{tmp_path}/to", size=3, link=True)
    assert (tmp_path / "to").read_bytes() == b"seg", "a part of a file is never a link to it"
    assert (tmp_path / "from").read_bytes() == b"segment"
    copy_file(_NoKernelHelp(), f"{tmp_path}/from", f"{tmp_path}/to", size=7, link=True)
    assert not (tmp_path / "to").samefile(tmp_path / "from")
    assert (tmp_path / "to").read_bytes() == b"segment"


def test_a_source_that_is_too_short_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "from").write_bytes(b"segment")
    with pytest.raises(SourceTooShortError, match=r"has 7 bytes, and 8 were"):
        copy_file(PosixFileSystem(), f"{tmp_path}/from", f"{tmp_path}/to", size=8)
    assert _names(tmp_path) == ["from"]


def test_a_long_file_is_synced_while_it_is_written_so_that_others_wait_for_little() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/from": bytes(3 * SYNC_BYTES + 1)})
    unsynced = 0

    def note(operation: Operation) -> None:
        nonlocal unsynced
        if operation.name == "pwritev":
            unsynced += int(operation.detail[1])
            assert unsynced <= SYNC_BYTES
        elif operation.name == "fdatasync":
            unsynced = 0

    fs.on_operation = note
    copy_file(fs, "/from", "/to", size=3 * SYNC_BYTES + 1)
    assert unsynced == 0


@each_case("operation", ["open", "pwritev", "fdatasync", "rename", "link"])
def test_an_operation_that_fails_leaves_the_old_target_and_no_half_one(operation: str) -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/from": b"x" * 100, "/to": b"old"})
    fs.inject(Fault(operation, "/to.tmp" if operation in {"open", "pwritev"} else "", error=errno.EIO))
    with pytest.raises(OSError, match="EIO"):
        copy_file(fs, "/from", "/to", size=100, link=operation == "link")
    assert fs.snapshot() == {"/from": b"x" * 100, "/to": b"old"}
    assert fs.open_files == []


@each_case("link", [False, True])
@each_case("policy", [PROCESS_KILL, POWER_LOSS, *map(RANDOM, range(20))])
def test_a_crash_leaves_a_target_that_is_old_or_whole(policy: CrashPolicy, link: bool) -> None:
    for number in range(20):
        fs = ForgetfulFileSystem()
        fs.load({"/d/from": b"x" * 100, "/d/to": b"old"})
        fs.crash_after(number)
        try:
            copy_file(fs, "/d/from", "/d/to", size=100, link=link)
        except SimulatedCrash:
            found = fs.found_after(policy)
            assert found.snapshot()["/d/to"] in {b"old", b"x" * 100}
            assert found.snapshot()["/d/from"] == b"x" * 100
            copy_file(found, "/d/from", "/d/to", size=100, link=link)
            assert found.snapshot() == {"/d/from": b"x" * 100, "/d/to": b"x" * 100}
            continue
        assert number > 2
        return
    pytest.fail("it never ended")
