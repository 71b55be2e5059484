"""One closed segment of a log that is being served, read from its first byte to its last; nothing of it is changed.

The walk, the rules and the indexes are those of ``seglogd check``. Every byte is read from the disk once: what the walk
has passed is added up while it is still in memory.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from seglog_broker.inspect.check.findings import Severity
from seglog_broker.inspect.check.plan import Circumstances, Replacement
from seglog_broker.inspect.check.segment_walk import SegmentWalk
from seglog_broker.inspect.log_walk import LogWalk
from seglog_broker.storage.io.filesystem import FileSystem, write_all
from seglog_broker.storage.io.throttle import Throttle
from seglog_broker.storage.segment.checksum import MalformedChecksumError, RunningChecksum, read_segment_checksum
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_broker.workers.jobs.scrub_job import ScrubJob, ScrubVerdict
from seglog_protocol import segment_files as names

_PIECE_BYTES: Final = 256 * 1024
"""Added up at a time, and told to the throttle."""


def scrub_segment(fs: FileSystem, job: ScrubJob, throttle: Throttle) -> ScrubVerdict:
    """Read everything there is of the segment. Raises OSError when it cannot be read."""
    path = f"{job.directory}/{names.segment_file_name(job.base_offset, names.LOG_SUFFIX)}"
    said = None
    with suppress(MalformedChecksumError):
        said = read_segment_checksum(fs, job.directory, job.base_offset)
    known = Circumstances(
        is_adopted=job.is_adopted, index_interval=job.index_interval, index_bytes_max=job.index_bytes_max
    )
    log = LogWalk(fs, job.directory)
    walk = SegmentWalk(fs, job.directory, job.base_offset, known, is_live=False)
    running, summed, batches = RunningChecksum(), 0, 0
    file = fs.open(path)
    try:
        size = file.size()
        for found in walk.follow(log.segment(job.base_offset, job.next_base)):
            batches += 1
            while found.end - summed >= _PIECE_BYTES:
                summed += _add(running, file.pread(_PIECE_BYTES, summed), throttle)
        while summed < size:
            summed += _add(running, file.pread(min(_PIECE_BYTES, size - summed), summed), throttle)
    finally:
        file.close()
    findings, replacements = walk.judge_indexes(size)
    wrong = tuple(f"{each.path} {each.what}" for each in findings if each.severity != Severity.NOTE)
    return ScrubVerdict(
        measured=running.value,
        said=said,
        batches=batches,
        damaged=tuple(_damaged(log, job.next_base)),
        missing=tuple(_missing(log, job, size)),
        index_problems=wrong,
        remade=tuple(_write_beside(fs, replacements)),
    )


def _add(running: RunningChecksum, data: bytes, throttle: Throttle) -> int:
    if not data:
        raise OSError("the file has become shorter while it was read")
    running.update(data)
    throttle.note(len(data))
    return len(data)


def _damaged(log: LogWalk, next_base: int) -> Iterable[DamagedRange]:
    """What stands at the end of a closed segment is damage too, and takes the place of the offsets up to the next."""
    yield from (stretch.range for stretch in log.damaged)
    yield from (replace(tail.range, end_offset=next_base) for tail in log.tails)


def _missing(log: LogWalk, job: ScrubJob, size: int) -> Iterable[DamagedRange]:
    yield from log.holes
    end = job.base_offset if log.end is None else log.end
    if not log.tails and end < job.next_base:
        yield DamagedRange(end, job.next_base, job.base_offset, size, size, reason="missing")


def _write_beside(fs: FileSystem, replacements: Iterable[Replacement]) -> Iterable[str]:
    """Write right indexes where the loop can take them from; their suffixes. None where the disk refuses."""
    for replacement in replacements:
        path = f"{replacement.path}{names.TEMPORARY_SUFFIX}"
        parsed = names.parse_segment_file_name(replacement.path.rpartition("/")[2])
        assert parsed is not None, "an index has the name of one"
        with suppress(OSError):
            file = fs.open(path, create=True)
            try:
                file.truncate(0)
                write_all(file, [replacement.content], 0)
                file.fdatasync()
            finally:
                file.close()
            yield parsed[1]
