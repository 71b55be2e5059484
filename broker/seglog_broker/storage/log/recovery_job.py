"""Recovering one partition for somebody else: values that go between processes as JSON, and the doing of it.

Whoever does the job has the directory for itself until it is done. It leaves the partition as a clean stop would have,
under the leader epoch of this start, so that the broker opens it without reading it again; the bytes come out the same
as where the broker recovers a partition itself. A job that ends anywhere in the middle is simply done again.

Offsets count records, positions and sizes are bytes.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.loader import OpenReport, load
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery import Progress, RecoveryReport
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_protocol import segment_files as names
from seglog_protocol.errors import StorageError

HANDLES: Final = 64
"""Files and maps that are open at a time while a partition is recovered."""


class UnreadTail(NamedTuple):
    """What lies behind the recovery point of a partition, told by names and sizes alone.

    ``is_tidy``: no crash interrupted the cleaner here, so nothing is read to put names in order.
    """

    size: int
    is_tidy: bool


@dataclass(frozen=True, slots=True)
class RecoveryJob:
    """What ``loader.load`` is to be told of the partition ``directory``; ``size`` bytes are to be read."""

    directory: str
    size: int
    recovery_point: int
    log_start: int
    compacted_before: int
    segment_index_bytes: int
    index_interval_bytes: int
    producer_expiration_ms: int


@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """What a recovery found: ``end_offset`` is the log's end, ``damaged`` what is served around from now on."""

    end_offset: int
    scanned_bytes: int
    cut_bytes: int
    damaged: tuple[DamagedRange, ...]
    rebuilt_indexes: int
    problems: tuple[str, ...] = ()  # what was not taken as it stood, for who has the job done

    @classmethod
    def of(cls, end_offset: int, opened: OpenReport) -> "RecoveryOutcome":
        """What opening a log that ends at ``end_offset`` found."""
        recovery = opened.recovery or RecoveryReport()
        return cls(
            end_offset,
            recovery.scanned_bytes,
            recovery.cut_bytes,
            tuple(recovery.damaged),
            opened.rebuilt_indexes,
            tuple(opened.problems),
        )


def unread_tail(fs: FileSystem, directory: str, recovery_point: int) -> UnreadTail:
    """How much of a partition has to be read after a stop that was not clean; no file is opened for it."""
    found = fs.list_directory(directory)
    segments = {name: parsed for name in found if (parsed := names.parse_segment_file_name(name)) is not None}
    bases = {base: name for name, (base, suffix) in segments.items() if suffix == names.LOG_SUFFIX}
    aside = {base for base, suffix in segments.values() if suffix == f"{names.LOG_SUFFIX}{names.DELETED_SUFFIX}"}
    floor = max((base for base in bases if base <= recovery_point), default=0)
    unread = {name for base, name in bases.items() if base >= floor or base in aside}
    unread |= {name for name, (_, suffix) in segments.items() if suffix == f"{names.LOG_SUFFIX}{names.SWAP_SUFFIX}"}
    is_tidy = not aside & bases.keys() and not any(name.endswith(names.SWAP_SUFFIX) for name in segments)
    return UnreadTail(sum(fs.stat(f"{directory}/{name}").size for name in unread), is_tidy)


def recover_partition(
    fs: FileSystem, clock: Clock, job: RecoveryJob, progress: Progress | None = None
) -> RecoveryOutcome:
    """Do the job; returns when all of it survives a power cut.

    Raises OSError or StorageError when the partition cannot be opened, with everything still there to be done again.
    """
    handles = HandlePool(fs, HANDLES)
    config = TopicConfig(segment_index_bytes=job.segment_index_bytes, index_interval_bytes=job.index_interval_bytes)
    try:
        loaded = load(
            fs,
            handles,
            clock,
            job.directory,
            config,
            clean=False,
            recovery_point=job.recovery_point,
            log_start=job.log_start,
            first_dirty_offset=job.compacted_before or None,
            progress=progress,
            producer_expiration_ms=job.producer_expiration_ms,
        )
        log = PartitionLog(loaded)
        try:
            log.close()
        except StorageError:
            if log.state.read_only is None:
                raise
            # An fsync failed: that is remembered on the disk, and what can be read is served.
    finally:
        handles.close()
    return RecoveryOutcome.of(log.log_end_offset, loaded.report)
