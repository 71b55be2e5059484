"""Free space: the marks, when appends stop and continue, and the ballast."""

import errno
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.config import BrokerConfig, load_config
from seglog_broker.storage.io.filenames import SPARE_FILES
from seglog_broker.storage.io.filesystem import Inodes, write_file_atomically
from seglog_broker.storage.io.free_space import MIB, FreeSpace, Marks, SpaceLevel, marks_of
from seglog_broker.testing.forgetful import Fault, ForgetfulFileSystem
from seglog_protocol.errors import DiskFullError
from tests.support import each_case

GIB = 1024 * MIB


def config(*, soft: int = 2000, hard: int = 1000, ballast: int = 500) -> BrokerConfig:
    flags = {"free.soft": soft, "free.hard": hard, "ballast": ballast}
    return load_config(None, "", {}, [f"seglog.disk.{name}.bytes={value}" for name, value in flags.items()])[0]


def disk(free: int) -> ForgetfulFileSystem:
    fs = ForgetfulFileSystem()
    fs.make_directory("/data")
    fs.limit_free_bytes(free)
    return fs


def space_on(fs: ForgetfulFileSystem, **marks: int) -> FreeSpace:
    return FreeSpace(fs, "/data", config(**marks))


def test_the_marks_are_sizes_on_large_disks_and_shares_of_small_ones() -> None:
    default = config(soft=-1, hard=-1, ballast=-1)
    assert marks_of(default, 1000 * GIB) == Marks(512 * MIB, 256 * MIB, 16 * MIB)
    assert marks_of(default, 64 * MIB) == Marks(64 * MIB // 10, 64 * MIB // 20, 64 * MIB // 100)
    assert marks_of(config(), 64 * MIB) == Marks(2000, 1000, 500)
    assert marks_of(config(soft=10), 64 * MIB).soft == 1000, "never below the hard one"


@each_case(
    ("free", "level"),
    [(1499, SpaceLevel.FULL), (1500, SpaceLevel.LOW), (2499, SpaceLevel.LOW), (2500, SpaceLevel.ENOUGH)],
)
def test_room_that_the_ballast_still_needs_is_not_free(free: int, level: SpaceLevel) -> None:
    assert space_on(disk(free)).level is level


def test_giving_up_the_ballast_makes_room_but_ends_no_shortage() -> None:
    fs = disk(10_000)
    space = space_on(fs)
    space.make_ballast()
    assert fs.free_bytes("/data") == 9500
    fs.limit_free_bytes(900)
    space.refresh()
    assert space.is_full
    space.give_up_ballast()
    space.refresh()
    assert (space.free, space.ballast, space.is_full) == (1400, 0, True)


def test_appends_are_counted_so_that_they_stop_at_the_mark_also_between_two_looks() -> None:
    fs = disk(5000)
    space = space_on(fs, ballast=0)
    file = fs.open("/data/log", create=True)
    written = 0

    def append() -> None:
        nonlocal written
        space.check(300)
        file.pwritev([bytes(300)], written)
        written += 300

    with pytest.raises(DiskFullError) as caught:  # noqa: PT012 - which of them is refused is the question
        while True:
            append()
    file.close()
    assert written == 4200, "the mark is passed by one batch at most"
    assert (caught.value.free, caught.value.hard, caught.value.soft, caught.value.retriable) == (800, 1000, 2000, True)
    assert "800 bytes are free" in caught.value.message


def test_room_that_came_back_between_two_looks_is_found_by_the_append_that_needs_it() -> None:
    fs = disk(1400)
    space = space_on(fs, ballast=0)
    fs.limit_free_bytes(10_000)
    space.check(500)
    assert space.level is SpaceLevel.ENOUGH


def test_with_a_hard_mark_of_nothing_only_the_disk_itself_refuses() -> None:
    space = space_on(disk(0), soft=0, hard=0, ballast=0)
    space.check(10**9)
    assert space.problem() is None


def test_a_start_on_a_full_disk_gives_up_the_ballast_first() -> None:
    fs = disk(10_000)
    space_on(fs).make_ballast()
    fs.limit_free_bytes(0)
    again = space_on(fs)
    assert again.is_full
    assert fs.free_bytes("/data") == 500
    assert not fs.exists("/data/seglog-ballast")


def test_a_ballast_that_does_not_fit_or_cannot_be_synced_is_none_and_leaves_nothing_behind() -> None:
    fs = disk(10_000)
    space = space_on(fs)
    for is_full in (True, False):
        fs.limit_free_bytes(499 if is_full else 10_000)
        if not is_full:
            fs.inject(Fault("fdatasync", error=errno.ENOSPC))
        with pytest.raises(OSError, match="ENOSPC"):
            space.make_ballast()
        assert (fs.exists("/data/seglog-ballast"), space.ballast) == (False, 0)
        assert fs.free_bytes("/data") == (499 if is_full else 10_000)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), OSError(errno.EDQUOT, "quota"), DiskFullError("full")]
)
def test_work_without_room_takes_the_ballast(error: Exception) -> None:
    """Work that finds no room is done again without the ballast and appends stop at once."""
    fs = disk(10_000)
    space = space_on(fs)
    space.make_ballast()
    fs.limit_free_bytes(0)
    assert space.level is SpaceLevel.ENOUGH, "nobody has looked"
    rooms: list[int] = []

    def work() -> str:
        rooms.append(fs.free_bytes("/data"))
        if len(rooms) == 1:
            raise error
        return "done"

    assert space.with_ballast(work) == "done"
    assert rooms == [0, 500]
    assert (space.ballast, space.is_full, space.lacks_ballast) == (0, True, False)


def failing(*errors: Exception) -> Callable[[], None]:
    left = list(errors)

    def work() -> None:
        raise left.pop(0)

    return work


@each_case(
    ("ballast", "work", "left", "said"),
    [
        # It is done once where the ballast cannot help.
        (500, failing(OSError(errno.EIO, "first"), OSError(errno.EIO, "second")), 500, "first"),
        (0, failing(OSError(errno.ENOSPC, "first"), OSError(errno.ENOSPC, "second")), 0, "first"),
        (0, failing(DiskFullError("first"), DiskFullError("second")), 0, "first"),
        # What finds no room without the ballast either says why it failed then.
        (500, failing(OSError(errno.ENOSPC, "first"), OSError(errno.ENOSPC, "second")), 0, "second"),
    ],
)
def test_work_that_the_ballast_does_not_help_fails(
    ballast: int, work: Callable[[], None], left: int, said: str
) -> None:
    space = space_on(disk(10_000), ballast=ballast)
    space.make_ballast()
    with pytest.raises((OSError, DiskFullError), match=said):
        space.with_ballast(work)
    assert space.ballast == left


def test_a_ballast_without_marks() -> None:
    """Without marks a ballast is made only where it fits and given up where it is needed."""
    fs = disk(499)
    space = space_on(fs, soft=0, hard=0)
    assert not space.lacks_ballast
    space.update(500)
    assert space.lacks_ballast
    fs.limit_free_bytes(500)
    space.make_ballast()
    space.make_ready()
    assert (space.ballast, fs.free_bytes("/data")) == (0, 500)


def spare_files(fs: ForgetfulFileSystem) -> int:
    return sum(fs.exists(f"/data/{name}") for name in SPARE_FILES)


def test_spare_files_keep_inodes_until_work_or_a_stop_needs_them() -> None:
    fs = disk(100_000)
    space = space_on(fs)
    assert not space.lacks_spares, "where inodes have no limit"
    fs.limit_free_inodes(6)
    space.refresh()
    assert space.lacks_spares
    space.make_spares()
    assert (spare_files(fs), fs.inodes("/data")) == (4, Inodes(2, 8))
    fs.limit_free_inodes(100)
    space.refresh()
    space.make_spares()
    space.refresh()
    assert (spare_files(fs), space.lacks_spares) == (len(SPARE_FILES), False)
    space.make_ready_to_stop()
    assert spare_files(fs) == len(SPARE_FILES), "there are others"
    fs.limit_free_inodes(0)
    again = space_on(fs)
    assert spare_files(fs) == len(SPARE_FILES), "a shortage alone costs none"
    for spares in (7, 7, 6):
        name = "replaced" if spares == 7 else "another"
        again.with_ballast(partial(write_file_atomically, fs, f"/data/{name}", b"1"))
        assert spare_files(fs) == spares
    with pytest.raises(OSError, match="ENOSPC"):
        again.with_ballast(partial(write_file_atomically, fs, "/data/third", b"1"))
    assert spare_files(fs) == 6, "these are for the stop"
    again.make_ready_to_stop()
    assert spare_files(fs) == 0
    fs.limit_free_inodes(3)
    again = space_on(fs)
    again.hold_inodes()
    assert spare_files(fs) == 3
    again.make_ready_to_stop()
    assert (spare_files(fs), again.lacks_inodes_for(3)) == (0, False)


def test_without_a_ballast_there_are_no_spare_files() -> None:
    fs = disk(100_000)
    fs.limit_free_inodes(100)
    space = space_on(fs, ballast=0)
    space.make_spares()
    space.hold_inodes()
    assert (spare_files(fs), space.lacks_spares) == (0, False)


@given(st.lists(st.integers(0, 4000)))
def test_the_level_follows_from_the_marks_and_the_last_crossing(looks: list[int]) -> None:
    space = space_on(disk(10_000), ballast=0)
    is_full = False
    for free in looks:
        space.update(free)
        is_full = free < 1000 or (is_full and free < 2000)
        assert space.is_full is is_full
        assert (space.problem() is None) is (free >= 2000)
