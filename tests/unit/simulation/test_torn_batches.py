"""Damage in the middle of a log after a crash: batches that were never synced, and a bit that flipped in one that was.

A start cannot tell the two apart, so it keeps every whole batch behind either. Readers are told the offsets. Kafka's
clients would stop there for good; they pass what may never have been on the disk.
"""

from itertools import product

import pytest

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.testing.forgetful import PROCESS_KILL, RANDOM, ForgetfulFileSystem
from seglog_broker.workers.scrub_job import ScrubJob
from seglog_broker.workers.segment_scrub import scrub_segment
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import iter_batches
from tests.logs import DIRECTORY, LogOnDisk, add_bytes, batch_of_size, contents, cut_file, flip_bit, read_around, verify
from tests.support import each_case, examples

_BATCHES = 12
_SYNCED = 5


def appended(fs: ForgetfulFileSystem, *, synced: int) -> tuple[LogOnDisk, list[int]]:
    """A log in three segments whose first ``synced`` batches are on the disk, and where each batch begins."""
    disk = LogOnDisk(TopicConfig(segment_bytes=700), fs=fs)
    offsets = []
    for number in range(_BATCHES):
        offsets.append(disk.append(b"%d" % number * 60, b"second").base_offset)
        if number + 1 == synced:
            disk.log.flusher.flush()
    return disk, offsets


def read_as_kafka(log: PartitionLog) -> list[int]:
    """The base offsets of all batches that a client of Kafka's gets. Raises CorruptRecordError where it stops."""
    found, offset = [], log.log_start_offset
    while (piece := log.read(log.behind_unsynced(offset), 1 << 20)) is not None:
        headers = [header for header, _ in iter_batches(piece.file.pread(piece.size, piece.position))]
        piece.release()
        found += [header.base_offset for header in headers]
        offset = headers[-1].next_offset
    return found


def test_kafkas_clients_read_every_whole_batch_whatever_a_power_cut_left() -> None:
    """Of unsynced bytes any part may be lost: also after another kill, a stop, and starts after them."""
    in_the_middle = 0
    for seed in range(examples(2_000)):
        disk, offsets = appended(ForgetfulFileSystem(), synced=_SYNCED)
        disk.crash(RANDOM(seed))
        got = read_as_kafka(disk.log)
        assert got[:_SYNCED] == offsets[:_SYNCED], seed
        assert got == sorted({record.offset // 2 * 2 for record in read_around(disk.log)}), seed
        verify(disk.fs, disk.log)
        in_the_middle += bool(disk.log.state.unsynced)
        before = list(disk.log.state.unsynced)
        later = disk.append(b"later").base_offset
        for kill in (True, False):
            if kill:
                disk.restart_unclean()
            else:
                disk.reopen()
            assert read_as_kafka(disk.log) == [*got, later], seed
            assert disk.log.state.unsynced == before, seed
    assert in_the_middle > examples(2_000) // 100


@each_case("is_known", [True, False], ids=["known to be synced", "synced"])
@each_case("number", range(_BATCHES - 1))
def test_a_bit_that_flips_in_a_synced_batch_costs_that_batch_alone_and_is_told(number: int, is_known: bool) -> None:
    """Kafka's clients stop at it if the partition's state says that it was on the disk."""
    disk, offsets = appended(ForgetfulFileSystem(), synced=_BATCHES)
    if is_known:
        disk.log.state_file.save()
    base = next(base for base in reversed(disk.log.segments.bases) if base <= offsets[number])
    segment = disk.log.segments.at(base)
    assert segment is not None
    found = segment.find(offsets[number])
    assert found is not None
    disk.fs = disk.double.crash(PROCESS_KILL)
    flip_bit(disk.fs, segment.log_path, found.position + 80)
    disk._open(clean=False)
    left = [offset for offset in offsets if offset != offsets[number]]
    assert [(d.start_offset, d.end_offset) for d in disk.log.state.damaged] == [(offsets[number], offsets[number] + 2)]
    assert sorted({record.offset // 2 * 2 for record in read_around(disk.log)}) == left
    with pytest.raises(CorruptRecordError):
        disk.log.read(offsets[number], 1)
    if is_known:
        with pytest.raises(CorruptRecordError):
            read_as_kafka(disk.log)
    else:
        assert read_as_kafka(disk.log) == left


def test_an_offset_moved_into_a_gap_is_found_by_the_checksum_file() -> None:
    """Readers cannot notice it, because holes are normal there. They notice all others by the neighbouring batches."""
    disk = _compacted()
    right = {(record.offset, record.timestamp) for record in read_around(disk.log)}
    assert [offset for offset, _ in sorted(right)] == [0, 1, 3, 4, 5, 6, 7, 8]
    files, moved = contents(disk.fs), set[tuple[int, int]]()
    for number, position, bit in product(range(4), range(8), range(8)):
        fs = ForgetfulFileSystem()
        fs.load(files)
        flip_bit(fs, f"{DIRECTORY}/{0:020d}.log", number * 100 + position, bit)
        again = LogOnDisk(disk.config, fs=fs)
        wrong = {(record.offset, record.timestamp) for record in read_around(again.log)} - right
        moved |= {(number, offset) for offset, _ in wrong}
        job = ScrubJob(DIRECTORY, 0, 5, 0, 10_485_760, is_adopted=False, bytes_per_second=1 << 30)
        verdict = scrub_segment(fs, job, Throttle(None, lambda: 0.0, lambda _: None))
        assert verdict.stored is not None
        assert verdict.measured != verdict.stored
    assert moved == {(2, 2)}, "the third batch, of offset 3, where offset 2 was"


def _compacted() -> LogOnDisk:
    """Batches of 100 bytes and one record, five to a segment; compaction has taken offset 2."""
    disk = LogOnDisk(TopicConfig(segment_bytes=500, index_interval_bytes=0))
    for number in range(9):
        disk.append_batch(batch_of_size(100, timestamp=1_700_000_000_000 + number))
    disk.log.close()
    files = contents(disk.fs)
    path = f"{DIRECTORY}/{0:020d}.log"
    cut_file(disk.fs, path, 200)
    add_bytes(disk.fs, path, files[path][300:])
    disk.log.state.compacted_before = 5
    disk.log.state.save(disk.fs, DIRECTORY)
    compacted = LogOnDisk(disk.config, fs=disk.fs)
    segment = compacted.log.segments[0]
    segment.indexes.rebuild()
    segment.checksum.begin(segment.log.measure())
    segment.checksum.save()
    compacted.log.close()
    return LogOnDisk(disk.config, fs=disk.fs)
