"""Segments to be compacted, on any file system, and what a broker would do with the cleaner's files."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from seglog_broker.storage.compaction.cleaner import clean
from seglog_broker.storage.compaction.job import CleaningJob, CleaningResult, SourceSegment
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol import segment_files as names
from seglog_protocol.record_batch import BatchHeader, parse_header, verify_crc
from seglog_protocol.records import Record, decode_records

DIRECTORY = "/topic-0"
NOW = 1_800_000_000_000
RETENTION = 86_400_000
INDEX_INTERVAL = 100
INDEX_BYTES = 10 * 1024


@dataclass
class Log:
    """A partition directory under test: its closed segments, and where the next one would begin."""

    fs: FileSystem = field(default_factory=ForgetfulFileSystem)
    directory: str = DIRECTORY
    bases: list[int] = field(default_factory=list)
    damaged: dict[int, list[DamagedRange]] = field(default_factory=dict)
    end: int = 0

    def __post_init__(self) -> None:
        if not self.fs.exists(self.directory):
            self.fs.make_directory(self.directory)

    def segment(self, base: int, *, existing: bool = False) -> Segment:
        present = self.fs.list_directory(self.directory) if existing else ()
        segment = Segment(
            *(self.fs, HandlePool(self.fs), self.directory, base),
            index_bytes_max=INDEX_BYTES,
            index_interval=INDEX_INTERVAL,
            existing=present,
        )
        segment.damaged[:] = list(self.damaged.get(base, ()))
        return segment

    def roll(self, batches: Sequence[bytes], *, base: int | None = None, mtime: int | None = None) -> None:
        """Add a closed segment of ready batches, by default at the end of the one before."""
        base = self.end if base is None else base
        segment = self.segment(base)
        segment.create()
        for batch in batches:
            header = parse_header(batch)
            segment.append((batch,), ((len(batch), header.last_offset, header.max_timestamp),))
            self.end = max(self.end, header.next_offset)
        segment.close()
        self.end = max(self.end, base)
        self.bases.append(base)
        if mtime is not None:
            self.fs.set_mtime(self.path(base), mtime)

    def path(self, base: int, suffix: str = names.LOG_SUFFIX) -> str:
        return f"{self.directory}/{names.segment_file_name(base, suffix)}"

    def job(self, **changes: Any) -> CleaningJob:
        """Everything there is, cleaned for the first time, with room for it."""
        upper_bound = changes.pop("upper_bound", self.end)
        facts: dict[str, Any] = {
            "directory": self.directory,
            "segments": tuple(
                SourceSegment(base, tuple(self.damaged.get(base, ()))) for base in self.bases if base < upper_bound
            ),
            "later_segments": tuple(base for base in self.bases if base >= upper_bound),
            "first_dirty": self.bases[0],
            "upper_bound": upper_bound,
            "now_ms": NOW,
            "delete_retention_ms": RETENTION,
            "segment_bytes": 1 << 20,
            "segment_index_bytes": INDEX_BYTES,
            "index_interval_bytes": INDEX_INTERVAL,
            "map_bytes": 1 << 20,
            "map_load_factor": 0.9,
            "decompressed_batch_bytes_max": 1 << 20,
            "producer_id_expiration_ms": 86_400_000,
        }
        return CleaningJob(**facts | changes)

    def clean(self, **changes: Any) -> CleaningResult:
        """One round, its files put in place."""
        result = run(self.fs, self.job(**changes))
        self.swap(result)
        return result

    def swap(self, result: CleaningResult) -> None:
        """What the broker's loop does with a result, without its care."""
        for group in result.groups:
            if not group.unchanged:
                for base in group.sources:
                    for suffix in names.SEGMENT_SUFFIXES:
                        if self.fs.exists(self.path(base, suffix)):
                            self.fs.unlink(self.path(base, suffix))
                    self.bases.remove(base)
                    self.damaged.pop(base, None)
                for suffix in names.SEGMENT_SUFFIXES:
                    path = self.path(group.base_offset, suffix)
                    if self.fs.exists(path + names.CLEANED_SUFFIX):
                        self.fs.rename(path + names.CLEANED_SUFFIX, path)
                self.bases.append(group.base_offset)
                self.bases.sort()
            self.damaged[group.base_offset] = list(group.damaged)
            if group.unchanged and group.damaged:  # its indexes were made when all was well
                self.segment(group.base_offset, existing=True).indexes.rebuild()

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        """Every good batch."""
        return [(header, batch) for base in self.bases for header, batch, _ in self.located(base)]

    def located(self, base: int) -> list[tuple[BatchHeader, bytes, int]]:
        """Every good batch of one segment and its position."""
        found = []
        data = read_file(self.fs, self.path(base))
        holes = {hole.position: hole.end_position for hole in self.damaged.get(base, ())}
        position = 0
        while position < len(data):
            if position in holes:
                position = holes[position]
                continue
            header = parse_header(data, position)
            batch = data[position : position + header.size]
            if verify_crc(batch, 0, header):
                found.append((header, batch, position))
            position += header.size
        return found

    def records(self) -> list[Record]:
        return [record for header, batch in self.batches() for record in decode_records(header, batch)]

    def verify(self) -> None:
        """Offsets rise, indexes are what rebuilding makes of the log, and nothing unfinished lies about."""
        next_offset = 0
        for header, _ in self.batches():
            assert next_offset <= header.base_offset <= header.last_offset
            next_offset = header.next_offset
        for base in self.bases:
            segment = self.segment(base, existing=True)
            before = (segment.offset_index.read(), segment.time_index.read())
            segment.indexes.rebuild()
            assert (segment.offset_index.read(), segment.time_index.read()) == before, base
            checksum = segment.checksum.read()
            assert checksum is None or checksum == segment.log.measure() or segment.damaged, base
        assert not any(name.endswith(names.CLEANED_SUFFIX) for name in self.fs.list_directory(self.directory))


def run(fs: FileSystem, job: CleaningJob) -> CleaningResult:
    """Clean without a limit of speed."""
    return clean(fs, job, Throttle(None, lambda: 0.0, lambda _: None))
