"""Recovery while the broker serves: worker processes recover the partitions that an unclean stop left.

``num.recovery.threads.per.data.dir`` processes work side by side, each on one partition at a time, the largest first.
The loop then opens the recovered log without reading it again. If a process dies, its partition is tried once more, in
another process; if that dies too, the partition is offline. If the disk has no room for a recovery, the partition is
read-only (``ReadOnlyView``) until there is room, and is then recovered.

Only its process uses the directory of a partition that is being recovered, until the broker stops or deletes the topic.
"""

from contextlib import suppress
from typing import Final, Protocol

import structlog
import trio

from seglog_broker.config import BrokerConfig
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.read_only_views import Views
from seglog_broker.partitions.recoveries import Recoveries, Recovery, log_recovered
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.free_space import Room
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_broker.storage.log.read_only_view import ReadOnlyView
from seglog_broker.storage.log.recovery_job import RecoveryOutcome
from seglog_broker.workers.jobs.recoverer import RECOVERY
from seglog_broker.workers.messages import DIED, NO_ROOM, WorkerError
from seglog_broker.workers.pool import Workers
from seglog_protocol.errors import SeglogError

log = structlog.get_logger()

DEATHS_MAX: Final = 2
"""Processes that may die over one partition, before it is offline."""

CHECKPOINT_SECONDS: Final = 1.0
"""Time between two writes of the checkpoints while partitions are recovered. After another crash, partitions in them
are not read again; writing them for each of thousands of small partitions would take too long."""

ROOM_SECONDS: Final = 1.0
"""Time between two measurements of the free space while recoveries wait for room."""

ROOM_BYTES_MIN: Final = 4096
"""How much more space must be free before these recoveries are tried again, because each attempt reads the end of the
log again. After each failure the next attempt waits longer."""

RETRY_SECONDS: Final = 60.0
"""The longest time between two attempts; then they are made even if no more space is free."""

PROGRESS_SECONDS: Final = 10.0
"""Time between two lines of progress about one partition in the log."""


class Services(Protocol):
    """What this task uses of the broker."""

    checkpoints: CheckpointWriter
    clock: Clock
    directory: LogDirectory
    fs: FileSystem
    metrics: Metrics
    offload: Offload
    partitions: PartitionTable
    recoveries: Recoveries
    views: Views

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force."""
        ...


async def run_recovery(broker: Services) -> None:
    """Recover all partitions of ``broker.recoveries``, and return."""
    recoveries = broker.recoveries
    if not recoveries:
        return
    began = trio.current_time()
    processes = min(broker.config.num_recovery_threads_per_data_dir, len(recoveries))
    log.info("recovery_started", partitions=len(recoveries), bytes=recoveries.bytes, processes=processes)
    async with trio.open_nursery() as outer:
        outer.start_soon(_watch_room, broker)
        async with trio.open_nursery() as nursery:
            for _ in range(processes):
                nursery.start_soon(_recover_many, broker)
        outer.cancel_scope.cancel()
    log.info(
        "recovery_finished",
        partitions=recoveries.partitions,
        bytes=recoveries.bytes,
        seconds=round(trio.current_time() - began, 3),
    )


async def _recover_many(broker: Services) -> None:
    """Recover partitions with one worker process, until none is left."""
    descriptors = broker.directory.lock.worker_descriptors
    async with broker.offload.recoverer(broker.fs, broker.clock, descriptors) as recoverer:
        while (recovery := await broker.recoveries.next()) is not None:
            scope = broker.recoveries.begin(recovery)
            try:
                with scope:
                    outcome = await _recover(broker, recoverer, recovery)
                    if outcome is not None:
                        await _serve(broker, recovery, outcome)
            finally:
                broker.recoveries.leave(recovery)
            if trio.current_time() - broker.recoveries.saved_at >= CHECKPOINT_SECONDS or not broker.recoveries:
                broker.recoveries.saved_at = trio.current_time()
                await broker.checkpoints.write()


async def _recover(broker: Services, recoverer: Workers, recovery: Recovery) -> RecoveryOutcome | None:
    """Have a worker recover one partition. None if it failed: then it will be tried again, or is offline."""
    recovery.logged_at = trio.current_time()

    def progress(count: int) -> None:
        recovery.read_bytes += count
        broker.metrics.recovery_bytes += count
        now = trio.current_time()
        if now - recovery.logged_at >= PROGRESS_SECONDS:
            recovery.logged_at = now
            log.info(
                "recovery_progress",
                topic=recovery.topic,
                partition=recovery.partition,
                read_bytes=recovery.read_bytes,
                bytes=recovery.job.size,
            )

    try:
        return await recoverer.run(RECOVERY, recovery.job, progress=progress)
    except WorkerError as error:
        if error.kind == NO_ROOM:
            await _postpone(broker, recovery, error.message)
            return None
        recovery.deaths += error.kind == DIED
        reason, again = error.message, error.kind == DIED and recovery.deaths < DEATHS_MAX
    except OSError as error:  # no process could be started
        recovery.deaths += 1
        reason, again = why(error), recovery.deaths < DEATHS_MAX
    if again:
        log.warning("recovery_interrupted", topic=recovery.topic, partition=recovery.partition, reason=reason)
    else:
        _give_up(broker, recovery, reason)
    return None


async def _postpone(broker: Services, recovery: Recovery, reason: str) -> None:
    """Serve a partition read-only until the disk has room for its recovery."""
    is_first_time = recovery.lacked_room is None
    space = broker.directory.space
    try:
        room = await broker.offload.maintenance(space.measure)
    except OSError:
        room = Room(0, None)
    broker.recoveries.postpone(recovery, reason, room)
    if space.ballast:  # frees space for this
        with suppress(OSError):
            await broker.offload.maintenance(space.give_up_ballast)
            log.warning("ballast_removed", bytes=space.marks.ballast)
    if is_first_time:
        facts = {"topic": recovery.topic, "partition": recovery.partition, "reason": reason}
        log.warning("recovery_lacks_room", **facts, consequence="it is read-only until there is room on the disk")
    if recovery.key in broker.views:
        return
    config = broker.directory.partitions.config_of(broker.directory.registry.topics[recovery.topic])
    try:
        # In a thread, although it computes as well: a process could not return the view.
        view = await broker.offload.cold_read(ReadOnlyView, broker.fs, broker.clock, recovery.job, config)
    except (OSError, SeglogError) as error:
        log.warning("partition_not_readable", topic=recovery.topic, partition=recovery.partition, reason=why(error))
    else:
        broker.partitions.serve_view(recovery.key, view)


async def _watch_room(broker: Services) -> None:
    """Resume recoveries that found no room, when more space is free."""
    space, recoveries = broker.directory.space, broker.recoveries
    pause, tried_at = ROOM_SECONDS, trio.current_time()
    while True:
        await trio.sleep(ROOM_SECONDS)
        if not recoveries.postponed or recoveries.room is None:
            continue
        try:
            room = await broker.offload.maintenance(space.measure)
        except OSError:
            continue
        before = recoveries.room
        has_more = room.free >= before.free + ROOM_BYTES_MIN or room.inodes_free > before.inodes_free
        recoveries.room = before.minimum(room)
        waited = trio.current_time() - tried_at
        if (has_more and waited >= pause) or waited >= RETRY_SECONDS:
            pause, tried_at = min(2 * pause, RETRY_SECONDS), trio.current_time()
            recoveries.resume()


async def _serve(broker: Services, recovery: Recovery, outcome: RecoveryOutcome) -> None:
    try:
        partition_log = broker.directory.finish_recovery(recovery.key, outcome)
    except (OSError, SeglogError) as error:
        if is_no_room(error):
            await _postpone(broker, recovery, why(error))
        else:
            _give_up(broker, recovery, why(error))
        return
    broker.recoveries.done(recovery)
    broker.metrics.partitions_recovered += 1
    log_recovered(recovery.key, outcome)
    broker.partitions.serve([broker.partitions.partition_of(recovery.key, partition_log)])
    broker.views.end([recovery.key])


def _give_up(broker: Services, recovery: Recovery, reason: str) -> None:
    reason = (
        f"it could not be recovered: {reason.rstrip('.')}; the next start tries again. Before it, "
        f"`seglogd check {broker.directory.path}` says what is wrong"
    )
    broker.directory.partitions.give_up_recovery(recovery.key, reason)
    broker.recoveries.done(recovery)
    log.error("partition_offline", topic=recovery.topic, partition=recovery.partition, reason=reason)
