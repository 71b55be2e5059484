"""The daemon around the broker: the order of its start and of its stop.

lock and load the log directory -> listen -> background tasks -> accept connections
stop accepting -> drain connections -> stop background tasks -> checkpoints, clean marker, unlock
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.api.describe_broker import BUILD, OpenedListener
from seglog_broker.backup.configured import check_backup
from seglog_broker.config import BrokerConfig, all_listeners, http_listener, native_listener
from seglog_broker.listeners import socket_loop
from seglog_broker.listeners.acceptor import Place, addresses_of, open_all_listeners
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.listeners.serving import http_places, kafka_places, serve_http, serve_kafka, serve_native
from seglog_broker.listeners.session import Listener
from seglog_broker.logger import get_logger
from seglog_broker.partitions.waiting_fetches import run_purgatory
from seglog_broker.reloading import ReloadRequests, run_reloads
from seglog_broker.runtime import logs
from seglog_broker.runtime.descriptors import StopReserve
from seglog_broker.runtime.interpreter import describe_interpreter, run_imports
from seglog_broker.runtime.metrics import HTTP
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.service_manager import ServiceManager
from seglog_broker.runtime.stall_watch import watch_stalls
from seglog_broker.security.access_warnings import access_warnings
from seglog_broker.security.bearer_token import BearerToken, load_digest
from seglog_broker.security.tls import server_tls
from seglog_broker.storage.directory.partition_loader import LoadingStoppedError
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.tasks import resources, upkeep
from seglog_broker.tasks.awaiting import Awaiting
from seglog_broker.tasks.backups import Backups
from seglog_broker.tasks.compaction import Compaction
from seglog_broker.tasks.recovery import CrashRecovery
from seglog_broker.tasks.resources import run_certificate_watch
from seglog_broker.tasks.scrub import Scrub, run_hole_search
from seglog_broker.tasks.snapshots import SnapshotMaker, SnapshotSocket
from seglog_protocol.version import VERSION


def compaction_of(b: Broker) -> Compaction:
    """The task that compacts the partitions of a broker."""
    return Compaction(*b.common, b.expiry, b.deletions, b.checkpoints, b.cleaning_pace)


def scrub_of(b: Broker) -> Scrub:
    """The task that scrubs the partitions of a broker."""
    return Scrub(*b.common)


def snapshot_maker_of(b: Broker) -> SnapshotMaker:
    """Makes snapshots of a broker's directory."""
    return SnapshotMaker(*b.common, b.transactions.commits_held)


TASKS: Final[Mapping[str, Callable[[Broker], Awaitable[None]]]] = {
    "imports": lambda b: run_imports(b.offload),
    "recovery": lambda b: CrashRecovery(*b.common, b.views, b.checkpoints).run(),
    "hole search": lambda b: run_hole_search(b.common),
    "awaited segments": lambda b: Awaiting(*b.common).run(),
    "checkpoints": lambda b: upkeep.run_checkpoints(b.common, b.checkpoints),
    "rolls": lambda b: upkeep.run_rolls(b.common),
    "retention": lambda b: upkeep.run_retention(b.common, b.expiry, b.retention_schedule),
    "compaction": lambda b: compaction_of(b).run(),
    "deletions": lambda b: upkeep.run_deletions(b.common, b.deletions, b.remove_later),
    "flushes": lambda b: upkeep.run_background_flushes(b.partitions, b.flush_wanted),
    "free space": lambda b: resources.FreeSpaceWatch(
        *b.common, b.checkpoints, b.deletions, b.record_deletions, b.transfers
    ).run(),
    "directory watch": lambda b: resources.run_directory_watch(b.directory.lock, b.directory.path),
    "idle writers": lambda b: resources.run_idle_writers(b.idle_writers),
    "certificates": lambda b: run_certificate_watch(b.tls, b.clock),
    "measurements": lambda b: b.measurements.run(),
    "disk forecast": lambda b: b.forecast.run(),
    "scrubs": lambda b: scrub_of(b).run(),
    "snapshots": lambda b: SnapshotSocket(*b.common, snapshot_maker_of(b)).run(),
    "producer expiry": lambda b: upkeep.run_producer_expiry(b.common),
    "backups": lambda b: Backups(*b.common, b.backup).run(),
}
"""Background tasks by name, each with what it uses of the broker.

Each runs until it is cancelled; the first three also end when their work is done, the last one where there is none.
"""

LOADING_SECONDS: Final = 3.0
"""Seconds between two reports of progress while loading."""

log = get_logger()


class Serving(NamedTuple):
    """A broker that serves."""

    addresses: list[str]
    """``HOST:PORT`` of each socket for seglog's clients."""
    kafka_addresses: list[str]
    """``HOST:PORT`` of each socket for Kafka's clients."""
    broker: Broker


class LoadProgress:
    """Reports the progress of loading every few seconds, and ends it when a stop is wanted: a ``Loading``."""

    def __init__(self, log_dir: str, manager: ServiceManager, stop_wanted: Callable[[], bool]) -> None:
        self._log_dir = log_dir
        self._manager = manager
        self._stop_wanted = stop_wanted
        self._reported_at = trio.current_time()

    def __call__(self, done: int, total: int) -> None:
        """Raise LoadingStoppedError when a stop is wanted."""
        if self._stop_wanted():
            log.info("loading_stopped", partitions=done, of=total)
            raise LoadingStoppedError
        now = trio.current_time()
        if now - self._reported_at >= LOADING_SECONDS:
            self._reported_at = now
            log.info("partitions_loading", partitions=done, of=total)
            self._manager.status(f"Loading {self._log_dir}: {done} of {total} partitions")


async def serve(
    config: BrokerConfig,
    *,
    fs: FileSystem,
    clock: Clock,
    offload: Offload,
    listen: str | None = None,
    manager: ServiceManager | None = None,
    reloads: ReloadRequests | None = None,
    problems: list[str] | None = None,
    stop_wanted: Callable[[], bool] = lambda: False,
    faults: Faults | None = None,
    task_status: trio.TaskStatus[Serving] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled, then stop it in order; ``task_status`` gets what serves now, and where.

    ``listen`` replaces ``seglog.listen``. ``manager`` is notified when the broker is ready, reloads or stops.
    ``reloads`` delivers requests to reload the configuration. ``problems`` receives the reasons why a stop was not
    clean; they are logged as well. Cancel it to stop it: connections get a few seconds to finish their requests, and a
    running fsync is waited for. Loading is synchronous and cannot be cancelled; instead ``stop_wanted`` is called
    before each partition, and True ends the loading. ``faults`` interfere with
    connections and requests, in tests (``seglog_broker.testing.request_faults``).

    Raises InvalidConfigError when certificate, key, token or backup cannot, LogDirectoryError when the log directory
    cannot be used, and ListenError when the address cannot. An unexpected exception of a background task ends the
    broker; the rest of it stops in the same order.
    """
    began = trio.current_time()
    if listen is not None:
        config = dataclasses.replace(config, seglog_listen=listen)
    manager = ServiceManager() if manager is None else manager
    manager.status(f"Loading {config.log_dir}")
    log.info("broker_starting", version=VERSION, build=BUILD, python=describe_interpreter(), log_dir=config.log_dir)
    try:
        tls, token = server_tls(config), BearerToken(load_digest(config))
        check_backup(config)
        progress = LoadProgress(config.log_dir, manager, stop_wanted)
        broker = Broker.open(config, fs, clock, offload, progress, tls=tls, http_token=token)
    except LoadingStoppedError as stopped:
        manager.stopping()
        if not stopped.is_clean:
            problem = f"{config.log_dir} was being loaded when the broker was stopped"
            log.error("stop_not_clean", problem=problem)  # noqa: TRY400 - no failure of the program
            if problems is not None:
                problems.append(problem)
        log.info("broker_stopped")
        return
    logs.reconfigure(broker.config.seglog_log_format, broker.config.seglog_log_level)  # perhaps set at run time
    for warning in access_warnings(broker.config, broker.directory.accounts.names()):
        log.warning("config_warning", reason=warning)
    authority = broker.authority
    who = len(authority.super_users)
    log.info("access_mode", enforced=authority.is_enforced, acls=len(authority.rules), super_users=who)
    reserve = StopReserve()
    try:
        if faults is not None:
            faults.begin(broker)
        kind, *kinds = [Listener.of(served, broker.tls) for served in all_listeners(config)]
        if any(listener.has_sasl for listener in (kind, *kinds)):
            broker.authenticator.load_libraries()
        place = Place(native_listener(config).address, origin=config.origin("seglog.listen"))
        http = http_listener(config)
        listeners, *others = await open_all_listeners([place, *kafka_places(config), *http_places(config)])
        http_listeners = [] if http is None else others.pop()
        kafka_listeners = [listener for opened in others for listener in opened]
        places = [place for place, opened in enumerate(others) for _ in opened]
        broker.describer.listening = _opened(config, [listeners, *others], http_listeners)
        tasks = trio.CancelScope(shield=True)
        running = trio.Event()
        ready = ReadySockets(lambda: broker.offload.is_awaited or broker.transfers.waiting > 0)
        serving = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(_run_tasks, broker, tasks, running)
                nursery.start_soon(_run_ready, ready, serving)
                await running.wait()
                addresses, kafka, pages = map(addresses_of, (listeners, kafka_listeners, http_listeners))
                native_port = listeners[0].socket.getsockname()[1]
                async with trio.open_nursery() as doors:  # cancelled, they stop accepting, drain, and return
                    doors.start_soon(_end_waits, broker)
                    if http is not None:
                        kind_of_http = Listener.of(http, broker.tls)._replace(name=HTTP)
                        listen_to_http = partial(serve_http, kind=kind_of_http, native_port=native_port, faults=faults)
                        doors.start_soon(listen_to_http, broker, http_listeners, ready)
                    if broker.fence is not None:
                        nursery.start_soon(broker.fence.watch)
                        await broker.fence.wait_open(partial(_note_awaited, config, manager))
                    log.info(
                        "broker_ready",
                        listen=", ".join(addresses),
                        **({"kafka": ", ".join(kafka)} if kafka else {}),
                        **({"http": ", ".join(pages)} if pages else {}),
                        topics=len({topic for topic, _ in broker.partitions}),
                        partitions=len(broker.partitions),
                        **({"recovering": len(broker.recoveries)} if broker.recoveries else {}),
                        seconds=round(trio.current_time() - began, 3),
                    )
                    status = f"Serving {', '.join(addresses)}"
                    manager.ready(status)
                    task_status.started(Serving(addresses, kafka, broker))
                    if reloads is not None:
                        nursery.start_soon(run_reloads, broker, reloads, manager, status)
                    listen_to_kafka = partial(
                        serve_kafka, places=places, kinds=kinds, native_port=native_port, faults=faults
                    )
                    doors.start_soon(listen_to_kafka, broker, kafka_listeners, ready)
                    doors.start_soon(
                        partial(serve_native, broker, listeners, ready, kafka=kafka, faults=faults, kind=kind)
                    )
            finally:
                for listener in [*listeners, *kafka_listeners, *http_listeners]:
                    listener.socket.close()  # where serving has not begun
                log.info("broker_stopping")
                manager.stopping()
                if broker.backup is not None:
                    await broker.backup.finish()
                tasks.cancel()  # only now: the last acks need the flusher
                serving.cancel()
    finally:
        reserve.release()
        unclean = broker.close()
        if problems is not None:
            problems += unclean
        log.info("broker_stopped")


def _note_awaited(config: BrokerConfig, manager: ServiceManager, reason: str) -> None:
    """Say why the lease is not held, before it is for the first time."""
    log.info("lease_awaited", place=config.seglog_backup_to, reason=reason)
    manager.status(f"Waiting for the lease in {config.seglog_backup_to}: {reason}")


def _opened(
    config: BrokerConfig, listeners: Sequence[Sequence[trio.SocketListener]], pages: Sequence[trio.SocketListener]
) -> list[OpenedListener]:
    """The sockets of seglog's own listener, which is the first, of those in ``listeners``, and of the ``pages``."""
    opened = [
        OpenedListener(served, address, place - 1 if place else None)
        for place, (served, sockets) in enumerate(zip(all_listeners(config), listeners, strict=True))
        for address in addresses_of(sockets)
    ]
    http = http_listener(config)
    if http is not None:
        opened += [OpenedListener(http._replace(name=HTTP), address) for address in addresses_of(pages)]
    return opened


async def _run_ready(ready: ReadySockets, scope: trio.CancelScope) -> None:
    """Serve the connections until ``scope`` is cancelled: to their end, also where a background task has failed."""
    with scope:
        await socket_loop.run(ready)


async def _end_waits(broker: Broker) -> None:
    """When the doors close, answer the members of groups that wait for each other: they would keep them open."""
    try:
        await trio.sleep_forever()
    finally:
        broker.groups.end_waits()
        broker.share.end_waits()
        broker.share_fetches.end_waits()


async def _run_tasks(broker: Broker, scope: trio.CancelScope, running: trio.Event) -> None:
    """Run the background tasks until ``scope`` is cancelled; it is shielded, as they must outlive the connections."""
    with scope, watch_stalls(broker.metrics.loop):
        async with broker.offload.ending_processes(), trio.open_nursery() as nursery:
            await nursery.start(run_purgatory, broker.purgatory)
            for name, task in TASKS.items():
                nursery.start_soon(task, broker, name=name)
            nursery.start_soon(broker.groups.run)
            nursery.start_soon(broker.transactions.run)
            nursery.start_soon(broker.share.run)
            nursery.start_soon(broker.share_fetches.run)
            nursery.start_soon(logs.sums.run)
            running.set()
