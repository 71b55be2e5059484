"""Retention: every ``log.retention.check.interval.ms`` the oldest segments that nobody needs any more leave their logs.

Which those are is decided in ``storage.retention``. A segment leaves in this order, so that a crash at any moment
leaves a log without a hole: out of memory (from now on its offsets are out of range), log start checkpoint, names,
and after ``file.delete.delay.ms`` the disk.
"""

from typing import TYPE_CHECKING, Final

import structlog
import trio

from seglog_broker.storage.doomed import DoomedSegments
from seglog_broker.storage.retention import DeletionRule, Verdict
from seglog_broker.storage.segment import Segment
from seglog_broker.tasks.boundary import TaskBoundary
from seglog_broker.tasks.checkpoint import write_checkpoints
from seglog_broker.tasks.deletion import Deletion

if TYPE_CHECKING:
    from seglog_broker.broker import Broker
    from seglog_broker.partition import Partition

log = structlog.get_logger()

CLOCK_LEAP_MS_MAX: Final = 60_000
"""By how much the wall clock may run ahead of the loop's between two checks. If it leapt further, nothing expires by
age at that check: a clock that is put right again meanwhile has then cost no data."""

_PARTITIONS_AT_A_TIME: Final = 64
"""Shortened with one writing of the checkpoints."""


async def run_retention(broker: "Broker") -> None:
    """Check at a fixed rhythm, first ``log.initial.task.delay.ms`` after the start."""
    boundary = TaskBoundary("retention")
    interval = broker.config.log_retention_check_interval_ms / 1000
    watch = ClockWatch(broker)
    next_check = trio.current_time() + broker.config.log_initial_task_delay_ms / 1000
    while True:
        await trio.sleep_until(next_check)
        leap = watch.leap_ms()
        if leap > CLOCK_LEAP_MS_MAX:
            log.warning("clock_leapt", milliseconds=leap, consequence="nothing expires by age at this check")
        await check_retention(broker, boundary, by_age=leap <= CLOCK_LEAP_MS_MAX)
        while next_check <= trio.current_time():  # the rhythm is kept: explain counts on it
            next_check += interval


class ClockWatch:
    """Compares the wall clock with the loop's, which cannot be set."""

    def __init__(self, broker: "Broker") -> None:
        self._clock = broker.clock
        self._wall_ms = self._clock.now_ms()
        self._loop = trio.current_time()

    def leap_ms(self) -> int:
        """Milliseconds by which the wall clock ran ahead since the last call; negative when it fell behind."""
        wall_ms, loop = self._clock.now_ms(), trio.current_time()
        leap = wall_ms - self._wall_ms - round((loop - self._loop) * 1000)
        self._wall_ms, self._loop = wall_ms, loop
        return leap


async def check_retention(broker: "Broker", boundary: TaskBoundary, *, by_age: bool = True) -> None:
    """Look at every partition once; those that are being compacted are looked at when that is done."""
    partitions = list(broker.partitions.values())
    for start in range(0, len(partitions), _PARTITIONS_AT_A_TIME):
        await shorten(broker, partitions[start : start + _PARTITIONS_AT_A_TIME], boundary, by_age=by_age)


async def shorten(
    broker: "Broker", partitions: "list[Partition]", boundary: TaskBoundary, *, by_age: bool = True
) -> None:
    """Take the segments that retention does not keep out of these logs."""
    shortened: list[tuple[Partition, DoomedSegments]] = []

    async def look(partition: "Partition") -> None:
        going = await broker.warmed(lambda: _going(partition, by_age=by_age))
        if not going:
            partition.maintenance.release()
            return
        for segment, verdict in going:
            _tell(partition, segment, verdict)
        shortened.append((partition, partition.log.drop_oldest(len(going))))

    try:
        for partition in partitions:
            if partition.is_being_cleaned:
                continue
            try:
                partition.maintenance.acquire_nowait()
            except trio.WouldBlock:
                continue
            if not await boundary.run(partition, look):
                partition.maintenance.release()
        if shortened:
            # Where it cannot be written, a power cut between two changes of names leaves a hole below the log start:
            # no reason to keep what is to go, least of all on a full disk.
            await write_checkpoints(broker)
            for partition, doomed in shortened:
                await _set_aside(broker, boundary, partition, doomed)
    finally:
        for partition, _ in shortened:
            partition.maintenance.release()


def _going(partition: "Partition", *, by_age: bool) -> list[tuple[Segment, Verdict]]:
    going = []
    for segment, verdict in partition.log.judge_segments():
        if verdict.rule is None or (verdict.rule is DeletionRule.TIME and not by_age):
            break
        going.append((segment, verdict))
    return going


def _tell(partition: "Partition", segment: Segment, verdict: Verdict) -> None:
    age = verdict.age if verdict.rule is DeletionRule.TIME else None
    log.info(
        "segment_expired",
        topic=partition.topic,
        partition=partition.number,
        base_offset=segment.base_offset,
        bytes=segment.size,
        rule=str(verdict.rule),
        **({} if age is None else {"newest_ms": age.since_ms, "newest_by": str(age.source)}),
    )
    if age is not None and age.warning is not None:
        log.warning("age_doubtful", topic=partition.topic, partition=partition.number, reason=age.warning)


async def _set_aside(broker: "Broker", boundary: TaskBoundary, partition: "Partition", doomed: DoomedSegments) -> None:
    async def work(partition: "Partition") -> None:
        await broker.offload.maintenance(doomed.set_aside)
        partition.log.note_set_aside()

    def remove() -> int:
        doomed.set_aside()  # again, for what failed the first time
        return doomed.remove()

    await boundary.run(partition, work)
    what = f"{len(doomed.base_offsets)} segments of {partition.topic}-{partition.number}"
    broker.deletions.add(Deletion(what, remove, partition), partition.log.config.file_delete_delay_ms / 1000)
