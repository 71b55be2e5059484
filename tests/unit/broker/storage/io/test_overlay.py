"""The overlay shows a file system with changes, and does not change the one below."""

import errno
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.io.overlay import COPY_BYTES_MAX, Overlay
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from tests.support import each_case

CONTENT = {"/d/a": b"0123456789", "/d/b": b"", "/d/c": b"x" * 5000}
PATHS = [*CONTENT, "/d/new"]


def disk() -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.load(CONTENT)
    return fs


def seen(fs: FileSystem) -> dict[str, tuple[int, bytes, bytes]]:
    """Path -> size, bytes, and the results of a map and of a read in the middle."""
    found = {}
    for name in fs.list_directory("/d"):
        path = f"/d/{name}"
        assert fs.exists(path)
        content = read_file(fs, path)
        middle = content
        if content:
            mapped = fs.map(path, len(content))
            assert bytes(mapped.data[: len(content)]) == content
            mapped.close()
            with fs.open(path) as file:
                middle = file.pread(3, len(content) // 2)
        found[path] = fs.stat(path).size, content, middle
    return found


def write(fs: FileSystem, path: str, position: int, size: int, *, create: bool) -> None:
    with fs.open(path, create=create, writable=True) as file:
        file.pwritev([b"w" * size, b"W"], position)


def cut(fs: FileSystem, path: str, size: int) -> None:
    with fs.open(path, writable=True) as file:
        file.truncate(size)


paths = st.sampled_from(PATHS)
small = st.integers(0, 30)
steps = st.one_of(
    st.tuples(st.just(write), paths, small, small).map(lambda s: lambda fs: s[0](fs, *s[1:], create=True)),
    st.tuples(st.just(write), paths, small, small).map(lambda s: lambda fs: s[0](fs, *s[1:], create=False)),
    st.tuples(paths, small).map(lambda s: lambda fs: cut(fs, *s)),
    st.tuples(paths, paths).map(lambda s: lambda fs: fs.rename(*s)),
    paths.map(lambda path: lambda fs: fs.unlink(path)),
    st.tuples(paths, small).map(lambda s: lambda fs: fs.set_mtime(*s)),
)


@given(st.lists(steps, max_size=12))
def test_it_shows_all_changes_and_the_file_system_below_is_unchanged(done: list[Callable[[FileSystem], Any]]) -> None:
    below, changed = disk(), disk()
    overlay = Overlay(below)
    for step in done:
        raised: list[type[OSError] | None] = []
        for fs in (overlay, changed):
            try:
                step(fs)
                raised.append(None)
            except OSError as error:
                raised.append(type(error))
        assert raised[0] == raised[1]
        assert seen(overlay) == seen(changed)
    assert below.snapshot() == CONTENT
    assert not below.open_files


def test_a_file_that_is_cut_is_that_below_shown_shorter() -> None:
    overlay = Overlay(disk())
    with overlay.open("/d/a", writable=True) as file:
        file.truncate(4)
        assert (file.size(), file.pread(10, 0), file.pread(10, 4)) == (4, b"0123", b"")
    cut(overlay, "/d/a", 6)
    assert read_file(overlay, "/d/a") == b"0123\0\0"


def test_it_writes_nothing_where_nothing_can_be_written() -> None:
    fs = disk()
    fs.limit_free_bytes(0)
    overlay = Overlay(fs)
    write(overlay, "/d/new", 0, 100, create=True)
    assert overlay.free_bytes("/d") == 0
    assert overlay.total_bytes("/d") == fs.total_bytes("/d")
    assert overlay.inodes("/d") is None


@each_case(
    "attempt",
    [
        lambda fs: fs.make_directory("/e"),
        lambda fs: fs.remove_tree("/d"),
        lambda fs: fs.lock("/d/.lock"),
        lambda fs: fs.hold("/d"),
        lambda fs: fs.link("/d/a", "/d/b"),
    ],
)
def test_operations_that_a_log_does_not_use_are_refused(attempt: Callable[[FileSystem], object]) -> None:
    with pytest.raises(OSError, match="shown, not changed") as caught:
        attempt(Overlay(disk()))
    assert caught.value.errno == errno.EROFS


@each_case("double", [Overlay, ForgetfulFileSystem])
def test_a_double_replaces_every_operation(double: type[FileSystem]) -> None:
    """An operation that it lacked would be done on the machine's disk."""
    operations = {name for name, what in vars(FileSystem).items() if callable(what) and name[0] != "_"}
    assert [name for name in operations if getattr(double, name) is getattr(FileSystem, name)] == []


def test_a_large_file_is_not_copied_into_memory() -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/d/large": bytes(COPY_BYTES_MAX + 1)})
    overlay = Overlay(fs)
    with pytest.raises(OSError, match="shown, not changed"):
        write(overlay, "/d/large", 0, 1, create=False)
    cut(overlay, "/d/large", 10)
    assert overlay.stat("/d/large").size == 10


def test_syncs_reach_the_disk() -> None:
    fs = disk()
    overlay = Overlay(fs)
    fs.inject(Fault("fdatasync", "/d/a", errno.EIO))
    with overlay.open("/d/a") as file:
        assert [error and error.errno for error in overlay.sync_files([file])] == [errno.EIO]
    fs.operations.clear()
    assert overlay.sync_directories(["/d"]) == [None]
    overlay.sync_directory("/d")
    assert [operation.name for operation in fs.operations] == ["sync_directory"] * 2
