"""Partition logs for tests: on the forgetful double, with a clock that is moved by hand, and a way to verify."""

import struct
from collections.abc import Sequence
from typing import Any

from seglog_broker.config import TopicConfig, load_config
from seglog_broker.storage.compaction.cleaned_segment import SegmentSwap, discard_cleaned
from seglog_broker.storage.compaction.job import CleaningResult
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.appender import Appended
from seglog_broker.storage.log.loaded_log import OpenReport
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_files import make_partition
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.segment.awaited import install_arrived
from seglog_broker.storage.segment.damage import BatchVerifier
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.testing.forgetful import CrashPolicy, ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import CorruptRecordError, SeglogError
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import parse_header
from seglog_protocol.records import Record, decode_records

DIRECTORY = "/topic-0"
TOPIC_ID = "IVT1Seu3QjacxS7oBTKhDQ"


class ManualClock(Clock):
    """A clock that tests move."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def now_ms(self) -> int:
        return self.now


def opened_directory(fs: FileSystem, path: str = "/data", *flags: str, clock: Clock | None = None) -> LogDirectory:
    """An open log directory, which is made where there is none; ``flags`` as ``--set`` takes them."""
    config, _ = load_config(None, "", {}, [f"log.dir={path}", *flags])
    return open_log_directory(fs, clock or ManualClock(), config, path)


class LogOnDisk:
    """A partition log and the disk it lives on; ``reopen`` and ``crash`` stand for what happens to a process."""

    def __init__(
        self,
        config: TopicConfig | None = None,
        *,
        fs: FileSystem | None = None,
        handles_max: int = 512,
        recovery_point: int | None = None,
    ) -> None:
        """With ``recovery_point`` it was not stopped cleanly."""
        self.config = config or TopicConfig()
        self.clock = ManualClock()
        self.fs: FileSystem = fs or ForgetfulFileSystem()
        self.handles_max = handles_max
        if not self.fs.exists(DIRECTORY):
            make_partition(self.fs, DIRECTORY, TOPIC_ID)
            self.fs.sync_directory("/")
        self.report: OpenReport
        self.log = self._open(clean=recovery_point is None, recovery_point=recovery_point or 0)

    @property
    def double(self) -> ForgetfulFileSystem:
        """The disk, where it is the forgetful one."""
        assert isinstance(self.fs, ForgetfulFileSystem)
        return self.fs

    def _open(
        self, *, clean: bool, recovery_point: int = 0, log_start: int = 0, first_dirty_offset: int | None = None
    ) -> PartitionLog:
        handles = HandlePool(self.fs, self.handles_max)
        loaded = load(
            self.fs,
            handles,
            self.clock,
            DIRECTORY,
            self.config,
            clean=clean,
            recovery_point=recovery_point,
            log_start=log_start,
            first_dirty_offset=first_dirty_offset,
        )
        self.report, self.log = loaded.report, PartitionLog(loaded)
        return self.log

    def reopen(self, *, log_start: int = 0, first_dirty_offset: int | None = None) -> PartitionLog:
        """Stop cleanly and start again."""
        self.log.close()
        return self._open(clean=True, log_start=log_start, first_dirty_offset=first_dirty_offset)

    def restart_unclean(self, *, recovery_point: int = 0) -> PartitionLog:
        """The process is gone, what it wrote is there; start again."""
        self.log.release()
        return self._open(clean=False, recovery_point=recovery_point)

    def crash(self, policy: CrashPolicy, **how: Any) -> PartitionLog:
        """The process is gone, or the machine; start again on what is left of the disk."""
        self.log.release()
        self.fs = self.double.crash(policy)
        return self._open(clean=False, **how)

    def set_time(self, now: int) -> None:
        """By the clock, and by the modification times that the file system gives."""
        self.clock.now = self.double.now_ms = now

    def append(self, *values: bytes, timestamp: int = -1, key: bytes | None = None) -> Appended:
        """One batch with a record for each value."""
        return self.append_batch(batch(*values, timestamp=timestamp, key=key))

    def append_batch(self, encoded: bytes) -> Appended:
        """One ready batch."""
        return append_one(self.log, encoded)


def append_one(log: PartitionLog, sent: bytes | memoryview) -> Appended:
    """Append a batch alone; a view of one is written to. Raises the error of it."""
    view = memoryview(bytearray(sent)) if isinstance(sent, bytes) else sent
    (outcome,) = log.append([view], [parse_header(view)])
    if isinstance(outcome, SeglogError):
        raise outcome
    return outcome


def bases_of(log: PartitionLog) -> list[int]:
    """The base offsets of its segments."""
    return [segment.base_offset for segment in log.segments]


def batch(*values: bytes, timestamp: int = -1, key: bytes | None = None) -> bytes:
    """A batch as a producer sends it: base offset 0, all records with one timestamp."""
    return encode_batch([(timestamp, key, value, ()) for value in values])


def batch_of_size(size: int, timestamp: int = -1) -> bytes:
    """A batch of one record and exactly ``size`` bytes."""
    for value_size in range(max(0, size - 80), size):
        if len(encoded := batch(b"." * value_size, timestamp=timestamp)) == size:
            return encoded
    raise AssertionError(f"no batch of one record has exactly {size} bytes")


OLD_MESSAGE = "000000000000000000000019497426e201000000018bcfe56800000000016b000000027630"
"""A message of magic 1, as a client of before Kafka 0.11 wrote it, in hex."""


def old_message(offset: int) -> bytes:
    """The same with another offset, which its checksum does not cover."""
    return offset.to_bytes(8) + bytes.fromhex(OLD_MESSAGE)[8:]


def read_all(log: PartitionLog, start: int | None = None, bytes_max: int = 1 << 20) -> list[Record]:
    """Every record from ``start`` on, fetched piece by piece as a consumer would."""
    offset = log.log_start_offset if start is None else start
    records: list[Record] = []
    while (found := log.read(offset, bytes_max)) is not None:
        data = found.file.pread(found.size, found.position)
        found.release()
        assert len(data) == found.size
        position = next_offset = 0
        while position < len(data):
            header = parse_header(data, position)
            piece = data[position : position + header.size]
            assert len(piece) == header.size, "a slice ended inside a batch"
            records += [record for record in decode_records(header, piece) if record.offset >= offset]
            position += header.size
            next_offset = header.next_offset
        offset = next_offset
    return records


def read_around(log: PartitionLog) -> list[Record]:
    """Every record that can be read, going on behind each damaged range as its error says."""
    records: list[Record] = []
    offset = log.log_start_offset
    while True:
        try:
            found = log.read(offset, 1)
        except CorruptRecordError as error:
            assert error.next_offset > offset, "an error that leads nowhere"  # noqa: PT017 - it is expected sometimes
            offset = error.next_offset
            continue
        if found is None:
            return records
        data = found.file.pread(found.size, found.position)
        found.release()
        header = parse_header(data)
        records += [record for record in decode_records(header, data) if record.offset >= offset]
        offset = header.next_offset


def batches_of(fs: FileSystem, segment: Segment) -> list[LocatedBatch]:
    """Every batch of a segment's ``.log``, checksums verified; fails where the bytes are no batch."""
    with fs.open(segment.log_path) as file:
        verifier = BatchVerifier(file, segment.size)
        found, position = [], 0
        while position < segment.size:
            damage = next((d for d in segment.damaged if d.position == position), None)
            if damage is not None:
                position = damage.end_position
                continue
            located = verifier.batch_at(position)
            assert located is not None, f"no valid batch at {position} of {segment.log_path}"
            found.append(located)
            position = located.end
        return found


def install_cleaned(fs: FileSystem, log: PartitionLog, result: CleaningResult) -> None:
    """Put what a round of compaction has written in the place of its sources."""
    for group in result.groups:
        if not group.unchanged:
            swap = SegmentSwap(fs, log.directory, group.sources)
            swap.promote()
            doomed = log.cleaning.install_cleaned(swap, group.damaged)
            swap.settle()
            doomed.remove()
    discard_cleaned(fs, log.directory)


def arrive(fs: FileSystem, directory: str, base: int, content: bytes) -> None:
    """Put the bytes of an awaited segment in place, as a worker fetches it; the log is not told."""
    with fs.open(f"{directory}/{base:020d}.log.tmp", create=True) as file:
        file.pwritev([content], 0)
        file.fdatasync()
    install_arrived(fs, directory, base)


def flip_bit(fs: FileSystem, path: str, position: int, bit: int = 0) -> None:
    """What a cosmic ray does to a file."""
    with fs.open(path, writable=True) as file:
        file.pwritev([bytes([file.pread(1, position)[0] ^ 1 << bit])], position)


def add_bytes(fs: FileSystem, path: str, data: bytes) -> None:
    """Write behind the end of a file."""
    with fs.open(path, create=True) as file:
        file.pwritev([data], file.size())


def cut_file(fs: FileSystem, path: str, size: int) -> None:
    """Cut a file to ``size`` bytes, or take that many off its end when it is negative."""
    with fs.open(path, writable=True) as file:
        file.truncate(size if size >= 0 else file.size() + size)


def contents(fs: FileSystem) -> dict[str, bytes]:
    """Every file of the forgetful double, by path."""
    assert isinstance(fs, ForgetfulFileSystem)
    return fs.snapshot()


def index_bytes(log: PartitionLog) -> list[tuple[bytes, bytes]]:
    """(offset index, time index) of every segment, as they stand, memory included."""
    return [(segment.offset_index.read(), segment.time_index.read()) for segment in log.segments]


def verify(fs: FileSystem, log: PartitionLog) -> None:
    """Walk the whole log: batches valid, offsets rise within and across segments, indexes and checksums are right."""
    next_offset = -1
    bases = [segment.base_offset for segment in log.segments]
    for number, segment in enumerate(log.segments):
        assert segment.log.is_active == (number == len(log.segments) - 1)
        if not segment.log.is_active and bases[number + 1] <= log.log_start_offset:
            continue  # has left the log: a stop came before its files were set aside, and what was damaged is forgotten
        assert fs.stat(segment.log_path).size == segment.size
        assert segment.base_offset >= next_offset
        next_offset = max(next_offset, segment.base_offset)
        expected_offsets: list[tuple[int, int]] = []
        expected_times: list[tuple[int, int]] = []
        maximum, indexed = (-1, segment.base_offset), 0
        for position, header in batches_of(fs, segment):
            assert next_offset <= header.base_offset <= header.last_offset
            next_offset = header.next_offset
            if header.max_timestamp > maximum[0]:
                maximum = (header.max_timestamp, header.last_offset)
            if position - indexed > segment.indexes.writer.interval:
                expected_offsets.append((header.last_offset - segment.base_offset, position))
                if maximum[0] > (expected_times[-1][0] if expected_times else -1):
                    expected_times.append((maximum[0], maximum[1] - segment.base_offset))
                indexed = position
        if not segment.log.is_active and maximum[0] > (expected_times[-1][0] if expected_times else -1):
            expected_times.append((maximum[0], maximum[1] - segment.base_offset))
        segment.indexes.ensure()
        assert _pairs(segment.offset_index.read(), ">ii") == expected_offsets, segment.log_path
        assert _pairs(segment.time_index.read(), ">qi") == expected_times, segment.log_path
        counted = segment.checksum.running
        checksum = segment.checksum.read() if counted is None else counted.value
        assert checksum is None or checksum == segment.log.measure() or segment.damaged, segment.log_path
        assert not (segment.log.is_active and segment.checksum.exists), segment.checksum.path
    assert next_offset <= log.log_end_offset


def _pairs(data: bytes, layout: str) -> Sequence[tuple[int, int]]:
    return [(a, b) for a, b in struct.iter_unpack(layout, data)]
