"""Recovery behind the start: what an unclean stop left to be read is read in processes, and then served.

``num.recovery.threads.per.data.dir`` of them work side by side, each on one partition at a time, the largest first. The
loop opens what they have recovered without reading it again. A process that dies is the misfortune of the partition it
was at: that one is tried once more, in a fresh one, and is offline if that dies too. Until the broker stops, or deletes
the topic, nothing else touches the directory of a partition that is recovering.
"""

from typing import TYPE_CHECKING, Final

import structlog
import trio

from seglog_broker.recoverer_process import Recoverer
from seglog_broker.storage.recovery_job import RecoveryOutcome
from seglog_broker.tasks.checkpoint import write_checkpoints
from seglog_broker.worker import DIED, WorkerError
from seglog_protocol.errors import SeglogError

if TYPE_CHECKING:
    from seglog_broker.broker import Broker
    from seglog_broker.recoveries import Recovery

log = structlog.get_logger()

DEATHS_MAX: Final = 2
"""Processes that a partition may cost."""

CHECKPOINT_SECONDS: Final = 1.0
"""Between two writes of the checkpoints while partitions are recovered: what they name is not read after another crash,
and where thousands are small, the files are not written for each of them."""

PROGRESS_SECONDS: Final = 10.0
"""Between two lines of the log about one partition."""


async def run_recovery(broker: "Broker") -> None:
    """Recover what is to be recovered, and return."""
    recoveries = broker.recoveries
    if not recoveries:
        return
    began = trio.current_time()
    processes = min(broker.config.num_recovery_threads_per_data_dir, len(recoveries))
    log.info("recovery_started", partitions=len(recoveries), bytes=recoveries.bytes, processes=processes)
    async with trio.open_nursery() as nursery:
        for _ in range(processes):
            nursery.start_soon(_recover_many, broker)
    log.info(
        "recovery_finished",
        partitions=recoveries.partitions,
        bytes=recoveries.bytes,
        seconds=round(trio.current_time() - began, 3),
    )


async def _recover_many(broker: "Broker") -> None:
    descriptors = broker.directory.worker_descriptors
    async with broker.offload.recoverer(broker.fs, broker.clock, descriptors) as recoverer:
        while (recovery := await broker.recoveries.next()) is not None:
            scope = broker.recoveries.begin(recovery)
            try:
                with scope:
                    outcome = await _outcome_of(broker, recoverer, recovery)
                    if outcome is not None:
                        _serve(broker, recovery, outcome)
            finally:
                broker.recoveries.leave(recovery)
            if trio.current_time() - broker.recoveries.saved_at >= CHECKPOINT_SECONDS or not broker.recoveries:
                broker.recoveries.saved_at = trio.current_time()
                await write_checkpoints(broker)


async def _outcome_of(broker: "Broker", recoverer: Recoverer, recovery: "Recovery") -> RecoveryOutcome | None:
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
        return await recoverer.recover(recovery.job, progress)
    except WorkerError as error:
        recovery.deaths += error.kind == DIED
        reason, again = error.message, error.kind == DIED and recovery.deaths < DEATHS_MAX
    except OSError as error:  # no process could be started
        recovery.deaths += 1
        reason, again = str(error), recovery.deaths < DEATHS_MAX
    if again:
        log.warning("recovery_interrupted", topic=recovery.topic, partition=recovery.partition, reason=reason)
    else:
        _give_up(broker, recovery, reason)
    return None


def _serve(broker: "Broker", recovery: "Recovery", outcome: RecoveryOutcome) -> None:
    try:
        partition_log = broker.directory.finish_recovery(recovery.key, outcome)
    except (OSError, SeglogError) as error:
        _give_up(broker, recovery, str(error))
        return
    broker.recoveries.done(recovery)
    broker.metrics.partitions_recovered += 1
    tell_recovered(recovery.key, outcome)
    broker.serve_logs({recovery.key: partition_log})


def _give_up(broker: "Broker", recovery: "Recovery", reason: str) -> None:
    reason = f"it could not be recovered: {reason.rstrip('.')}; the next start tries again, `seglogd check` tells more"
    broker.directory.give_up_recovery(recovery.key, reason)
    broker.recoveries.done(recovery)
    log.error("partition_offline", topic=recovery.topic, partition=recovery.partition, reason=reason)


def tell_recovered(key: tuple[str, int], outcome: RecoveryOutcome) -> None:
    """Log what the recovery of a partition found."""
    facts = dict(zip(("topic", "partition"), key, strict=True))
    if outcome.rebuilt_indexes:
        log.info("indexes_rebuilt", **facts, segments=outcome.rebuilt_indexes)
    loss = outcome.cut_bytes or outcome.damaged
    (log.warning if loss else log.info)(
        "partition_recovered",
        **facts,
        end_offset=outcome.end_offset,
        scanned_bytes=outcome.scanned_bytes,
        cut_bytes=outcome.cut_bytes,
        damaged=[(d.start_offset, d.end_offset, d.reason) for d in outcome.damaged],
    )
