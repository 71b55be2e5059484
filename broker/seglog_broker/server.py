"""The daemon around the broker: what is started in which order, and stopped in which.

lock and load the log directory -> listen -> background tasks -> accept connections
stop accepting -> drain connections -> stop background tasks -> checkpoints, clean marker, unlock
"""

from typing import Final

import structlog
import trio

from seglog_broker.broker import Broker
from seglog_broker.config import BrokerConfig
from seglog_broker.listeners.native import addresses_of, open_listeners, serve_native
from seglog_broker.metrics import watch_stalls
from seglog_broker.offload import Offload
from seglog_broker.storage.clock import Clock
from seglog_broker.storage.filesystem import FileSystem
from seglog_broker.tasks.checkpoint import run_checkpoints
from seglog_broker.tasks.compaction import run_compaction
from seglog_broker.tasks.deletion import run_deletions
from seglog_broker.tasks.flush import run_flushes
from seglog_broker.tasks.free_space import run_free_space
from seglog_broker.tasks.presence import run_presence
from seglog_broker.tasks.producers import run_producer_expiry
from seglog_broker.tasks.recovery import run_recovery
from seglog_broker.tasks.resting import run_resting
from seglog_broker.tasks.retention import run_retention
from seglog_broker.tasks.roll import run_rolls
from seglog_broker.tasks.scrub import run_scrubs
from seglog_broker.version import VERSION

TASKS: Final = (
    run_recovery,
    run_checkpoints,
    run_rolls,
    run_retention,
    run_compaction,
    run_deletions,
    run_flushes,
    run_free_space,
    run_presence,
    run_resting,
    run_scrubs,
    run_producer_expiry,
)
"""What works in the background, each until it is cancelled or, as the first, has done its work."""

log = structlog.get_logger()


async def serve(
    config: BrokerConfig,
    *,
    fs: FileSystem,
    clock: Clock,
    offload: Offload,
    listen: str | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled, and then stop it in good order; started with the addresses it listens on.

    ``listen`` is used in place of ``seglog.listen``. Cancelling is *the* way to stop: connections get a few seconds to
    finish what is under way, a running fsync is waited for. Loading is synchronous: a cancellation shows after it.

    Raises LogDirectoryError when the directory cannot be used, ListenError when the address cannot; an exception of a
    background task that is a bug ends the broker, the rest of which stops in the same order.
    """
    began = trio.current_time()
    log.info("broker_starting", version=VERSION, log_dir=config.log_dir)
    broker = Broker.open(config, fs, clock, offload)
    try:
        listeners = await open_listeners(config.seglog_listen if listen is None else listen)
        tasks = trio.CancelScope(shield=True)
        running = trio.Event()
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(_run_tasks, broker, tasks, running)
                await running.wait()
                addresses = addresses_of(listeners)
                log.info(
                    "broker_ready",
                    listen=", ".join(addresses),
                    topics=len({topic for topic, _ in broker.partitions}),
                    partitions=len(broker.partitions),
                    **({"recovering": len(broker.recoveries)} if broker.recoveries else {}),
                    seconds=round(trio.current_time() - began, 3),
                )
                task_status.started(addresses)
                await serve_native(broker, listeners)  # cancelled: stops accepting, drains, returns
            finally:
                for listener in listeners:
                    listener.socket.close()  # when it did not come to serving
                log.info("broker_stopping")
                tasks.cancel()  # only now: the last acks needed the flusher
    finally:
        broker.close()
        log.info("broker_stopped")


async def _run_tasks(broker: Broker, scope: trio.CancelScope, running: trio.Event) -> None:
    """Run the broker's own tasks, deaf to everything but ``scope``: they must outlive the connections they serve."""
    with scope, watch_stalls(broker.metrics):
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.waiting_room.run)
            for task in TASKS:
                nursery.start_soon(task, broker)
            running.set()
