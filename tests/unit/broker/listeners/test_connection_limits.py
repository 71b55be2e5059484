"""Limits on connections, over real sockets: memory of requests and replies, idle peers, peers that hold others up."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from seglog_broker.listeners import acceptor
from seglog_broker.runtime.response_memory import LARGE_MAX
from seglog_protocol.frame_receiver import RECEIVE_BYTES
from seglog_protocol.frames import encode_frame
from seglog_protocol.messages import (
    FlushPartition,
    FlushReply,
    FlushRequest,
    FlushResult,
    Message,
    Request,
    TopicsReply,
    TopicsRequest,
    request_header,
)
from tests.unit.broker.listeners.fake_broker import (
    OFFSETS,
    WITH_FAKES,
    FakeBroker,
    FakeSlice,
    Peer,
    Served,
    StoredFile,
    answer_of,
    append_of,
    fetch_of,
    serving,
)

MIB = 1024 * 1024


def large(request_id: int, size: int) -> bytes:
    return encode_frame(request_header(request_id, append_of(size, "os")), [bytes(size)])


def events(logged: list[Any]) -> list[str]:
    return [entry["event"] for entry in logged]


# --- Memory -----------------------------------------------------------------------------------------------------------


async def filled(served: Served, number: int) -> tuple[list[Peer], list[bytes]]:
    """So many peers, each of which has sent 600,000 of 700,000 bytes of a request, and the rest of each request."""
    data = large(1, 700_000)
    peers = [await served.greeted() for _ in range(number)]
    for peer in peers:
        async with trio.open_nursery() as nursery:  # the last ones are not read to the end
            nursery.start_soon(peer.stream.send_all, data[:600_000])
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    return peers, [data[600_000:]] * number


async def test_an_announced_large_request_takes_memory_only_as_it_arrives() -> None:
    broker = FakeBroker(seglog_request_memory_max=2 * MIB)
    async with serving(broker) as served:
        announcing = [await served.greeted() for _ in range(12)]
        for peer in announcing:
            await peer.stream.send_all(large(1, 900_000)[:1000])
        await wait_all_tasks_blocked()
        assert broker.request_memory.used == 0, "twelve times 900,000 bytes are announced"
        peer = await served.greeted()
        await peer.stream.send_all(large(2, 900_000))
        assert await peer.receive_ids(1) == [2]
        assert broker.request_memory.waits == 0
        broker.request_memory.pool.clear()  # a spare buffer is taken whole
        await announcing[0].stream.send_all(large(1, 900_000)[1000:200_000])
        await wait_all_tasks_blocked()
        assert 200_000 <= broker.request_memory.used < 2 * 200_000 + RECEIVE_BYTES


async def test_a_large_request_without_room_is_not_read_until_there_is_and_small_ones_pass() -> None:
    broker = FakeBroker(seglog_request_memory_max=2 * MIB)
    async with serving(broker) as served:
        finishing, waiting, small = [await served.greeted() for _ in range(3)]
        first, second = large(1, 900_000), large(2, 700_000)
        third, other = await served.greeted(), large(3, 600_000)
        await third.stream.send_all(other[:590_000])
        await wait_all_tasks_blocked()
        await finishing.stream.send_all(first[:880_000])
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.stream.send_all, second)
            await wait_all_tasks_blocked()
            assert broker.request_memory.waiting == 1
            assert broker.request_memory.used <= 2 * MIB
            await small.send(4, append_of(1000, "os"), bytes(1000))
            assert await small.receive_ids(1) == [4]
            await finishing.stream.send_all(first[880_000:])
            assert await finishing.receive_ids(1) == [1]
        assert await waiting.receive_ids(1) == [2]
        await third.stream.send_all(other[590_000:])
        assert await third.receive_ids(1) == [3]
        assert [len(batch) for batch in broker.appended] == [1000, 900_000, 700_000, 600_000]
        assert (broker.request_memory.used, broker.request_memory.waits) == (0, 1)


async def test_a_slow_sender_that_holds_memory_others_wait_for_is_cut(autojump_clock: MockClock) -> None:
    """A peer that sends a byte a second would never count as stalled."""
    broker = FakeBroker(seglog_request_memory_max=2 * MIB)
    async with serving(broker) as served:
        peers, rests = await filled(served, 2)

        async def trickle(peer: Peer, rest: bytes) -> None:
            with suppress(trio.BrokenResourceError):
                for number in range(len(rest)):
                    await trio.sleep(1)
                    await peer.stream.send_all(rest[number : number + 1])

        async with trio.open_nursery() as nursery:
            for peer, rest in zip(peers, rests, strict=True):
                nursery.start_soon(trickle, peer, rest)
            await trio.sleep(100)
            assert not broker.metrics.connections_ended, "they disturb no other connection"
            honest = await served.greeted()
            began = trio.current_time()
            with capture_logs() as logged:
                nursery.start_soon(honest.stream.send_all, large(2, 1_000_000))
                assert await honest.receive_ids(1) == [2]
            assert trio.current_time() - began < 10
            assert {entry["reason"] for entry in logged if entry["event"] == "connection_cut"} == {
                "others wait for the memory of a request that comes too slowly"
            }
            nursery.cancel_scope.cancel()


async def test_a_request_larger_than_half_the_memory_is_refused_and_nothing_of_it_is_read() -> None:
    broker = FakeBroker(seglog_request_memory_max=MIB)
    async with serving(broker) as served:
        peer = await served.greeted()
        await peer.stream.send_all(large(1, MIB)[:1000])
        header = (await peer.receive()).header
        assert (header["id"], header["error"]["code"], header["error"]["limit"]) == (None, "FRAME_TOO_LARGE", MIB // 2)
        assert await peer.hung_up()
        assert broker.request_memory.used == 0


async def test_a_stop_does_not_wait_for_requests_that_wait_for_memory(autojump_clock: object) -> None:
    broker = FakeBroker(seglog_request_memory_max=2 * MIB)
    async with serving(broker) as served:
        peers, _ = await filled(served, 4)
        assert broker.request_memory.waiting
        began = trio.current_time()
        with capture_logs() as logged:
            served.stop()
            for peer in peers:
                assert await peer.hung_up()
            await served.ended.wait()
        assert trio.current_time() - began < acceptor.DRAIN_SECONDS
        assert "connections_cut" not in events(logged)


# --- Idle -------------------------------------------------------------------------------------------------------------


async def test_with_minus_one_no_connection_is_closed_for_idleness(autojump_clock: object) -> None:
    broker = FakeBroker(connections_max_idle_ms=-1)
    async with serving(broker) as served:
        peer = await served.greeted()
        await trio.sleep(7200)
        await peer.send(1, OFFSETS)
        assert await peer.receive_ids(1) == [1]


# --- Peers that hold something up -------------------------------------------------------------------------------------


@WITH_FAKES
async def test_a_peer_that_reads_its_reply_slowly_is_served_to_the_end(tmp_path: Path, autojump_clock: object) -> None:
    content = bytes(range(256)) * 128 * 1024  # 32 MiB
    file = StoredFile(tmp_path, content)
    broker = FakeBroker(seglog_connections_max_stall_ms=10_000)
    broker.answers.append(answer_of(FakeSlice(file, 0, len(content))))
    async with serving(broker) as served:
        peer = await served.greeted()
        await peer.send(1, fetch_of())
        taken = bytearray()
        whole = False
        while not whole:
            await trio.sleep(5)
            goal = len(taken) + 8 * MIB
            while len(taken) < goal and not whole:
                received = await peer.stream.receive_some(MIB)
                assert received, "the broker hung up"
                taken += received
                # The frame begins with a header, whose size is nobody's business here.
                whole = len(taken) > len(content) and taken.endswith(content[-1000:])
        assert not broker.metrics.connections_ended


@WITH_FAKES
async def test_a_reader_of_a_removed_file_is_cut_when_its_space_is_needed(
    tmp_path: Path, autojump_clock: object
) -> None:
    content = bytes(32 * MIB)
    broker = FakeBroker()
    slices = [FakeSlice(StoredFile(tmp_path, content), 0, len(content), gone) for gone in (True, False)]
    answers = [answer_of(each) for each in slices]
    async with serving(broker) as served:
        reading = [await served.greeted() for _ in answers]
        for peer, answer in zip(reading, answers, strict=True):
            broker.answers.append(answer)
            await peer.send(1, fetch_of())
            await wait_all_tasks_blocked()
        assert len(broker.transfers) == 2
        with capture_logs() as logged:
            for _ in range(12):
                broker.transfers.cut_removed()
                await trio.sleep(1)
        assert events(logged) == ["connection_cut"]
        assert [answer.closed for answer in answers] == [1, 0]


# --- Long replies of the native protocol: their memory is that of all large responses together ------------------------


class ListBroker(FakeBroker):
    """Whose replies to some requests have a mebibyte."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.answered = 0

    async def answer(self, request: Request, host: str = "", principal: str = "") -> tuple[Message, bytes]:
        self.answered += 1
        if isinstance(request, FlushRequest):
            return FlushReply([FlushResult(f"{each.topic}{100 * chr(110)}", 0) for each in request.partitions]), b""
        return TopicsReply(), bytes(1024 * 1024)


@pytest.mark.parametrize(
    "request_", [TopicsRequest(), FlushRequest([FlushPartition(f"t{n}", 0) for n in range(5_000)])]
)
async def test_lists_that_nobody_reads_are_few_and_the_others_are_not_made_yet(
    request_: Request, mock_clock: MockClock
) -> None:
    broker = ListBroker(socket_send_buffer_bytes=65_536)
    memory = broker.response_memory
    async with serving(broker) as served:
        for _ in range(3 * LARGE_MAX):
            await (await served.greeted()).send(1, request_)
        while memory.waiting < 2 * LARGE_MAX:  # time stands still: nobody is too slow
            await trio.lowlevel.checkpoint()
        assert broker.answered == LARGE_MAX
        mock_clock.autojump_threshold = 0.05
        reader = await served.greeted()
        await reader.send(1, request_)
        assert len((await reader.receive()).packed) > 0
        assert broker.metrics.connections_ended["slow_reader"] > 0
    assert memory.used == 0


async def test_a_request_for_little_needs_no_place(autojump_clock: MockClock) -> None:
    broker = ListBroker()
    broker.response_memory.large_max = 0
    async with serving(broker) as served:
        peer = await served.greeted()
        await peer.send(1, FlushRequest([FlushPartition("a", 0)]))
        await peer.receive()
    assert broker.response_memory.waiting == 0
