"""Recovery behind the start: what an unclean stop left to be read is read in processes, and then served.

``num.recovery.threads.per.data.dir`` of them work side by side, each on one partition at a time, the largest first. The
loop opens what they have recovered without reading it again. A process that dies is the misfortune of the partition it
was at: that one is tried once more, in a fresh one, and is offline if that dies too. Where the disk has no room for a
recovery, its partition is read-only meanwhile (``ReadOnlyView``) and is recovered when there is some.

Until the broker stops, or deletes
the topic, nothing else touches the directory of a partition that is recovering.
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
"""Processes that a partition may cost."""

CHECKPOINT_SECONDS: Final = 1.0
"""Between two writes of the checkpoints while partitions are recovered: what they name is not read after another crash,
and where thousands are small, the files are not written for each of them."""

ROOM_SECONDS: Final = 1.0
"""Between two looks at the disk while recoveries wait for room on it."""

ROOM_BYTES_MIN: Final = 4096
"""By how much more must be free before they are tried again: each attempt reads the log's end again. Attempts that fail
again come in growing distances."""

RETRY_SECONDS: Final = 60.0
"""After which they are tried again in any case, and the longest distance."""

PROGRESS_SECONDS: Final = 10.0
"""Between two lines of the log about one partition."""


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
    """Recover what is to be recovered, and return."""
    recoveries = broker.recoveries
    if not recoveries:
        return
    began = trio.current_time()
    processes = min(broker.config.num_recovery_threads_per_data_dir, len(recoveries))
    log.info("recovery_started", partitions=len(recoveries), bytes=recoveries.bytes, processes=processes)
    async with trio.open_nursery() as beside:
        beside.start_soon(_watch_room, broker)
        async with trio.open_nursery() as nursery:
            for _ in range(processes):
                nursery.start_soon(_recover_many, broker)
        beside.cancel_scope.cancel()
    log.info(
        "recovery_finished",
        partitions=recoveries.partitions,
        bytes=recoveries.bytes,
        seconds=round(trio.current_time() - began, 3),
    )


async def _recover_many(broker: Services) -> None:
    descriptors = broker.directory.lock.worker_descriptors
    async with broker.offload.recoverer(broker.fs, broker.clock, descriptors) as recoverer:
        while (recovery := await broker.recoveries.next()) is not None:
            scope = broker.recoveries.begin(recovery)
            try:
                with scope:
                    outcome = await _outcome_of(broker, recoverer, recovery)
                    if outcome is not None:
                        await _serve(broker, recovery, outcome)
            finally:
                broker.recoveries.leave(recovery)
            if trio.current_time() - broker.recoveries.saved_at >= CHECKPOINT_SECONDS or not broker.recoveries:
                broker.recoveries.saved_at = trio.current_time()
                await broker.checkpoints.write()


async def _outcome_of(broker: Services, recoverer: Workers, recovery: Recovery) -> RecoveryOutcome | None:
    """None when it is not done; then it is tried again, or has been given up."""
    recovery.told_at = trio.current_time()

    def progress(count: int) -> None:
        recovery.read_bytes += count
        broker.metrics.recovery_bytes += count
        now = trio.current_time()
        if now - recovery.told_at >= PROGRESS_SECONDS:
            recovery.told_at = now
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
    """Serve what can be read, until there is room for the recovery of a partition."""
    is_news = recovery.lacked_room is None
    space = broker.directory.space
    try:
        room = await broker.offload.maintenance(space.ask)
    except OSError:
        room = Room(0, None)
    broker.recoveries.postpone(recovery, reason, room)
    if space.ballast:  # it is there for this
        with suppress(OSError):
            await broker.offload.maintenance(space.give_up_ballast)
            log.warning("ballast_given_up", bytes=space.marks.ballast)
    if is_news:
        facts = {"topic": recovery.topic, "partition": recovery.partition, "reason": reason}
        log.warning("recovery_lacks_room", **facts, consequence="it is read-only until there is room on the disk")
    if recovery.key in broker.views:
        return
    config = broker.directory.partitions.config_of(broker.directory.registry.topics[recovery.topic])
    try:
        # It computes as well as reads, in a thread nevertheless: a process could not return what it found.
        view = await broker.offload.cold_read(ReadOnlyView, broker.fs, broker.clock, recovery.job, config)
    except (OSError, SeglogError) as error:
        log.warning("partition_not_readable", topic=recovery.topic, partition=recovery.partition, reason=why(error))
    else:
        broker.partitions.serve_view(recovery.key, view)


async def _watch_room(broker: Services) -> None:
    """Have recoveries that lacked room tried again when there is more of it."""
    space, recoveries = broker.directory.space, broker.recoveries
    pause, tried_at = ROOM_SECONDS, trio.current_time()
    while True:
        await trio.sleep(ROOM_SECONDS)
        if not recoveries.postponed or recoveries.room is None:
            continue
        try:
            room = await broker.offload.maintenance(space.ask)
        except OSError:
            continue
        before = recoveries.room
        has_more = room.free >= before.free + ROOM_BYTES_MIN or room.inodes_free > before.inodes_free
        recoveries.room = before.least(room)
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
    broker.partitions.serve({recovery.key: partition_log})
    broker.views.end([recovery.key])


def _give_up(broker: Services, recovery: Recovery, reason: str) -> None:
    reason = f"it could not be recovered: {reason.rstrip('.')}; the next start tries again, `seglogd check` tells more"
    broker.directory.partitions.give_up_recovery(recovery.key, reason)
    broker.recoveries.done(recovery)
    log.error("partition_offline", topic=recovery.topic, partition=recovery.partition, reason=reason)
