"""The native listener in front of the real broker: what only the two together do, over real sockets.

Cancelling fetches, topics that come into being with their first append, hello tried again, and errors counted.
"""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.native.hello import TRIES_MAX
from seglog_protocol.errors import SeglogError
from seglog_protocol.frames import encode_frame
from seglog_protocol.messages import (
    PROTOCOL_NAME,
    Ack,
    AppendPartition,
    AppendRequest,
    CancelRequest,
    HelloRequest,
    request_header,
)
from seglog_protocol.record_batch import HEADER_SIZE
from tests.logs import batch
from tests.support import each_case
from tests.unit.broker.listeners.fake_broker import OFFSETS, Listening, Peer, code_of, fetch_of
from tests.unit.broker.listeners.real_broker import real

V = batch(b"v")


@pytest.fixture
async def served() -> AsyncIterator[Listening]:
    async with real() as served:
        yield served


@pytest.fixture
async def peer(served: Listening) -> Peer:
    return await served.greeted()


def append_of(encoded: bytes, topic: str = "commits", ack: Ack = "disk", partition: int = 0) -> AppendRequest:
    return AppendRequest([AppendPartition(topic, partition, len(encoded))], ack, create=True)


async def replies(peer: Peer, count: int) -> dict[int, dict[str, Any]]:
    """The next ``count`` headers, by id."""
    headers = [(await peer.receive()).header for _ in range(count)]
    return {header["id"]: header for header in headers}


async def waiting(broker: Broker, count: int) -> None:
    """Return when so many fetches wait."""
    while len({waiter for partition in broker.partitions.values() for waiter in partition.waiters}) != count:
        await wait_all_tasks_blocked()


# --- cancel -----------------------------------------------------------------------------------------------------------


async def test_a_waiting_fetch_that_is_cancelled_is_answered_so_and_others_wait_on(served: Listening) -> None:
    peer, other = await served.greeted(), await served.greeted()
    await peer.send(1, fetch_of())
    await peer.send(2, fetch_of())
    await other.send(1, fetch_of())
    await waiting(served.broker, 3)
    await peer.send(3, CancelRequest(1))
    answered = await replies(peer, 2)
    assert answered[3]["cancelled"] is True
    assert code_of(answered[1]) == "REQUEST_CANCELLED"
    await waiting(served.broker, 2)
    await peer.send(4, append_of(V), V)
    answered = await replies(peer, 2)
    assert set(answered) == {2, 4}
    assert answered[2]["partitions"][0]["size"] == len(V)
    assert await other.receive_ids(1) == [1]


async def test_a_request_that_does_not_wait_cannot_be_cancelled(served: Listening) -> None:
    peer, other = await served.greeted(), await served.greeted()
    await other.send(7, fetch_of())
    await waiting(served.broker, 1)
    await peer.send(1, append_of(V), V)
    await peer.send(2, fetch_of())
    assert set(await replies(peer, 2)) == {1, 2}
    assert await other.receive_ids(1) == [7]
    await other.send(8, fetch_of(1))
    await waiting(served.broker, 1)
    for number, target in enumerate([1, 2, 3, 8, 999], start=10):  # served, served, itself never, another's, none
        assert await peer.ask(number, CancelRequest(target)) == {"id": number, "cancelled": False}
    await waiting(served.broker, 1)


async def test_a_second_fetch_under_an_id_that_waits_is_refused_and_the_first_waits_on(
    served: Listening, peer: Peer
) -> None:
    await peer.send(1, fetch_of())
    await waiting(served.broker, 1)
    header = await peer.ask(1, fetch_of())
    assert (header["id"], code_of(header), header["error"]["field"]) == (1, "INVALID_REQUEST", "id")
    await peer.send(2, append_of(V), V)
    answered = await replies(peer, 2)
    assert "error" not in answered[1]


async def test_a_fetch_and_its_cancel_in_one_packet(peer: Peer) -> None:
    frames = [encode_frame(request_header(1, fetch_of())), encode_frame(request_header(2, CancelRequest(1)))]
    await peer.stream.send_all(b"".join(frames))
    answered = await replies(peer, 2)
    assert (answered[2]["cancelled"], code_of(answered[1])) == (True, "REQUEST_CANCELLED")


async def test_records_and_a_cancel_in_one_packet_are_answered_as_the_cancel_said(
    served: Listening, peer: Peer
) -> None:
    """The append wakes the fetch before the cancel is read, but the fetch ends as the reply to the cancel says."""
    await peer.send(1, fetch_of())
    await waiting(served.broker, 1)
    await peer.stream.send_all(
        encode_frame(request_header(2, append_of(V, ack="os")), [V]) + encode_frame(request_header(3, CancelRequest(1)))
    )
    answered = await replies(peer, 3)
    assert (answered[3]["cancelled"], code_of(answered[1])) == (True, "REQUEST_CANCELLED")
    await peer.send(1, fetch_of())
    assert (await replies(peer, 1))[1]["partitions"][0]["size"] == len(V), "nothing is left of the cancel"


# --- Woken fetches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 300_000, 900_000, 3_000_000])
async def test_woken_fetches_are_answered_whole_to_slow_readers_too(tmp_path: Path, size: int) -> None:
    encoded = batch(random.Random(size).randbytes(size))
    async with real("message.max.bytes=4000000", folder=tmp_path) as served:
        slow, other, producer = [await served.greeted() for _ in range(3)]
        for number in range(12):  # together more than the sockets hold
            await slow.send(number, fetch_of())
        await other.send(1, fetch_of())
        await waiting(served.broker, 13)
        await producer.send(1, append_of(encoded, ack="os"), encoded)
        assert await producer.receive_ids(1) == [1]
        answered = await other.receive()
        assert bytes(answered.payload)[HEADER_SIZE:] == encoded[HEADER_SIZE:]
        await slow.send(99, OFFSETS)  # is answered behind, or between, never within
        await wait_all_tasks_blocked()
        frames = [await slow.receive() for _ in range(13)]
        assert sorted(frame.header["id"] for frame in frames) == [*range(12), 99]
        assert {bytes(frame.payload) for frame in frames if frame.header["id"] != 99} == {bytes(answered.payload)}
        assert served.broker.metrics.fetch_bytes == 13 * len(encoded)


async def test_woken_fetches_of_a_peer_that_leaves_give_their_leases_back(tmp_path: Path) -> None:
    encoded = batch(bytes(900_000))
    async with real("message.max.bytes=4000000", "compression.type=producer", folder=tmp_path) as served:
        leaves, producer = await served.greeted(), await served.greeted()
        for number in range(12):
            await leaves.send(number, fetch_of())
        await waiting(served.broker, 12)
        await producer.send(1, append_of(encoded, ack="os"), encoded)
        assert await producer.receive_ids(1) == [1]
        await wait_all_tasks_blocked()
        await trio.aclose_forcefully(leaves.stream)
        await producer.send(2, OFFSETS)
        assert await producer.receive_ids(1) == [2]


# --- Topics that come into being with their first append --------------------------------------------------------------


async def test_an_append_to_an_unknown_topic_creates_it_with_the_default_partitions() -> None:
    async with real("num.partitions=3", topics=()) as served:
        peer = await served.greeted()
        assert served.broker.hello().auto_create_topics
        encoded = batch(b"first")
        [result] = (await peer.ask(1, append_of(encoded, "events", partition=2), encoded))["partitions"]
        assert (result["base_offset"], result["ack"]) == (0, "disk")
        assert served.broker.directory.registry.topics["events"].partitions == 3
        [result] = (await peer.ask(2, append_of(encoded, "events", partition=3), encoded))["partitions"]
        assert result["error"]["code"] == "UNKNOWN_PARTITION"


async def test_without_auto_creation_an_append_to_an_unknown_topic_gets_the_nearest_name() -> None:
    async with real("auto.create.topics.enable=false") as served:
        peer = await served.greeted()
        assert not served.broker.hello().auto_create_topics
        [result] = (await peer.ask(1, append_of(V, "comits"), V))["partitions"]
        assert (result["error"]["code"], result["error"]["nearest"]) == ("UNKNOWN_TOPIC", "commits")
        assert list(served.broker.directory.registry.topics) == ["commits"]


@each_case("name", ["no/slash", "..", "", "x" * 250])
async def test_an_append_that_would_create_an_invalid_topic_is_refused(name: str) -> None:
    async with real() as served:
        peer = await served.greeted()
        places = [AppendPartition(topic, 0, len(V)) for topic in (name, "commits")]
        refused, fine = (await peer.ask(1, AppendRequest(places, "os", create=True), V * 2))["partitions"]
        assert refused["error"]["code"] == "INVALID_TOPIC_EXCEPTION"
        assert fine["base_offset"] == 0
        assert list(served.broker.directory.registry.topics) == ["commits"]
        await peer.send(2, append_of(V), V)
        assert await peer.receive_ids(1) == [2]


async def test_a_bug_while_creating_is_answered_and_the_connection_goes_on(served: Listening, peer: Peer) -> None:
    async def broken(request: AppendRequest) -> dict[str, SeglogError]:
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("oops")

    served.broker.create_missing = broken
    with capture_logs() as logged:
        [result] = (await peer.ask(1, append_of(V, "events"), V))["partitions"]
    assert result["error"]["code"] == "UNKNOWN_SERVER_ERROR"
    assert [entry["event"] for entry in logged] == ["request_crashed"]
    await peer.send(2, append_of(V), V)
    assert await peer.receive_ids(1) == [2]


# --- hello ------------------------------------------------------------------------------------------------------------


async def test_hello_may_be_corrected_only_so_often(served: Listening) -> None:
    peer = await served.connect()
    for number in range(TRIES_MAX):
        await peer.send_header(id=number, api="hello", v=2, protocol=PROTOCOL_NAME)
        header = (await peer.receive()).header
        assert (header["id"], code_of(header)) == (number, "UNSUPPORTED_VERSION")
    assert await peer.hung_up()
    errors = served.broker.metrics.request_errors
    assert errors == {"UNSUPPORTED_VERSION": TRIES_MAX}
    last = await served.connect()
    for number in range(TRIES_MAX - 1):
        await last.send_header(id=number, api="hello", v=2, protocol=PROTOCOL_NAME)
        await last.receive()
    await last.greet()


async def test_two_hellos_in_one_packet_are_both_answered(served: Listening) -> None:
    good = [encode_frame(request_header(number, HelloRequest(PROTOCOL_NAME))) for number in (1, 2)]
    wrong = encode_frame({"id": 0, "api": "hello", "v": 9})
    for frames, ids in ((good, [1, 2]), ([wrong, *good], [0, 1, 2])):
        peer = await served.connect()
        await peer.stream.send_all(b"".join(frames))
        assert await peer.receive_ids(len(ids)) == ids
    assert served.broker.metrics.requests["hello"] == 5, "with the one that was refused"
