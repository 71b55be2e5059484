"""Recovery of one partition: in a worker process, or in memory, to read it while the disk has no room.

The job and its outcome are passed as JSON.

The worker has exclusive use of the directory until it is done. It leaves the partition as a clean stop would, with the
leader epoch of this start, so that the broker opens it without reading it again. The files are byte for byte the same
as if the broker had recovered the partition. An interrupted job is repeated.

Offsets count records, positions and sizes are bytes.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.overlay import Overlay
from seglog_broker.storage.log.loaded_log import LoadedLog, OpenReport
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery import Progress, RecoveryReport
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_protocol import segment_files as names
from seglog_protocol.errors import StorageError

HANDLES: Final = 64
"""Files and maps open at a time during a recovery."""

VIEW_HANDLES: Final = 16
"""Files and copies of indexes that a read-only view keeps open."""


class UnreadTail(NamedTuple):
    """The bytes of a partition after its recovery point, by names and sizes of files alone.

    ``is_tidy``: no crash interrupted the cleaner here, so ``tidy_directory`` reads nothing.
    """

    size: int
    is_tidy: bool


@dataclass(frozen=True, slots=True)
class RecoveryJob:
    """The arguments of ``loader.load`` for the partition ``directory``; ``size`` is the number of bytes to read."""

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
    """The result of a recovery: ``end_offset`` is the log end, ``damaged`` are the ranges that readers skip."""

    end_offset: int
    scanned_bytes: int
    cut_bytes: int
    set_aside: tuple[str, ...]
    damaged: tuple[DamagedRange, ...]
    rebuilt_indexes: int
    problems: tuple[str, ...] = ()  # see OpenReport

    @classmethod
    def of(cls, end_offset: int, opened: OpenReport) -> "RecoveryOutcome":
        """The outcome from the report of loading a log that ends at ``end_offset``."""
        recovery = opened.recovery or RecoveryReport()
        return cls(
            end_offset,
            recovery.scanned_bytes,
            recovery.cut_bytes,
            tuple(recovery.set_aside),
            tuple(recovery.damaged),
            opened.rebuilt_indexes,
            tuple(opened.problems),
        )


def unread_tail(fs: FileSystem, directory: str, recovery_point: int) -> UnreadTail:
    """How much of a partition a recovery would read; opens no file."""
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
    """Recover the partition; returns when the result survives a power cut.

    Raises OSError or StorageError when the partition cannot be opened; the job can be repeated.
    """
    handles = HandlePool(fs, HANDLES)
    config = TopicConfig(segment_index_bytes=job.segment_index_bytes, index_interval_bytes=job.index_interval_bytes)
    try:
        loaded = _load(fs, handles, clock, job, config, progress)
        log = PartitionLog(loaded)
        try:
            log.close()
        except StorageError:
            if log.state.read_only is None:
                raise
            # An fsync failed: the read-only mark is on the disk, and the partition can be read.
    finally:
        handles.close()
    return RecoveryOutcome.of(log.log_end_offset, loaded.report)


class ReadOnlyView:
    """Read-only access to a partition whose recovery does not fit on the full disk.

    The recovery runs on an ``Overlay``, which keeps its changes in memory: truncated tail, rebuilt indexes, new epoch.
    Readers get what the recovery on the disk will leave. That recovery must still run, from the beginning, before
    anything is appended; ``close`` the view before or after that. ``log`` is for reading only.
    """

    def __init__(self, fs: FileSystem, clock: Clock, job: RecoveryJob, config: TopicConfig) -> None:
        """Recover in memory, which reads as much as the recovery itself. Raises what ``load`` raises.

        May run in a thread.
        """
        overlay = Overlay(fs)
        self._handles = HandlePool(overlay, VIEW_HANDLES, readahead=False)
        try:
            loaded = _load(overlay, self._handles, clock, job, config)
        except BaseException:
            self._handles.close()
            raise
        self.log = PartitionLog(loaded)

    def close(self) -> None:
        """Close every file, except those with a lease, when that is released."""
        self.log.release()
        self._handles.close()


def _load(
    fs: FileSystem,
    handles: HandlePool,
    clock: Clock,
    job: RecoveryJob,
    config: TopicConfig,
    progress: Progress | None = None,
) -> LoadedLog:
    """Recover what the job describes."""
    return load(
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
