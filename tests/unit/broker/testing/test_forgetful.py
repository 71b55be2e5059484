"""The forgetful disk keeps its promises: one rule of POSIX per test, then a model and properties over all of them."""

import errno
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seglog_broker.storage.io.filesystem import File, FileSystem, read_file, write_all
from seglog_broker.testing import forgetful
from tests.support import each_case, examples

MANY_SEEDS = range(300)
"""Enough to meet every outcome of a handful of unsynced changes; a seed decides alike for ever."""

Step = Callable[[forgetful.ForgetfulFileSystem], None]


def a_disk(content: dict[str, bytes] | None = None) -> forgetful.ForgetfulFileSystem:
    fs = forgetful.ForgetfulFileSystem()
    fs.load({"/d/": b""} | (content or {}))
    return fs


def written(fs: FileSystem, path: str, content: bytes, position: int = 0) -> File:
    file = fs.open(path, create=True)
    write_all(file, [content], position)
    return file


def code_of(attempt: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:
        attempt()
    return caught.value.errno


# Bytes.


def _write(path: str, content: bytes, position: int = 0, *, synced: bool = False) -> Step:
    def do(fs: forgetful.ForgetfulFileSystem) -> None:
        file = written(fs, path, content, position)
        if synced:
            file.fdatasync()

    return do


def _rename(old: str, new: str) -> Step:
    return lambda fs: fs.rename(old, new)


@each_case(
    ("content", "steps", "left"),
    [
        (
            {"/d/f": b"...."},
            [_write("/d/f", b"A"), _write("/d/f", b"B", 2)],
            [{"/d/f": content} for content in (b"....", b"A...", b"..B.", b"A.B.")],
        ),
        (
            {"/d/f": b"...."},
            [_write("/d/f", b"abcd")],
            [{"/d/f": content} for content in (b"....", b"a...", b"ab..", b"abc.", b"abcd", b".bcd", b"..cd", b"...d")],
        ),
        (
            {"/d/f": b""},
            [_write("/d/f", b"ab")],
            [{"/d/f": content} for content in (b"", b"\0\0", b"a", b"a\0", b"\0b", b"ab")],
        ),
        (
            {"/d/f": b"abc"},
            [lambda fs: fs.open("/d/f", writable=True).truncate(1)],
            [{"/d/f": b"abc"}, {"/d/f": b"a"}],
        ),
        (
            {"/d/old": b"moved", "/d/new": b"replaced"},
            [_rename("/d/old", "/d/new")],
            [{"/d/new": b"replaced", "/d/old": b"moved"}, {"/d/new": b"moved"}],
        ),
        (
            {"/d/gone": b""},
            [_write("/d/a", b""), lambda fs: fs.unlink("/d/gone")],
            [{"/d/gone": b""}, {"/d/a": b"", "/d/gone": b""}, {"/d/": b""}, {"/d/a": b""}],
        ),
        (
            {"/d/log": b"first"},
            [_rename("/d/log", "/d/log.deleted"), _write("/d/log", b"2", synced=True)],
            [{"/d/log": b"first"}, {"/d/log.deleted": b"first"}, {"/d/log": b"2", "/d/log.deleted": b"first"}],
        ),
        (
            {"/d/t-0/f": b"abc"},
            [_rename("/d/t-0", "/d/t-0-delete")],
            [{"/d/t-0/f": b"abc"}, {"/d/t-0-delete/f": b"abc"}],
        ),
        (
            {"/e/": b""},
            [_write("/d/f", b"abc", synced=True), _rename("/d/f", "/e/g")],
            [{"/d/": b"", "/e/": b""}, {"/d/f": b"abc", "/e/": b""}, {"/d/": b"", "/e/g": b"abc"}],
        ),
    ],
    ids=[
        "any subset of the writes in any order",
        "a write torn at any byte from either end",
        "the size without the bytes",
        "a cut or not",
        "the old name or the new and never neither or both",
        "unrelated names in any order",
        "the file that was moved away from a name that is used again",
        "the synced names of a renamed directory",
        "a rename between directories as one step",
    ],
)
def test_a_random_crash_may_leave_this_and_nothing_else(
    content: dict[str, bytes], steps: list[Step], left: list[dict[str, bytes]]
) -> None:
    fs = a_disk(content)
    for step in steps:
        step(fs)
    found = [fs.found_after(forgetful.RANDOM(seed)).snapshot() for seed in MANY_SEEDS]
    assert all(each in left for each in found)
    assert all(each in found for each in left)


@pytest.mark.parametrize("synced", ["/d", "/e"])
def test_a_rename_between_directories_is_synced_by_either(synced: str) -> None:
    fs = a_disk({"/d/f": b"abc", "/e/": b""})
    fs.rename("/d/f", "/e/g")
    fs.sync_directory(synced)
    assert fs.found_after(forgetful.POWER_LOSS).snapshot() == {"/d/": b"", "/e/g": b"abc"}


# Names.


def test_a_name_is_there_after_a_power_loss_once_its_own_directory_was_synced() -> None:
    fs = a_disk()
    fs.make_directory("/d/topic-0")
    written(fs, "/d/topic-0/f", b"abc").fdatasync()
    fs.sync_directory("/d/topic-0")
    assert fs.found_after(forgetful.POWER_LOSS).snapshot() == {"/d/": b""}
    fs.sync_directory("/d")
    assert fs.found_after(forgetful.POWER_LOSS).snapshot() == {"/d/topic-0/f": b"abc"}
    written(fs, "/d/topic-0/g", b"def").fdatasync()
    fs.sync_directory("/d")
    assert fs.crash(forgetful.POWER_LOSS).snapshot() == {"/d/topic-0/f": b"abc"}, "not that of what is below"


def test_a_tree_half_removed_is_removed_by_the_next_call() -> None:
    fs = a_disk({"/d/t/a": b"1", "/d/t/b": b"2", "/d/t/sub/c": b"3"})
    fs.crash_after(2)
    with pytest.raises(forgetful.SimulatedCrash):
        fs.remove_tree("/d/t")
    after = fs.crash(forgetful.PROCESS_KILL)
    assert after.snapshot() == {"/d/t/sub/c": b"3"}
    after.remove_tree("/d/t")
    assert after.snapshot() == {"/d/": b""}


# Stopping.


def test_the_operation_after_n_stops_the_machine_before_it_takes_effect() -> None:
    fs = a_disk()
    fs.crash_after(2)
    file = written(fs, "/d/f", b"abc")
    with pytest.raises(forgetful.SimulatedCrash):
        file.pwritev([b"def"], 3)
    assert len(fs.operations) == 2
    for attempt in (lambda: file.pread(1, 0), lambda: fs.exists("/d"), file.fdatasync, lambda: fs.unlink("/d/f")):
        with pytest.raises(forgetful.SimulatedCrash):
            attempt()
    file.close()
    assert fs.crash(forgetful.PROCESS_KILL).snapshot() == {"/d/f": b"abc"}


def test_the_write_that_stops_the_machine_may_get_through_in_part() -> None:
    fs = a_disk()
    fs.crash_after(2, torn_bytes=2)
    file = written(fs, "/d/f", b"abc")
    for _ in range(2):
        with pytest.raises(forgetful.SimulatedCrash):
            file.pwritev([b"def"], 3)
    assert fs.crash(forgetful.PROCESS_KILL).snapshot() == {"/d/f": b"abcde"}


# Failing.


def test_what_a_failed_fdatasync_covered_is_readable_and_lost_even_after_a_later_one() -> None:
    fs = a_disk({"/d/f": b"abc"})
    fs.inject(forgetful.Fault("fdatasync", error=errno.EIO))
    file = written(fs, "/d/f", b"XYdef", 1)
    assert code_of(file.fdatasync) == errno.EIO
    file.pwritev([b"g"], 6)
    file.fdatasync()
    assert read_file(fs, "/d/f") == b"aXYdefg"
    assert fs.found_after(forgetful.POWER_LOSS).snapshot() == {"/d/f": b"abc\0\0\0g"}
    killed = fs.found_after(forgetful.PROCESS_KILL)
    assert killed.crash(forgetful.POWER_LOSS).snapshot() == {"/d/f": b"abc\0\0\0g"}
    file.truncate(3)
    written(fs, "/d/f", b"DEF", 3).fdatasync()
    assert fs.crash(forgetful.POWER_LOSS).snapshot() == {"/d/f": b"abcDEF"}, "what was written again is kept"


def test_a_map_over_bytes_that_were_cut_off_kills_the_process() -> None:
    fs = a_disk({"/d/f": b"abc"})
    mapped = fs.map("/d/f", 3)
    fs.open("/d/f", writable=True).truncate(2)
    with pytest.raises(forgetful.SimulatedCrash, match="SIGBUS"):
        _ = mapped.data


def test_there_is_no_descriptor_to_send_from() -> None:
    fs = a_disk({"/d/f": b"abc"})
    assert code_of(fs.open("/d/f").fileno) == errno.EBADF


# All together, against a model: dictionaries for what a reader sees and for what the disk has.

NAMES = st.sampled_from(["a", "b", "c", "d"])


class DiskAgainstDictionaries(RuleBasedStateMachine):
    """One directory. The model is four dictionaries; a file is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.fs = forgetful.ForgetfulFileSystem()
        self.names: dict[str, int] = {}
        self.synced_names: dict[str, int] = {}
        self.content: dict[int, bytes] = {}
        self.synced_content: dict[int, bytes] = {}
        self.next_file = 0

    def visible(self) -> dict[str, bytes]:
        return {f"/{name}": self.content[number] for name, number in self.names.items()}

    def durable(self) -> dict[str, bytes]:
        return {f"/{name}": self.synced_content[number] for name, number in self.synced_names.items()}

    @rule(name=NAMES)
    def create(self, name: str) -> None:
        self.fs.open(name, create=True).close()
        if name not in self.names:
            self.names[name] = self.next_file
            self.content[self.next_file] = self.synced_content[self.next_file] = b""
            self.next_file += 1

    @precondition(lambda self: self.names)
    @rule(data=st.data(), position=st.integers(0, 12), written=st.binary(max_size=6))
    def write(self, data: st.DataObject, position: int, written: bytes) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        file = self.fs.open(name, writable=True)
        assert file.pwritev([written[:2], written[2:]], position) == len(written)
        file.close()
        old = self.content[self.names[name]]
        if written:
            new = old.ljust(position, b"\0")[:position] + written + old[position + len(written) :]
            self.content[self.names[name]] = new

    @precondition(lambda self: self.names)
    @rule(data=st.data(), size=st.integers(0, 15))
    def truncate(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        file = self.fs.open(name, writable=True)
        file.truncate(size)
        file.close()
        self.content[self.names[name]] = self.content[self.names[name]][:size].ljust(size, b"\0")

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def fdatasync(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        file = self.fs.open(name)
        file.fdatasync()
        file.close()
        self.synced_content[self.names[name]] = self.content[self.names[name]]

    @rule()
    def sync_directory(self) -> None:
        self.fs.sync_directory("/")
        self.synced_names = dict(self.names)

    @precondition(lambda self: self.names)
    @rule(data=st.data(), new=NAMES)
    def rename(self, data: st.DataObject, new: str) -> None:
        old = data.draw(st.sampled_from(sorted(self.names)))
        self.fs.rename(old, new)
        self.names[new] = self.names.pop(old)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def unlink(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.names)))
        self.fs.unlink(name)
        del self.names[name]

    @rule()
    def kill(self) -> None:
        self.fs = self.fs.crash(forgetful.PROCESS_KILL)

    @rule()
    def cut_the_power(self) -> None:
        self.fs = self.fs.crash(forgetful.POWER_LOSS)
        self.names = dict(self.synced_names)
        self.content = dict(self.synced_content)

    @rule(seed=st.integers(0, 1 << 32))
    def crash_at_random(self, seed: int) -> None:
        """The content after a crash is final: every further crash leaves the same."""
        self.fs = self.fs.crash(forgetful.RANDOM(seed))
        left = self.fs.snapshot()
        assert self.fs.found_after(forgetful.RANDOM(seed + 1)).snapshot() == left
        self.names = {path[1:]: number for number, path in enumerate(left)}
        self.content = dict(enumerate(left.values()))
        self.synced_names, self.synced_content = dict(self.names), dict(self.content)
        self.next_file = len(left)

    @invariant()
    def a_reader_sees_what_was_written(self) -> None:
        assert self.fs.snapshot() == self.visible() == self.fs.found_after(forgetful.PROCESS_KILL).snapshot()
        assert self.fs.used == sum(map(len, self.visible().values()))

    @invariant()
    def a_power_cut_leaves_what_was_synced(self) -> None:
        assert self.fs.found_after(forgetful.POWER_LOSS).snapshot() == self.durable()


DiskAgainstDictionaries.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=30, deadline=None)
TestDiskAgainstDictionaries = DiskAgainstDictionaries.TestCase


Change = tuple[str, str, str, int]
CHANGES = st.tuples(st.sampled_from(["write", "cut", "sync", "rename", "unlink"]), NAMES, NAMES, st.integers(0, 9))


def after_changes(changes: list[Change]) -> forgetful.ForgetfulFileSystem:
    """Apply the changes that are possible. Every file has one byte value of its own, and zeros."""
    fs = forgetful.ForgetfulFileSystem()
    value_of: dict[str, int] = {}
    for number, (kind, name, other, size) in enumerate(changes, 1):
        if kind == "write":
            file = written(fs, name, bytes([value_of.setdefault(name, number)]) * size, size // 2)
            file.close()
        elif kind == "sync" and size % 2:
            fs.sync_directory("/")
        elif name in value_of:
            if kind == "rename":
                fs.rename(name, other)
                value_of[other] = value_of.pop(name)
            elif kind == "unlink":
                fs.unlink(name)
                del value_of[name]
            else:
                file = fs.open(name, writable=True)
                if kind == "cut":
                    file.truncate(size)
                else:
                    file.fdatasync()
                file.close()
    return fs


@given(st.lists(CHANGES, max_size=20))
def test_power_loss_and_everything_written_are_among_what_a_random_crash_may_leave(changes: list[Change]) -> None:
    fs = after_changes(changes)
    wanted = [fs.found_after(forgetful.POWER_LOSS).snapshot(), fs.snapshot()]
    for seed in MANY_SEEDS:
        left = fs.found_after(forgetful.RANDOM(seed)).snapshot()
        wanted = [each for each in wanted if each != left]
        if not wanted:
            break
    assert wanted == []


@given(st.lists(CHANGES, max_size=20), st.integers(0, 1 << 32))
def test_a_random_crash_neither_mixes_files_nor_gives_one_two_names(changes: list[Change], seed: int) -> None:
    contents = [
        set(content) - {0} for content in after_changes(changes).crash(forgetful.RANDOM(seed)).snapshot().values()
    ]
    assert all(len(values) <= 1 for values in contents)
    assert sum(map(len, contents)) == len(set().union(*contents))


@given(st.lists(CHANGES, max_size=20), st.integers(0, 1 << 32))
def test_a_random_crash_after_everything_was_synced_changes_nothing(changes: list[Change], seed: int) -> None:
    fs = after_changes(changes)
    for name in fs.list_directory("/"):
        fs.open(name).fdatasync()
    fs.sync_directory("/")
    assert fs.found_after(forgetful.RANDOM(seed)).snapshot() == fs.snapshot()
