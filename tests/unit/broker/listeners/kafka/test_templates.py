"""Requests that repeat get the bytes that they get in the ordinary way: each with a client id of its own."""

from collections.abc import Callable, Sequence
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.listeners.kafka.templates import SHARED_BYTES_MAX, Repeated
from seglog_broker.listeners.kafka.wire import KafkaWire
from seglog_protocol.kafka import messages, write_request
from seglog_protocol.kafka.structs import Request
from tests.logs import batch
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import KafkaPeer, KafkaServed, fetch, latest, produce

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


KINDS: Final[Sequence[Callable[[KafkaServed, int], Request]]] = [
    poll,
    lambda served, number: poll(served, number, isolation_level=1),
    look_up,
    heartbeat,
    commit,
]
SERVED: Final = {1: range(4, 19), 2: range(1, 12), 12: range(5), 8: range(2, 11)}
API_KEYS: Final = [1, 1, 2, 12, 8]
CASES: Final = [
    pytest.param(kind, version, id=f"{api_key}-{version}")
    for kind, api_key in zip(KINDS, API_KEYS, strict=True)
    for version in SERVED[api_key]
]


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


@each_case(("make", "version"), CASES)
async def test_a_request_that_repeats_gets_the_same_bytes(
    served: KafkaServed, make: Callable[[KafkaServed, int], Request], version: int
) -> None:
    await fill(served)
    peer, other = await served.connect(), await served.connect()
    made: list[Repeated] = []
    for number in range(COUNT):
        request = make(served, number)
        expected = await answer_to(other, request, version, number, f"client {number}")
        assert await answer_to(peer, request, version, number) == expected
        made = made or await templates_of(served, peer)
        assert len(made) == 1
        assert await templates_of(served, peer) == made, "and is served by the template that the first one made"


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


async def test_a_long_request_has_no_template(served: KafkaServed) -> None:
    peer = await served.connect()
    for number in range(3):
        await answer_to(peer, look_up(served, 0), 9, number, "x" * SHARED_BYTES_MAX)
    assert not await templates_of(served, peer)
