"""A broker without a log, and a peer without a client: the two ends that a test puts around the native listener."""

import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.config import BrokerConfig
from seglog_broker.listeners import socket_loop
from seglog_broker.listeners.acceptor import Place, open_listeners
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.ready_sockets import ReadySockets
from seglog_broker.listeners.serving import serve_native
from seglog_broker.listeners.transport import address_of
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.waiting_fetches import wait_woken
from seglog_broker.runtime.connection_limits import ConnectionLimits
from seglog_broker.runtime.live_config import LiveConfig
from seglog_broker.runtime.metrics import Metrics
from seglog_broker.runtime.offload import Offload
from seglog_broker.runtime.request_memory import RequestMemory
from seglog_broker.runtime.response_memory import ResponseMemory
from seglog_broker.runtime.slow_readers import Transfers
from seglog_broker.runtime.usage_buckets import UsageBuckets
from seglog_broker.security.authority import Authority
from seglog_broker.storage.directory.accounts import AccountStore
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import File
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_broker.testing.offload import InlineOffload
from seglog_protocol.access import Rules
from seglog_protocol.errors import RequestCancelledError, SeglogError, UnknownTopicError
from seglog_protocol.frames import Frame, FrameReader, encode_frame, encode_value
from seglog_protocol.messages import (
    API_VERSIONS,
    PROTOCOL_NAME,
    Ack,
    AppendPartition,
    AppendReply,
    AppendRequest,
    AppendResult,
    CreateTopicReply,
    CreateTopicRequest,
    FetchPartition,
    FetchReply,
    FetchRequest,
    FetchResult,
    HelloReply,
    HelloRequest,
    Message,
    OffsetsPartition,
    OffsetsReply,
    OffsetsRequest,
    OffsetsResult,
    Request,
    TopicsReply,
    TopicsRequest,
    request_header,
)
from tests.logs import ManualClock
from tests.support import ON_SOURCES


@dataclass
class FakePending:
    """Appends whose acks are sent when the test decides."""

    ack: Ack
    replies: list[AppendReply | SeglogError] | None
    reached: trio.Event = field(default_factory=trio.Event)
    outcome: list[AppendReply | SeglogError] | Exception | None = None
    is_written: bool = True
    spent: float = 0

    def listen(self, listener: Callable[[], None]) -> bool:
        return False

    async def wait(self) -> list[AppendReply | SeglogError]:
        await self.reached.wait()
        assert self.outcome is not None
        if isinstance(self.outcome, Exception):
            raise self.outcome
        self.replies = self.outcome
        return self.outcome


@dataclass
class FakeSlice:
    file: File
    position: int
    size: int
    is_removed: bool = False

    def __len__(self) -> int:
        return self.size


WITH_FAKES: Final = ON_SOURCES
"""For tests of appends, fetches and slices that are none of the engine's: compiled code takes only those."""


@dataclass
class FakeAnswer:
    """A fetch response that counts how often its leases were released."""

    reply: FetchReply
    slices: list[FakeSlice]
    payload: bytes = b""
    closed: int = 0

    @property
    def size(self) -> int:
        return len(self.payload) + sum(piece.size for piece in self.slices)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        self.closed += 1
        for piece in self.slices:
            piece.file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class StoredFile(File):
    """A real file, for sendfile, which notes how it is read and is in memory if the test says so."""

    def __init__(self, folder: Path, content: bytes, cached: bool = True) -> None:
        path = folder / "00000000000000000000.log"
        path.write_bytes(content)
        super().__init__(str(path), os.open(path, os.O_RDONLY))
        self.cached = cached
        self.reads: list[tuple[int, int]] = []
        self.brought_in: list[tuple[int, int]] = []

    def pread(self, size: int, position: int) -> bytes:
        self.reads.append((position, size))
        return super().pread(size, position)

    def is_cached(self, position: int, size: int) -> bool:
        return self.cached

    def bring_in(self, position: int, size: int) -> None:
        self.brought_in.append((position, size))


def answer_of(*slices: FakeSlice) -> FakeAnswer:
    results = [FetchResult("commits", number, piece.size, offset=0) for number, piece in enumerate(slices)]
    return FakeAnswer(FetchReply(results), list(slices))


class FakeBroker:
    """Records its requests; returns the replies that the test has set."""

    def __init__(self, offload: Offload | None = None, **config: Any) -> None:
        self.config = replace(BrokerConfig(), **config)
        self.live_config = LiveConfig(self.config)
        self.fence = None
        self.offload = InlineOffload() if offload is None else offload
        self.authority = Authority(self.config, Rules())
        self.directory = SimpleNamespace(accounts=AccountStore(ForgetfulFileSystem(), "/accounts.json"))
        self.metrics = Metrics()
        self.clock: Clock = ManualClock()
        self.usage_buckets = UsageBuckets(self.live_config, self.metrics)
        self.connection_limits = ConnectionLimits(self.live_config, self.metrics, self.usage_buckets)
        self.transfers = Transfers()
        self.response_memory = ResponseMemory()
        self.request_memory = RequestMemory(self.config.seglog_request_memory_max, self.config.socket_request_max_bytes)
        self.appended: list[bytes] = []
        self.pending: list[FakePending] = []
        self.answers: deque[FakeAnswer] = deque()  # for fetches: there at once
        self.late_answers: deque[FakeAnswer] = deque()  # for fetches that wait for `records_arrived`
        self.records_arrived = trio.Event()
        self.fetches_waiting = 0
        self.raising: Callable[[], Exception] | None = None  # what every request but hello raises

    async def turn(self) -> None:
        await trio.lowlevel.checkpoint()

    async def find_problems(self) -> list[str]:
        await self.turn()
        return []

    def hello(self, problems: Sequence[str]) -> HelloReply:
        return HelloReply(PROTOCOL_NAME, "fake", API_VERSIONS, {})

    def _raise(self) -> None:
        if self.raising is not None:
            raise self.raising()

    def missing_topics(self, _request: AppendRequest) -> list[str]:
        return []

    def sync_now(self) -> None:
        pass

    def sync_soon(self, start_soon: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        pass

    def is_plain(self, request: AppendRequest, _payload: memoryview) -> bool:
        return request.ack != "none"

    def append(
        self,
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        _refused: Mapping[str, SeglogError] | None = None,
        *,
        at_once: bool = False,
    ) -> FakePending:
        """Topic "missing" does not exist; an ack of "disk" waits for ``reach``."""
        self._raise()
        replies: list[AppendReply | SeglogError] = []
        for request, payload in zip(requests, payloads, strict=True):
            results = []
            for place in request.partitions:
                if place.topic == "missing":
                    results.append(
                        AppendResult("missing", place.partition, error=UnknownTopicError("no topic missing"))
                    )
                else:
                    results.append(
                        AppendResult(place.topic, place.partition, base_offset=len(self.appended), ack=request.ack)
                    )
            self.appended.append(bytes(payload))
            replies.append(AppendReply(results))
        ack = requests[0].ack
        pending = FakePending(ack, None if ack == "disk" else replies, outcome=replies)
        if ack == "disk":
            self.pending.append(pending)
        return pending

    def fetch_now(self, request: FetchRequest, waiter: Waiter | None = None) -> FakeAnswer | None:
        self._raise()
        return self.answers.popleft() if self.answers else None

    def wait_for(self, request: FetchRequest, waiter: Waiter) -> bool:
        return False

    async def fetch(self, request: FetchRequest, waiter: Waiter) -> FakeAnswer:
        async def wake() -> None:
            await self.records_arrived.wait()
            waiter.wake()

        self.fetches_waiting += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wake)
                await wait_woken(waiter)
                nursery.cancel_scope.cancel()
        finally:
            self.fetches_waiting -= 1
        if waiter.is_ended:
            raise RequestCancelledError("the fetch was ended")
        self._raise()
        return self.late_answers.popleft()

    def answer_now(self, request: Request) -> Message | None:
        return None

    async def answer(self, request: Request, host: str = "", principal: str = "") -> tuple[Message, bytes]:
        self._raise()
        match request:
            case OffsetsRequest():
                return OffsetsReply([OffsetsResult(p.topic, p.partition, 0, 7) for p in request.partitions]), b""
            case TopicsRequest():
                return TopicsReply(), encode_value([])
            case CreateTopicRequest():
                await trio.lowlevel.checkpoint()
                return CreateTopicReply(request.topic, "A" * 22, request.partitions or 1), b""
        raise NotImplementedError(request.api)


async def rest_of(stream: trio.SocketStream) -> bytes:
    """All bytes until the broker closes the connection."""
    parts = []
    try:
        while data := await stream.receive_some():
            parts.append(data)
    except trio.BrokenResourceError:
        pass  # reset, with unread bytes of ours
    return b"".join(parts)


class Peer:
    """The other end of a connection: sends frames or any bytes, and receives frames."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.reader = FrameReader()

    async def send(self, request_id: int, request: Request, payload: bytes = b"") -> None:
        await self.stream.send_all(encode_frame(request_header(request_id, request), [payload]))

    async def send_header(self, **header: Any) -> None:
        await self.stream.send_all(encode_frame(header))

    async def receive(self) -> Frame:
        while (frame := self.reader.next_frame()) is None:
            data = await self.stream.receive_some()
            assert data, "the broker hung up"
            self.reader.receive_data(data)
        return frame

    async def ask(self, request_id: int, request: Request, payload: bytes = b"") -> dict[str, Any]:
        """The header of the next reply, where nothing else is asked for."""
        await self.send(request_id, request, payload)
        return (await self.receive()).header

    async def receive_ids(self, count: int) -> list[Any]:
        return [(await self.receive()).header["id"] for _ in range(count)]

    async def rest(self) -> bytes:
        return await rest_of(self.stream)

    async def hung_up(self) -> bool:
        return await self.rest() == b"" and self.reader.is_idle

    async def greet(self) -> "Peer":
        await self.send(0, HelloRequest(PROTOCOL_NAME))
        assert (await self.receive()).header["protocol"] == PROTOCOL_NAME
        return self


class Served:
    """A running listener; ``connect`` connects to it, ``stop`` stops it as the daemon does."""

    def __init__(self, address: str, scope: trio.CancelScope) -> None:
        self.address = address
        self.scope = scope
        self.ended = trio.Event()
        self._streams: list[trio.SocketStream] = []

    async def connect(self) -> Peer:
        host, port = self.address.rsplit(":", 1)
        stream = await trio.open_tcp_stream(host, int(port))
        self._streams.append(stream)
        return Peer(stream)

    async def greeted(self) -> Peer:
        return await (await self.connect()).greet()

    def stop(self) -> None:
        self.scope.cancel()

    async def close_peers(self) -> None:
        for stream in self._streams:
            await trio.aclose_forcefully(stream)


class Listening(Served):
    """A listener in front of ``broker`` whose connections can be looked at."""

    def __init__(self, address: str, scope: trio.CancelScope, ready: ReadySockets, broker: Any) -> None:
        super().__init__(address, scope)
        self.ready = ready
        self.broker = broker

    async def connection_of(self, stream: trio.SocketStream) -> Connection:
        """The broker's side of a connection, when it waits for requests."""
        await wait_all_tasks_blocked()
        served = [entry.served for entry in self.ready._entries.values()]
        address = address_of(stream.socket.getsockname())
        [found] = [one for one in served if isinstance(one, Connection) and one.transport.peer == address]
        return found


@asynccontextmanager
async def serving(broker: Any, serve: Callable[..., Awaitable[None]] = serve_native) -> AsyncIterator[Listening]:
    """A listener, the native one unless another is named, in front of ``broker`` on a port of its own."""
    listeners = await open_listeners(Place("127.0.0.1:0"))
    ready = ReadySockets()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(socket_loop.run, ready)
        scope = trio.CancelScope()

        async def run(task_status: trio.TaskStatus[Listening]) -> None:
            served: Listening | None = None

            class Started:
                def started(self, addresses: list[str]) -> None:
                    nonlocal served
                    served = Listening(addresses[0], scope, ready, broker)
                    task_status.started(served)

            with scope:
                await serve(broker, listeners, ready, task_status=Started())
            assert served is not None
            served.ended.set()

        served: Listening = await nursery.start(run)
        try:
            yield served
        finally:
            await served.close_peers()
            scope.cancel()
            with trio.CancelScope(shield=True):
                await served.ended.wait()
            nursery.cancel_scope.cancel()


def code_of(header: Mapping[str, Any]) -> str:
    """The code of the error that a reply is."""
    return str(header["error"]["code"])


def append_of(size: int, ack: Ack = "disk", topic: str = "commits") -> AppendRequest:
    return AppendRequest([AppendPartition(topic, 0, size)], ack)


def fetch_of(offset: int = 0) -> FetchRequest:
    return FetchRequest([FetchPartition("commits", 0, offset)])


OFFSETS = OffsetsRequest([OffsetsPartition("commits", 0)])


def reach(pending: FakePending, error: SeglogError | Exception | None = None) -> None:
    """Let the ack of ``pending`` be sent, or fail."""
    if error is not None:
        pending.outcome = error
    pending.reached.set()
