"""Opening a partition after any damage to its files: what is kept, cut off, reported, completed, undone, rebuilt."""

import errno
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.config import TopicConfig
from seglog_broker.partitions.fetch_response import gaps_of_read
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.overlay import Overlay
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, PartitionState
from seglog_broker.storage.log.recovery import tidy_directory
from seglog_broker.storage.log.truncation import DeletionRule
from seglog_broker.storage.segment.damage import BatchVerifier, DamagedRange
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, CrashPolicy, Fault, ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import rewrite_offset_and_epoch
from tests.logs import (
    DIRECTORY,
    LogOnDisk,
    add_bytes,
    batch,
    batch_of_size,
    contents,
    cut_file,
    flip_bit,
    index_bytes,
    read_all,
    read_around,
    verify,
)
from tests.support import each_case, examples
from tests.unit.broker.storage.directory.directories import put
from tests.unit.broker.storage.steps import piece_at

_EPOCHS = f"{DIRECTORY}/leader-epoch-checkpoint"


_ENTRIES = 600
"""In one index: more than are written at a time."""


def _path(base: int, suffix: str = ".log") -> str:
    return f"{DIRECTORY}/{base:020d}{suffix}"


def _filled(count: int = 30) -> LogOnDisk:
    """Batches of one record and 100 bytes: segments with base 0, 10, 20 and so on; everything on the disk."""
    disk = LogOnDisk(TopicConfig(segment_bytes=1000, index_interval_bytes=250))
    for number in range(count):
        disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_000 + number * 7 % 50))
    disk.log.flusher.flush()
    return disk


def _restarted(disk: LogOnDisk, hurt: Callable[[], object] = lambda: None, *, recovery_point: int = 0) -> PartitionLog:
    """The process is killed, then something happens to the files, then it starts again."""
    disk.log.release()
    hurt()
    return disk._open(clean=False, recovery_point=recovery_point)


def _set_aside(disk: LogOnDisk) -> list[bytes]:
    """The copies that starts have made of what they cut off."""
    return [content for path, content in contents(disk.fs).items() if ".log.damaged-" in path]


def _offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in read_around(log)]


def _remove(disk: LogOnDisk, *bases: int, suffixes: tuple[str, ...] = (".log", ".index", ".timeindex")) -> None:
    for base, suffix in itertools.product(bases, suffixes):
        disk.fs.unlink(_path(base, suffix))


def _found_while_opening(disk: LogOnDisk, recovery_point: int) -> list[ForgetfulFileSystem]:
    """What a kill or a power cut at each step of a start leaves; before it all is on the disk, the damage too."""
    double = ForgetfulFileSystem()
    double.load(contents(disk.fs))
    disk.fs = double
    found: list[ForgetfulFileSystem] = []
    double.on_operation = lambda _: found.extend((double.found_after(PROCESS_KILL), double.found_after(POWER_LOSS)))
    disk._open(clean=False, recovery_point=recovery_point)
    assert len(found) > 10
    return found


# --- Torn tails -------------------------------------------------------------------------------------------------------


@each_case(
    ("hurt", "left", "aside"),
    [
        *((lambda disk, cut=cut: cut_file(disk.fs, _path(20), -cut), 24, b"") for cut in (1, 5, 39, 40, 82, 83, 99)),
        *(
            (lambda disk, tail=tail: add_bytes(disk.fs, _path(20), tail), 25, tail if any(tail) else b"")
            for tail in (*map(bytes, (5, 17, 18, 61, 300)), b"\x02" * 300, random.Random(1).randbytes(100_000))
        ),
        (lambda disk: flip_bit(disk.fs, _path(20), 480), 24, None),  # of the last batch the bytes are wrong
    ],
)
def test_a_torn_tail_is_cut_off_and_nothing_else(
    hurt: Callable[[LogOnDisk], object], left: int, aside: bytes | None
) -> None:
    """What an append cannot have left is copied before."""
    disk = _filled(25)
    before = contents(disk.fs)[_path(20)]
    log = _restarted(disk, lambda: hurt(disk))
    assert contents(disk.fs)[_path(20)] == before[: left * 100 - 2000]
    assert (_offsets(log), log.log_end_offset, log.state.damaged) == (list(range(left)), left, [])
    if aside is None:
        assert [len(copied) for copied in _set_aside(disk)] == [100]
    else:
        assert _set_aside(disk) == ([aside] if aside else [])
    verify(disk.fs, log)
    assert disk.append(b"next").base_offset == left


def test_bytes_of_another_format_are_cut_only_when_there_is_a_copy_of_them() -> None:
    """The copy keeps its name when others are torn at the same place; a view in memory makes none."""
    disk = _filled(25)
    later = [batch_of_size(100)[:16] + bytes([magic]) * 100 for magic in (3, 4)]
    disk.log.release()
    for number, tail in enumerate(later):
        add_bytes(disk.fs, _path(20), tail)
        disk.double.inject(Fault("pwritev", lambda path: ".damaged-" in path, errno.ENOSPC))
        with pytest.raises(OSError, match="ENOSPC"):
            disk._open(clean=False)
        assert contents(disk.fs)[_path(20)].endswith(tail)
        overlay = Overlay(disk.fs)
        view = load(overlay, HandlePool(overlay, 9), disk.clock, DIRECTORY, disk.config, clean=False)
        assert (view.offsets.end, len(_set_aside(disk))) == (25, number)
        log = disk._open(clean=False)
        assert sorted(_set_aside(disk)) == sorted(later[: number + 1])
        assert disk.report.recovery is not None
        [name] = disk.report.recovery.set_aside
        assert read_file(disk.fs, f"{DIRECTORY}/{name}") == tail
        log.release()


def test_a_torn_segment_before_empty_ones_is_still_a_tail() -> None:
    disk = _filled(30)
    disk.append_batch(batch_of_size(100))

    def hurt() -> None:
        cut_file(disk.fs, _path(30), 0)
        cut_file(disk.fs, _path(20), 650)

    log = _restarted(disk, hurt)
    assert log.log_end_offset == 30, "offsets of the lost records are not handed out again"
    assert _offsets(log) == list(range(26))
    assert contents(disk.fs)[_path(20)][600:] == b""
    verify(disk.fs, log)


def test_a_log_that_is_torn_from_the_start_becomes_empty() -> None:
    disk = _filled(5)
    disk.log.release()
    cut_file(disk.fs, _path(0), 100)
    flip_bit(disk.fs, _path(0), 80)
    log = disk._open(clean=False)
    assert (log.log_start_offset, log.log_end_offset, contents(disk.fs)[_path(0)]) == (0, 0, b"")


# --- Damage in the middle ---------------------------------------------------------------------------------------------


@each_case(
    ("flips", "lost"),
    [
        *(
            ([(20, bad * 100 + position, 3)], {20 + bad})
            for bad in (0, 1, 4, 8)
            for position in (0, 3, 9, 16, 17, 21, 30, 60, 61, 99)
        ),
        # No checksum covers the base offset. If it were taken, all later batches would be out of order.
        *(([(10, 400 + byte, bit)], {14}) for byte in range(8) for bit in range(8)),
        *(([(10, 906, bit)], {19}) for bit in range(8)),  # the last batch of a segment
        ([(20, 4, 0), (20, 180, 0)], {20, 21}),  # an offset before a damaged batch
        ([(10, 916, 0), (20, 16, 0), (20, 116, 0)], {19, 20, 21}),  # over the edge of two segments
        ([(10, position, 0) for position in range(0, 1000, 7)], set(range(10, 20))),
    ],
)
def test_flipped_bits_cost_the_batches_they_are_in_which_are_named_and_kept(
    flips: list[tuple[int, int, int]], lost: set[int]
) -> None:
    disk = _filled(30)
    disk.log.release()
    for base, position, bit in flips:
        flip_bit(disk.fs, _path(base), position, bit)
    log = disk._open(clean=False)
    assert [len(contents(disk.fs)[_path(base)]) for base in (0, 10, 20)] == [1000] * 3, "every byte is kept"
    assert log.log_end_offset == 30
    for offset in lost:
        with pytest.raises(CorruptRecordError) as caught:
            log.read(offset, 1000)
        assert caught.value.next_offset == max(lost) + 1
    verify(disk.fs, log)
    assert disk.append_batch(batch_of_size(90)).base_offset == 30
    for opened in (log, disk.reopen()):
        assert _offsets(opened) == [offset for offset in range(31) if offset not in lost]
        assert {offset for d in opened.state.damaged for offset in range(d.start_offset, d.end_offset)} == lost
        for d in opened.state.damaged:
            start, end = (d.start_offset - d.segment) * 100, min(d.end_offset - d.segment, 10) * 100
            assert (d.position, d.end_position, d.reason) == (start, end, "damaged")


def test_no_byte_is_cut_while_a_valid_batch_lies_behind_whatever_its_offset() -> None:
    disk = _filled(25)
    disk.log.release()
    flip_bit(disk.fs, _path(20), 4)
    flip_bit(disk.fs, _path(20), 104)  # two neighbours agree on offsets that are both wrong
    log = disk._open(clean=False)
    assert len(contents(disk.fs)[_path(20)]) == 500
    assert len(log.state.damaged) == 1
    end = log.log_end_offset
    assert disk.append_batch(batch_of_size(90)).base_offset == end
    assert _offsets(log)[-1] == end
    verify(disk.fs, log)
    verify(disk.fs, disk.reopen())
    assert disk.log.log_end_offset == end + 1


@each_case(
    ("hurt", "damaged"),
    [
        (lambda disk: cut_file(disk.fs, _path(10), 750), DamagedRange(17, 20, 10, 700, 750)),
        (lambda disk: _remove(disk, 10), DamagedRange(10, 20, 20, 0, 0, reason="missing")),
        (lambda disk: cut_file(disk.fs, _path(0), 0), DamagedRange(0, 10, 10, 0, 0, reason="missing")),
    ],
)
def test_what_is_gone_before_valid_batches_is_named_and_these_are_served(
    hurt: Callable[[LogOnDisk], object], damaged: DamagedRange
) -> None:
    disk = _filled(30)
    log = _restarted(disk, lambda: hurt(disk))
    left = [offset for offset in range(30) if not damaged.start_offset <= offset < damaged.end_offset]
    assert (_offsets(log), log.state.damaged) == (left, [damaged])
    verify(disk.fs, log)
    verify(disk.fs, disk.reopen())


@each_case(("point", "scanned"), [(0, 3000), (9, 3000), (10, 2000), (19, 2000), (20, 1000), (30, 1000), (5000, 3000)])
def test_the_segment_that_holds_the_recovery_point_is_read_and_all_behind_it(point: int, scanned: int) -> None:
    disk = _filled(30)
    _restarted(disk, recovery_point=point)
    assert disk.report.recovery is not None
    assert disk.report.recovery.scanned_bytes == scanned


def test_damage_known_from_before_is_kept_where_nothing_was_read_again() -> None:
    disk = _filled(30)
    log = _restarted(disk, lambda: flip_bit(disk.fs, _path(0), 480))
    found = log.state.damaged
    assert len(found) == 1
    log = _restarted(disk, recovery_point=20)
    assert log.state.damaged == found
    assert _offsets(log) == [offset for offset in range(30) if offset != 4]
    log = _restarted(disk, lambda: flip_bit(disk.fs, _path(0), 480))
    assert log.state.damaged == [], "read again, and sound again"
    assert _offsets(log) == list(range(30))


@each_case(("compacted_before", "lost_from"), [(0, 15), (15, 15), (18, 18), (20, 20), (25, 20)])
def test_only_above_what_compaction_has_reached_is_a_gap_between_segments_a_loss(
    compacted_before: int, lost_from: int
) -> None:
    disk = _filled(30)
    disk.log.state.compacted_before = compacted_before
    disk.log.state.save(disk.fs, DIRECTORY)
    log = _restarted(disk, lambda: cut_file(disk.fs, _path(10), 500))
    lost = [DamagedRange(lost_from, 20, 20, 0, 0, reason="missing")] if lost_from < 20 else []
    assert log.state.damaged == lost
    assert log.state.compacted_before == compacted_before


@settings(max_examples=examples(60))
@given(data=st.data())
def test_whatever_bits_flip_untouched_batches_are_served(
    data: st.DataObject,
) -> None:
    """Whatever bits flip every untouched batch is served and every byte but a tail is kept."""
    disk = _filled(25)
    disk.log.release()
    hurt = data.draw(st.sets(st.integers(0, 24), max_size=6))
    for offset in hurt:
        position = offset % 10 * 100 + data.draw(st.integers(8, 99))
        flip_bit(disk.fs, _path(offset // 10 * 10), position, data.draw(st.integers(0, 7)))
    before = contents(disk.fs)
    log = disk._open(clean=False)
    survivors = [offset for offset in range(25) if offset not in hurt]
    assert [offset for offset in _offsets(log) if offset in survivors] == survivors
    last = max(survivors)
    for base in (0, 10, 20):
        after = contents(disk.fs)[_path(base)]
        assert before[_path(base)].startswith(after)
        assert len(after) >= min(1000, max(0, (last + 1 - base) * 100))
    end = log.log_end_offset
    assert end > last
    assert disk.append_batch(batch_of_size(90)).base_offset == end
    disk.reopen()
    assert [offset for offset in _offsets(disk.log) if offset in survivors] == survivors


def test_a_scan_for_the_next_batch_looks_at_offsets_before_it_reads_megabytes() -> None:
    """In random bytes every 256th could be a batch's magic, and its length could require a checksum over the rest."""
    disk = _filled(3)
    garbage = bytearray(random.Random(1).randbytes(3_000_000))
    for position in range(0, len(garbage), 100):
        garbage[position : position + 12] = b"\x01\0\0\0\0\0\0\0" + (1_000_000).to_bytes(4, "big")
        garbage[position + 16] = 2
    disk.log.release()
    add_bytes(disk.fs, _path(0), bytes(garbage))
    double = disk.double
    double.reads.clear()
    log = disk._open(clean=False)
    assert log.log_end_offset == 3
    assert sum(read.size for read in double.reads if read.name == "pread") < 8 * len(garbage)


def test_a_window_that_ends_in_the_middle_of_a_header_hides_no_batch() -> None:
    fs = ForgetfulFileSystem()
    wanted = bytearray(batch(b"value"))
    rewrite_offset_and_epoch(wanted, 0, 7, 0)
    half = 512 * 1024
    for start in (half - 100, half - 61, half - 17, half - 16, half - 15, half - 1, half, 2 * half - 30, 2 * half):
        path = f"/{start}"
        fs.load({path: bytes(start) + wanted + b"behind"})
        file = fs.open(path)
        found = BatchVerifier(file, file.size()).next_batch(0, 5, 100)
        assert found is not None
        assert (found.position, found.header.base_offset) == (start, 7)
        file.close()


# --- Indexes ----------------------------------------------------------------------------------------------------------


@each_case("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")])
@each_case("clean", [True, False])
@each_case("point", [0, 20])
def test_missing_indexes_come_back_byte_for_byte_at_every_kind_of_start(
    suffixes: tuple[str, ...], clean: bool, point: int
) -> None:
    disk = _filled(27)
    disk.reopen()
    disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_999))
    live = index_bytes(disk.log)
    disk.log.close()
    before = contents(disk.fs)
    _remove(disk, 0, 10, 20, suffixes=suffixes)
    disk._open(clean=clean, recovery_point=point)
    assert {_path(base, suffix) for base, suffix in itertools.product((0, 10), suffixes)} <= set(contents(disk.fs))
    assert index_bytes(disk.log) == live
    disk.log.close()
    after = contents(disk.fs)
    assert {path: data for path, data in after.items() if "index" in path} == {
        path: data for path, data in before.items() if "index" in path
    }


@each_case("policy", [PROCESS_KILL, POWER_LOSS], ids=["process kill", "power loss"])
@each_case("is_missing", [True, False], ids=["missing", "spoilt"])
def test_a_crash_leaves_no_half_made_index(is_missing: bool, policy: CrashPolicy) -> None:
    """No later start reads that segment again, so an index that a crash leaves is used for good."""
    disk = LogOnDisk(TopicConfig(segment_bytes=100 * _ENTRIES, index_interval_bytes=0))
    for number in range(_ENTRIES + 1):
        disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_000 + number))
    disk.log.close()
    before = {path: data for path, data in contents(disk.fs).items() if path.startswith(_path(0, "."))}
    fs = ForgetfulFileSystem()
    fs.load(contents(disk.fs))
    disk.fs = fs
    if is_missing:
        fs.unlink(_path(0, ".index"))
        fs.unlink(_path(0, ".timeindex"))
    else:
        cut_file(fs, _path(0, ".index"), len(before[_path(0, ".index")]) // 2 + 3)
    found: list[ForgetfulFileSystem] = []
    fs.on_operation = lambda _: found.append(fs.found_after(policy))
    _look_everywhere(disk)
    fs.on_operation = None
    assert len(found) > 8
    for number, left in enumerate([*found, fs.found_after(policy)]):
        disk.fs = left
        _look_everywhere(disk)
        after = {path: data for path, data in contents(left).items() if path.startswith(_path(0, "."))}
        assert after == before, f"a crash before operation {number}"


def _look_everywhere(disk: LogOnDisk) -> None:
    """Start with the recovery point at the end, so that no batch is read, and look up three records."""
    log = disk._open(clean=False, recovery_point=_ENTRIES + 1)
    assert disk.report.recovery is None
    for offset in (0, _ENTRIES // 2, _ENTRIES - 1):
        assert piece_at(log, offset)[1] == 100 * offset
    log.release()


def test_where_there_is_no_room_for_an_index_that_is_made_anew_it_is_kept_in_memory() -> None:
    disk = _filled(27)
    disk.log.close()
    before = contents(disk.fs)
    cut_file(disk.fs, _path(0, ".index"), 3)
    log = disk._open(clean=True)
    disk.double.inject(Fault("pwritev", ".index.made.tmp", error=errno.ENOSPC))
    values = [record.offset for record in read_all(log)]
    assert values == list(range(27))
    assert log.segments[0].offset_index.read() == before[_path(0, ".index")]
    assert not [path for path in contents(disk.fs) if path.endswith(".tmp")]


def test_indexes_whose_log_is_gone_are_removed_and_other_files_stay() -> None:
    disk = _filled(15)
    disk.log.close()
    strays = (_path(99, ".index"), _path(99, ".timeindex"), _path(99, ".txnindex"))
    others = (f"{DIRECTORY}/notes.txt", f"{DIRECTORY}/index", _path(10, ".timeindex.old"))
    disk.double.load(dict.fromkeys((*strays, *others), b"x"))
    disk._open(clean=True)
    found = set(contents(disk.fs))
    assert not found & set(strays)
    assert found >= set(others)


# --- Damage at the end of what was on the disk ------------------------------------------------------------------------


def _expect_lost(disk: LogOnDisk, start: int, end: int, *, kept: dict[str, bytes], reason: str = "damaged") -> None:
    """Offsets [start, end) are reported as lost, no byte is removed, and no offset below ``end`` is given again."""
    log = disk.log
    assert [(d.start_offset, d.end_offset, d.reason) for d in log.state.damaged] == [(start, end, reason)]
    assert log.log_end_offset == end
    logs = {path: data for path, data in contents(disk.fs).items() if path.endswith(".log")}
    assert {path: logs[path] for path in kept} == kept
    assert _offsets(log) == list(range(start))
    assert disk.append_batch(batch_of_size(90)).base_offset == end
    verify(disk.fs, log)
    for clean in (True, False):
        if clean:
            disk.reopen()
        else:
            disk.restart_unclean(recovery_point=end)
        assert disk.log.log_end_offset == end + 1
        assert _offsets(disk.log) == [*range(start), end]
        assert [(d.start_offset, d.end_offset) for d in disk.log.state.damaged] == [(start, end)]


def _logs(disk: LogOnDisk) -> dict[str, bytes]:
    return {path: data for path, data in contents(disk.fs).items() if path.endswith(".log")}


def _flip_the_last_three(disk: LogOnDisk) -> None:
    for number in (2, 3, 4):
        flip_bit(disk.fs, _path(20), number * 100 + 80)


def _zero_the_second_half(disk: LogOnDisk) -> None:
    cut_file(disk.fs, _path(20), 250)
    add_bytes(disk.fs, _path(20), bytes(250))


@each_case("clean", [True, False])
@each_case(
    ("hurt", "start", "reason"),
    [
        *(
            (lambda disk, bit=bit: flip_bit(disk.fs, _path(20), 400 + bit // 8, bit % 8), 24, "damaged")
            for bit in (*range(8), *range(64, 80), *(8 * at + of for at in (16, 22, 61, 99) for of in (0, 7)))
        ),
        (_flip_the_last_three, 22, "damaged"),
        (_zero_the_second_half, 22, "damaged"),
        (lambda disk: cut_file(disk.fs, _path(20), 450), 24, "damaged"),
        (lambda disk: cut_file(disk.fs, _path(20), 400), 24, "missing"),
        (lambda disk: cut_file(disk.fs, _path(20), 0), 20, "missing"),
        (lambda disk: _remove(disk, 20), 20, "missing"),
        (lambda disk: _remove(disk, 10, 20), 10, "missing"),
        (lambda disk: _remove(disk, 0, 10, 20), 0, "missing"),
    ],
)
def test_the_end_that_the_recovery_point_names_is_kept_and_what_is_lost_below_it_is_named(
    clean: bool, hurt: Callable[[LogOnDisk], object], start: int, reason: str
) -> None:
    disk = _filled(25)
    disk.log.close()
    hurt(disk)
    kept = _logs(disk)
    disk._open(clean=clean, recovery_point=25)
    _expect_lost(disk, start, 25, kept=kept, reason=reason)


@each_case("bit", range(64))
def test_after_a_kill_a_last_batch_whose_offset_has_changed_is_kept_beside_an_end_that_is_right(bit: int) -> None:
    disk = _filled(25)
    disk.log.release()
    flip_bit(disk.fs, _path(20), 400 + bit // 8, bit % 8)
    kept = _logs(disk)
    disk._open(clean=False)
    _expect_lost(disk, 24, 25, kept=kept)


def test_a_recovery_point_that_nothing_confirms_makes_no_damage() -> None:
    disk = _filled(25)
    disk.log.close()
    for clean, said in itertools.product((True, False), (24, 26, 5, 99)):
        log = disk._open(clean=clean, recovery_point=said)
        assert (log.log_end_offset, log.state.damaged) == (25, [])
        assert _offsets(log) == list(range(25))
        log.close()


def _flip_one_and_tear(disk: LogOnDisk) -> None:
    flip_bit(disk.fs, _path(10), 480)
    cut_file(disk.fs, _path(20), 450)


@each_case(
    ("hurt", "point", "end", "lost"),
    [
        (_flip_one_and_tear, 0, 24, [(14, 15, "damaged")]),
        (lambda disk: flip_bit(disk.fs, _path(20), 457), 25, 25, [(24, 25, "damaged")]),
        (lambda disk: disk.fs.unlink(_path(20)), 20, 25, [(20, 25, "missing")]),
    ],
)
def test_a_crash_at_any_step_of_a_recovery_is_recovered_from_and_forgets_nothing_of_what_was_lost(
    hurt: Callable[[LogOnDisk], object], point: int, end: int, lost: list[tuple[int, int, str]]
) -> None:
    disk = _filled(25)
    disk.log.state_file.save()
    disk.log.release()
    hurt(disk)
    for fs in _found_while_opening(disk, point):
        disk.fs = fs
        log = disk._open(clean=False, recovery_point=point)
        assert [(d.start_offset, d.end_offset, d.reason) for d in log.state.damaged] == lost
        assert log.log_end_offset == end
        assert _offsets(log) == [offset for offset in range(end) if not lost[0][0] <= offset < lost[0][1]]
        verify(fs, log)


# --- Start points -----------------------------------------------------------------------------------------------------


def test_recovery_syncs_what_it_kept_before_anyone_may_call_it_durable() -> None:
    disk = _filled(5)
    for _ in range(10):
        disk.append_batch(batch_of_size(100))
    disk.crash(PROCESS_KILL)
    assert disk.log.durable_end_offset == 15
    found = disk.double.found_after(POWER_LOSS).snapshot()
    assert (len(found[_path(0)]), len(found[_path(10)])) == (1000, 500)


@each_case("clean", [True, False])
@each_case("hurt", [False, True])
def test_a_log_that_ends_below_a_start_that_is_proven_begins_there(clean: bool, hurt: bool) -> None:
    disk = _filled(30)
    disk.log.close()
    state = PartitionState.load(disk.fs, DIRECTORY)
    state.stopped, state.log_start = None, 100
    state.save(disk.fs, DIRECTORY)
    if hurt:
        flip_bit(disk.fs, _path(0), 480)
    log = disk._open(clean=clean, log_start=100)
    assert (log.log_start_offset, log.log_end_offset, log.durable_end_offset) == (100, 100, 100)
    assert sorted(name for name in contents(disk.fs) if "0000" in name) == [
        _path(100, ".index"),
        _path(100),
        _path(100, ".timeindex"),
    ]
    assert log.state.damaged == []
    assert disk.append(b"first").base_offset == 100
    disk.reopen(log_start=100)
    assert _offsets(disk.log) == [100]


@each_case("claimed", [1, 10, 14, 20, 29, 30, 31, 100, 2**62])
@each_case("has_state", [True, False])
@each_case("clean", [True, False])
def test_a_log_start_that_nothing_proves_costs_no_record_and_no_file(
    claimed: int, has_state: bool, clean: bool
) -> None:
    disk = _filled(30)
    disk.log.close()
    if not has_state:
        disk.fs.unlink(f"{DIRECTORY}/{PARTITION_STATE_FILE}")
    before = {name for name in contents(disk.fs) if name.endswith(".log")}
    log = disk._open(clean=clean, log_start=claimed)
    assert (log.log_start_offset, log.log_end_offset) == (0, 30)
    assert _offsets(log) == list(range(30))
    [problem] = disk.report.problems
    assert problem.startswith(f"log-start-offset-checkpoint says {claimed}, ")
    assert DeletionRule.LOG_START not in {verdict.rule for _, verdict in log.retention.judge_segments()}
    assert {name for name in contents(disk.fs) if name.endswith(".log")} == before
    disk.reopen()
    assert (_offsets(disk.log), disk.report.problems) == (list(range(30)), [])


@each_case("start", [4, 10, 14, 29, 30])
@each_case("claimed", [0, 3, 14, 31, 100])
@each_case("clean", [True, False])
def test_deleted_records_stay_deleted_whatever_the_checkpoint_says(start: int, claimed: int, clean: bool) -> None:
    disk = _filled(30)
    disk.log.truncate_before(start)
    if clean:
        disk.log.close()
    else:
        disk.log.flusher.flush()
        disk.log.release()
    log = disk._open(clean=clean, log_start=claimed)
    assert (log.log_start_offset, log.log_end_offset) == (start, 30)
    assert _offsets(log) == list(range(start, 30))
    assert len(disk.report.problems) == (claimed != start if clean else claimed > start)


def test_records_deleted_up_to_an_end_that_a_power_cut_took_stay_deleted() -> None:
    disk = _filled(25)
    disk.log.flusher.flush()
    for number in range(3):
        disk.append(b"%d" % number)
    disk.log.truncate_before(28)
    log = disk.crash(POWER_LOSS, log_start=28)
    assert (log.log_start_offset, log.log_end_offset, disk.report.problems) == (28, 28, [])
    assert disk.append(b"next").base_offset == 28


def test_kafka_moves_the_first_epoch_with_the_log_start() -> None:
    disk = _filled(30)
    disk.log.close()
    disk.fs.unlink(f"{DIRECTORY}/{PARTITION_STATE_FILE}")
    put(disk.double, _EPOCHS, b"0\n1\n0 14\n")
    log = disk._open(clean=True, log_start=14)
    assert (log.log_start_offset, disk.report.problems) == (14, [])


def _gaps(log: PartitionLog, offset: int) -> list[tuple[int, int, str]]:
    """The gaps that a fetch at this offset tells."""
    found = log.read(offset, 1 << 20)
    gaps, _ = gaps_of_read(log, offset, found, log.log_end_offset, min_one=True)
    if found is not None:
        found.release()
    return [(gap.start, gap.end, gap.reason) for gap in gaps or ()]


@pytest.mark.parametrize("clean", [True, False])
def test_records_that_are_gone_from_the_beginning_stay_named_at_every_start_and_to_readers(clean: bool) -> None:
    disk = _filled(30)
    if clean:
        disk.log.close()
    else:
        disk.log.flusher.flush()
        disk.log.state_file.save()
        disk.log.release()
    disk.fs.unlink(_path(0))
    log = disk._open(clean=clean)
    for stops_clean in (True, False, True):
        assert (log.log_start_offset, log.log_end_offset) == (0, 30)
        [problem] = disk.report.problems
        assert problem.startswith(
            "the records 0 to 9 are missing at the beginning of the log (by seglog-partition.json)"
        )
        assert _gaps(log, 0) == [(0, 10, "missing")]
        assert [record.offset for record in read_all(log, 3)] == list(range(10, 30))
        assert log.find_timestamp(0) is not None
        log = disk.reopen() if stops_clean else disk.restart_unclean()


def test_a_first_segment_that_is_restored_is_read_again_and_one_more_that_is_gone_is_named() -> None:
    disk = _filled(30)
    disk.log.close()
    kept = {_path(0): read_file(disk.fs, _path(0)), _path(10): read_file(disk.fs, _path(10))}
    disk.fs.unlink(_path(0))
    disk._open(clean=True)
    disk.log.close()
    disk.fs.unlink(_path(10))
    assert _gaps(disk._open(clean=True), 4) == [(4, 20, "missing")]
    assert disk.report.problems[0].startswith("the records 0 to 19 are missing")
    disk.log.close()
    disk.double.load(kept)
    log = disk._open(clean=True)
    assert disk.report.problems == []
    assert (log.state.damaged, [record.offset for record in read_all(log)]) == ([], list(range(30)))


def test_missing_first_records_that_are_deleted_are_named_no_longer() -> None:
    disk = _filled(30)
    disk.log.close()
    disk.fs.unlink(_path(0))
    disk._open(clean=True).truncate_before(10)
    assert disk.reopen(log_start=10).log_start_offset == 10
    assert (disk.report.problems, disk.log.state.damaged) == ([], [])


def test_of_a_log_that_kafka_stopped_in_order_the_first_epoch_says_where_it_began() -> None:
    disk = _filled(30)
    disk.log.close()
    disk.fs.unlink(f"{DIRECTORY}/{PARTITION_STATE_FILE}")
    disk.fs.unlink(_path(0))
    disk._open(clean=True)
    for said_by in ("leader-epoch-checkpoint", "seglog-partition.json"):
        [problem] = disk.report.problems
        assert problem.startswith(f"the records 0 to 9 are missing at the beginning of the log (by {said_by})")
        assert _gaps(disk.reopen(), 0) == [(0, 10, "missing")]


def test_a_directory_that_has_lost_all_its_segments_is_named() -> None:
    disk = _filled(30)
    disk.log.flusher.flush()
    disk.log.state_file.save()
    disk.log.release()
    _remove(disk, 0, 10, 20, suffixes=(".log",))
    disk._open(clean=False)
    assert any("it had no .log file" in problem for problem in disk.report.problems)


def test_a_directory_without_a_segment_gets_one_at_the_log_start_and_holds_it_once() -> None:
    disk = _filled(0)
    disk.log.close()
    _remove(disk, 0)
    log = disk._open(clean=True, log_start=50)
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)
    log.close()
    assert disk.double.open_files == []


def test_bytes_after_the_end_of_a_clean_stop() -> None:
    """Bytes after the end of a clean stop are kept and appends go to a new segment."""
    disk = _filled(25)
    disk.log.close()
    add_bytes(disk.fs, _path(20), b"half a batch")
    log = disk._open(clean=True)
    assert log.log_end_offset == 25
    assert disk.report.recovery is not None
    assert disk.report.recovery.cut_bytes == 0
    assert log.state.damaged == [DamagedRange(25, 25, 20, 500, 512)]
    assert log.leader_epoch == 1
    assert disk.append(b"next").base_offset == 25
    assert _offsets(log) == list(range(26))
    verify(disk.fs, log)


# --- What a crash left of renames and deletions -----------------------------------------------------------------------


def _segment(base: int, marker: str = "", *suffixes: str) -> list[str]:
    return [f"{base:020d}{suffix}{marker}" for suffix in suffixes or (".index", ".log", ".timeindex")]


@each_case(
    ("found", "left"),
    [
        ([*_segment(0, ".deleted"), "leader-epoch-checkpoint.tmp", "seglog-partition.json.tmp", "x.deleted"], []),
        # A compaction that was not finished is undone, and the swaps from its first unfinished base on.
        ([*_segment(0), *_segment(5), *_segment(0, ".cleaned")], _segment(0) + _segment(5)),
        (
            [*_segment(0), *_segment(5), *_segment(0, ".cleaned"), *_segment(5, ".swap")],
            _segment(0) + _segment(5),
        ),
        # Index files that a half-done rename left behind follow.
        ([*_segment(0, "", ".log"), *_segment(0, ".swap", ".index", ".timeindex")], _segment(0)),
        # Files of a segment that was being removed are no sign of a loss.
        ([*_segment(0), *_segment(5, "", ".index", ".timeindex"), *_segment(5, ".deleted", ".log")], _segment(0)),
    ],
)
def test_what_a_crash_left_of_renames_and_deletions_is_ended_or_undone(found: list[str], left: list[str]) -> None:
    fs = ForgetfulFileSystem()
    fs.load({"/p-0/": b""} | {f"/p-0/{name}": b"" for name in found})
    assert tidy_directory(fs, "/p-0") == fs.list_directory("/p-0") == left


def test_undone_swaps_are_durable_first() -> None:
    """Undoing swaps reaches the disk before the sign that they are unfinished goes."""
    fs = ForgetfulFileSystem()
    names = [*_segment(0), *_segment(5), *_segment(0, ".cleaned"), *_segment(5, ".swap")]
    fs.load({f"/p-0/{name}": b"" for name in names})
    found: list[ForgetfulFileSystem] = []
    fs.on_operation = lambda _: found.extend((fs.found_after(PROCESS_KILL), fs.found_after(POWER_LOSS)))
    tidy_directory(fs, "/p-0")
    for crashed in found:
        assert tidy_directory(crashed, "/p-0") == _segment(0) + _segment(5)


def test_a_source_of_which_only_an_index_kept_its_name_goes() -> None:
    """Of a segment that another has replaced a power cut may lose the rename of the index alone."""
    fs = ForgetfulFileSystem()
    compacted = encode_batch([(1_000, b"k", b"v", ())], base_offset=30)
    fs.load({f"/p-0/{name}": b"" for name in (*_segment(0, ".deleted"), *_segment(24, ".deleted", ".log"))})
    fs.load({f"/p-0/{name}": b"" for name in (*_segment(24, "", ".index"), *_segment(0, "", ".index", ".timeindex"))})
    fs.load({f"/p-0/{name}": compacted for name in _segment(0, "", ".log")})
    assert tidy_directory(fs, "/p-0") == _segment(0)


def _swap_disk(*, originals: bool = True) -> tuple[ForgetfulFileSystem, dict[str, bytes]]:
    """Three segments; output that replaces the first two waits as ``.swap``. And the files as they should become."""
    disk = _filled(30)
    disk.log.close()
    files = {path: data for path, data in contents(disk.fs).items() if path.endswith((".log", ".index", ".timeindex"))}
    output = files[_path(0)][:500] + files[_path(10)][500:]
    fs = ForgetfulFileSystem()
    third = {path: data for path, data in files.items() if f"{20:020d}" in path}
    replaced = {path: data for path, data in files.items() if path not in third}
    swap = {f"{_path(0)}.swap": output, f"{_path(0, '.index')}.swap": b"", f"{_path(0, '.timeindex')}.swap": b""}
    fs.load(third | swap | (replaced | {_path(10, ".snapshot"): b"s"} if originals else {}))
    wanted = third | {_path(0): output, _path(0, ".index"): b"", _path(0, ".timeindex"): b""}
    return fs, wanted


@pytest.mark.parametrize("originals", [True, False])
def test_complete_output_takes_the_place_of_its_sources(originals: bool) -> None:
    fs, wanted = _swap_disk(originals=originals)
    tidy_directory(fs, DIRECTORY)
    assert fs.snapshot() == wanted
    fs.load({f"{DIRECTORY}/partition.metadata": b""})
    disk = LogOnDisk(TopicConfig(segment_bytes=1000, index_interval_bytes=250), fs=fs)
    assert _offsets(disk.log) == [*range(5), *range(15, 30)]


def test_a_swap_is_finished_from_whichever_step_a_crash_was_at() -> None:
    fs, wanted = _swap_disk()
    found: list[ForgetfulFileSystem] = []
    fs.on_operation = lambda _: found.extend((fs.found_after(PROCESS_KILL), fs.found_after(POWER_LOSS)))
    tidy_directory(fs, DIRECTORY)
    assert len(found) > 10
    for crashed in found:
        tidy_directory(crashed, DIRECTORY)
        logs = {path: data for path, data in crashed.snapshot().items() if path.endswith(".log")}
        assert logs == {path: data for path, data in wanted.items() if path.endswith(".log")}
        assert not [path for path in crashed.snapshot() if path.endswith(".swap")]


# --- Leader epochs ----------------------------------------------------------------------------------------------------


def _written_epochs(disk: LogOnDisk) -> bytes:
    return contents(disk.fs)[_EPOCHS]


@pytest.mark.parametrize("then", ["stops cleanly", "crashes without an append"])
def test_after_a_lost_tail_no_offset_is_written_under_the_same_epoch_again(then: str) -> None:
    disk = _filled(5)
    disk.append(b"written but never on the disk")
    assert disk.log.leader_epoch == 0
    disk.crash(POWER_LOSS)
    assert (disk.log.log_end_offset, disk.log.leader_epoch) == (5, 1)
    if then == "stops cleanly":
        disk.reopen()
        assert (disk.log.leader_epoch, _written_epochs(disk)) == (1, b"0\n2\n0 0\n1 5\n")
    else:
        disk.crash(POWER_LOSS)
        assert (disk.log.leader_epoch, _written_epochs(disk)) == (2, b"0\n2\n0 0\n2 5\n")
    assert disk.append(b"another record at the same offset").base_offset == 5
    assert disk.log.epochs.epoch_for(5) == disk.log.leader_epoch > 0


@each_case("clean", [True, False])
@each_case("content", [None, b""])
def test_epochs_are_found_in_the_batches_when_the_file_is_empty_or_lost(content: bytes | None, clean: bool) -> None:
    disk = _filled(5)
    for _ in range(2):
        disk.restart_unclean()
        disk.append(b"more")
        disk.append(b"more")
    before = disk.log.epochs.entries
    disk.log.close()
    disk.fs.unlink(_EPOCHS)
    if content is not None:
        disk.double.load({_EPOCHS: content})
    disk._open(clean=clean)
    assert disk.log.epochs.entries == (before if clean else [*before, (3, 9)])
    disk.append(b"more")
    assert disk.log.epochs.latest == disk.log.leader_epoch == (2 if clean else 3)


def test_after_deleting_records_the_epoch_that_covers_the_start_is_kept() -> None:
    disk = _filled(5)
    disk.restart_unclean()
    disk.append(b"epoch 1")
    disk.log.truncate_before(3)
    assert _written_epochs(disk) == b"0\n2\n0 3\n1 5\n"
    disk.log.truncate_before(6)
    assert _written_epochs(disk) == b"0\n1\n1 6\n"


def test_a_log_that_begins_anew_keeps_its_epoch_though_the_file_was_lost() -> None:
    disk = _filled(5)
    for _ in range(3):
        disk.restart_unclean()
    disk.append(b"epoch 3")
    disk.log.close()
    disk.fs.unlink(_EPOCHS)
    assert disk._open(clean=False, log_start=100).leader_epoch == 4


def test_a_last_segment_without_its_log() -> None:
    """After a kill a last segment without its log is named and its offsets are not given again."""
    disk = _filled(25)
    disk.log.state_file.save()  # as a checkpoint does after a roll
    disk.append_batch(batch_of_size(100))
    kept = {path: data for path, data in _logs(disk).items() if path != _path(20)}
    _restarted(disk, lambda: disk.fs.unlink(_path(20)), recovery_point=20)
    [problem] = disk.report.problems
    assert problem.startswith(f"{20:020d}.log is missing, its index files exist: the log continues at 25")
    _expect_lost(disk, 20, 25, kept=kept, reason="missing")


def test_a_last_segment_without_its_log_is_reported_even_if_its_end_is_unknown() -> None:
    disk = _filled(25)
    disk.log.release()
    disk.fs.unlink(_path(20))
    disk._open(clean=False, recovery_point=20)
    [problem] = disk.report.problems
    assert "the log continues at 20" in problem
    assert disk.log.state.damaged == []
    verify(disk.fs, disk.log)
    disk.restart_unclean(recovery_point=20)
    assert disk.report.problems == []
