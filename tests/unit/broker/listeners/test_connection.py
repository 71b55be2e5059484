"""What holds for a connection on every wire.

Order, stop, idleness, stalls, full queues, slow readers, broken frames, peers that half close or dribble.
"""

import gc
from collections.abc import Sequence

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.ready_sockets import ALONE_SECONDS
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.flushes import Flush
from seglog_broker.testing.offload import InlineOffload
from tests.logs import batch
from tests.support import each_case
from tests.unit.broker.listeners.wires import BATCH, TOPIC, WIRES, Response, WireKit, WirePeer, WireServed, serving_wire


class HeldSyncs(InlineOffload):
    """Commits wait until ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.go = trio.Event()
        self.waiting = 0

    async def commit(self, fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
        self.waiting += 1
        await self.go.wait()
        return await super().commit(fs, flushes)

    async def until_waiting(self) -> None:
        while not self.waiting:
            await wait_all_tasks_blocked()


def of_kind(kind: str, responses: Sequence[Response]) -> list[Response]:
    return [response for response in responses if response.kind == kind]


# --- Order ------------------------------------------------------------------------------------------------------------


async def test_appends_are_answered_in_their_order_whatever_their_acks(peer: WirePeer) -> None:
    acks_wanted = ["disk", "os", "os", "disk", "none", "os", "disk"]
    await peer.send(*[peer.append(ack) for ack in acks_wanted])  # type: ignore[arg-type]
    responses = await peer.receive_all(6)
    assert [response.value for response in responses] == [0, 1, 2, 3, 5, 6]


async def test_on_an_ordered_wire_every_response_has_its_place_and_on_others_appends_have(kit: WireKit) -> None:
    offload = HeldSyncs()
    async with serving_wire(kit, offload=offload) as served:
        peer = await served.connect()
        await peer.send(peer.append(), peer.query(), peer.append("os"), peer.fetch(0), peer.append(), peer.query())
        async with trio.open_nursery() as nursery:

            async def let_go() -> None:
                await offload.until_waiting()
                await wait_all_tasks_blocked()
                offload.go.set()

            nursery.start_soon(let_go)
            responses = await peer.receive_all(6)
        if kit.is_ordered:
            assert [response.number for response in responses] == list(range(6))
            assert [response.value for response in of_kind("query", responses)] == [1, 3]
        else:
            assert [response.number for response in responses[:2]] == [1, 3], "they overtake appends that wait"
        assert [response.value for response in of_kind("append", responses)] == [0, 1, 2]


async def test_a_waiting_fetch_holds_up_what_follows_on_an_ordered_wire_alone(kit: WireKit, served: WireServed) -> None:
    peer, other = await served.connect(), await served.connect()
    await peer.send(peer.fetch(0, wait_ms=2**31 - 1))
    await served.until_waiting(1)
    await peer.send(peer.query())
    await peer.send(peer.append("os")) if not kit.is_ordered else await other.send(other.append("os"))
    responses = await peer.receive_all(2 if kit.is_ordered else 3)
    assert responses[0].kind == ("fetch" if kit.is_ordered else "query")
    assert of_kind("fetch", responses)[0].value == len(BATCH)
    await peer.send(peer.query())
    assert (await peer.receive()).value == 1


async def test_requests_that_came_with_a_waiting_fetch_are_served_behind_it(kit: WireKit, served: WireServed) -> None:
    peer, other = await served.connect(), await served.connect()
    await peer.send(peer.fetch(0, wait_ms=2**31 - 1), peer.query(), peer.fetch(0, wait_ms=2**31 - 1), peer.query())
    await served.until_waiting(1 if kit.is_ordered else 2)
    await other.send(other.append("os"), other.append("os"))
    responses = await peer.receive_all(4)
    if kit.is_ordered:
        assert [response.number for response in responses] == [0, 1, 2, 3]
    assert sorted(response.number for response in responses) == [0, 1, 2, 3]


@pytest.mark.parametrize("wait_ms", [20, 2**31 - 1])
async def test_fetches_wait_without_a_task(
    kit: WireKit, wait_ms: int, autojump_clock: MockClock, served: WireServed
) -> None:
    peers = [await served.connect() for _ in range(20)]
    await wait_all_tasks_blocked()
    tasks = trio.lowlevel.current_statistics().tasks_living
    for peer in peers:
        await peer.send(peer.fetch(0, wait_ms))
    if wait_ms > 1_000:
        await served.until_waiting(20)
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        await peers[0].send(peers[0].append("os")) if not kit.is_ordered else None
        producer = await served.connect()
        await producer.send(producer.append("os"))
        assert (await producer.receive()).value is not None
    for peer in peers:
        response = await peer.receive()
        while response.kind != "fetch":
            response = await peer.receive()
        assert (response.value or 0) % len(BATCH) == 0


# --- Stop -------------------------------------------------------------------------------------------------------------


async def test_a_stop_answers_what_waits_and_what_was_sent_before_it(served: WireServed, peer: WirePeer) -> None:
    await peer.send(peer.append(), peer.fetch(1, wait_ms=2**31 - 1))
    await served.until_waiting(1)
    served.stop()
    first, second = await peer.receive_all(2)
    assert (first.kind, first.value, second.kind, second.value) == ("append", 0, "fetch", None)
    assert await peer.rest() == b""
    await served.ended.wait()


async def test_a_stop_waits_for_acks_that_are_due(kit: WireKit) -> None:
    offload = HeldSyncs()
    async with serving_wire(kit, offload=offload) as served:
        peer = await served.connect()
        await peer.send(peer.append(), peer.append())
        await offload.until_waiting()
        served.stop()
        await wait_all_tasks_blocked()
        offload.go.set()
        assert [response.value for response in await peer.receive_all(2)] == [0, 1]
        assert await peer.rest() == b""
        await served.ended.wait()


# --- Peers that leave, or do nothing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [0, 1, 3])
async def test_a_fetch_that_waits_ends_when_its_peer_leaves(
    kit: WireKit, behind: int, served: WireServed, peer: WirePeer
) -> None:
    await peer.send(peer.fetch(0, wait_ms=2**31 - 1))
    await served.until_waiting(1)
    if kit.is_ordered:  # elsewhere they are answered
        await peer.send(*[peer.query() for _ in range(behind)])
    await wait_all_tasks_blocked()
    await peer.stream.aclose()
    await served.until_waiting(0)
    await served.until_closed()


async def test_a_peer_that_has_finished_sending_gets_its_answers(kit: WireKit) -> None:
    offload = HeldSyncs()
    async with serving_wire(kit, offload=offload) as served:
        peer = await served.connect()
        await peer.send(peer.append(), peer.append("os"), peer.append())
        await peer.stream.send_eof()
        await offload.until_waiting()
        offload.go.set()
        assert [response.value for response in await peer.receive_all(3)] == [0, 1, 2]
        assert await peer.rest() == b""


@pytest.mark.parametrize("what", ["append", "fetch"])
async def test_half_a_request_is_not_served(what: str, served: WireServed, peer: WirePeer) -> None:
    frame = peer.append("os") if what == "append" else peer.fetch(0)
    await peer.send(frame[:-1])
    await peer.stream.send_eof()
    assert await peer.rest() == b""
    assert served.broker.partitions["plain", 0].log.log_end_offset == 0


async def test_an_idle_connection_is_closed_and_one_with_a_request_is_not(
    kit: WireKit, autojump_clock: MockClock
) -> None:
    async with serving_wire(kit, "connections.max.idle.ms=10000") as served:
        idle, waiting = await served.connect(), await served.connect()
        await waiting.send(waiting.fetch(0, wait_ms=60_000))
        with capture_logs() as logged:
            assert await idle.rest() == b""
        assert [entry["event"] for entry in logged].count("connection_idle") == 1
        assert served.broker.metrics.connections_ended == {"idle": 1}
        assert 10 <= trio.current_time() < 20
        assert (await waiting.receive()).value == 0


@pytest.mark.parametrize(("size", "sent"), [(10, 30), (700_000, 100_000)], ids=["small", "large"])
async def test_half_a_request_and_then_silence_is_cut(
    kit: WireKit, size: int, sent: int, autojump_clock: MockClock
) -> None:
    async with serving_wire(kit, "seglog.connections.max.stall.ms=5000") as served:
        peer = await served.connect()
        await peer.send(peer.append("os", batch(bytes(size)))[:sent])
        with capture_logs() as logged:
            assert await peer.rest() == b""
        [reason] = [entry["reason"] for entry in logged if entry["event"] == "connection_cut"]
        assert reason.startswith("it sent half a request")
        assert served.broker.metrics.connections_ended == {"stalled": 1}


async def test_a_peer_that_reads_nothing_is_cut_and_gives_back_what_it_was_to_get(
    kit: WireKit, autojump_clock: MockClock
) -> None:
    async with serving_wire(kit, "seglog.connections.max.stall.ms=5000") as served:
        peer = await served.connect()
        for number in range(20):
            await peer.send(peer.append("os", batch(bytes(900_000))))
            assert (await peer.receive()).value == number
        with capture_logs() as logged:
            await peer.send(peer.fetch(0, bytes_max=50_000_000))
            while served.broker.metrics.connections_open:  # noqa: ASYNC110 - the broker has no event for it
                await trio.sleep(1)
        reasons = [entry["reason"] for entry in logged if entry["event"] == "connection_cut"]
        assert reasons == ["it read nothing for 5 s"]


# --- Commits ----------------------------------------------------------------------------------------------------------


async def test_a_commit_that_waits_for_the_disk_has_no_task_and_holds_up_what_follows(kit: WireKit) -> None:
    offload = HeldSyncs()
    async with serving_wire(kit, offload=offload) as served, trio.open_nursery() as nursery:
        nursery.start_soon(served.broker.groups.run)
        peer = await served.connect()
        connection = await served.connection_of(peer)
        for offset in range(2):  # the first one makes the topic
            offload.go, offload.waiting = trio.Event(), 0
            await peer.send(peer.commit(offset), peer.query())
            while not offload.waiting:
                await wait_all_tasks_blocked()
            await wait_all_tasks_blocked()
            assert connection.is_held
            assert connection.wire.is_waiting
            assert not connection.nursery.child_tasks
            offload.go.set()
            assert [response.kind for response in await peer.receive_all(2)] == ["commit", "query"]
            assert served.broker.groups.offsets.of("group")[TOPIC, 0].offset == offset
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("end", ["eof", "leaves", "stop", "cancel"])
async def test_a_connection_that_ends_waits_for_a_commit(kit: WireKit, end: str) -> None:
    offload = HeldSyncs()
    async with serving_wire(kit, offload=offload) as served, trio.open_nursery() as nursery:
        nursery.start_soon(served.broker.groups.run)
        peer = await served.connect()
        connection = await served.connection_of(peer)
        await peer.send(peer.commit(7))
        while not connection.is_held:
            await wait_all_tasks_blocked()
        if end == "eof":
            await peer.stream.send_eof()
        elif end == "leaves":
            await peer.stream.aclose()
        elif end == "stop":
            served.stop()
        else:
            connection.nursery.cancel_scope.cancel()
            await served.until_closed()
        await wait_all_tasks_blocked()
        offload.go.set()
        if end in {"eof", "stop"}:
            assert await peer.receive() == Response("commit", 0, 0)
            assert await peer.rest() == b""
        await served.until_closed()
        while not served.broker.groups.offsets.of("group"):
            await wait_all_tasks_blocked()
        assert served.broker.groups.offsets.of("group")[TOPIC, 0].offset == 7, "whoever has left, it stands"
        nursery.cancel_scope.cancel()


async def test_a_commit_of_the_only_client_is_synced_and_answered_in_its_turn(kit: WireKit) -> None:
    offload = HeldSyncs()
    async with serving_wire(kit, offload=offload) as served, trio.open_nursery() as nursery:
        nursery.start_soon(served.broker.groups.run)
        peer = await served.connect()
        offload.go.set()
        await peer.send(peer.commit(0))
        await peer.receive()
        offload.go, offload.waiting = trio.Event(), 0
        served.broker.commits.may_wait_at = 0.0
        (await served.connection_of(peer)).ready._latest_since = -ALONE_SECONDS  # it has been alone for so long
        await peer.send(peer.commit(1))
        assert (await peer.receive()).value == 0
        assert offload.waiting == 0, "the loop has waited for the disk itself"
        partition = served.broker.groups.offsets.of("group")[TOPIC, 0]
        assert partition.offset == 1
        logs = [log for (topic, _), log in served.broker.directory.logs.items() if topic == "__consumer_offsets"]
        assert all(log.durable_end_offset == log.log_end_offset for log in logs)
        nursery.cancel_scope.cancel()


# --- Full queues ------------------------------------------------------------------------------------------------------


async def test_appends_that_wait_for_their_ack_are_bounded(kit: WireKit) -> None:
    offload = HeldSyncs()
    async with serving_wire(kit, offload=offload) as served:
        peer = await served.connect()
        (await served.connection_of(peer)).acks.appends_max = 5
        await peer.send(*[peer.append() for _ in range(12)])
        await wait_all_tasks_blocked()
        assert served.broker.partitions["plain", 0].log.log_end_offset == 5
        offload.go.set()
        assert [response.value for response in await peer.receive_all(12)] == list(range(12))


# --- Broken frames ----------------------------------------------------------------------------------------------------

BAD = [(kit, name) for kit in WIRES for name in kit.bad_frames]


@each_case(("wire", "bad"), BAD, ids=[f"{kit.name}, {name}" for kit, name in BAD])
async def test_what_came_before_bad_bytes_is_answered_and_then_the_connection_ends(wire: WireKit, bad: str) -> None:
    async with serving_wire(wire) as served:
        peer, other = await served.connect(), await served.connect()
        with capture_logs() as logged:
            await peer.send(peer.append(), peer.append("os"), wire.bad_frames[bad], peer.append())
            assert [response.value for response in await peer.receive_all(2)] == [0, 1]
            if not wire.is_ordered:
                assert await peer.receive() == Response("none", -1, None), "the error says why"
            assert await peer.rest() == b""
        assert [entry["event"] for entry in logged if entry["event"].startswith("connection")] == ["connection_refused"]
        await other.send(other.append())
        assert (await other.receive()).value == 2
        assert served.broker.metrics.connections_ended == {"protocol_error": 1}


@each_case(("wire", "bad"), BAD, ids=[f"{kit.name}, {name}" for kit, name in BAD])
async def test_a_connection_that_ended_by_bad_bytes_is_freed_without_the_collector(wire: WireKit, bad: str) -> None:
    async with serving_wire(wire) as served:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                peer = await served.connect()
                await peer.send(wire.bad_frames[bad])
                await peer.rest()
                await peer.stream.aclose()
            await served.until_closed()
            await wait_all_tasks_blocked()
            left = [found for found in gc.get_objects() if type(found) is Connection]
            assert len(left) <= 1, "the latest is held by those that gave it its turn"
        finally:
            gc.enable()
