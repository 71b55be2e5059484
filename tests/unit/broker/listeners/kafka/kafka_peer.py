"""A Kafka listener in front of a real broker, and a peer that speaks Kafka's wire to it: frames over real sockets."""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.serving import serve_kafka
from seglog_broker.storage.io.clock import Clock
from seglog_protocol.kafka import messages, read_response, versions, write_request
from seglog_protocol.kafka.structs import Request, Response
from seglog_protocol.messages import CreateTopicRequest
from tests.unit.broker.listeners.fake_broker import Listening, rest_of, serving
from tests.unit.broker.listeners.real_broker import real_broker

TOPICS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "keyed": {"cleanup.policy": "compact"},
    "small": {"max.message.bytes": "400"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
}
PARTITIONS: Final = 3
NOW: Final = 1_700_000_000_000

ResponseT = TypeVar("ResponseT", bound=Response)


class KafkaPeer:
    """One connection: ``send`` requests, and ``receive`` their responses, which must come in order."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.client_id = "test"
        self.held = bytearray()
        self._sent: list[tuple[int, int, int]] = []  # correlation id, api and version of what gets a response
        self._count = 0

    def frame(self, request: Request, version: int | None = None, *, silent: bool = False) -> bytes:
        """The frame of a request, whose response is expected unless it is ``silent``."""
        version = versions()[request.API_KEY][-1] if version is None else version
        self._count += 1
        if not silent:
            self._sent.append((self._count, request.API_KEY, version))
        return b"".join(write_request(self._count, self.client_id, request, version))

    async def send(self, request: Request, version: int | None = None, *, silent: bool = False) -> None:
        await self.stream.send_all(self.frame(request, version, silent=silent))

    async def receive_frame(self) -> bytes:
        """The next frame, without its length."""
        while len(self.held) < 4 or len(self.held) < 4 + struct.unpack_from(">i", self.held)[0]:
            data = await self.stream.receive_some()
            assert data, "the broker hung up"
            self.held += data
        end = 4 + struct.unpack_from(">i", self.held)[0]
        frame = bytes(self.held[4:end])
        del self.held[:end]
        return frame

    async def receive(self, _cls: type[ResponseT]) -> ResponseT:
        """The response to the first request that has none yet."""
        correlation_id, api_key, version = self._sent.pop(0)
        got, response = read_response(api_key, version, memoryview(await self.receive_frame()))
        assert got == correlation_id
        assert isinstance(response, _cls)
        return response

    async def ask(self, request: Request, version: int | None = None) -> Any:
        """The response to a request, where nothing else is asked for."""
        await self.send(request, version)
        return await self.receive(Response)

    async def rest(self) -> bytes:
        """All bytes until the broker closes the connection."""
        self.held += await rest_of(self.stream)
        return bytes(self.held)


class KafkaServed:
    """A running Kafka listener in front of ``broker``."""

    def __init__(self, served: Listening, broker: Broker) -> None:
        self.broker = broker
        self.port = int(served.address.rpartition(":")[2])
        self.stop = served.stop
        self.ended = served.ended
        self._served = served

    async def connect(self) -> KafkaPeer:
        return KafkaPeer((await self._served.connect()).stream)

    async def connection_of(self, peer: KafkaPeer) -> Connection:
        """The broker's side of a connection, when it waits for requests."""
        return await self._served.connection_of(peer.stream)

    async def close_peers(self) -> None:
        await self._served.close_peers()

    def id_of(self, topic: str) -> bytes:
        return id_bytes(self.broker.directory.registry.topics[topic].id)


@asynccontextmanager
async def kafka(
    *flags: str,
    folder: Path | None = None,
    topics: Mapping[str, Mapping[str, Any]] = TOPICS,
    serve: Callable[..., Awaitable[None]] = serve_kafka,
    clock: Clock | None = None,
) -> AsyncIterator[KafkaServed]:
    """A broker with topics, on the forgetful disk or a real one, and a Kafka listener. No lease is left at the end."""
    made = [CreateTopicRequest(topic, PARTITIONS, dict(settings)) for topic, settings in topics.items()]
    async with real_broker(*flags, topics=made, folder=folder, clock=clock) as broker, trio.open_nursery() as tasks:
        tasks.start_soon(broker.groups.run)
        tasks.start_soon(broker.transactions.run)
        tasks.start_soon(broker.share.run)
        await wait_all_tasks_blocked()  # groups, transactions and what share groups have are loaded
        async with serving(broker, serve) as served:
            try:
                yield KafkaServed(served, broker)
            finally:
                await served.close_peers()
        tasks.cancel_scope.cancel()


# --- Requests ---------------------------------------------------------------------------------------------------------


def produce(
    *batches: tuple[str, int, Any], acks: int = -1, served: KafkaServed | None = None
) -> messages.ProduceRequest:
    """A Produce request of (topic, partition, batch); by topic ids, of ``served``, for version 13."""
    cls = messages.ProduceRequest
    topics: dict[str, Any] = {}
    for topic, partition, records in batches:
        if topic not in topics:
            known = served is not None and topic in served.broker.directory.registry.topics
            topic_id = served.id_of(topic) if served is not None and known else bytes(16)
            topics[topic] = cls.TopicProduceData(name=topic, topic_id=topic_id)
        topics[topic].partition_data.append(cls.PartitionProduceData(index=partition, records=records))
    return cls(acks=acks, timeout_ms=1000, topic_data=list(topics.values()))


def fetch(*places: tuple[str, int, int], max_wait_ms: int = 0, epoch: int = -1, **more: Any) -> messages.FetchRequest:
    """A Fetch request of (topic, partition, offset), for versions below 13."""
    cls = messages.FetchRequest
    topics = [
        cls.FetchTopic(
            topic=topic,
            partitions=[
                cls.FetchPartition(
                    partition=partition, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1 << 20
                )
            ],
        )
        for topic, partition, offset in places
    ]
    return cls(topics=topics, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, **more)


def latest(topic: str, *partitions: int, epoch: int = -1) -> messages.ListOffsetsRequest:
    """A ListOffsets request for the ends of partitions."""
    cls = messages.ListOffsetsRequest
    places = [
        cls.ListOffsetsPartition(partition_index=number, current_leader_epoch=epoch, timestamp=-1)
        for number in partitions
    ]
    return cls(topics=[cls.ListOffsetsTopic(name=topic, partitions=places)])


def results(response: messages.ProduceResponse) -> list[tuple[int, int]]:
    """Error code and base offset of each partition."""
    return [(item.error_code, item.base_offset) for topic in response.responses for item in topic.partition_responses]


def found(response: messages.FetchResponse) -> list[tuple[int, int, int]]:
    """Error code, high watermark and bytes of records of each partition."""
    return [
        (item.error_code, item.high_watermark, len(item.records or b""))
        for topic in response.responses
        for item in topic.partitions
    ]


def codes(parts: Sequence[Any]) -> list[int]:
    """The error codes of structs that have one."""
    return [part.error_code for part in parts]
