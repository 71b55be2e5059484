"""Listeners with faults: one wire with raw peers, and a whole broker in a thread for living clients."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TypeVar

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners import socket_loop
from seglog_broker.listeners.acceptor import Place, open_listeners
from seglog_broker.listeners.kafka.listener import serve_kafka
from seglog_broker.listeners.native.listener import serve_native
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.partitions.waiting_fetches import run_purgatory
from seglog_broker.storage.io.clock import SystemClock
from seglog_broker.testing.request_faults import RequestFaults
from tests.broker.brokers import open_broker
from tests.broker.listeners.wires import WireKit, WireServed, serving_wire

ResultT = TypeVar("ResultT")


@asynccontextmanager
async def faulty_wire(kit: WireKit, *flags: str) -> AsyncIterator[tuple[WireServed, RequestFaults]]:
    """As ``serving_wire``, with faults."""
    faults = RequestFaults()
    async with serving_wire(kit._replace(serve=partial(kit.serve, faults=faults)), *flags) as served:
        faults.begin(served.broker)
        yield served, faults


class Faulty:
    """A broker in a thread of its own: with both listeners, on a file system in memory."""

    def __init__(self) -> None:
        self.faults = RequestFaults()
        self.address = self.kafka_address = ""
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._broker: Broker | None = None

    @property
    def running(self) -> Broker:
        """The broker, of its own loop."""
        assert self._broker is not None
        return self._broker

    def call(self, function: Callable[..., ResultT], *args: object, **options: object) -> ResultT:
        """What a method of the faults returns, called on the loop."""
        return trio.from_thread.run_sync(partial(function, *args, **options), trio_token=self._token)

    def run(self, *flags: str) -> None:
        try:
            trio.run(self._run, *flags)
        finally:
            self._started.set()

    async def _run(self, *flags: str) -> None:
        self._token = trio.lowlevel.current_trio_token()
        broker = self._broker = open_broker(None, *flags, clock=SystemClock())
        self.faults.begin(broker)
        ready = ReadySockets()
        async with trio.open_nursery() as tasks:
            await tasks.start(run_purgatory, broker.purgatory)
            tasks.start_soon(broker.groups.run)
            tasks.start_soon(socket_loop.run, ready)
            with self._scope:
                async with trio.open_nursery() as doors:
                    native, kafka = [await open_listeners(Place("127.0.0.1:0")) for _ in range(2)]
                    [self.address] = await doors.start(partial(serve_native, broker, native, ready, faults=self.faults))
                    [self.kafka_address] = await doors.start(
                        partial(serve_kafka, broker, kafka, ready, faults=self.faults)
                    )
                    self._started.set()
            tasks.cancel_scope.cancel()
        broker.close()

    def wait_started(self) -> None:
        self._started.wait()

    def stop(self) -> None:
        if self._token is not None:
            self._token.run_sync_soon(self._scope.cancel)


@contextmanager
def faulty_broker(*flags: str) -> Iterator[Faulty]:
    """A broker with faults, for clients that block."""
    faulty = Faulty()
    thread = threading.Thread(target=faulty.run, args=flags)
    thread.start()
    try:
        faulty.wait_started()
        yield faulty
    finally:
        faulty.stop()
        thread.join()
