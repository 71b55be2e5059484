"""The wires that a broker serves, behind one face for tests that hold for every connection.

A test is written once and runs for each of ``WIRES``: it sends frames of a few kinds of requests and receives responses
as plain values.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.serving import serve_kafka, serve_native
from seglog_broker.runtime.offload import Offload
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.frames import encode_frame
from seglog_protocol.kafka import messages
from seglog_protocol.messages import (
    Ack,
    AppendPartition,
    AppendRequest,
    CommitOffset,
    CommitOffsetsRequest,
    CreateTopicRequest,
    FetchPartition,
    FetchRequest,
    OffsetsPartition,
    OffsetsRequest,
    Request,
    request_header,
)
from tests.logs import batch
from tests.unit.broker.listeners.fake_broker import Listening, Peer, Served, rest_of, serving
from tests.unit.broker.listeners.kafka import kafka_peer
from tests.unit.broker.listeners.real_broker import real_broker

TOPIC: Final = "plain"
NOW: Final = 1_700_000_000_000
BATCH: Final = batch(b"value")


class Response(NamedTuple):
    """What came for a request: its kind, its place among the requests of the connection, and what it says.

    ``value`` is the base offset of an append, the bytes of records of a fetch, the end of the log of a query; None for
    an error, and 0 for a commit.
    """

    kind: str
    number: int
    value: int | None


class WirePeer:
    """The client's end of one connection. Each method makes the frame of the connection's next request."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.kinds: list[str] = []

    def append(self, ack: Ack = "disk", records: bytes = BATCH) -> bytes:
        """An append of one batch to partition 0."""
        raise NotImplementedError

    def fetch(self, offset: int, wait_ms: int = 0, bytes_max: int = 1 << 20) -> bytes:
        """A fetch from partition 0 that waits for one byte."""
        raise NotImplementedError

    def query(self) -> bytes:
        """A request for the end of partition 0."""
        raise NotImplementedError

    def commit(self, offset: int) -> bytes:
        """A commit for partition 0, of a group without members."""
        raise NotImplementedError

    async def receive(self) -> Response:
        """The next response."""
        raise NotImplementedError

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(frames))

    async def receive_all(self, count: int) -> list[Response]:
        return [await self.receive() for _ in range(count)]

    async def rest(self) -> bytes:
        return await rest_of(self.stream)


class NativePeer(WirePeer):
    """Speaks the native protocol; requests are numbered from 0 on, after the hello."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer.stream)
        self._peer = peer

    def _frame(self, kind: str, request: Request, payload: bytes = b"") -> bytes:
        self.kinds.append(kind)
        return encode_frame(request_header(len(self.kinds) - 1, request), [payload])

    def append(self, ack: Ack = "disk", records: bytes = BATCH) -> bytes:
        return self._frame("append", AppendRequest([AppendPartition(TOPIC, 0, len(records))], ack), records)

    def fetch(self, offset: int, wait_ms: int = 0, bytes_max: int = 1 << 20) -> bytes:
        place = FetchPartition(TOPIC, 0, offset, max_bytes=bytes_max)
        return self._frame("fetch", FetchRequest([place], max_wait_ms=wait_ms, min_bytes=1, max_bytes=bytes_max))

    def query(self) -> bytes:
        return self._frame("query", OffsetsRequest([OffsetsPartition(TOPIC, 0)]))

    def commit(self, offset: int) -> bytes:
        return self._frame("commit", CommitOffsetsRequest("group", [CommitOffset(TOPIC, 0, offset)]))

    async def receive(self) -> Response:
        frame = await self._peer.receive()
        header = frame.header
        number = header["id"]
        kind = "none" if number is None else self.kinds[number]
        if "error" in header:
            return Response(kind, -1 if number is None else number, None)
        [result] = header["offsets" if kind == "commit" else "partitions"]
        values = {"append": result.get("base_offset"), "query": result.get("latest"), "fetch": len(frame.payload)}
        value = values.get(kind, 0)
        return Response(kind, number, None if "error" in result else value)


class KafkaWirePeer(WirePeer):
    """Speaks Kafka's protocol."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self._peer = kafka_peer.KafkaPeer(stream)
        self._received = 0

    def _frame(self, kind: str, request: Any, version: int, *, silent: bool = False) -> bytes:
        if not silent:
            self.kinds.append(kind)
        return self._peer.frame(request, version, silent=silent)

    def append(self, ack: Ack = "disk", records: bytes = BATCH) -> bytes:
        acks = {"none": 0, "os": 1, "disk": -1}[ack]
        return self._frame("append", kafka_peer.produce((TOPIC, 0, records), acks=acks), 9, silent=ack == "none")

    def fetch(self, offset: int, wait_ms: int = 0, bytes_max: int = 1 << 20) -> bytes:
        request = kafka_peer.fetch((TOPIC, 0, offset), max_wait_ms=wait_ms)
        request.max_bytes = request.topics[0].partitions[0].partition_max_bytes = bytes_max
        return self._frame("fetch", request, 12)

    def query(self) -> bytes:
        return self._frame("query", kafka_peer.latest(TOPIC, 0), 5)

    def commit(self, offset: int) -> bytes:
        cls = messages.OffsetCommitRequest
        partition = cls.OffsetCommitRequestPartition(committed_offset=offset)
        topic = cls.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])
        return self._frame("commit", cls(group_id="group", topics=[topic]), 8)

    async def receive(self) -> Response:
        number, kind = self._received, self.kinds[self._received]
        self._received += 1
        if kind == "append":
            [(code, value)] = kafka_peer.results(await self._peer.receive(messages.ProduceResponse))
        elif kind == "fetch":
            [(code, _, value)] = kafka_peer.found(await self._peer.receive(messages.FetchResponse))
        elif kind == "commit":
            [told] = (await self._peer.receive(messages.OffsetCommitResponse)).topics[0].partitions
            code, value = told.error_code, 0
        else:
            [item] = (await self._peer.receive(messages.ListOffsetsResponse)).topics[0].partitions
            code, value = item.error_code, item.offset
        return Response(kind, number, None if code else value)


class WireKit(NamedTuple):
    """One wire: how it is served, connected to, and broken."""

    name: str
    serve: Callable[..., Awaitable[None]]
    connect: Callable[[Served], Awaitable[WirePeer]]
    is_ordered: bool
    bad_frames: Mapping[str, bytes]
    """Bytes that are no request, by what is wrong."""


async def _native(served: Served) -> WirePeer:
    return NativePeer(await served.greeted())


async def _kafka(served: Served) -> WirePeer:
    return KafkaWirePeer((await served.connect()).stream)


WIRES: Final = (
    WireKit(
        "native",
        serve_native,
        _native,
        is_ordered=False,
        bad_frames={
            "too large": b"\x7f\xff\xff\xff" + bytes(4),
            "header is no map": encode_frame({})[:8] + b"\xc1",
            "no room for a header": b"\x00\x00\x00\x01" + bytes(5),
            "no id": encode_frame({"api": "offsets", "v": 1}),
        },
    ),
    WireKit(
        "kafka",
        serve_kafka,
        _kafka,
        is_ordered=True,
        bad_frames={
            "too large": b"\x7f\xff\xff\xff" + bytes(4),
            "negative length": b"\xff\xff\xff\xff" + bytes(8),
            "unknown api": b"\x00\x00\x00\x0a\x03\xe7\x00\x00\x00\x00\x00\x01\xff\xff",
            "no room for a header": b"\x00\x00\x00\x01" + bytes(5),
        },
    ),
)


class WireServed:
    """A broker with one topic behind a listener of one wire."""

    def __init__(self, kit: WireKit, served: Listening, broker: Broker, fs: ForgetfulFileSystem) -> None:
        self.kit = kit
        self.broker = broker
        self.fs = fs
        self.stop = served.stop
        self.ended = served.ended
        self._served = served

    async def connect(self) -> WirePeer:
        return await self.kit.connect(self._served)

    async def connection_of(self, peer: WirePeer) -> Connection:
        return await self._served.connection_of(peer.stream)

    @property
    def waiters(self) -> int:
        """Fetches that wait for records of partition 0."""
        return len(self.broker.partitions[TOPIC, 0].waiters)

    async def until_waiting(self, count: int) -> None:
        """Return when so many fetches wait."""
        while self.waiters != count:
            await wait_all_tasks_blocked()

    async def until_closed(self, connections: int = 0) -> None:
        """Return when no more than so many connections are open."""
        while self.broker.metrics.connections_open > connections:
            await wait_all_tasks_blocked()


@asynccontextmanager
async def serving_wire(kit: WireKit, *flags: str, offload: Offload | None = None) -> AsyncIterator[WireServed]:
    """A broker with a topic on the forgetful disk, behind a listener of this wire. At its end nothing is kept."""
    async with real_broker(*flags, topics=[CreateTopicRequest(TOPIC, 1)], offload=offload) as broker:
        assert isinstance(broker.fs, ForgetfulFileSystem)
        if offload is not None:
            broker.commits.may_wait_at = math.inf  # on a slow machine a client is soon alone, and the loop would wait
        async with serving(broker, kit.serve) as served:
            wired = WireServed(kit, served, broker, broker.fs)
            try:
                yield wired
            finally:
                await served.close_peers()
        assert wired.waiters == 0, "no fetch waits for a client that has left"
