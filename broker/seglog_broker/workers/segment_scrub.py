"""Scrubs one closed segment of a log in service: reads and checks all of its bytes, and does not change it.

The checks are those of ``seglogd check``. Every byte is read from the disk once: the checksum of the file is computed
over bytes that the walk has just read, while they are in memory.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from seglog_broker.inspect.check.indexes import IndexCheck
from seglog_broker.inspect.check.plan import PartitionContext, Replacement
from seglog_broker.inspect.findings import Severity
from seglog_broker.inspect.log_walk import LogWalk
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import FileSystem, write_all
from seglog_broker.storage.segment.checksum import MalformedChecksumError, RunningChecksum, read_segment_checksum
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.workers.scrub_job import ScrubJob, ScrubResult
from seglog_protocol import segment_files as names

_PIECE_BYTES: Final = 256 * 1024
"""Bytes that are added to the checksum at a time, and counted by the throttle."""


def scrub_segment(fs: FileSystem, job: ScrubJob, throttle: Throttle) -> ScrubResult:
    """Check the segment and its indexes; write rebuilt indexes beside wrong ones. Raises OSError."""
    path = f"{job.directory}/{names.segment_file_name(job.base_offset, names.LOG_SUFFIX)}"
    stored = None
    with suppress(MalformedChecksumError):
        stored = read_segment_checksum(fs, job.directory, job.base_offset)
    context = PartitionContext(
        is_adopted=job.is_adopted, index_interval=job.index_interval, index_bytes_max=job.index_bytes_max
    )
    log = LogWalk(fs, job.directory)
    indexes = IndexCheck(fs, job.directory, job.base_offset, context, is_live=False)
    running, summed, batches = RunningChecksum(), 0, 0
    with fs.open(path) as file:
        size = file.size()
        for found in indexes.batches(log.segment(job.base_offset, job.next_base)):
            batches += 1
            while found.end - summed >= _PIECE_BYTES:
                summed += _add(running, file.pread(_PIECE_BYTES, summed), throttle)
        while summed < size:
            summed += _add(running, file.pread(min(_PIECE_BYTES, size - summed), summed), throttle)
    findings, replacements = indexes.judge(size)
    wrong = tuple(f"{each.path} {each.what}" for each in findings if each.severity != Severity.NOTE)
    return ScrubResult(
        measured=running.value,
        stored=stored,
        batches=batches,
        damaged=tuple(_damaged(log, job.next_base)),
        missing=tuple(_missing(log, job, size)),
        index_problems=wrong,
        rebuilt=tuple(_write_beside(fs, replacements)),
    )


def _add(running: RunningChecksum, data: bytes, throttle: Throttle) -> int:
    if not data:
        raise OSError("the file became shorter while it was read")
    running.update(data)
    throttle.note(len(data))
    return len(data)


def _damaged(log: LogWalk, next_base: int) -> Iterable[DamagedRange]:
    """The damaged ranges. Invalid bytes at the end count as the offsets up to the next segment."""
    yield from (damaged.range for damaged in log.damaged)
    yield from (replace(tail.range, end_offset=next_base) for tail in log.tails)


def _missing(log: LogWalk, job: ScrubJob, size: int) -> Iterable[DamagedRange]:
    """The holes, one at the end of the segment included."""
    yield from log.holes
    end = job.base_offset if log.end is None else log.end
    if not log.tails and end < job.next_base:
        yield DamagedRange(end, job.next_base, job.base_offset, size, size, reason="missing")


def _write_beside(fs: FileSystem, replacements: Iterable[Replacement]) -> Iterable[str]:
    """Write rebuilt indexes under ``.tmp`` names and yield their suffixes; not those that cannot be written."""
    for replacement in replacements:
        path = f"{replacement.path}{names.TEMPORARY_SUFFIX}"
        parsed = names.parse_segment_file_name(replacement.path.rpartition("/")[2])
        assert parsed is not None, "an index has the name of one"
        with suppress(OSError):
            with fs.open(path, create=True) as file:
                file.truncate(0)
                write_all(file, [replacement.content], 0)
                file.fdatasync()
            yield parsed[1]
