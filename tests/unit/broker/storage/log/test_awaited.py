"""A log whose older segments are still to come: what can be read, opened, deleted; and a crash while one arrives."""

from collections.abc import Callable

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.filesystem import read_file, write_all
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.awaited import (
    AwaitedLog,
    Part,
    discard_arrived,
    marker_of,
    read_awaited,
    write_awaited,
)
from seglog_broker.testing.forgetful import POWER_LOSS, PROCESS_KILL, RANDOM, ForgetfulFileSystem
from seglog_protocol.errors import OffsetOutOfRangeError, SegmentAwaitedError
from tests import logs
from tests.logs import DIRECTORY, LogOnDisk, arrive, batch, verify
from tests.unit.broker.storage.steps import checkpoint

PART = Part("files/1", 0, 1, 7)


def path_of(base: int) -> str:
    return f"{DIRECTORY}/{base:020d}.log"


def awaiting(*bases: int, clean: bool = True) -> tuple[LogOnDisk, dict[int, bytes]]:
    """A log with segments 0, 10, 20, 30, of which these are awaited; and their bytes. Record n has timestamp 1000 n."""
    disk = LogOnDisk(TopicConfig(segment_bytes=1000, index_interval_bytes=250))
    for number in range(35):
        disk.append_batch(logs.batch_of_size(100, 1000 * number))
    checkpoint(disk.log)
    disk.log.close()
    there = {}
    for base in bases:
        there[base] = read_file(disk.fs, path_of(base))
        disk.fs.unlink(path_of(base))
        write_awaited(disk.fs, path_of(base), AwaitedLog(len(there[base]), 77, (PART,)))
        for path in (path_of(base), marker_of(path_of(base))):
            with disk.fs.open(path, writable=True) as file:
                file.fdatasync()
    disk.fs.sync_directory(DIRECTORY)
    disk.log = disk._open(clean=clean, recovery_point=30)
    return disk, there


def offsets(log: PartitionLog, start: int) -> list[int]:
    return [record.offset for record in logs.read_all(log, start)]


@pytest.mark.parametrize("clean", [True, False])
def test_an_awaited_segment_is_told_apart_and_all_others_are_read(clean: bool) -> None:
    disk, there = awaiting(0, 20, clean=clean)
    log = disk.log
    assert list(log.segments.awaited) == [0, 20]
    assert log.segments.awaited_size == 2000 == len(there[0] + there[20])
    assert (log.log_start_offset, log.log_end_offset) == (0, 35)
    assert not disk.report.problems
    assert disk.report.rebuilt_indexes == 0
    assert not log.state.damaged
    for offset in (0, 9, 20):
        with pytest.raises(SegmentAwaitedError) as caught:
            log.read(offset, 1000)
        assert (caught.value.segment, caught.value.bytes, caught.value.retriable) == (offset // 10 * 10, 1000, True)
    for offset in (10, 19, 30, 34):
        found = log.read(offset, 100)
        assert found is not None
        assert found.start_offset == offset
        found.release()
    with pytest.raises(OffsetOutOfRangeError):
        log.read(36, 1000)
    assert logs.append_one(log, batch(b"more")).base_offset == 35


def test_a_moment_passes_over_what_is_awaited_by_its_index_or_asks_for_it() -> None:
    log = awaiting(0, 20)[0].log
    assert log.find_timestamp(12_000) == (12_000, 12, 0)
    assert log.find_timestamp(30_000) == (30_000, 30, 0)
    for moment in (0, 9_000, 20_000):
        with pytest.raises(SegmentAwaitedError):
            log.find_timestamp(moment)
    assert [segment.largest_timestamp for segment in log.segments] == [9_000, 19_000, 29_000, 34_000]


def test_what_has_arrived_is_as_it_was() -> None:
    disk, there = awaiting(0, 20)
    with pytest.raises(SegmentAwaitedError):
        disk.log.read(20, 1000)  # it is made; the other one is not
    for base, content in there.items():
        arrive(disk.fs, DIRECTORY, base, content)
        disk.log.segments.note_arrived(base)
    assert not disk.log.segments.awaited
    assert offsets(disk.log, 0) == list(range(35))
    verify(disk.fs, disk.log)
    verify(disk.fs, disk.reopen())


def test_one_without_its_indexes_gets_them_when_it_has_arrived() -> None:
    disk, there = awaiting(10)
    disk.log.close()
    disk.fs.unlink(f"{DIRECTORY}/{10:020d}.index")
    disk.fs.unlink(f"{DIRECTORY}/{10:020d}.timeindex")
    log = disk._open(clean=True)
    assert disk.report.rebuilt_indexes == 0
    with pytest.raises(SegmentAwaitedError):
        log.find_timestamp(12_000)
    assert log.segments[1].largest_timestamp == -1  # for retention, which then goes by the time of the file
    arrive(disk.fs, DIRECTORY, 10, there[10])
    log.segments.note_arrived(10)
    assert log.find_timestamp(12_000) == (12_000, 12, 0)
    verify(disk.fs, log)


def after_each_crash(disk: LogOnDisk, work: Callable[[], object], look: Callable[[PartitionLog], None]) -> None:
    """``look`` at the log as a start finds it after a crash at each operation of ``work``."""
    found: list[ForgetfulFileSystem] = []

    def crash(*_operation: object) -> None:
        seeds = RANDOM(len(found)), RANDOM(len(found) + 1)
        found.extend(disk.double.found_after(policy) for policy in (PROCESS_KILL, POWER_LOSS, *seeds))

    disk.double.on_operation = crash
    work()
    crash()
    assert len(found) > 8
    for fs in found:
        after = LogOnDisk(disk.config, fs=fs, recovery_point=30)
        look(after.log)
        assert not after.report.problems
        assert not after.log.state.damaged


def test_a_crash_while_a_segment_arrives_leaves_it_awaited_or_whole() -> None:
    disk, there = awaiting(10)
    assert read_awaited(disk.fs, DIRECTORY, 10) == AwaitedLog(1000, 77, (PART,))
    seen = set()

    def look(log: PartitionLog) -> None:
        seen.add(bool(log.segments.awaited))
        if log.segments.awaited:
            with pytest.raises(SegmentAwaitedError):
                log.read(10, 1000)
        else:
            assert offsets(log, 0) == list(range(35))

    after_each_crash(disk, lambda: arrive(disk.fs, DIRECTORY, 10, there[10]), look)
    assert seen == {True, False}


def test_a_crash_while_one_is_deleted_leaves_no_hole() -> None:
    disk, _ = awaiting(0, 10)

    def work() -> None:
        gone = disk.log.truncation.drop_oldest(1)
        disk.log.state_file.save()
        gone.set_aside()
        assert gone.remove() > 1000

    def look(log: PartitionLog) -> None:
        assert log.log_start_offset in {0, 10}
        assert log.segments.bases[0] == next(iter(log.segments.awaited))
        assert offsets(log, 20) == list(range(20, 35))

    after_each_crash(disk, work, look)
    assert list(disk.log.segments.awaited) == [10]
    assert not disk.fs.exists(marker_of(path_of(0)))


def test_records_before_one_can_be_deleted_and_what_comes_too_late_goes() -> None:
    disk, there = awaiting(0, 10)
    assert disk.log.truncate_before(15) == 15
    with disk.fs.open(f"{path_of(0)}.tmp", create=True) as file:
        write_all(file, [there[0]], 0)
    discard_arrived(disk.fs, DIRECTORY, 0)
    discard_arrived(disk.fs, DIRECTORY, 0)
    assert f"{0:020d}.log.tmp" not in disk.fs.list_directory(DIRECTORY)
    with pytest.raises(SegmentAwaitedError):
        disk.log.read(15, 1000)
    assert [verdict.rule for _, verdict in disk.log.retention.judge_segments()][:2] == ["log start", "time"]
