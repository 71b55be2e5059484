"""The scrub: all closed segments are read again and again, to find damage while there are backups without it.

A worker process reads them, at ``seglog.scrub.bytes.per.second``, and checks by the rules of ``seglogd check``:
checksums of whole files, batches, offsets, indexes. The loop acts on the result: damage is recorded, so that readers
skip it and learn its offsets; a wrong index is replaced by a rebuilt one; a segment without a checksum file gets one,
if every batch in it is valid. Other problems are reported by ``ping`` until a later pass no longer finds them.
"""

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import save_state
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Common, Service
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.segment.checksum import checksum_path
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.workers.jobs import SCRUB
from seglog_broker.workers.messages import STORAGE, WorkerError
from seglog_broker.workers.pool import Workers
from seglog_broker.workers.scrub_job import ScrubJob, ScrubResult
from seglog_protocol import segment_files as names
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.errors import StorageError
from seglog_protocol.header_scan import HeaderScan

log = get_logger()


@dataclass(eq=False, repr=False)
class Scrub(Service):
    """The passes of one broker over its closed segments."""

    async def run(self) -> None:
        """One pass every ``seglog.scrub.interval.ms``; the first is ``log.initial.task.delay.ms`` after the start."""
        boundary = TaskBoundary("scrub")
        may_begin = trio.current_time() + self._config.current.log_initial_task_delay_ms / 1000
        while True:
            if not self._bytes_per_second:
                log.info("scrub_disabled", consequence="damage is found only when it is read")
            while not self._bytes_per_second:
                await self._config.wait()
            await trio.sleep_until(may_begin)
            began = trio.current_time()
            await self.scrub_all(boundary)
            await self._config.sleep(lambda: self._config.current.seglog_scrub_interval_ms / 1000, since=began)

    @property
    def _bytes_per_second(self) -> int:
        return self._config.current.seglog_scrub_bytes_per_second

    async def scrub_all(self, boundary: TaskBoundary) -> None:
        """One pass over the closed segments of all partitions."""
        metrics, began = self._metrics, trio.current_time()
        before = metrics.scrubbed_segments, metrics.scrubbed_bytes, metrics.scrub_findings
        partitions = list(self._table.values())
        async with self._offload.scrubber(self._fs) as scrubber:
            for number, partition in enumerate(partitions):
                metrics.scrub_pass_ratio = number / len(partitions)
                await trio.lowlevel.checkpoint()
                await boundary.run(partition, partial(self._scrub_partition, scrubber))
        metrics.scrub_pass_ratio = 1.0
        metrics.scrub_passes += 1
        metrics.scrub_last_pass_ms = self._clock.now_ms()
        findings = metrics.scrub_findings - before[2]
        tell = log.info if findings else log.debug  # a pass without any is no news
        tell(
            "scrub_pass_finished",
            segments=metrics.scrubbed_segments - before[0],
            bytes=metrics.scrubbed_bytes - before[1],
            findings=findings,
            seconds=round(trio.current_time() - began, 3),
        )

    async def _scrub_partition(self, scrubber: Workers, partition: Partition) -> None:
        """Scrub the segments that are closed now, unless they leave the log before they are read.

        None while some are still fetched from a backup: the next pass has them all.
        """
        if partition.log.segments.awaited:
            return
        bases = partition.log.segments.bases[:-1]
        left = set(bases)
        partition.findings = {base: what for base, what in partition.findings.items() if base in left}
        for base in bases:
            if partition.is_deleted or not self._bytes_per_second:
                return
            segment = partition.log.segments.at(base)
            if segment is not None and _next_base(partition, segment) is not None:
                await self._scrub_segment(scrubber, partition, segment)
        await self._scheduler.verify_transaction_indexes(partition.log)
        partition.tell_mended_indexes()

    async def _scrub_segment(self, scrubber: Workers, partition: Partition, segment: Segment) -> None:
        try:
            result = await scrubber.run(SCRUB, self._job(partition, segment))
        except WorkerError as error:
            if partition.is_deleted or _next_base(partition, segment) is None:
                return
            if error.kind != STORAGE:
                raise StorageError(f"the segment {segment.log_path} was not read: {why(error)}") from error
            self._report(partition, segment, f"{segment.log_path} could not be read: {error.message}")
            return
        # Meanwhile the segment may have been compacted or deleted, and another may have its name.
        if partition.is_deleted or _next_base(partition, segment) is None:
            await self._offload.maintenance(_remove_rebuilt, self._fs, segment, result)
            return
        self._metrics.scrubbed_segments += 1
        self._metrics.scrubbed_bytes += result.measured.size
        self._apply(partition, segment, result)
        if result.damaged:
            await save_state(partition, self._offload)

    def _job(self, partition: Partition, segment: Segment) -> ScrubJob:
        config, next_base = partition.log.config, _next_base(partition, segment)
        assert next_base is not None, "the segment is in the log, and closed"
        known = self._directory.registry.topics.get(partition.topic)
        return ScrubJob(
            partition.log.directory,
            segment.base_offset,
            next_base,
            index_interval=config.index_interval_bytes,
            index_bytes_max=config.segment_index_bytes,
            is_adopted=known is not None and bool(known.notes),
            bytes_per_second=self._bytes_per_second,
        )

    def _apply(self, partition: Partition, segment: Segment, result: ScrubResult) -> None:
        """Act on the result. After an OSError or StorageError the next pass does the rest."""
        facts = {"topic": partition.topic, "partition": partition.number, "segment": segment.base_offset}
        for damage in partition.log.note_damage(result.damaged):
            self._metrics.scrub_findings += 1
            log.error(
                "damage_found",
                **facts,
                start_offset=damage.start_offset,
                end_offset=damage.end_offset,
                position=damage.position,
                end_position=damage.end_position,
            )
        problem = _problem_of(partition, segment, result)
        if problem is None:
            partition.findings.pop(segment.base_offset, None)
        else:
            self._report(partition, segment, problem)
        if problem is None and result.stored != result.measured and (result.stored is None) != bool(result.damaged):
            # Valid without a checksum file, or damaged with one that is from before the damage.
            segment.checksum.begin(result.measured)
            segment.checksum.save()
        if result.index_problems:
            self._metrics.scrub_findings += 1
            log.warning("index_wrong", **facts, reason="; ".join(result.index_problems), rebuilt=len(result.rebuilt))
        if result.rebuilt:
            partition.log.replace_indexes(segment, result.rebuilt)

    def _report(self, partition: Partition, segment: Segment, what: str) -> None:
        """Log a finding once, and have ``ping`` report it."""
        if partition.findings.get(segment.base_offset) != what:
            self._metrics.scrub_findings += 1
            partition.findings[segment.base_offset] = what
            log.error("scrub_finding", topic=partition.topic, partition=partition.number, what=what)


def _next_base(partition: Partition, segment: Segment) -> int | None:
    """The base offset of the next segment; None if ``segment`` is no longer a closed segment of the log."""
    segments = partition.log.segments
    following = bisect_right(segments.bases, segment.base_offset)
    is_closed = 0 < following < len(segments) and segments[following - 1] is segment
    return segments.bases[following] if is_closed else None


def _problem_of(partition: Partition, segment: Segment, result: ScrubResult) -> str | None:
    """A problem that recording damage does not solve, as the end of a sentence; None if there is none."""
    stored, measured = result.stored, result.measured
    if segment.size != measured.size:
        return f"{segment.log_path} has {measured.size} bytes, and had {segment.size} when it was opened"
    if stored is not None and stored != measured and not result.damaged:
        path = checksum_path(segment.directory, segment.base_offset)
        return (
            f"{segment.log_path} has changed since it was closed (by {path}), though every batch in it is valid: an "
            f"offset or a leader epoch has changed; with the broker stopped, `seglogd check "
            f"{segment.directory.rpartition('/')[0]}` says more"
        )
    for hole in result.missing:
        if not _is_explained(partition, hole):
            return f"offsets {hole.start_offset} to {hole.end_offset - 1} are in no batch of {segment.log_path}"
    return None


def _is_explained(partition: Partition, hole: DamagedRange) -> bool:
    """Whether compaction removed the offsets, or may have, or they are recorded as missing."""
    state = partition.log.state
    return (
        hole.end_offset <= state.compacted_before
        or "compact" in partition.log.config.cleanup_policy
        or any(known.covers_offsets_of(hole) for known in state.damaged)
    )


def _remove_rebuilt(fs: FileSystem, segment: Segment, result: ScrubResult) -> None:
    for suffix in result.rebuilt:
        with suppress(OSError):
            name = names.segment_file_name(segment.base_offset, suffix)
            fs.unlink(f"{segment.directory}/{name}{names.TEMPORARY_SUFFIX}")


# --- Missing segments -------------------------------------------------------------------------------------------------

SEGMENTS_AT_A_TIME: Final = 25
"""Segments that a thread checks at a time, which takes some milliseconds."""

HEADERS_MAX: Final = 200
"""The most headers read after the last entry of an index. There are more only if the index is wrong."""

_RECOVERY_SECONDS: Final = 0.5
"""Time between checks for partitions whose recovery has finished."""


class SegmentHole(NamedTuple):
    """Offsets [start, end) that lie between the end of a closed segment and the base offset of the next."""

    segment: int
    start: int
    end: int


async def run_hole_search(common: Common) -> None:
    """Search each log once after a start for missing segments, those that are recovered afterwards; then return.

    A start reads only the names of closed segments. So here the end of each is compared with the base offset of the
    next, in a thread: with the last entry of its index and the few headers after it, whatever its size. Otherwise only
    a reader or the scrub would find the hole; they find the damage of inconsistent segments, which are left out here.
    """
    boundary = TaskBoundary("hole search")
    seen: set[Partition] = set()

    async def search(partition: Partition) -> None:
        awaited = partition.log.segments.awaited  # was searched where it comes from
        pairs = [pair for pair in pairwise(partition.log.segments.bases) if pair[0] not in awaited]
        found = False
        for start in range(0, len(pairs), SEGMENTS_AT_A_TIME):
            some = pairs[start : start + SEGMENTS_AT_A_TIME]
            for hole in await common.offload.maintenance(holes_between, common.fs, partition.log.directory, some):
                if partition.is_deleted:
                    return
                found |= _record(partition, hole)
        if found:
            await save_state(partition, common.offload)

    while True:
        for partition in list(common.table.values()):
            if partition not in seen and len(partition.log.segments) > 1:
                await boundary.run(partition, search)
            seen.add(partition)
        if not common.recoveries:
            return
        await trio.sleep(_RECOVERY_SECONDS)


def _record(partition: Partition, hole: SegmentHole) -> bool:
    """Record and log a hole, so that readers skip it. False if it is explained or known: then nothing is done."""
    state, bases = partition.log.state, partition.log.segments.bases
    start = max(hole.start, state.compacted_before, partition.log.log_start_offset)
    is_there = hole.segment in bases and hole.end in bases  # else deleted or compacted meanwhile
    if not is_there or start >= hole.end or "compact" in partition.log.config.cleanup_policy:
        return False
    if any(d.start_offset <= start and hole.end <= d.end_offset for d in state.damaged):
        return False
    partition.log.note_damage([DamagedRange(start, hole.end, hole.end, 0, 0, reason="missing")])
    log.error(
        "offsets_missing", topic=partition.topic, partition=partition.number, start_offset=start, end_offset=hole.end
    )
    return True


def holes_between(fs: FileSystem, directory: str, pairs: Iterable[tuple[int, int]]) -> list[SegmentHole]:
    """The holes after closed segments; ``pairs`` are their base offsets, each with that of the next one."""
    found = []
    for base, following in pairs:
        try:
            end = _end_of(fs, directory, base, following)
        except OSError:
            continue  # deleted meanwhile; else its readers get the error
        if end is not None and end < following:
            found.append(SegmentHole(base, end, following))
    return found


def _end_of(fs: FileSystem, directory: str, base: int, following: int) -> int | None:
    """The offset after the last batch; None if that is not certain, or the segment has no batch."""
    last = _last_entry(fs, f"{directory}/{names.segment_file_name(base, names.OFFSET_INDEX_SUFFIX)}")
    with fs.open(f"{directory}/{names.segment_file_name(base, names.LOG_SUFFIX)}") as file:
        size, position, end = file.size(), last.position, -1
        batch = None
        for count, found in enumerate(HeaderScan(file, position, size)):
            header = found.header
            is_due = header.base_offset == end or (batch is None and header.last_offset == base + last.relative_offset)
            if not (is_due or (batch is None and not position and header.base_offset == base)) or count >= HEADERS_MAX:
                return None
            batch, end = found, header.next_offset
        if batch is None or batch.end != size:
            return None
        if end < following and BatchScan(file, size).batch_at(batch.position) is None:
            return None  # it is damaged, so its last offset may be wrong
        return end


def _last_entry(fs: FileSystem, path: str) -> names.OffsetEntry:
    nothing = names.OffsetEntry(0, 0)
    if not fs.exists(path):
        return nothing
    with fs.open(path) as file:
        size, entry = file.size(), names.OFFSET_ENTRY.size
        return nothing if size < entry or size % entry else names.offset_entry(file.pread(entry, size - entry), 0)
