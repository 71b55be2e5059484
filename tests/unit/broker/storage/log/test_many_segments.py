"""The work of a start for each segment: none after a clean stop, constant after any other."""

from collections import Counter

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from tests.logs import LogOnDisk, ManualClock, append_one, batch_of_size, read_all, verify
from tests.unit.broker.storage.directory.directories import opened
from tests.unit.broker.storage.steps import create_topic, piece_at

SMALL = TopicConfig(segment_bytes=1024, retention_ms=-1)


def with_segments(count: int) -> LogOnDisk:
    """A log of so many segments, two batches of one record in each."""
    disk = LogOnDisk(SMALL)
    for _ in range(2 * count):
        disk.append_batch(batch_of_size(400, timestamp=disk.clock.now))
    assert len(disk.log.segments) == count
    return disk


def made(log: PartitionLog) -> list[int]:
    """Base offsets of the segments that have been made."""
    return [segment.base_offset for segment in log.segments._made if segment is not None]


def looks(disk: LogOnDisk) -> Counter[str]:
    """The file operations since the last call, by kind."""
    fs = disk.double
    counted = Counter([read.name for read in fs.reads] + [operation.name for operation in fs.operations])
    fs.reads.clear()
    fs.operations.clear()
    return counted


def looks_of_a_start(count: int, *, clean: bool, recovery_point: int) -> Counter[str]:
    disk = with_segments(count)
    if clean:
        disk.log.close()
    looks(disk)
    if clean:
        disk._open(clean=True, recovery_point=disk.log.log_end_offset)
    else:
        disk.restart_unclean(recovery_point=recovery_point)
    counted = looks(disk)
    assert len(read_all(disk.log)) == 2 * count
    verify(disk.fs, disk.log)
    return counted


def test_a_clean_start_touches_few_files() -> None:
    """A start after a clean stop touches as many files whatever the number of segments."""
    few = looks_of_a_start(5, clean=True, recovery_point=0)
    assert looks_of_a_start(200, clean=True, recovery_point=0) == few
    assert few["list_directory"] == 1


@pytest.mark.parametrize("below", [0, 10])
def test_a_start_after_a_crash_does_the_same_for_every_segment_it_reads(below: int) -> None:
    counted = [looks_of_a_start(n, clean=False, recovery_point=below) for n in (50, 100, 200)]
    first, second, third = (sum(counts.values()) for counts in counted)
    assert third - second == 2 * (second - first), counted
    assert len({counts["list_directory"] for counts in counted}) == 1


def test_a_clean_start_makes_the_active_segment_alone_and_knows_the_size_of_the_log() -> None:
    disk = with_segments(50)
    disk.log.close()
    log = disk._open(clean=True, recovery_point=disk.log.log_end_offset)
    assert log.size == 100 * 400
    assert made(log) == [98]
    looks(disk)
    assert log.size == 100 * 400
    assert not looks(disk), "it is known now"
    assert piece_at(log, 40, 1)[0] == 40
    assert made(log) == [40, 98]
    disk.append_batch(batch_of_size(400))
    assert log.size == 101 * 400


def test_a_log_directory_lists_a_partition_once_after_a_clean_stop() -> None:
    fs = ForgetfulFileSystem()
    directory = opened(fs, "seglog.disk.ballast.bytes=0")
    create_topic(directory, "t", 1, {"segment.bytes": "1024"})
    for _ in range(40):
        encoded = memoryview(bytearray(batch_of_size(400, timestamp=ManualClock().now)))
        append_one(directory.logs["t", 0], encoded)
    assert not directory.close()
    fs.reads.clear()
    again = opened(fs, "seglog.disk.ballast.bytes=0")
    assert again.report.clean
    assert [read.name for read in fs.reads if read.path == "/data/t-0"].count("list_directory") == 1
    looked_at = {read.path.rpartition("/")[2].partition(".")[0] for read in fs.reads if "/data/t-0/000" in read.path}
    assert looked_at == {f"{38:020d}", f"{40:020d}"}, "the active segment, and the producers' snapshot at the log's end"
    assert not again.close()
