"""A check finds the same damage as a start, without changing a byte; a dump gives the same reasons."""

import random

from seglog_broker.config import TopicConfig
from seglog_broker.inspect.log_walk import InvalidBytes, LogWalk, walk_file
from seglog_broker.storage.io.filesystem import Buffer
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.log_verifier import LogVerifier
from seglog_broker.testing.forgetful import PROCESS_KILL, ForgetfulFileSystem
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from tests.logs import DIRECTORY, LogOnDisk, ManualClock, add_bytes, batch_of_size, contents, cut_file, flip_bit
from tests.support import each_case, some_seeds

_BASES = (0, 10, 20)
_HELD_END = 27
"""Where the log ended when it was closed: its state and its newest producer snapshot say so."""


def _path(base: int) -> str:
    return f"{DIRECTORY}/{base:020d}.log"


def _filled() -> LogOnDisk:
    """Batches of 100 bytes in segments with base 0, 10 and 20."""
    disk = LogOnDisk(TopicConfig(segment_bytes=1000, index_interval_bytes=250))
    for number in range(27):
        disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_000 + number))
    disk.log.close()
    return disk


def _hurt(fs: ForgetfulFileSystem, rng: random.Random) -> None:
    """One kind of damage to a log."""
    base = rng.choice(_BASES)
    path, size = _path(base), fs.stat(_path(base)).size
    what = rng.randrange(6)
    if what == 0 and size:
        flip_bit(fs, path, rng.randrange(size), rng.randrange(8))
    elif what == 1 and size:  # in a header, where it does most
        flip_bit(fs, path, rng.randrange(size) // 100 * 100 + rng.randrange(min(21, size)), rng.randrange(8))
    elif what == 2:
        cut_file(fs, path, rng.randrange(size + 1))
    elif what == 3:
        add_bytes(fs, path, rng.choice([bytes(70), rng.randbytes(130), b"\x02" * 90]))
    elif what == 4 and size >= 200:
        start = rng.randrange(size - 100)
        _overwrite(fs, path, start, rng.choice([bytes(100), rng.randbytes(100)]))
    else:  # a whole batch from another place of the log
        stray = bytearray(batch_of_size(100))
        rewrite_offset_and_epoch(stray, 0, rng.randrange(30), 0)
        _overwrite(fs, path, rng.randrange(0, 1000, 100), stray)


def _overwrite(fs: ForgetfulFileSystem, path: str, position: int, data: Buffer) -> None:
    file = fs.open(path, writable=True)
    file.pwritev([data], position)
    file.close()


def _walked(fs: ForgetfulFileSystem, held_end: int = _HELD_END) -> LogWalk:
    walk = LogWalk(fs, DIRECTORY, LogVerifier(held_end=held_end))
    for base, following in zip(_BASES, (*_BASES[1:], None), strict=True):
        for _ in walk.segment(base, following):
            pass
    walk.finish()
    return walk


@each_case("seed", some_seeds(300, quick=40))
def test_whatever_happened_a_walk_says_what_recovery_says(seed: int) -> None:
    rng = random.Random(seed)
    disk = _filled()
    assert isinstance(disk.fs, ForgetfulFileSystem)
    for _ in range(rng.randrange(1, 4)):
        _hurt(disk.fs, rng)
    held_end = rng.choice([0, _HELD_END])
    if not held_end:  # as after a kill, when nothing of the active segment had been brought to the disk
        for name in (PARTITION_STATE_FILE, f"{_HELD_END:020d}.snapshot"):
            disk.fs.unlink(f"{DIRECTORY}/{name}")
    before = contents(disk.fs)
    walk = _walked(disk.fs, held_end)
    assert contents(disk.fs) == before
    recovered = disk.fs.found_after(PROCESS_KILL)
    loaded = load(recovered, HandlePool(recovered), ManualClock(), DIRECTORY, disk.config, clean=False)
    found = loaded.report.recovery
    assert found is not None
    assert {lost for lost, _ in (*walk.damaged, *walk.tails)} == {
        lost for lost in found.damaged if lost.reason == "damaged"
    }
    between = {lost for lost in found.damaged if lost.reason == "missing"}
    assert between <= set(walk.holes)
    assert found.next_offset == walk.next_offset
    assert sum(lost.end_position - lost.position for lost, _ in walk.torn) == found.cut_bytes


def test_a_hole_within_a_segment_is_told_with_its_place() -> None:
    disk = _filled()
    assert isinstance(disk.fs, ForgetfulFileSystem)
    data = contents(disk.fs)[_path(10)]
    cut_file(disk.fs, _path(10), 300)
    add_bytes(disk.fs, _path(10), data[500:])
    walk = _walked(disk.fs)
    assert (walk.damaged, walk.tails, walk.torn) == ([], [], [])
    assert walk.holes == [DamagedRange(13, 15, 10, 300, 300, reason="missing")]


@each_case("seed", some_seeds(100, quick=20))
def test_dump_and_check_say_the_same_of_damage_that_leaves_offsets_as_they_are(seed: int) -> None:
    rng = random.Random(seed)
    disk = _filled()
    assert isinstance(disk.fs, ForgetfulFileSystem)
    for _ in range(rng.randrange(1, 4)):
        byte = rng.choice([*range(16, 23), *range(27, 100)])  # not of an offset, a length or an epoch
        flip_bit(disk.fs, _path(0), rng.randrange(9) * 100 + byte, rng.randrange(8))
    if rng.randrange(2):
        add_bytes(disk.fs, _path(0), rng.choice([bytes(70), rng.randbytes(30)]))
    file = disk.fs.open(_path(0))
    dumped = list(walk_file(file, file.size(), 0, checksums=True))
    file.close()
    checked = list(LogWalk(disk.fs, DIRECTORY).segment(0, 10))
    assert checked == dumped
    assert any(isinstance(found, InvalidBytes) for found in dumped)


def test_a_batch_with_a_wrong_checksum_has_its_header() -> None:
    """A whole batch with a wrong checksum comes with its header if its offsets fit."""
    disk = _filled()
    flip_bit(disk.fs, _path(10), 250)
    [found] = [each for each in LogWalk(disk.fs, DIRECTORY).segment(10, 20) if isinstance(each, InvalidBytes)]
    assert (found.position, found.end_position, found.reason) == (200, 300, "its checksum does not match")
    assert found.header is not None
    assert found.header.base_offset == 12
    flip_bit(disk.fs, _path(10), 207, 5)  # of the base offset: now 44, beyond the segment
    [found] = [each for each in LogWalk(disk.fs, DIRECTORY).segment(10, 20) if isinstance(each, InvalidBytes)]
    assert found.header is None
