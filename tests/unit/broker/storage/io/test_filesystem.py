"""One contract, two file systems: the storage engine's assumptions hold on the real one and on the forgetful disk."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.copying import SYNC_BYTES, SourceTooShortError, copy_file
from seglog_broker.storage.io.filesystem import (
    BUFFERS_PER_WRITE,
    Buffer,
    File,
    FileSystem,
    PosixFileSystem,
    parent,
    read_file,
    write_all,
    write_file_atomically,
)
from seglog_broker.testing import forgetful
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


class Place(NamedTuple):
    """A file system and an empty directory on it."""

    fs: FileSystem
    root: str

    def at(self, name: str) -> str:
        return f"{self.root}/{name}"

    def put(self, name: str, content: bytes) -> str:
        with self.fs.open(self.at(name), create=True) as file:
            file.truncate(0)
            write_all(file, [content], 0)
        return self.at(name)


@pytest.fixture(params=["posix", "forgetful"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "posix":
        yield Place(PosixFileSystem(), str(tmp_path))
    else:
        fs = forgetful.ForgetfulFileSystem()
        fs.load({"/data/": b""})
        yield Place(fs, "/data")
        assert fs.open_files == []


def code_of(attempt: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:
        attempt()
    return caught.value.errno


def test_a_created_file_is_empty_and_one_that_is_there_keeps_its_content(place: Place) -> None:
    with place.fs.open(place.at("f"), create=True) as file:
        assert (file.path, file.size()) == (place.at("f"), 0)
        assert file.pwritev([b"abc"], 0) == 3
        assert file.pread(3, 0) == b"abc"
    with place.fs.open(place.at("f"), create=True) as file:
        assert file.pread(7, 0) == b"abc"
    with place.fs.open(place.at("f")) as file:
        assert code_of(lambda: file.pwritev([b"x"], 0)) == errno.EBADF
        with pytest.raises(OSError):
            file.truncate(0)
        file.fdatasync()
    place.fs.sync_directory(place.root)
    with place.fs.open(place.at("f"), writable=True) as file:
        file.pwritev([b"X"], 1)
    assert read_file(place.fs, place.at("f")) == b"aXc"
    found = place.fs.stat(place.at("f"))
    assert (found.size, found.is_directory, place.fs.stat(place.root).is_directory) == (3, False, True)


def test_opening_what_is_not_there_is_file_not_found(place: Place) -> None:
    for attempt in (
        lambda: place.fs.open(place.at("none")),
        lambda: place.fs.open(place.at("none"), writable=True),
        lambda: place.fs.open(place.at("none/new"), create=True),
        lambda: place.fs.map(place.at("none"), 1),
        lambda: place.fs.stat(place.at("none")),
        lambda: place.fs.list_directory(place.at("none")),
        lambda: place.fs.rename(place.at("none"), place.at("other")),
        lambda: place.fs.unlink(place.at("none")),
        lambda: place.fs.remove_tree(place.at("none")),
        lambda: place.fs.sync_directory(place.at("none")),
        lambda: place.fs.lock(place.at("none/.lock")),
        lambda: place.fs.free_bytes(place.at("none")),
    ):
        assert code_of(attempt) == errno.ENOENT


def test_pread_is_short_only_at_the_end(place: Place) -> None:
    with place.fs.open(place.put("f", b"0123456789")) as file:
        assert file.pread(4, 3) == b"3456"
        assert file.pread(4, 8) == b"89"
        assert file.pread(4, 10) == b""
        assert file.pread(4, 99) == b""
        assert file.pread(0, 0) == b""
        assert code_of(lambda: file.pread(1, -1)) == errno.EINVAL


def test_pwritev_writes_its_buffers_one_after_the_other_and_pads_a_gap_with_zeros(place: Place) -> None:
    with place.fs.open(place.at("f"), create=True) as file:
        assert file.pwritev([b"ab", bytearray(b"c"), memoryview(b"xdex")[1:3], b""], 2) == 5
        assert file.pread(99, 0) == b"\0\0abcde"
        assert file.pwritev([b"Z"], 3) == 1
        assert file.pread(99, 0) == b"\0\0aZcde"
        assert file.pwritev([], 0) == 0


def test_truncate_cuts_and_extends_with_zeros(place: Place) -> None:
    with place.fs.open(place.put("f", b"abcdef"), writable=True) as file:
        file.truncate(3)
        assert (file.size(), file.pread(9, 0)) == (3, b"abc")
        file.truncate(5)
        assert (file.size(), file.pread(9, 0)) == (5, b"abc\0\0")


def test_rename_replaces_in_one_step_and_open_files_go_on(place: Place) -> None:
    old, new = place.put("old", b"moved"), place.put("new", b"replaced")
    with place.fs.open(old, writable=True) as moved, place.fs.open(new) as replaced:
        place.fs.rename(old, new)
        assert place.fs.list_directory(place.root) == ["new"]
        moved.pwritev([b"M"], 0)
        assert (moved.path, replaced.pread(99, 0)) == (old, b"replaced")
    assert read_file(place.fs, new) == b"Moved"


def test_a_directory_moves_with_everything_in_it(place: Place) -> None:
    old, new = place.at("topic-0"), place.at("topic-0-delete")
    place.fs.make_directory(old)
    path = place.put("topic-0/log", b"abc")
    place.fs.rename(path, path)
    place.fs.rename(old, old)
    assert read_file(place.fs, path) == b"abc", "a rename to itself changes nothing"
    with place.fs.open(path, writable=True) as file:
        place.fs.rename(old, new)
        file.pwritev([b"d"], 3)
    assert not place.fs.exists(old)
    assert read_file(place.fs, f"{new}/log") == b"abcd"


def test_directories_are_made_one_level_at_a_time_once_and_removed_whole(place: Place) -> None:
    place.fs.make_directory(place.at("d"))
    assert place.fs.stat(place.at("d")).is_directory
    assert place.fs.list_directory(place.at("d")) == []
    assert code_of(lambda: place.fs.make_directory(place.at("d"))) == errno.EEXIST
    assert code_of(lambda: place.fs.make_directory(place.at("x/y"))) == errno.ENOENT
    assert code_of(lambda: place.fs.unlink(place.at("d"))) in {errno.EISDIR, errno.EPERM}  # Linux, macOS
    place.fs.make_directory(place.at("d/e"))
    for name in ("d/x", "d/e/y", "z"):
        place.put(name, b"abc")
    place.fs.remove_tree(place.at("d"))
    assert place.fs.list_directory(place.root) == ["z"]


def test_an_unlinked_file_is_gone_by_name_and_there_for_who_has_it_open(place: Place) -> None:
    path = place.put("f", b"abc")
    with place.fs.open(path, writable=True) as file:
        place.fs.unlink(path)
        assert not place.fs.exists(path)
        place.put("f", b"another")
        file.pwritev([b"d"], 3)
        assert file.pread(9, 0) == b"abcd"
    assert read_file(place.fs, path) == b"another"


def test_names_come_sorted(place: Place) -> None:
    for name in ("b", "a.log", "B", "a", "00000000000000000010.log", "00000000000000000009.log"):
        place.put(name, b"")
    expected = ["00000000000000000009.log", "00000000000000000010.log", "B", "a", "a.log", "b"]
    assert place.fs.list_directory(place.root) == expected


def test_the_time_of_change_can_be_set_and_nothing_else_changes(place: Place) -> None:
    path = place.put("file", b"abc")
    for mtime_ms in (1_700_000_000_123, 0, 4_102_444_800_000):
        place.fs.set_mtime(path, mtime_ms)
        assert place.fs.stat(path)[:3] == (3, mtime_ms, False)
    assert read_file(place.fs, path) == b"abc"
    with place.fs.open(path, writable=True) as file:
        file.pwritev([b"d"], 3)
    assert read_file(place.fs, path) == b"abcd"
    assert code_of(lambda: place.fs.set_mtime(place.at("nothing"), 0)) == errno.ENOENT


def test_setting_the_time_of_change_leaves_the_time_of_access_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    os.utime(path, ns=(1_234_567_890, 0))
    PosixFileSystem().set_mtime(str(path), 99)
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (1_234_567_890, 99_000_000)


def test_what_is_made_is_private_and_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    mask = os.umask(0)
    try:
        fs.make_directory(f"{tmp_path}/d")
        fs.open(f"{tmp_path}/d/f", create=True).close()
        fs.lock(f"{tmp_path}/d/.lock").release()
        write_file_atomically(fs, f"{tmp_path}/d/g", b"")
        (tmp_path / "open").mkdir(0o755)
        (tmp_path / "open" / "f").touch(0o664)
        fs.open(f"{tmp_path}/open/f", create=True).close()
    finally:
        os.umask(mask)
    modes = {path.relative_to(tmp_path).as_posix(): f"{path.stat().st_mode & 0o777:o}" for path in tmp_path.rglob("*")}
    private = {"d": "700", "d/f": "600", "d/.lock": "600", "d/g": "600"}
    assert modes == private | {"open": "755", "open/f": "664"}


def test_a_map_shows_the_first_bytes_and_later_writes_cannot_be_written_and_outlives_the_name(place: Place) -> None:
    path, empty = place.put("f", b"abcdef"), place.put("empty", b"")
    for too_long, size in ((path, 7), (empty, 1)):
        with pytest.raises(ValueError):
            place.fs.map(too_long, size)
    mapped = place.fs.map(path, 4)
    assert bytes(mapped.data[:]) == b"abcd"
    with pytest.raises(TypeError):
        mapped.data[0:1] = b"X"  # type: ignore[index]
    with place.fs.open(path, writable=True) as file:
        file.pwritev([b"XYZ"], 3)
        place.fs.unlink(path)
        assert bytes(mapped.data[:]) == b"abcX"
    mapped.close()
    mapped.close()
    with pytest.raises(ValueError):
        mapped.data[0]


def test_a_lock_is_in_place_until_its_file_is_gone_or_another_one(place: Place) -> None:
    lock = place.fs.lock(place.at("d.lock"))
    assert lock.is_in_place()
    place.fs.unlink(place.at("d.lock"))
    assert not lock.is_in_place()
    place.put("d.lock", b"")
    assert not lock.is_in_place()
    lock.release()


def test_a_lock_excludes_its_own_process_until_it_is_released(place: Place) -> None:
    path = place.at(".lock")
    lock, other = place.fs.lock(path), place.fs.lock(place.at("other"))
    with pytest.raises(BlockingIOError):
        place.fs.lock(path)
    lock.release()
    lock.release()
    assert place.fs.exists(path)
    again = place.fs.lock(path)
    lock.release()  # a stale handle does not let go what another one holds
    with pytest.raises(BlockingIOError):
        place.fs.lock(path)
    again.release()
    other.release()


def test_a_hold_is_let_go_of_once_and_can_be_taken_again(place: Place) -> None:
    for _ in range(2):
        hold = place.fs.hold(place.root)
        hold.release()
        hold.release()
        assert hold.descriptors == ()


def test_how_bytes_come_into_memory_changes_none_of_them(place: Place) -> None:
    """What a system has in memory is its own affair; what it reads ends where the file does."""
    with place.fs.open(place.put("f", bytes(range(250)) * 2000)) as file:
        assert isinstance(file.is_cached(0, 500_000), bool)
        assert isinstance(file.is_cached(499_999, 1), bool)
        file.no_readahead()
        file.bring_in(0, 1 << 30)
        assert file.pread(500, 499_750) == bytes(range(250))
        for size, position, expected in ((4, 3, bytes(range(3, 7))), (9, 499_998, bytes([248, 249]))):
            assert file.pread_cached(size, position) in (None, expected)
    assert place.fs.free_bytes(place.root) > 0


def test_a_write_of_more_buffers_than_the_kernel_takes_is_short(place: Place) -> None:
    with place.fs.open(place.at("f"), create=True) as file:
        assert file.pwritev([b"ab"] * (BUFFERS_PER_WRITE + 1), 0) == 2 * BUFFERS_PER_WRITE


def test_write_all_writes_any_number_of_buffers_with_empty_ones_between(place: Place) -> None:
    buffers = [b"", *(number.to_bytes(2) for number in range(3000)), b"", *[b""] * 3000, b"end"]
    with place.fs.open(place.at("f"), create=True) as file:
        assert write_all(file, buffers, 5) == 6003
        assert file.pread(9999, 5) == b"".join(buffers)


@each_case("count", [1, 2, 3, 5, 6, 7])
def test_write_all_goes_on_after_short_counts(count: int) -> None:
    fs = forgetful.ForgetfulFileSystem()
    fs.inject(forgetful.Fault("pwritev", short=count, sticky=True))
    buffers: list[Buffer] = [b"ab", b"", memoryview(b"cdef"), bytearray(b"g")]
    with fs.open("f", create=True) as file:
        assert write_all(file, buffers, 3) == 7
    assert fs.snapshot() == {"/f": b"\0\0\0abcdefg"}
    assert len(fs.operations) == 1 + -(-7 // count)


def test_write_all_ends_on_a_disk_that_takes_nothing_or_is_full() -> None:
    fs = forgetful.ForgetfulFileSystem()
    fs.inject(forgetful.Fault("pwritev", short=0, sticky=True))
    with fs.open("f", create=True) as file:
        assert code_of(lambda: write_all(file, [b"abc"], 0)) == errno.EIO
        assert write_all(file, [b""], 0) == 0
        fs.heal()
        fs.limit_free_bytes(5)
        assert code_of(lambda: write_all(file, [b"abc", b"defg"], 0)) == errno.ENOSPC
        assert file.pread(9, 0) == b"abcde"


def test_a_file_written_atomically_is_there_whole_and_alone_also_after_the_leftover_of_a_crash(place: Place) -> None:
    place.put("f.tmp", b"a longer leftover of an earlier crash")
    for content in (b"first, and longer", b"second", b""):
        write_file_atomically(place.fs, place.at("f"), content)
        assert read_file(place.fs, place.at("f")) == content
        assert place.fs.list_directory(place.root) == ["f"]


@each_case("policy", [forgetful.PROCESS_KILL, forgetful.POWER_LOSS, *map(forgetful.RANDOM, range(40))], ids=repr)
def test_a_file_written_atomically_is_old_or_new_after_a_crash_at_any_operation(policy: forgetful.CrashPolicy) -> None:
    crashes = 0
    while True:
        fs = forgetful.ForgetfulFileSystem()
        fs.load({"/data/f": b"old", "/data/f.tmp": b"leftover"})
        fs.crash_after(crashes, torn_bytes=2)
        try:
            write_file_atomically(fs, "/data/f", b"brand new")
        except forgetful.SimulatedCrash:
            assert read_file(fs.crash(policy), "/data/f") in {b"old", b"brand new"}
            crashes += 1
        else:
            assert fs.crash(policy).snapshot() == {"/data/f": b"brand new"}
            break
    assert crashes == 5  # truncate, write, sync, rename, sync of the directory


def test_a_file_written_without_sync_is_old_or_new_after_a_kill() -> None:
    """A file written without sync is old or new after the process was killed at any operation."""
    for crashes in range(3):  # truncate, write, rename
        fs = forgetful.ForgetfulFileSystem()
        fs.load({"/data/f": b"old", "/data/f.tmp": b"leftover"})
        fs.crash_after(crashes, torn_bytes=2)
        with pytest.raises(forgetful.SimulatedCrash):
            write_file_atomically(fs, "/data/f", b"brand new", sync=False)
        assert read_file(fs.crash(forgetful.PROCESS_KILL), "/data/f") == b"old"
    fs = forgetful.ForgetfulFileSystem()
    fs.load({"/data/f": b"old"})
    write_file_atomically(fs, "/data/f", b"brand new", sync=False)
    assert [operation.name for operation in fs.operations] == ["open", "truncate", "pwritev", "rename"]
    assert fs.crash(forgetful.PROCESS_KILL).snapshot() == {"/data/f": b"brand new"}


def test_parent_is_the_directory_a_path_lies_in() -> None:
    assert [parent(path) for path in ("/a/b/c", "a/b", "/a", "a")] == ["/a/b", "a", "/", "."]


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
