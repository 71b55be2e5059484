"""Requests that repeat, or differ a little, get the bytes that they get in the ordinary way; which have a template."""

import random
import struct
from types import SimpleNamespace
from typing import Any, Final

import pytest
import trio
from hypothesis import given, settings
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.context import Endpoint, RequestContext
from seglog_broker.listeners.kafka.handlers.produce import Append
from seglog_broker.listeners.kafka.templates import (
    MISSES_A_TEMPLATE,
    PARTITIONS_MAX,
    SHARED_BYTES_MAX,
    TEMPLATES_MAX,
    ProduceTemplate,
    Repeated,
    Templates,
    template_of,
)
from seglog_broker.listeners.kafka.wire import KafkaWire
from seglog_broker.listeners.usage import Usage
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.kafka import (
    RequestHeaderReader,
    WireError,
    messages,
    read_request,
    read_request_header,
    write_request,
)
from seglog_protocol.kafka.frames import PRODUCE
from seglog_protocol.kafka.structs import Request
from tests.logs import batch
from tests.process.faults.hostile_kafka_peer import change
from tests.support import examples
from tests.unit.broker.listeners.kafka.kafka_peer import NOW, KafkaPeer, KafkaServed, fetch, kafka, latest, produce
from tests.unit.broker.listeners.kafka.test_group_offsets import commit_request
from tests.unit.broker.listeners.kafka.test_kafka_served_together import TOPIC_IDS, replaced
from tests.unit.broker.listeners.real_broker import open_session
from tests.unit.broker.listeners.test_served_together import SEEDS, files_of
from tests.unit.protocol.kafka.mutations import mutated

COUNT: Final = 6


def commit(served: KafkaServed, number: int) -> messages.OffsetCommitRequest:
    """Of a consumer that is no member; now and then of a partition that does not exist."""
    cls = messages.OffsetCommitRequest
    places = [
        cls.OffsetCommitRequestPartition(partition_index=index, committed_offset=10 * number, committed_leader_epoch=0)
        for index in (0, 1, 7)
    ]
    topic = cls.OffsetCommitRequestTopic(name="plain", topic_id=served.id_of("plain"), partitions=places)
    return cls(group_id="group", generation_id_or_member_epoch=-1, member_id="", topics=[topic])


def poll(served: KafkaServed, number: int, isolation_level: int = 0, **more: int) -> messages.FetchRequest:
    request = fetch(("plain", 0, number // 2), ("plain", 1, 0), ("small", 0, 0), **more)
    request.isolation_level = isolation_level
    for topic in request.topics:
        topic.topic_id = served.id_of(topic.topic)
    return request


def look_up(_served: KafkaServed, number: int) -> messages.ListOffsetsRequest:
    request = latest("plain", 0, 1)
    request.topics[0].partitions[0].timestamp = (-1, 0, -2, 1_700_000_000_000, -3, 5)[number]
    return request


def heartbeat(_served: KafkaServed, number: int) -> messages.HeartbeatRequest:
    return messages.HeartbeatRequest(group_id="none", generation_id=1 + number // COUNT, member_id="nobody")


def take(served: KafkaServed, number: int) -> messages.ShareFetchRequest:
    """Of no group, and so refused: sessions of share groups are of one connection."""
    cls = messages.ShareFetchRequest
    acks = [cls.AcknowledgementBatch(first_offset=number, last_offset=number, acknowledge_types=[1])]
    asked = cls.FetchPartition(partition_index=0, acknowledgement_batches=acks)
    topics = [cls.FetchTopic(topic_id=served.id_of("plain"), partitions=[asked])]
    return cls(group_id="", member_id="", share_session_epoch=number, topics=topics)


async def answer_to(peer: KafkaPeer, request: Request, version: int, number: int, client_id: str = "client") -> bytes:
    await peer.stream.send_all(b"".join(write_request(number, client_id, request, version)))
    return await peer.receive_frame()


async def templates_of(served: KafkaServed, peer: KafkaPeer) -> list[Repeated]:
    wire = (await served.connection_of(peer)).wire
    assert isinstance(wire, KafkaWire)
    return [template for template in wire.templates._templates if isinstance(template, Repeated)]


async def fill(served: KafkaServed) -> None:
    peer = await served.connect()
    for value in (b"one", b"two" * 50, b"three" * 5000):
        request = produce(("plain", 0, batch(value)), ("plain", 1, batch(value)), served=served)
        await answer_to(peer, request, 12, 1)


async def test_a_fetch_that_repeats_waits_as_any_other(served: KafkaServed) -> None:
    await fill(served)
    peer, other, producer = await served.connect(), await served.connect(), await served.connect()
    for number in range(COUNT):
        request = poll(served, 0, max_wait_ms=60_000)
        for topic, offset in zip(request.topics, (number + 3, number + 3, 0), strict=True):
            topic.partitions[0].fetch_offset = offset
        answers: dict[str, bytes] = {}

        async def wait(name: str, asking: KafkaPeer, client_id: str) -> None:
            answers[name] = await answer_to(asking, request, 12, number, client_id)  # noqa: B023 - ends in its round

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "repeats", peer, "client")
            nursery.start_soon(wait, "new", other, f"client {number}")
            await wait_all_tasks_blocked(0.005)
            assert not answers
            more = produce(("plain", 0, batch(b"more")), ("plain", 1, batch(b"more")), served=served)
            await answer_to(producer, more, 12, number)
        assert answers["repeats"] == answers["new"]
    assert len(await templates_of(served, peer)) == 1


async def test_a_fetch_that_meets_an_error_gets_another_template_later(served: KafkaServed) -> None:
    await fill(served)
    peer, other = await served.connect(), await served.connect()
    for number, offset in enumerate((0, 1, 99, 98, 1, 0)):  # there is no 99
        request = fetch(("plain", 0, offset))
        expected = await answer_to(other, request, 12, number, f"client {number}")
        assert await answer_to(peer, request, 12, number) == expected
    assert len(await templates_of(served, peer)) == 1


# --- Which requests are served by a template, and how many of these a connection keeps --------------------------------


RECORDS: Final = batch(b"value")


class Connection:
    """The templates of a connection. ``serve`` makes one of a request, as the ordinary way does."""

    def __init__(self, served: KafkaServed) -> None:
        self.broker = served.broker
        self.templates = Templates()

    def serve(self, frame: memoryview) -> None:
        header = RequestHeaderReader().read(frame)
        room = self.broker.response_memory.room("127.0.0.1")
        endpoint = Endpoint("127.0.0.1", 9092)
        session = open_session(self.broker)
        usage = Usage(self.broker, session)
        context = RequestContext(
            self.broker, endpoint, header.version, header.client_id, "/127.0.0.1", room, session, usage
        )
        request = read_request(header, frame)
        assert isinstance(request, messages.ProduceRequest)
        if self.templates.find(frame) is None and self.templates.is_due():
            template = template_of(context, header, frame, request)
            if template is not None:
                self.templates.add(template)

    def appends_of(self, frame: memoryview) -> list[Append] | None:
        """The appends of a request that has a template."""
        template = self.templates.find(frame)
        if template is None:
            return None
        assert isinstance(template, ProduceTemplate)
        return template.appends_of(frame)

    def places(self, frame: memoryview) -> list[tuple[str, int, bytes]] | None:
        """Topic, partition and records of the appends of a request that has a template."""
        appends = self.appends_of(frame)
        if appends is None:
            return None
        return [
            (asked.partitions[0].topic, asked.partitions[0].partition, bytes(records)) for _, asked, records in appends
        ]


def frame_of(request: messages.ProduceRequest, version: int = 12, client_id: str = "test") -> memoryview:
    return memoryview(b"".join(write_request(7, client_id, request, version))[4:])


@pytest.fixture
def connection(served: KafkaServed) -> Connection:
    return Connection(served)


@pytest.mark.parametrize("version", range(3, 13))
async def test_a_template_serves_all_partitions_of_its_topic(connection: Connection, version: int) -> None:
    connection.serve(frame_of(produce(("plain", 0, RECORDS)), version))
    other = batch(b"another value")
    frame = frame_of(produce(("plain", 2, other), ("plain", 1, RECORDS)), version)
    assert connection.places(frame) == [("plain", 2, other), ("plain", 1, RECORDS)]


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(produce(("plain", 0, RECORDS), acks=0)),
        frame_of(produce(("plain", 0, RECORDS), ("keyed", 0, RECORDS))),
        frame_of(produce(("plain", 0, RECORDS)), client_id="x" * SHARED_BYTES_MAX),
    ],
    ids=["no ack", "two topics", "long"],
)
async def test_no_template_is_made(connection: Connection, frame: memoryview) -> None:
    connection.serve(frame)
    assert connection.appends_of(frame) is None


async def test_a_connection_keeps_few_templates_and_replaces_them_seldom(connection: Connection) -> None:
    frames = [frame_of(produce(("plain", 0, RECORDS)), client_id=str(number)) for number in range(TEMPLATES_MAX + 1)]
    for frame in frames:
        connection.serve(frame)
    *kept, late = frames
    assert all(connection.appends_of(frame) for frame in kept)
    for _ in range(MISSES_A_TEMPLATE - 1):
        assert connection.appends_of(late) is None
        connection.serve(late)
    assert connection.appends_of(late)
    found = [connection.appends_of(frame) is not None for frame in frames]
    assert found.count(False) == 1
    assert found[0] is False  # the one that was used longest ago


async def test_a_request_that_its_template_does_not_fit_makes_no_second_one(connection: Connection) -> None:
    others = [frame_of(produce(("plain", 0, RECORDS)), client_id=str(number)) for number in range(TEMPLATES_MAX - 1)]
    for frame in others:
        connection.serve(frame)
    many = frame_of(produce(*[("plain", number, RECORDS) for number in range(PARTITIONS_MAX + 1)]))
    for _ in range(2 * MISSES_A_TEMPLATE):
        connection.serve(many)
    assert all(connection.appends_of(frame) for frame in others)


# --- Requests that differ a little from others get the answers, and leave the logs, that they have without templates --


REQUESTS: Final = 60
NAMES: Final = ["plain", "stamped", "small"]
IDS: Final[Any] = SimpleNamespace(id_of=TOPIC_IDS.get)
MAKERS: Final[dict[str, Any]] = {
    "Fetch": poll,
    "ListOffsets": look_up,
    "Heartbeat": heartbeat,
    "OffsetCommit": commit,
    "ShareFetch": take,
}
NONE: Final = ProducerIdAndEpoch(-1, -1)

Known = dict[str | None, ProducerIdAndEpoch]
"""By transactional id."""


async def begun(served: KafkaServed) -> Known:
    known: Known = {None: NONE}
    service = served.broker.transactions
    for key, count in (("one", 3), ("two", 1)):
        known[key] = producer = await service.init_producer(key, 60_000)
        await service.add_partitions(key, producer, [("plain", number) for number in range(count)], version=1)
        await service.add_offsets(key, producer, "group", version=1)
    return known


def a_batch(key: str | None, dice: random.Random, known: Known) -> Any:
    """Nearly always of the request's own producer."""
    is_usual = dice.random() < 0.9
    producer = known[key] if is_usual else dice.choice([*known.values(), ProducerIdAndEpoch(99, 0)])
    data = encode_batch(
        [(NOW, b"key", b"value" * dice.randrange(1, 40), ())],
        codec=Codec.NONE if is_usual else Codec.ZSTD,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch + (dice.random() < 0.05),
        base_sequence=-1 if producer == NONE else dice.randrange(4),
        transactional=producer != NONE and (is_usual or dice.random() < 0.5),
    )
    return None if dice.random() < 0.02 else memoryview(data)


def a_request(api: str, dice: random.Random, known: Known) -> Any:
    asked: Any
    if api in MAKERS:
        return MAKERS[api](IDS, dice.randrange(COUNT))
    if api == "TxnOffsetCommit":
        nobody = {"member_id": "", "generation_id_or_member_epoch": -1, "group_instance_id": None}
        asked = commit_request({"plain": [0, 1, 7]}, messages.TxnOffsetCommitRequest, group_id="group", **nobody)
        asked.transactional_id, (asked.producer_id, asked.producer_epoch) = "one", known["one"]
        asked.topics[0].partitions[0].committed_offset = dice.randrange(9)
        return asked
    key = dice.choice([*known])
    topic = "plain" if dice.random() < 0.9 else dice.choice(NAMES)
    numbers = dice.choices([0, 1, 2, 7], [3, 3, 3, 1], k=dice.choice([1, 1, 2, 3]))
    acks = -1 if dice.random() < 0.9 else dice.choice([0, 1])
    asked = produce(*[(topic, number, a_batch(key, dice, known)) for number in numbers], acks=acks)
    asked.transactional_id, asked.topic_data[0].topic_id = key, TOPIC_IDS[topic]
    return asked


def a_content(api: str, version: int, dice: random.Random, known: Known) -> bytes | None:
    """A request, perhaps with a field or bytes of it changed; None if it would wait, or cannot be written."""
    asked, what = a_request(api, dice, known), dice.random()
    if what > 0.7:
        change(asked, dice)
    try:
        content = b"".join(write_request(1, "client", asked, version))[4:]
    except (struct.error, ValueError, TypeError, AttributeError, OverflowError):
        return None
    if 0.4 < what < 0.7:
        content = content[:8] + mutated(dice, content[8:])
    try:
        asked = read_request(read_request_header(memoryview(content)), memoryview(content))
    except WireError:
        return content
    return None if getattr(asked, "max_wait_ms", 0) > 0 else content


class Side:
    """One of the brokers, and a connection to it."""

    def __init__(self, served: KafkaServed, peer: KafkaPeer) -> None:
        self.served, self.peer = served, peer
        self.ids = [(TOPIC_IDS[name], served.id_of(name)) for name in NAMES]

    async def answer(self, content: bytes) -> bytes | None:
        """All that comes for a request before the answer to one behind it; None if the connection ends."""
        asked = replaced(content, self.ids)
        behind = b"".join(write_request(99, None, messages.ApiVersionsRequest(), 0))
        await self.peer.stream.send_all(struct.pack(">i", len(asked)) + asked + behind)
        told = b""
        try:
            while not (frame := await self.peer.receive_frame()).startswith(b"\0\0\0\x63"):
                told += frame
        except (AssertionError, trio.BrokenResourceError):
            await self.begin_again()
            return None
        return replaced(told, [(drawn, name) for name, drawn in self.ids])

    async def begin_again(self) -> None:
        await self.peer.stream.aclose()
        self.peer = await self.served.connect()

    async def has_template(self, content: bytes) -> bool:
        wire = (await self.served.connection_of(self.peer)).wire
        assert isinstance(wire, KafkaWire)
        return wire.templates.find(memoryview(replaced(content, self.ids))) is not None

    def logs(self) -> dict[str, bytes]:
        fs: Any = self.served.broker.fs
        return {path: data for path, data in files_of(fs).items() if not path.startswith("/data/__")}


async def compared(api: str, version: int, seed: int) -> int:
    """Ask both brokers; how many requests had a template."""
    dice = random.Random(seed)
    repeated = 0
    async with kafka() as left, kafka() as right:
        known = await begun(left)
        assert await begun(right) == known
        warm, new = Side(left, await left.connect()), Side(right, await right.connect())
        for content in [a_content(api, version, dice, known) for _ in range(REQUESTS)]:
            if content is not None:
                repeated += await warm.has_template(content)
                assert await warm.answer(content) == await new.answer(content), content.hex()
                await new.begin_again()
        assert warm.logs() == new.logs()
        assert warm.logs()
    return repeated


@pytest.mark.parametrize("api", [api.name for api in APIS.values() if api.repeats is not None or api.key == PRODUCE])
@given(SEEDS)
@settings(max_examples=examples(20), deadline=None)
def test_a_changed_request_is_served_as_without_templates(api: str, seed: int) -> None:
    (versions,) = [known.versions for known in APIS.values() if known.name == api]
    with capture_logs():
        assert trio.run(compared, api, versions[seed % len(versions)], seed), "some have a template"
