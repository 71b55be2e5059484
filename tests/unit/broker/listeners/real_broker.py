"""A broker with topics, and with the task that wakes its fetches."""

import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.session import Listener, Session
from seglog_broker.listeners.transport import Transport
from seglog_broker.partitions.waiting_fetches import run_purgatory
from seglog_broker.runtime.offload import Offload
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem, PosixFileSystem
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.messages import CreateTopicRequest
from tests.unit.broker.brokers import open_broker
from tests.unit.broker.listeners.fake_broker import Listening, serving


@asynccontextmanager
async def real_broker(
    *flags: str,
    topics: Iterable[CreateTopicRequest],
    fs: FileSystem | None = None,
    folder: Path | None = None,
    offload: Offload | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Broker]:
    """On the forgetful disk, or in a real folder. At its end no lease, no memory of a request and no file is left."""
    if folder is not None:
        fs, flags = PosixFileSystem(), (f"log.dir={folder}", *flags)
    broker = open_broker(fs, *flags, offload=offload, clock=clock)
    for topic in topics:
        await broker.create_topic(topic)
    async with trio.open_nursery() as tasks:
        await tasks.start(run_purgatory, broker.purgatory)
        yield broker
        tasks.cancel_scope.cancel()
    leased = [path for path, handle in broker.directory.handles._files.items() if handle.leases > 1]
    assert leased == [], "but for the writer's lease, every one was given back"
    assert broker.request_memory.used == 0, "all memory was given back"
    broker.close()
    if isinstance(broker.fs, ForgetfulFileSystem):
        assert broker.fs.open_files == []


@asynccontextmanager
async def real(
    *flags: str, topics: Iterable[str] = ("commits",), folder: Path | None = None
) -> AsyncIterator[Listening]:
    """Such a broker behind the native wire. At its end no memory of a response is left."""
    made = [CreateTopicRequest(name, 1) for name in topics]
    async with real_broker(*flags, topics=made, folder=folder) as broker:
        async with serving(broker) as served:
            yield served
        assert broker.response_memory.used == 0


def open_session(broker: Broker) -> Session:
    """The session of a client of a listener that asks for nothing."""
    with socket.socket() as closed:
        pass
    return Session(broker, Listener(), Transport(closed))
