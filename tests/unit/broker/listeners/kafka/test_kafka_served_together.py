"""Kafka requests that come together have the results that they have one at a time; and both doors write the same bytes.

The same requests go to two brokers: cut anywhere, beside others, and one by one. To the second each comes with a client
id of its own, so that none repeats another and all are served without templates. The files of the partitions and all
bytes of the responses must be the same.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final

import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from seglog_broker.coordinators.groups.topics import id_bytes
from seglog_broker.listeners.serving import serve_kafka
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.frames import encode_frame
from seglog_protocol.kafka import messages, write_request
from seglog_protocol.kafka.structs import Request
from seglog_protocol.messages import Ack, AppendPartition, AppendRequest, request_header
from tests.support import examples
from tests.unit.broker.listeners.fake_broker import Peer, serving
from tests.unit.broker.listeners.kafka.kafka_peer import fetch, latest, produce
from tests.unit.broker.listeners.test_served_together import (
    ITEMS,
    KINDS,
    NAMES,
    NOW,
    SEEDS,
    USUAL,
    Script,
    broker_on,
    exchanged,
    files_of,
    pieces_of,
)

ACKS: Final[dict[int, Ack]] = {-1: "disk", 1: "os"}
STEPS: Final = st.one_of(
    st.tuples(st.just("row"), ITEMS, st.sampled_from([-1, 1]), st.integers(1, 12), SEEDS),
    st.tuples(st.just("append"), st.lists(ITEMS, min_size=1, max_size=4), st.sampled_from([-1, 1, 7]), SEEDS),
    st.tuples(st.just("very many"), ITEMS, st.sampled_from([-1, 1]), SEEDS),
    st.tuples(st.sampled_from(["polls", "moments", "heartbeats"]), ITEMS, st.integers(2, 8), SEEDS),
    st.tuples(
        st.sampled_from(
            [
                "fetch",
                "offsets",
                "large",
                "two batches",
                "no ack",
                "versions",
                "new version",
                "topic made again",
                "records deleted",
            ]
        ),
        SEEDS,
    ),
)

MOMENTS: Final = [-1, NOW, -2, NOW + 3, 0, -3, NOW - 100, -4, -5, -6, -7, NOW + 1_000_000]
"""Timestamps, and the ends of a log, that offsets are asked for."""

TOPIC_IDS: Final = {name: sha256(name.encode()).digest()[:16] for name in NAMES}
"""What stands in a script for the ids of topics, which each broker draws."""


class KafkaScript(Script):
    """Frames of Kafka requests, and what their producers have sent so far."""

    def __init__(self, *, repeats: bool) -> None:
        super().__init__()
        self.repeats = repeats

    def ask(self, request: Request, version: int) -> None:
        number = len(self.frames) + 1
        client_id = "script" if self.repeats else f"script {number:04}"
        self.frames.append(b"".join(write_request(number, client_id, request, version)))

    def produce(self, items: Sequence[tuple[str, int, str]], acks: int, seed: int, more: bytes = b"") -> None:
        dice = random.Random(seed)
        batches = [
            (topic, partition, self.batch(topic, partition, what, dice) + more) for topic, partition, what in items
        ]
        request = produce(*batches, acks=acks)
        for item in request.topic_data:
            item.topic_id = TOPIC_IDS[item.name]
        self.ask(request, 3 + seed % 11)

    def poll(self, topic: str, offsets: Sequence[int], seed: int) -> None:
        places = [(topic, number, offset) for number, offset in enumerate(offsets)]
        request = fetch(*places, isolation_level=seed // 15 % 2)
        for item in request.topics:
            item.topic_id = TOPIC_IDS[item.topic]
        self.ask(request, 4 + seed % 15)

    def look_up(self, topic: str, moments: Sequence[int], seed: int) -> None:
        request = latest(topic, *[number % 3 for number in range(len(moments))])
        for place, moment in zip(request.topics[0].partitions, moments, strict=True):
            place.timestamp = moment
        self.ask(request, 1 + seed % 11)

    def make_again(self, topic: str) -> None:
        self.ask(messages.DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 3)
        made = messages.CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=2, replication_factor=1)
        self.ask(messages.CreateTopicsRequest(topics=[made], timeout_ms=1000), 4)

    def delete_records(self, topic: str) -> None:
        cls = messages.DeleteRecordsRequest
        places = [cls.DeleteRecordsPartition(partition_index=0, offset=3)]
        self.ask(cls(topics=[cls.DeleteRecordsTopic(name=topic, partitions=places)], timeout_ms=1000), 1)


def script_of(steps: Sequence[tuple[Any, ...]], *, ends_badly: bool, repeats: bool) -> list[bytes]:
    script = KafkaScript(repeats=repeats)
    for step in steps:
        match step:
            case ("row", (topic, partition, kind), acks, count, seed):
                for number in range(count):  # one unusual batch somewhere in a row of usual ones
                    what = kind if number == seed % count else USUAL[seed % 2]
                    items = [(topic, partition, what)]
                    if number % 5 == 3:
                        items.append((topic, (partition + number) % 4, USUAL[0]))
                    script.produce(items, acks, (seed + number) * 11 + seed % 11)  # all of one version
            case ("append", items, acks, seed):
                script.produce(items, acks, seed)
            case ("polls", (topic, partition, kind), count, seed):  # with records, and once a new topic, in between
                for number in range(count):
                    script.poll(topic, [number // 2, *[0] * (seed % 3)], seed)
                    if number % 3 == 2:
                        script.produce([(topic, partition, kind)], 1, seed * 11 + seed % 11)
                    if number == 3 and seed % 4 == 0:
                        script.make_again(topic)
            case ("moments", (topic, partition, kind), count, seed):
                for number in range(count):
                    moments = [MOMENTS[(seed + number) % len(MOMENTS)], *[-1] * (seed // 7 % 4)]
                    script.look_up(topic, moments, seed)
                    if number % 3 == 2:
                        script.produce([(topic, partition, kind)], 1, seed * 11 + seed % 11)
                    if number == 3 and seed % 4 == 0:
                        script.make_again(topic)
            case ("heartbeats", (group, generation, _), count, seed):
                beat = messages.HeartbeatRequest(group_id=group, generation_id=generation, member_id="member")
                for _ in range(count):
                    script.ask(beat, seed % 5)
            case ("very many", (topic, _, kind), acks, seed):
                wanted = [(topic, number % 4, kind if number == seed % 70 else USUAL[0]) for number in range(70)]
                script.produce(wanted, acks, seed)
            case ("large", seed):
                data = encode_batch([(NOW, b"key", random.Random(seed).randbytes(90_000 + seed % 100_000), ())])
                script.ask(produce(("wide", seed % 3, data), acks=1), 9)
            case ("two batches", seed):
                script.produce([("plain", 0, "plain batch"), ("wide", 0, "plain batch")], -1, seed, more=b"!")
            case ("no ack", seed):
                script.produce([("plain", seed % 3, KINDS[seed % 6])], 0, seed)
            case ("fetch", seed):
                topic = NAMES[seed % len(NAMES)]
                script.ask(fetch(*[(topic, number, 0) for number in range(1 + seed % 3)]), 4 + seed % 9)
            case ("offsets", seed):
                script.ask(latest(NAMES[seed % len(NAMES)], 0, 1, 2), 1 + seed % 9)
            case ("topic made again", seed):
                script.make_again(NAMES[seed % len(NAMES)])
            case ("records deleted", seed):
                script.delete_records(NAMES[seed % len(NAMES)])
            case ("versions", seed):
                script.ask(messages.ApiVersionsRequest(), seed % 3)
            case _:
                script.frames.append(bytes.fromhex("0000000c 0012 0063 00000063 6e 6f 6e 65"))
    if ends_badly:
        script.frames.append(bytes.fromhex("00000008 03e7 0000 00000001"))
    return script.frames


async def make_noise(peer: Peer) -> None:
    """Append to a topic of its own, as fast as it is answered."""
    data = encode_batch([(NOW, b"noise", bytes(3_000), ())])
    frame = b"".join(write_request(1, None, produce(("noise", 0, data), acks=1), 9))
    while True:
        await peer.stream.send_all(frame * 7)
        await peer.stream.receive_some()


async def outcome(
    frames: Sequence[bytes], cuts: Sequence[int] | None = None, *, noise: bool = False
) -> tuple[bytes, dict[str, bytes]]:
    """All that a broker answers to these frames, and the files of its partitions afterwards.

    They come one by one, or cut at ``cuts``. With ``noise``, another connection sends all the time.
    """
    fs = ForgetfulFileSystem()
    async with broker_on(fs) as broker, serving(broker, serve_kafka) as served:
        topics = broker.directory.registry.topics
        ids = [(TOPIC_IDS[name], id_bytes(topics[name].id)) for name in NAMES if name in topics]
        asked = [replaced(frame, ids) for frame in frames]
        pieces = asked if cuts is None else pieces_of(b"".join(asked), cuts)
        peers = await served.connect(), await served.connect()
        received = await exchanged(*peers, pieces, make_noise if noise else None)
    answered = replaced(received, [(drawn, name) for name, drawn in ids])
    return answered, {name: data for name, data in files_of(fs).items() if "-delete" not in name}


def replaced(data: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    for old, new in pairs:
        data = data.replace(old, new)
    return data


def without_log(run: Callable[[], Any]) -> Any:
    with capture_logs():
        return trio.run(run)


ROW: Final = ("row", ("plain", 0, "again"), 1, 12, 1)
ROW_OF_IDS: Final = ("row", ("wide", 1, "gap"), -1, 12, 10)


def row(topic: str, kind: str, seed: int) -> tuple[Any, ...]:
    return ("row", (topic, 0, kind), -1, 12, seed)


@given(st.lists(STEPS, min_size=1, max_size=8), st.lists(st.integers(0, 1 << 24), max_size=5), st.booleans())
@example([("row", ("plain", 0, "plain batch"), 1, 12, 450)], [], False)  # two segments are begun
@example([ROW, ("row", ("full", 1, "gap"), -1, 12, 3), ("no ack", 5), ROW], [], False)
@example([ROW, ("row", ("aged", 1, "none"), -1, 12, 4), ("fetch", 0), ("new version", 0), ROW], [700], True)
@example(
    [("very many", ("wide", 0, "next"), -1, 3), ("fetch", 1), ("very many", ("keyed", 0, "keyless"), 1, 4)], [9], False
)
@example([ROW_OF_IDS, ("topic made again", 1), ROW_OF_IDS, ROW, ("topic made again", 0), ROW, ROW], [400], False)
@example([row("plain", "next", 9), ("records deleted", 0), row("plain", "next", 9)], [], False)
@example([row("stamped", "corrupt", 9), row("plain", "cut", 9)], [], False)
@example([ROW, *[("polls", ("plain", 0, "next"), 8, seed) for seed in range(0, 45, 4)]], [300], True)
@example([ROW_OF_IDS, *[("moments", ("wide", 1, "next"), 8, seed) for seed in range(0, 44, 4)]], [300], False)
@example([("polls", ("stamped", 0, "next"), 8, 13), ("heartbeats", ("plain", 1, ""), 8, 3)], [], False)
@example([row("plain", "packed", seed) for seed in range(0, 66, 11)], [], False)  # zstd is too new for version 3
@example([row("plain", "next", version - 3) for version in range(3, 14)], [], False)
@settings(max_examples=examples(150), deadline=None)
def test_kafka_requests_have_the_results_that_they_have_one_at_a_time(
    steps: list[tuple[Any, ...]], cuts: list[int], ends_badly: bool
) -> None:
    one_by_one = without_log(partial(outcome, script_of(steps, ends_badly=ends_badly, repeats=False)))
    frames = script_of(steps, ends_badly=ends_badly, repeats=True)
    for noise in (False, True):
        together = without_log(partial(outcome, frames, cuts, noise=noise))
        assert together[0] == one_by_one[0]
        assert together[1] == one_by_one[1]


# --- Both doors -------------------------------------------------------------------------------------------------------


async def files_after(frames: Sequence[bytes], serve: Callable[..., Any] | None) -> dict[str, bytes]:
    """The files of the partitions after these frames came through the port of ``serve``, or None for the native one."""
    fs = ForgetfulFileSystem()
    async with broker_on(fs) as broker:
        listener = serving(broker) if serve is None else serving(broker, serve)
        async with listener as served:
            peer = await (served.greeted() if serve is None else served.connect())
            await peer.stream.send_all(b"".join(frames))
            await peer.stream.send_eof()
            await peer.rest()
    return files_of(fs)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for name in NAMES if name != "unknown"]),
            st.integers(0, 2),
            st.sampled_from(KINDS),
            st.sampled_from([-1, 1]),
        ),
        min_size=1,
        max_size=30,
    ),
    SEEDS,
)
@settings(max_examples=examples(100), deadline=None)
def test_both_doors_write_the_same_bytes(items: list[tuple[str, int, str, int]], seed: int) -> None:
    dice, script = random.Random(seed), Script()
    native, kafka = [], []
    for topic, partition, what, acks in items:
        data = script.batch(topic, partition, what, dice)
        request = AppendRequest([AppendPartition(topic, partition, len(data))], ACKS[acks])
        native.append(encode_frame(request_header(1, request), [data]))
        kafka.append(b"".join(write_request(1, None, produce((topic, partition, data), acks=acks), 9)))
    through_native = without_log(partial(files_after, native, None))
    assert without_log(partial(files_after, kafka, serve_kafka)) == through_native
