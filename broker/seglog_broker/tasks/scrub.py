"""The scrub: closed segments are read from end to end, time and again, to find damage while a backup is young.

A process of its own (``workers``) does the reading, at ``seglog.scrub.bytes.per.second``, and judges by the
rules of ``seglogd check``: whole-file checksums, batches, offsets, indexes. Here the loop draws the conclusions: damage
is noted, so that it is served around and named; a wrong index is replaced by a right one; a segment without a checksum
gets one, when every batch in it is proven. What cannot be helped is told by ``ping`` until a later pass finds it gone.
"""

from bisect import bisect_right
from contextlib import suppress
from typing import Protocol

import structlog
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.task_boundary import TaskBoundary
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.segment.checksum import checksum_path
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_broker.workers.jobs.scrub_job import ScrubJob, ScrubVerdict
from seglog_broker.workers.jobs.scrubber import SCRUB
from seglog_broker.workers.messages import STORAGE, WorkerError
from seglog_broker.workers.pool import Workers
from seglog_protocol.errors import StorageError
from seglog_protocol.segment_files import TEMPORARY_SUFFIX, segment_file_name

log = structlog.get_logger()


class Services(Protocol):
    """What this task uses of the broker."""

    clock: Clock
    directory: LogDirectory
    fs: FileSystem
    live_config: LiveConfig
    metrics: Metrics
    offload: Offload
    partitions: PartitionTable

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        ...


async def run_scrubs(broker: Services) -> None:
    """Every ``seglog.scrub.interval.ms``, first ``log.initial.task.delay.ms`` after the start."""
    boundary = TaskBoundary("scrub")
    may_begin = trio.current_time() + broker.config.log_initial_task_delay_ms / 1000
    while True:
        await _until_on(broker)
        await trio.sleep_until(may_begin)
        began = trio.current_time()
        await scrub_all(broker, boundary)
        await broker.live_config.sleep(lambda: broker.config.seglog_scrub_interval_ms / 1000, since=began)


async def _until_on(broker: Services) -> None:
    if not broker.config.seglog_scrub_bytes_per_second:
        log.info("scrub_is_off", consequence="damage is found by who reads it")
    while not broker.config.seglog_scrub_bytes_per_second:
        await broker.live_config.wait()


async def scrub_all(broker: Services, boundary: TaskBoundary) -> None:
    """One pass."""
    metrics, began = broker.metrics, trio.current_time()
    before = metrics.scrubbed_segments, metrics.scrubbed_bytes, metrics.scrub_findings
    partitions = list(broker.partitions.values())
    async with broker.offload.scrubber(broker.fs) as scrubber:
        for number, partition in enumerate(partitions):
            metrics.scrub_pass_ratio = number / len(partitions)
            await trio.lowlevel.checkpoint()
            await boundary.run(partition, _PartitionScrub(broker, scrubber).run)
    metrics.scrub_pass_ratio = 1.0
    metrics.scrub_passes += 1
    metrics.scrub_last_pass_ms = broker.clock.now_ms()
    log.info(
        "scrub_pass_finished",
        segments=metrics.scrubbed_segments - before[0],
        bytes=metrics.scrubbed_bytes - before[1],
        findings=metrics.scrub_findings - before[2],
        seconds=round(trio.current_time() - began, 3),
    )


class _PartitionScrub:
    def __init__(self, broker: Services, scrubber: Workers) -> None:
        self._broker = broker
        self._scrubber = scrubber

    async def run(self, partition: Partition) -> None:
        """Every segment that is closed now and stays in the log until its turn comes."""
        bases = partition.log.segments.bases[:-1]
        left = set(bases)
        partition.findings = {base: what for base, what in partition.findings.items() if base in left}
        for base in bases:
            if partition.is_deleted or not self._broker.config.seglog_scrub_bytes_per_second:
                return
            segment = partition.log.segments.at(base)
            if segment is not None and _next_base(partition, segment) is not None:
                await self._scrub(partition, segment)

    async def _scrub(self, partition: Partition, segment: Segment) -> None:
        try:
            verdict = await self._scrubber.run(SCRUB, self._job(partition, segment))
        except WorkerError as error:
            if partition.is_deleted or _next_base(partition, segment) is None:
                return
            if error.kind != STORAGE:
                raise StorageError(f"the segment {segment.log_path} was not read: {why(error)}") from error
            self._tell(partition, segment, f"{segment.log_path} could not be read: {error.message}")
            return
        # Meanwhile the segment may have been compacted or deleted, and others may bear its names.
        if partition.is_deleted or _next_base(partition, segment) is None:
            await self._broker.offload.maintenance(_remove_remade, self._broker.fs, segment, verdict)
            return
        self._broker.metrics.scrubbed_segments += 1
        self._broker.metrics.scrubbed_bytes += verdict.measured.size
        self._apply(partition, segment, verdict)
        if verdict.damaged:
            await partition.save_state()

    def _job(self, partition: Partition, segment: Segment) -> ScrubJob:
        config, next_base = partition.log.config, _next_base(partition, segment)
        assert next_base is not None, "the segment is in the log, and closed"
        known = self._broker.directory.registry.topics.get(partition.topic)
        return ScrubJob(
            partition.log.directory,
            segment.base_offset,
            next_base,
            index_interval=config.index_interval_bytes,
            index_bytes_max=config.segment_index_bytes,
            is_adopted=known is not None and bool(known.notes),
            bytes_per_second=self._broker.config.seglog_scrub_bytes_per_second,
        )

    def _apply(self, partition: Partition, segment: Segment, verdict: ScrubVerdict) -> None:
        """Draw the consequences. OSError, StorageError: some of them are left to the next pass."""
        facts = {"topic": partition.topic, "partition": partition.number, "segment": segment.base_offset}
        for damage in partition.log.note_damage(verdict.damaged):
            self._broker.metrics.scrub_findings += 1
            log.error(
                "damage_found",
                **facts,
                start_offset=damage.start_offset,
                end_offset=damage.end_offset,
                position=damage.position,
                end_position=damage.end_position,
            )
        what = _what_is_wrong(partition, segment, verdict)
        if what is None:
            partition.findings.pop(segment.base_offset, None)
        else:
            self._tell(partition, segment, what)
        if what is None and verdict.said != verdict.measured and (verdict.said is None) != bool(verdict.damaged):
            # Proven and not covered so far, or by a checksum of the log without its damage.
            segment.checksum.begin(verdict.measured)
            segment.checksum.save()
        if verdict.index_problems:
            self._broker.metrics.scrub_findings += 1
            log.warning("index_wrong", **facts, reason="; ".join(verdict.index_problems), remade=len(verdict.remade))
        if verdict.remade:
            partition.log.replace_indexes(segment, verdict.remade)

    def _tell(self, partition: Partition, segment: Segment, what: str) -> None:
        if partition.findings.get(segment.base_offset) != what:
            self._broker.metrics.scrub_findings += 1
            partition.findings[segment.base_offset] = what
            log.error("scrub_finding", topic=partition.topic, partition=partition.number, what=what)


def _next_base(partition: Partition, segment: Segment) -> int | None:
    """Where the segment behind a closed one begins; None: it is none of the closed segments of the log any more."""
    segments = partition.log.segments
    behind = bisect_right(segments.bases, segment.base_offset)
    is_there = 0 < behind < len(segments) and segments[behind - 1] is segment
    return segments.bases[behind] if is_there else None


def _what_is_wrong(partition: Partition, segment: Segment, verdict: ScrubVerdict) -> str | None:
    """What cannot be served around: the end of a sentence, None when there is nothing."""
    said, measured = verdict.said, verdict.measured
    if segment.size != measured.size:
        return f"{segment.log_path} has {measured.size} bytes, and had {segment.size} when it was first looked at"
    if said is not None and said != measured and not verdict.damaged:
        path = checksum_path(segment.directory, segment.base_offset)
        return (
            f"{segment.log_path} is not what it was when it was closed ({path}), and every batch in it is right by "
            "itself: an offset or a leader epoch has changed; see seglogd check"
        )
    for hole in verdict.missing:
        if not _is_explained(partition, hole):
            return f"offsets {hole.start_offset} to {hole.end_offset - 1} are in no batch of {segment.log_path}"
    return None


def _is_explained(partition: Partition, hole: DamagedRange) -> bool:
    """Whether compaction took the offsets, or may have, or they are known to be missing."""
    state = partition.log.state
    return (
        hole.end_offset <= state.compacted_before
        or "compact" in partition.log.config.cleanup_policy
        or any(d.start_offset <= hole.start_offset and hole.end_offset <= d.end_offset for d in state.damaged)
    )


def _remove_remade(fs: "FileSystem", segment: Segment, verdict: ScrubVerdict) -> None:
    for suffix in verdict.remade:
        with suppress(OSError):
            name = segment_file_name(segment.base_offset, suffix)
            fs.unlink(f"{segment.directory}/{name}{TEMPORARY_SUFFIX}")
