"""Leases: leased files stay open, the number of idle ones is limited, forgotten ones are opened again."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.storage.io.filesystem import File, FileSystem
from seglog_broker.storage.io.handle_pool import EXCESS_MAX, HandlePool
from seglog_broker.storage.io.pauses import PAUSES_MAX, Pauses, TurnWantedError
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem


def _disk() -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.load({f"/d/{name}": name.encode() * 10 for name in "abc"})
    return fs


def test_a_second_lease_shares_the_open_file() -> None:
    fs = _disk()
    pool = HandlePool(fs)
    with pool.lease("/d/a") as first, pool.lease("/d/a") as second:
        assert first is second
    with pool.lease("/d/a") as third:
        assert third is first
    assert [read.name for read in fs.reads].count("open") == 1


@pytest.mark.parametrize("readahead", [True, False])
def test_a_loop_asks_for_no_readahead_wherever_it_opens_a_file(*, readahead: bool) -> None:
    asked: list[str] = []

    class Asked(File):
        def no_readahead(self) -> None:
            asked.append(self.path)

        def close(self) -> None:
            pass

    class Disk(FileSystem):
        def open(self, path: str, *, create: bool = False, writable: bool = False) -> File:
            return Asked(path, -1)

    pool = HandlePool(Disk(), 1, readahead=readahead)
    for name in "aab":
        with pool.lease(f"/d/{name}"):
            pass
    assert asked == ([] if readahead else ["/d/a", "/d/b"])


def test_files_and_maps_share_the_limit_and_the_longest_unused_goes() -> None:
    fs = _disk()
    pool = HandlePool(fs, 2)
    with pool.lease("/d/a"):
        pass
    with pool.lease_map("/d/a", 10):
        pass
    with pool.lease("/d/a"):
        pass
    with pool.lease("/d/b"):
        pass
    assert pool.open_count == 2
    assert fs.open_files == ["/d/a", "/d/b"]
    fs.reads.clear()
    with pool.lease("/d/a"):
        pass
    assert fs.reads == [], "the file was still open, its map was not"


def test_after_forgetting_the_next_lease_finds_the_file_that_is_there_now() -> None:
    fs = _disk()
    pool = HandlePool(fs)
    with pool.lease("/d/a") as old:
        fs.rename("/d/a", "/d/a.deleted")
        fs.rename("/d/b", "/d/a")
        pool.forget("/d/a")
        with pool.lease("/d/a") as new:
            assert new.pread(1, 0) == b"b"
            assert old.pread(1, 0) == b"a"


def test_a_writable_lease_replaces_a_file_opened_for_reading_and_then_serves_readers() -> None:
    fs = _disk()
    pool = HandlePool(fs)
    reader = pool.lease("/d/a")
    with pool.lease("/d/a", writable=True) as writer:
        writer.pwritev([b"X"], 0)
        assert reader.resource.pread(1, 0) == b"X"
        with pool.lease("/d/a") as second_reader:
            assert second_reader is writer
    reader.release()
    with pool.lease("/d/b"):
        pass
    with pool.lease("/d/b", create=True) as file:
        file.truncate(0)
    assert fs.snapshot()["/d/b"] == b""
    pool.close()
    assert fs.open_files == []


def test_forgetting_a_directory_takes_its_files_only() -> None:
    fs = _disk()
    fs.load({"/dd/a": b"1", "/d.txt": b"2"})
    pool = HandlePool(fs)
    for path in ("/d/a", "/d/b", "/dd/a", "/d.txt"):
        with pool.lease(path):
            pass
    with pool.lease_map("/d/a", 3):
        pass
    pool.forget_in("/d")
    assert sorted(fs.open_files) == ["/d.txt", "/dd/a"]


def test_a_map_is_kept_until_it_is_forgotten() -> None:
    fs = _disk()
    pool = HandlePool(fs)
    with pool.lease_map("/d/a", 4) as first, pool.lease_map("/d/a", 4) as second:
        assert first is second
        assert len(first.data) == 4
    pool.forget_map("/d/a")
    assert fs.open_files == []
    with pool.lease_map("/d/a", 10) as longer:
        assert len(longer.data) == 10


def test_a_file_that_cannot_be_opened_leaves_no_trace() -> None:
    fs = _disk()
    pool = HandlePool(fs, 1)
    with pytest.raises(FileNotFoundError):
        pool.lease("/d/nothing")
    with pytest.raises(ValueError, match="cannot be mapped"):
        pool.lease_map("/d/a", 11)
    assert pool.open_count == 0
    with pool.lease("/d/b") as file:
        assert file.pread(1, 0) == b"b"


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from("lmrf"), st.sampled_from("abc"), st.integers(0, 5)), max_size=40),
)
def test_whatever_is_done_leases_work_and_idle_handles_stay_within_the_limit(
    limit: int, steps: list[tuple[str, str, int]]
) -> None:
    fs = _disk()
    pool = HandlePool(fs, limit)
    files, maps = [], []
    for action, name, which in steps:
        if action == "l":
            files.append((name, pool.lease(f"/d/{name}")))
        elif action == "m":
            maps.append((name, pool.lease_map(f"/d/{name}", 2)))
        elif action == "f":
            pool.forget(f"/d/{name}")
        elif which % 2 and files:
            files.pop(which % len(files))[1].release()
        elif maps:
            maps.pop(which % len(maps))[1].release()
        for name_of_file, file in files:
            assert file.resource.pread(2, 0) == name_of_file.encode() * 2
        for name_of_map, mapped in maps:
            assert bytes(mapped.resource.data[:2]) == name_of_map.encode() * 2
        leased = len({id(lease.resource) for _, lease in files}) + len({id(lease.resource) for _, lease in maps})
        assert len(fs.open_files) <= leased + limit
    for _, file in files:
        file.release()
    for _, mapped in maps:
        mapped.release()
    pool.close()
    assert fs.open_files == []


def test_when_too_many_are_leased_at_once_it_is_as_if_there_were_no_descriptor_left() -> None:
    fs = ForgetfulFileSystem()
    fs.load({f"/d/{number}": b"x" for number in range(EXCESS_MAX + 2)})
    pool = HandlePool(fs, 1)
    leases = [pool.lease(f"/d/{number}") for number in range(EXCESS_MAX + 1)]
    assert pool.excess == EXCESS_MAX
    with pytest.raises(OSError, match="in use") as caught:
        pool.lease(f"/d/{EXCESS_MAX + 1}")
    assert caught.value.errno == errno.EMFILE
    with pool.lease("/d/0") as file:  # what is open can be shared
        assert file.pread(1, 0) == b"x"
    for lease in leases:
        lease.release()
    assert (pool.excess, pool.open_count) == (0, 1)
    with pool.lease(f"/d/{EXCESS_MAX + 1}") as file:
        assert file.pread(1, 0) == b"x"


def test_idle_descriptors_are_closed_when_none_is_left() -> None:
    """Where the process has no descriptor left idle ones are closed and it is tried again."""
    fs = _disk()
    pool = HandlePool(fs)
    fs.inject(Fault("open", "/d/c", errno.EMFILE))
    with pytest.raises(OSError, match="EMFILE"):
        pool.lease("/d/c")  # there is nothing to close
    for name in "ab":
        with pool.lease(f"/d/{name}"):
            pass
    fs.inject(Fault("open", "/d/c", errno.EMFILE))
    with pool.lease("/d/c"):
        assert fs.open_files == ["/d/c"]


# --- Walks over one file stop for other tasks, and so many of them are remembered -------------------------------------


def test_of_very_many_walks_over_a_file_the_newest_are_remembered() -> None:
    only_warm = HandlePool(ForgetfulFileSystem(), 1).only_warm
    pauses = Pauses(only_warm)
    with only_warm:
        for number in range(2 * PAUSES_MAX):
            with pytest.raises(TurnWantedError):
                pauses.pause((number,), number)
        remembered = [number for number in range(2 * PAUSES_MAX) if pauses.resume((number,), None) is not None]
    assert remembered == list(range(PAUSES_MAX, 2 * PAUSES_MAX))
