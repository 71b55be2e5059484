"""Requests that come together are served together, with the results that they have one at a time.

The same bytes go to two brokers: cut anywhere, and frame by frame. The files of the partitions and the replies must be
the same.
"""

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.request_errors import AppendOutcome
from seglog_broker.listeners.wire import Wire
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.frames import Frame, FrameReader, encode_frame
from seglog_protocol.messages import (
    Ack,
    AppendPartition,
    AppendRequest,
    CreateTopicRequest,
    FetchPartition,
    FetchRequest,
    OffsetsPartition,
    OffsetsRequest,
    Request,
    request_header,
)
from tests.support import examples
from tests.unit.broker.listeners.fake_broker import Peer, serving
from tests.unit.broker.listeners.real_broker import real_broker

NOW: Final = 1_700_000_000_000
TOPICS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"segment.bytes": 3000, "index.interval.bytes": 300},
    "wide": {},
    "full": {"segment.index.bytes": 48, "index.interval.bytes": 0},
    "aged": {"segment.ms": 5_000, "index.interval.bytes": 100},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "keyed": {"cleanup.policy": "compact"},
    "small": {"max.message.bytes": 400},
}


@dataclass
class Script:
    """Frames of requests, and what their producers have sent so far."""

    frames: list[bytes] = field(default_factory=list)
    sequences: dict[tuple[int, str, int], int] = field(default_factory=dict)
    last: dict[tuple[int, str, int], bytes] = field(default_factory=dict)

    def add(self, request: Request, payload: bytes = b"") -> None:
        self.frames.append(encode_frame(request_header(len(self.frames) + 1, request), [payload]))

    def batch(self, topic: str, partition: int, what: str, dice: random.Random) -> bytes:
        timestamp = {"late": NOW + 10**11, "none": -1}.get(what, NOW - dice.randrange(20_000))
        size = dice.choice([5, 20, 200, 600])
        records = [
            (timestamp + n * (timestamp >= 0), None if what == "keyless" else b"key", bytes(size), ())
            for n in range(dice.randrange(1, 4))
        ]
        if what in {"next", "again", "gap", "old epoch"}:
            key = dice.randrange(2), topic, partition
            if what == "again" and key in self.last:
                return self.last[key]
            sequence = self.sequences.get(key, 0) + (3 if what == "gap" else 0)
            epoch = 0 if what == "old epoch" else 1
            data = encode_batch(records, producer_id=key[0] + 5, producer_epoch=epoch, base_sequence=sequence)
            if what == "next":
                self.sequences[key], self.last[key] = sequence + len(records), data
            return data
        codec = dice.choice([Codec.LZ4, Codec.ZSTD]) if what == "packed" else Codec.NONE
        data = encode_batch(records, codec=codec)
        if what == "corrupt":
            return data[:-1] + bytes([data[-1] ^ 1])
        return data[: len(data) // 2] if what == "cut" else data

    def append(self, items: Sequence[tuple[str, int, str]], ack: Ack, seed: int, *, lies: bool) -> None:
        dice = random.Random(seed)
        batches = [self.batch(*item, dice) for item in items]
        parts = [
            AppendPartition(topic, partition, len(data))
            for (topic, partition, _), data in zip(items, batches, strict=True)
        ]
        self.add(AppendRequest(parts, ack, create=True), b"".join(batches) + b"!" * lies)


USUAL: Final = ["plain batch", "next"]
KINDS: Final = [*USUAL, "again", "gap", "old epoch", "packed", "none", "late", "keyless", "corrupt", "cut"]
NAMES: Final = [*TOPICS, "unknown"]
ITEMS: Final = st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.sampled_from(KINDS))
SEEDS: Final = st.integers(0, 1 << 20)
STEPS: Final = st.one_of(
    st.tuples(st.just("row"), ITEMS, st.sampled_from(["os", "disk"]), st.integers(1, 12), SEEDS),
    st.tuples(st.just("append"), st.lists(ITEMS, min_size=1, max_size=4), st.sampled_from(["os", "disk"]), SEEDS),
    st.tuples(st.sampled_from(["fetch", "offsets", "large", "lie", "no ack", "unknown api"]), SEEDS),
)


def script_of(steps: Sequence[tuple[Any, ...]], *, ends_badly: bool) -> list[bytes]:
    script = Script()
    for step in steps:
        match step:
            case ("row", (topic, partition, kind), ack, count, seed):
                for number in range(count):  # one unusual batch somewhere in a row of usual ones
                    usual = USUAL[seed % 2]
                    kinds = kind if number == seed % count else usual
                    script.append([(topic, partition, kinds)], ack, seed + number, lies=False)
            case ("append", items, ack, seed):
                script.append(items, ack, seed, lies=False)
            case ("large", seed):
                data = encode_batch([(NOW, b"key", random.Random(seed).randbytes(90_000 + seed % 100_000), ())])
                script.add(AppendRequest([AppendPartition("wide", seed % 3, len(data))], "os"), data)
            case ("lie", seed):
                script.append([("plain", 0, "next")], "disk", seed, lies=True)
            case ("no ack", seed):
                script.append([("plain", seed % 3, KINDS[seed % 6])], "none", seed, lies=False)
            case ("fetch", seed):
                topic = NAMES[seed % len(NAMES)]
                script.add(
                    FetchRequest([FetchPartition(topic, number, 0) for number in range(1 + seed % 3)], max_wait_ms=0)
                )
            case ("offsets", seed):
                topic = NAMES[seed % len(NAMES)]
                script.add(
                    OffsetsRequest([OffsetsPartition(topic, 0), OffsetsPartition(topic, 1, NOW - seed % 20_000)])
                )
            case _:
                script.frames.append(encode_frame({"id": len(script.frames) + 1, "api": "nonsense", "v": 1}))
    if ends_badly:
        script.frames.append(b"\0\0\0\x08\0\0\0\x04\xc1\xc1\xc1\xc1")
    return script.frames


@asynccontextmanager
async def broker_on(fs: ForgetfulFileSystem) -> AsyncIterator[Broker]:
    made = [CreateTopicRequest("noise", 1)]
    made += [CreateTopicRequest(topic, 3, {k: str(v) for k, v in config.items()}) for topic, config in TOPICS.items()]
    async with real_broker(fs=fs, topics=made) as broker:
        yield broker


def what_was_said(data: bytes) -> tuple[list[tuple[Any, Any, bytes]], list[Any]]:
    """The replies by id, and the ids of those to appends in order.

    How far a partition is durable is left out: that depends on when a round of syncs ends.
    """
    reader = FrameReader()
    reader.receive_data(data)
    frames: list[Frame] = []
    while (frame := reader.next_frame() or reader.next_frame()) is not None:
        frames.append(frame)
    assert reader.is_idle
    said, order = [], []
    for frame in frames:
        header = frame.header
        results = header.get("partitions", [])
        if results and "ack" in str(results):
            order.append(header["id"])
        header.pop("topic_ids", None)  # drawn by each broker
        for result in results:
            result.pop("durable", None)
        said.append((header.pop("id"), header, bytes(frame.payload)))
    return sorted(said, key=lambda reply: (reply[0] is None, reply[0])), order


async def make_noise(peer: Peer) -> None:
    """Append to a topic of its own, as fast as it is answered."""
    data = encode_batch([(NOW, b"noise", bytes(3_000), ())])
    frame = encode_frame(request_header(1, AppendRequest([AppendPartition("noise", 0, len(data))], "os")), [data])
    while True:
        await peer.stream.send_all(frame * 7)
        for _ in range(7):
            await peer.receive()


async def exchanged(
    peer: Peer, other: Peer, pieces: Sequence[bytes], noise: Callable[[Peer], Awaitable[None]] | None
) -> bytes:
    """All that a broker answers to these bytes. With ``noise``, another connection sends all the time."""
    received = bytearray()

    async def receive() -> None:
        received.extend(await peer.rest())
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        if noise:
            nursery.start_soon(noise, other)
        for piece in pieces:
            try:
                await peer.stream.send_all(piece)
            except trio.BrokenResourceError:
                break  # the broker has closed it
            if noise:
                await trio.sleep(0.001)
            else:
                await wait_all_tasks_blocked(0.0005)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await peer.stream.send_eof()
    return bytes(received)


async def outcome(pieces: Sequence[bytes], *, noise: bool = False) -> tuple[Any, list[str], dict[str, bytes]]:
    """What a broker replies to these bytes, the segments that it logs, and the files of its partitions afterwards."""
    fs = ForgetfulFileSystem()
    with capture_logs() as logged:
        async with broker_on(fs) as broker, serving(broker) as served:
            peers = await served.greeted(), await served.greeted()
            received = await exchanged(*peers, pieces, make_noise if noise else None)
    rolls = [entry for entry in logged if entry["event"] == "segment_rolled" and entry["topic"] != "noise"]
    return what_was_said(received), sorted(map(str, rolls)), files_of(fs)


def files_of(fs: ForgetfulFileSystem) -> dict[str, bytes]:
    """The files of the partitions, but for those of ``noise`` and those that are written at times of their own."""
    return {
        path: content
        for path, content in fs.snapshot().items()
        if path.count("/") == 3
        and "noise" not in path
        and "checkpoint" not in path
        and "partition.metadata" not in path
    }


def pieces_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


ROW: Final = ("row", ("plain", 0, "again"), "os", 12, 1)


@given(st.lists(STEPS, min_size=1, max_size=8), st.lists(st.integers(0, 1 << 24), max_size=5), st.booleans())
@example([("row", ("plain", 0, "plain batch"), "os", 12, 450)], [], False)  # two segments are begun
@example([ROW, ("row", ("full", 1, "gap"), "disk", 12, 3), ("no ack", 5), ROW], [], False)
@example([ROW, ("row", ("aged", 1, "none"), "disk", 12, 4), ("fetch", 0)], [700], True)
@example([("append", [("plain", 0, "late"), ("plain", 0, "plain batch")], "os", 0), ROW], [], False)
@settings(max_examples=examples(150), deadline=None)
def test_requests_have_the_results_that_they_have_one_at_a_time(
    steps: list[tuple[Any, ...]], cuts: list[int], ends_badly: bool
) -> None:
    frames = script_of(steps, ends_badly=ends_badly)
    one_by_one = trio.run(outcome, frames)
    pieces = pieces_of(b"".join(frames), cuts)
    for noise in (False, True):
        together = trio.run(partial(outcome, pieces, noise=noise))
        assert together[0] == one_by_one[0]
        assert together[1:] == one_by_one[1:]


DATA: Final = encode_batch([(NOW, b"key", b"value", ())])
REQUEST: Final = AppendRequest([AppendPartition("wide", 1, len(DATA))], "os")


def log_writes(fs: ForgetfulFileSystem) -> int:
    return sum(op.name == "pwritev" and op.path.endswith(".log") for op in fs.operations)


@pytest.mark.parametrize("connections", [1, 16])
async def test_appends_that_are_there_together_are_written_together(connections: int) -> None:
    fs = ForgetfulFileSystem()
    async with broker_on(fs) as broker, serving(broker) as served:
        served.ready.turn_seconds = 60
        peers = [await served.greeted() for _ in range(connections)]
        frames = b"".join(encode_frame(request_header(number, REQUEST), [DATA]) for number in range(48 // connections))
        await peers[0].stream.send_all(frames)  # the first batch of a segment is written alone
        await peers[0].receive_ids(48 // connections)
        before = log_writes(fs)
        for peer in peers:
            os.write(peer.stream.socket.fileno(), frames)  # no task runs in between
        for peer in peers:
            assert await peer.receive_ids(48 // connections) == list(range(48 // connections))
        assert log_writes(fs) - before == 1
        assert broker.partitions["wide", 1].log.log_end_offset == 48 + 48 // connections
        await served.close_peers()


class Broken(ForgetfulFileSystem):
    """A disk that cannot be written, by a bug."""

    is_broken = False

    def begin(self, name: str, path: str, *detail: int | str) -> int | None:
        if self.is_broken:
            raise ZeroDivisionError
        return super().begin(name, path, *detail)


async def test_an_unexpected_error_while_writing_ends_no_connection() -> None:
    fs = Broken()
    async with broker_on(fs) as broker, serving(broker) as served:
        peers = [await served.greeted() for _ in range(3)]
        frame = encode_frame(request_header(1, REQUEST), [DATA])
        fs.is_broken = True
        for peer in peers:
            os.write(peer.stream.socket.fileno(), frame)
        for peer in peers:
            [result] = (await peer.receive()).header["partitions"]
            assert result["error"]["code"] == "UNKNOWN_SERVER_ERROR"
        fs.is_broken = False
        for peer in peers:
            assert (await peer.ask(2, REQUEST, DATA))["partitions"][0]["ack"] == "os"
        await served.close_peers()


async def test_where_writing_together_fails_each_batch_is_tried_alone() -> None:
    fs = ForgetfulFileSystem()
    async with broker_on(fs) as broker, serving(broker) as served:
        peer = await served.greeted()
        batches = [encode_batch([(NOW, b"key", bytes(size), ())]) for size in (10, 10, 4_000, 10)]
        frames = [
            encode_frame(request_header(n, AppendRequest([AppendPartition("wide", 0, len(data))], "os")), [data])
            for n, data in enumerate(batches)
        ]
        await peer.stream.send_all(frames[0])
        await peer.receive()
        fs.limit_free_bytes(2_000)
        await peer.stream.send_all(b"".join(frames[1:]))
        results = [(await peer.receive()).header["partitions"][0] for _ in batches[1:]]
        assert ["error" in result for result in results] == [False, True, False]
        assert [result.get("base_offset") for result in results] == [1, None, 2]
        fs.limit_free_bytes(None)
        await served.close_peers()


class Failing(Wire):
    """Serves as another wire does, and cannot encode the replies to appends, by a bug."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.reader = wire.reader

    def serve_next(self) -> bool:
        return self._wire.serve_next()

    def encode_appended(
        self, request_ids: Sequence[Any], outcomes: Sequence[AppendOutcome], began: float
    ) -> Buffer | None:
        raise ZeroDivisionError

    def drop(self) -> None:
        self._wire.drop()

    def detach(self) -> None:
        self._wire.detach()


async def test_a_connection_that_cannot_be_answered_ends_alone() -> None:
    async with broker_on(ForgetfulFileSystem()) as broker, serving(broker) as served:
        served.ready.turn_seconds = 60
        peers = [await served.greeted() for _ in range(3)]
        frames = [encode_frame(request_header(n, REQUEST), [DATA]) for n in range(3)]
        connection = await served.connection_of(peers[1].stream)
        connection.wire = Failing(connection.wire)
        for peer, frame in zip(peers, frames, strict=True):
            os.write(peer.stream.socket.fileno(), frame)
        with trio.fail_after(60):
            assert await peers[0].receive_ids(1) == [0]
            assert await peers[2].receive_ids(1) == [2]
            assert await peers[1].hung_up()
        await served.close_peers()
