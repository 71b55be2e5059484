"""The directory of a standby: any state after any other, a crash at any operation between, and what is refused."""

import errno
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from seglog_broker.backup.destination import DestinationError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.restoring import ROOM_BYTES
from seglog_broker.backup.standby_directory import StandbyDirectory
from seglog_broker.backup.store import BackupError, FileEntry, Manifest, id_at
from seglog_broker.storage.segment.awaited import Part
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, Fault, ForgetfulFileSystem
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import LogDirectoryError
from tests.logs import opened_directory

DATA = "/standby"
LOG = "t-0/00000000000000000000.log"

Files = Mapping[str, tuple[bytes, ...]]
"""By path, the parts that a file consists of."""


class Disk:
    """A disk with a place, and the directory of a standby on it."""

    def __init__(self) -> None:
        self.fs = ForgetfulFileSystem()
        self.fs.make_directory(DATA)
        self.fs.sync_directory("/")
        self.place = DirectoryDestination(self.fs, "/place")
        self._parts: dict[bytes, Part] = {}
        self._states = 0

    def state(self, files: Files) -> Manifest:
        """A state of the place with these files; equal bytes are one part, whenever they come."""
        self._states += 1
        state = id_at(self._states)
        for content in {part for parts in files.values() for part in parts} - self._parts.keys():
            name = f"files/{state}-{len(self._parts)}"
            self.place.put(name, [b"in front", content])
            self._parts[content] = Part(name, 8, len(content), crc32c(content))
        entries = [
            FileEntry(path, sum(map(len, parts)), self._states, 1, tuple(self._parts[part] for part in parts))
            for path, parts in files.items()
        ]
        return Manifest(state, self._states, "c", "d", "v", tuple(entries), (), is_cut=True)


def has(fs: ForgetfulFileSystem, files: Files) -> bool:
    """Whether the directory has these files and no others, but for its own."""
    found = {path.removeprefix(f"{DATA}/"): data for path, data in fs.snapshot().items() if path.startswith(f"{DATA}/")}
    directories = {name for name in fs.list_directory(DATA) if fs.stat(f"{DATA}/{name}").is_directory}
    return (
        {path: data for path, data in found.items() if path != "seglog-format"}
        == {path: b"".join(parts) for path, parts in files.items()}
    ) and directories == {path.partition("/")[0] for path in files if "/" in path}


FIRST: Files = {
    LOG: (b"one", b"two"),
    "t-0/leader-epoch-checkpoint": (b"epochs",),
    "u-0/a.log": (b"gone",),
    "empty": (),
    "as-long": (b"11111",),
}
SECOND: Files = {
    LOG: (b"one", b"two", b"three"),
    "t-0/leader-epoch-checkpoint": (b"longer epochs",),
    "v-0/b.log": (),
    "as-long": (b"22222",),
}
THIRD: Files = {LOG: (b"one", b"compacted"), "u-0/a.log": (b"gone", b"again")}


def test_only_parts_that_are_not_there_are_fetched_and_what_is_gone_is_removed() -> None:
    disk = Disk()
    standby = StandbyDirectory(disk.fs, DATA)
    for files, fetched in ((FIRST, [3, 3, 4, 5, 6]), (SECOND, [5, 5, 13]), (THIRD, [4, 5, 9])):
        sizes: list[int] = []
        target = disk.state(files)
        standby.apply(target, disk.place, sizes.append)
        assert has(disk.fs, files)
        assert sorted(sizes) == fetched
        assert standby.applied == target.id


@pytest.mark.parametrize(("first_files", "then_files"), [(FIRST, SECOND), (SECOND, THIRD), (THIRD, FIRST)])
def test_a_crash_at_any_operation_is_gone_on_from_to_any_state(first_files: Files, then_files: Files) -> None:
    disk = Disk()
    first, then, other = disk.state(first_files), disk.state(then_files), disk.state(FIRST)
    files_of = {first.id: first_files, then.id: then_files, other.id: FIRST}
    standby = StandbyDirectory(disk.fs, DATA)
    standby.apply(first, disk.place)
    crashes = 0

    def look(*_operation: object) -> None:
        nonlocal crashes
        crashes += 1
        for crash in (PROCESS_KILL, POWER_LOSS, RANDOM(crashes)):
            after = disk.fs.found_after(crash)
            again = StandbyDirectory(after, DATA)
            # Each second time another state than the one that was being applied: another machine has taken over.
            for target in (other, then)[crashes % 2 :]:
                again.apply(target, DirectoryDestination(after, "/place"))
                assert has(after, files_of[target.id])

    disk.fs.on_operation = look
    standby.apply(then, disk.place)
    assert crashes > 10
    assert has(disk.fs, then_files)


def test_any_state_follows_any_other_with_starts_and_errors_between() -> None:
    chosen = random.Random(48)
    disk = Disk()
    standby = StandbyDirectory(disk.fs, DATA)
    paths = [f"{topic}-0/{number}.log" for topic in "tuv" for number in range(3)] + ["root", "other"]
    for _ in range(150):
        files = {
            path: tuple(chosen.choice((b"a", b"bb", b"ccc", b"dddd")) for _ in range(chosen.randrange(4)))
            for path in chosen.sample(paths, chosen.randrange(len(paths)))
        }
        target = disk.state(files)
        failing = chosen.choice(("none", "unlink", "pwritev", "remove_tree", "restart"))
        if failing not in {"none", "restart"}:
            disk.fs.inject(Fault(failing, lambda path: path.startswith(DATA), errno.EIO, sticky=True))
            try:
                standby.apply(target, disk.place)
            except OSError:
                assert not standby.applied or has(disk.fs, files)
            disk.fs.heal()
        if failing == "restart":
            disk.fs = disk.fs.found_after(RANDOM(chosen.randrange(1000)))
            disk.place = DirectoryDestination(disk.fs, "/place")
            standby = StandbyDirectory(disk.fs, DATA)
        standby.apply(target, disk.place)
        assert has(disk.fs, files)


@pytest.mark.parametrize("failing", [0, 1, 2, None])
def test_a_compacted_segment_of_the_same_size_and_time_is_known_by_its_checksum_file(failing: int | None) -> None:
    disk = Disk()
    names = [LOG, LOG.replace(".log", ".checksum")]
    first, then = ({name: (b"%d%d" % (state, number),) for number, name in enumerate(names)} for state in (1, 2))
    old, new = disk.state(first), disk.state(then)
    new = replace(new, files=tuple(entry._replace(mtime_ms=old.files[0].mtime_ms) for entry in new.files))
    StandbyDirectory(disk.fs, DATA).apply(old, disk.place)
    done: list[int] = []

    def stop(size: int) -> None:
        done.append(size)
        if len(done) == failing:
            raise DestinationError("killed")

    if failing:
        with pytest.raises(DestinationError):
            StandbyDirectory(disk.fs, DATA, slice_bytes=1).apply(new, disk.place, stop)
    elif failing is None:
        disk.fs.inject(Fault("pwritev", lambda path: path.endswith(".log"), errno.EIO))
        with pytest.raises(OSError):
            StandbyDirectory(disk.fs, DATA).apply(new, disk.place)
    StandbyDirectory(disk.fs, DATA).apply(new, disk.place)
    assert has(disk.fs, then)


def test_a_large_copy_is_noted_on_the_way_and_gone_on_with() -> None:
    disk = Disk()
    target = disk.state({f"t-0/{number}.log": (b"%d bytes" % number,) for number in range(5)})
    done: list[int] = []

    def stop_at_third(size: int) -> None:
        done.append(size)
        if len(done) == 3:
            raise DestinationError("away")

    with pytest.raises(DestinationError):
        StandbyDirectory(disk.fs, DATA, slice_bytes=3).apply(target, disk.place, stop_at_third)
    after = disk.fs.found_after(POWER_LOSS)
    again = StandbyDirectory(after, DATA)
    done.clear()
    again.apply(target, DirectoryDestination(after, "/place"), done.append)
    assert len(done) == 3


def test_a_directory_without_room_is_left_as_it_is_and_the_sentence_says_how_much_it_takes() -> None:
    disk = Disk()
    standby = StandbyDirectory(disk.fs, DATA)
    standby.apply(disk.state(FIRST), disk.place)
    disk.fs.limit_free_bytes(ROOM_BYTES)
    with pytest.raises(BackupError, match=r"there is room for .* and .* are needed to go on: make room"):
        standby.apply(disk.state(SECOND), disk.place)
    assert has(disk.fs, FIRST)
    standby.apply(disk.state({}), disk.place)  # which takes none
    assert has(disk.fs, {})


def test_no_broker_starts_in_the_directory_and_a_directory_of_others_is_refused() -> None:
    disk = Disk()
    StandbyDirectory(disk.fs, DATA)
    with pytest.raises(LogDirectoryError, match="is a standby's: have it serve with `seglog promote /standby`"):
        opened_directory(disk.fs, DATA)
    opened_directory(disk.fs, "/data").close()
    with pytest.raises(LogDirectoryError, match=r"is not empty .* and no standby has made it"):
        StandbyDirectory(disk.fs, "/data")
