"""Recovery while the broker serves: worker processes recover the partitions that an unclean stop left.

``num.recovery.threads.per.data.dir`` processes work side by side, each on one partition at a time, the largest first.
The loop then opens the recovered log without reading it again. If a process dies, its partition is tried once more, in
another process; if that dies too, the partition is offline. If the disk has no room for a recovery, the partition is
read-only (``ReadOnlyView``) until there is room, and is then recovered.

Only its process uses the directory of a partition that is being recovered, until the broker stops or deletes the topic.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.checkpoint_writer import CheckpointWriter
from seglog_broker.partitions.recoveries import Recovery, Views, log_recovered
from seglog_broker.partitions.scheduler import Service
from seglog_broker.storage.io.free_space import Room
from seglog_broker.storage.io.os_errors import is_no_room, why
from seglog_broker.storage.log.recovery_job import ReadOnlyView, RecoveryOutcome
from seglog_broker.workers.jobs import RECOVERY
from seglog_broker.workers.messages import DIED, NO_ROOM, WorkerError
from seglog_broker.workers.pool import Workers
from seglog_protocol.errors import SeglogError

log = get_logger()

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


@dataclass(eq=False, repr=False)
class CrashRecovery(Service):
    """Recovers all partitions of ``recoveries``."""

    views: Views
    checkpoints: CheckpointWriter

    async def run(self) -> None:
        """Recover all partitions, and return."""
        recoveries = self._recoveries
        if not recoveries:
            return
        began = trio.current_time()
        processes = min(self._config.current.num_recovery_threads_per_data_dir, len(recoveries))
        log.info("recovery_started", partitions=len(recoveries), bytes=recoveries.bytes, processes=processes)
        async with trio.open_nursery() as outer:
            outer.start_soon(self._watch_room)
            async with trio.open_nursery() as nursery:
                for _ in range(processes):
                    nursery.start_soon(self._recover_many)
            outer.cancel_scope.cancel()
        log.info(
            "recovery_finished",
            partitions=recoveries.partitions,
            bytes=recoveries.bytes,
            seconds=round(trio.current_time() - began, 3),
        )

    async def _recover_many(self) -> None:
        """Recover partitions with one worker process, until none is left."""
        descriptors = self._directory.lock.hold.descriptors
        async with self._offload.recoverer(self._fs, self._clock, descriptors) as recoverer:
            while (recovery := await self._recoveries.next()) is not None:
                scope = self._recoveries.begin(recovery)
                try:
                    with scope:
                        outcome = await self._recover(recoverer, recovery)
                        if outcome is not None:
                            await self._serve(recovery, outcome)
                finally:
                    self._recoveries.leave(recovery)
                if trio.current_time() - self._recoveries.saved_at >= CHECKPOINT_SECONDS or not self._recoveries:
                    self._recoveries.saved_at = trio.current_time()
                    await self.checkpoints.write()

    async def _recover(self, recoverer: Workers, recovery: Recovery) -> RecoveryOutcome | None:
        """Have a worker recover one partition. None if it failed: then it will be tried again, or is offline."""
        recovery.logged_at = trio.current_time()

        def progress(count: int) -> None:
            recovery.read_bytes += count
            self._metrics.recovery_bytes += count
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
                await self._postpone(recovery, error.message)
                return None
            recovery.deaths += error.kind == DIED
            reason, again = error.message, error.kind == DIED and recovery.deaths < DEATHS_MAX
        except OSError as error:  # no process could be started
            recovery.deaths += 1
            reason, again = why(error), recovery.deaths < DEATHS_MAX
        if again:
            log.warning("recovery_interrupted", topic=recovery.topic, partition=recovery.partition, reason=reason)
        else:
            self._give_up(recovery, reason)
        return None

    async def _postpone(self, recovery: Recovery, reason: str) -> None:
        """Serve a partition read-only until the disk has room for its recovery."""
        is_first_time = recovery.lacked_room is None
        space = self._directory.space
        try:
            room = await self._offload.maintenance(space.measure)
        except OSError:
            room = Room(0, None)
        self._recoveries.postpone(recovery, reason, room)
        if space.ballast:  # frees space for this
            with suppress(OSError):
                await self._offload.maintenance(space.give_up_ballast)
                log.warning("ballast_removed", bytes=space.marks.ballast)
        if is_first_time:
            facts = {"topic": recovery.topic, "partition": recovery.partition, "reason": reason}
            log.warning(
                "recovery_waiting_for_space", **facts, consequence="it is read-only until there is room on the disk"
            )
        if recovery.key in self.views:
            return
        config = self._directory.partitions.config_of(self._directory.registry.topics[recovery.topic])
        try:
            # In a thread, although it computes as well: a process could not return the view.
            view = await self._offload.cold_read(ReadOnlyView, self._fs, self._clock, recovery.job, config)
        except (OSError, SeglogError) as error:
            log.warning("partition_not_readable", topic=recovery.topic, partition=recovery.partition, reason=why(error))
        else:
            self._table.serve_view(recovery.key, view)

    async def _watch_room(self) -> None:
        """Resume recoveries that found no room, when more space is free."""
        space, recoveries = self._directory.space, self._recoveries
        pause, tried_at = ROOM_SECONDS, trio.current_time()
        while True:
            await trio.sleep(ROOM_SECONDS)
            if not recoveries.postponed or recoveries.room is None:
                continue
            try:
                room = await self._offload.maintenance(space.measure)
            except OSError:
                continue
            before = recoveries.room
            has_more = room.free >= before.free + ROOM_BYTES_MIN or room.inodes_free > before.inodes_free
            recoveries.room = before.minimum(room)
            waited = trio.current_time() - tried_at
            if (has_more and waited >= pause) or waited >= RETRY_SECONDS:
                pause, tried_at = min(2 * pause, RETRY_SECONDS), trio.current_time()
                recoveries.resume()

    async def _serve(self, recovery: Recovery, outcome: RecoveryOutcome) -> None:
        try:
            partition_log = self._directory.finish_recovery(recovery.key, outcome)
        except (OSError, SeglogError) as error:
            if is_no_room(error):
                await self._postpone(recovery, why(error))
            else:
                self._give_up(recovery, why(error))
            return
        self._recoveries.done(recovery)
        self._metrics.partitions_recovered += 1
        log_recovered(recovery.key, outcome)
        self._table.serve([self._table.partition_of(recovery.key, partition_log)])
        self.views.end([recovery.key])

    def _give_up(self, recovery: Recovery, reason: str) -> None:
        reason = (
            f"it could not be recovered: {reason.rstrip('.')}; the next start tries again. Before it, "
            f"`seglogd check {self._directory.path}` says what is wrong"
        )
        self._directory.partitions.give_up_recovery(recovery.key, reason)
        self._recoveries.done(recovery)
        log.error("partition_offline", topic=recovery.topic, partition=recovery.partition, reason=reason)
