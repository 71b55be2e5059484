"""A hostile Kafka client: ``python -m tests.process.faults.hostile_kafka_peer PORT KIND COUNT SEED``.

``mutated`` sends requests of all apis and versions with bytes changed. ``hostile`` sends well-formed requests that are
excessive: long lists, unknown names, announced bytes that never come, batches that decompress to a thousand times their
size. It uses the topics ``target``, ``keyed`` and ``dated`` and unknown ones, and prints a line of JSON at the end: the
number of requests, of connections, and of error codes in responses.
"""

import random
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from seglog_broker.listeners.kafka.apis import APIS
from seglog_protocol.kafka import (
    RequestHeader,
    WireError,
    messages,
    read_request,
    read_request_header,
    read_response,
    versions,
    write_request,
)
from seglog_protocol.kafka.frames import RESPONSE_BYTES_MIN, KafkaFrameReader
from seglog_protocol.kafka.structs import Request, Struct
from tests.interop.kafka_wire import request
from tests.process.faults.hostile_peer import BOMBS, TOPICS, bomb, many, plain_batch
from tests.process.faults.large_requests import SOME, Places, kafka_requests
from tests.process.faults.raw_peer import LAST, RawPeer, Unfinished, run, send_bursts
from tests.unit.protocol.kafka.instances import Instances
from tests.unit.protocol.kafka.mutations import mutated

KEYS: Final = tuple(APIS)

_HEADER: Final = struct.Struct(">hhi")
_WAIT_MS_MAX: Final = 100
_PARTITIONS_MADE_MAX: Final = 20
_MEBIBYTE: Final = 1024 * 1024


def topic_ids(like: "Peer") -> dict[str, bytes]:
    """The ids of TOPICS."""
    peer = like.another()
    try:
        [response] = peer.ask(messages.MetadataRequest(topics=None), 12)
        assert isinstance(response, messages.MetadataResponse)
        return {topic.name or "": topic.topic_id for topic in response.topics}
    finally:
        peer.close()


# --- Ordinary requests ------------------------------------------------------------------------------------------------


def ordinary(dice: random.Random, ids: dict[str, bytes]) -> tuple[Request, int]:
    """A request that a client may well send, and its version."""
    topic, partition = dice.choice(TOPICS), dice.randrange(4)
    kind = dice.random()
    if kind < 0.5:
        count = dice.choice([1, 1, 1, 7])
        batches = [(topic, (partition + number) % 4, plain_batch()) for number in range(count)]
        made = produce(batches, ids, dice.choice([-1, -1, 1, 1, 0]))
    elif kind < 0.75:
        made = fetch([(topic, partition, dice.randrange(50))], ids, dice.choice([0, 20]))
    else:
        title, _, fields = dice.choice(list(kafka_requests(Places({topic: (ids[topic], 4)}), 3)))
        made = request(title.partition(":")[0], fields)
    return made, dice.choice(list(APIS[made.API_KEY].versions))


def _by_id(topic: str, ids: dict[str, bytes]) -> str:
    return ids.get(topic, bytes(16)).hex()


def produce(batches: list[tuple[str, int, bytes]], ids: dict[str, bytes], acks: int) -> Request:
    topics = [
        {"name": topic, "topic_id": _by_id(topic, ids), "partition_data": [{"index": number, "records": data.hex()}]}
        for topic, number, data in batches
    ]
    return request("Produce", {"acks": acks, "timeout_ms": 1000, "topic_data": topics})


def fetch(places: list[tuple[str, int, int]], ids: dict[str, bytes], max_wait_ms: int = 0) -> Request:
    asked = [
        (topic, {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20})
        for topic, number, offset in places
    ]
    topics = [{"topic": topic, "topic_id": _by_id(topic, ids), "partitions": [item]} for topic, item in asked]
    return request("Fetch", {"topics": topics, "max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": 1 << 22})


# --- Changed ----------------------------------------------------------------------------------------------------------


def a_mutated_frame(
    correlation_id: int, dice: random.Random, ids: dict[str, bytes], instances: Instances
) -> tuple[bytes, bool]:
    """A frame, and whether its connection may well end with it."""
    while True:
        if dice.random() < 0.7:
            asked, version = ordinary(dice, ids)
        else:
            api_key = dice.choice(KEYS)
            version = dice.choice(list(versions()[api_key]))
            made = instances.message(_request_name(api_key), version)
            assert isinstance(made, Request)
            asked = made
        what = dice.random()
        if what < 0.7:
            change(asked, dice)
        try:
            content = b"".join(write_request(correlation_id, "peer", asked, version))[4:]
        except (struct.error, ValueError, TypeError, AttributeError, OverflowError):
            continue  # nothing that a frame can have
        if what >= 0.97:
            content = mutated(dice, content)
        elif what >= 0.7:
            content = content[:8] + mutated(dice, content[8:])
        outcome = _outcome_of(content, dice)
        if outcome is None:
            continue
        size = len(content) if dice.random() < 0.99 else dice.choice([0, 7, len(content) + 1, 2**31 - 1, -1])
        return struct.pack(">i", size) + content, outcome or size != len(content) or what >= 0.97


def change(part: Any, dice: random.Random) -> None:
    """Change one value in a request, or in a struct of it, to another of its type."""
    field = dice.choice(part.__slots__) if part.__slots__ else None
    if field is None:
        return
    value = getattr(part, field)
    if isinstance(value, list) and value and isinstance(value[0], Struct) and dice.random() < 0.9:
        change(dice.choice(value), dice)
    else:
        setattr(part, field, _other(value, dice))


def _other(value: Any, dice: random.Random) -> Any:
    if dice.random() < 0.05:
        return None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return dice.choice([0, 1, -1, value + 1, value - 1, 127, 2**15 - 1, -(2**15), 2**31 - 1, -(2**31), 2**63 - 1])
    if isinstance(value, str):
        return dice.choice(["", "x", "target", "keyed", "t" * 300, "\u00fc" * 100, "a/b", "..", "\0", "n" * 32_000])
    if isinstance(value, memoryview):
        return memoryview(mutated(dice, bytes(value)))
    if isinstance(value, bytes):
        return dice.randbytes(len(value))
    return value * dice.choice([0, 2, 3]) if isinstance(value, list) else value


@cache
def _request_name(api_key: int) -> str:
    return next(
        name
        for name in messages.__dir__()
        if name.endswith("Request") and getattr(getattr(messages, name), "API_KEY", None) == api_key
    )


def _outcome_of(content: bytes, dice: random.Random) -> bool | None:
    """Whether a connection may end with this; None if it would only hold up the test."""
    read = _read(content)
    if read is None:
        return True
    header, request = read
    if isinstance(request, (messages.FetchRequest, messages.ShareFetchRequest)) and request.max_wait_ms > _WAIT_MS_MAX:
        return True if dice.random() < 0.02 else None
    if isinstance(request, (messages.CreateTopicsRequest, messages.CreatePartitionsRequest)):
        counts = [getattr(topic, "num_partitions", getattr(topic, "count", 0)) for topic in request.topics]
        if not request.validate_only and (dice.random() > 0.02 or max(counts, default=0) > _PARTITIONS_MADE_MAX):
            return None
    if isinstance(request, messages.DeleteTopicsRequest) and {topic.name for topic in request.topics} & {*TOPICS}:
        return None
    return _is_silent(request) or header.version not in (
        APIS[header.api_key].versions if header.api_key in APIS else ()
    )


def _read(content: bytes) -> tuple[RequestHeader, Any] | None:
    """The header and the request; None if they cannot be read."""
    frame = memoryview(content)
    try:
        header = read_request_header(frame)
        return header, read_request(header, frame)
    except WireError:
        return None


def _is_silent(request: Any) -> bool:
    """Whether it gets no response."""
    return isinstance(request, messages.ProduceRequest) and request.acks == 0


# --- Well-formed, and much --------------------------------------------------------------------------------------------


EXPRESSIONS: Final = (
    *(r"\pL" * 600, r"(?i)\pL" * 600, r"\W" * 16_000, "a" * 30_000, "((a*)(b*)){1000}" * 2 + "d", ".*"),
    *("(.{0,30}){30}", "(a?b?){1000}d", "(" * 10_000, "(?=a)"),
)
"""Of which reading, or matching, would take long."""


def member(dice: random.Random) -> Request:
    """A member that subscribes by an expression, or to very many topics, and that nobody hears of again."""
    regex = dice.choice([*EXPRESSIONS, None])
    joining = {
        "group_id": f"hostile-{dice.randrange(20)}",
        "member_id": f"m{dice.randrange(1 << 30)}",
        "rebalance_timeout_ms": dice.choice([1, 2**31 - 1]),
        "subscribed_topic_names": [f"n{number}" for number in range(min(many(dice), 3_000))] if regex is None else [],
    }
    return request("ConsumerGroupHeartbeat", {**joining, "subscribed_topic_regex": regex, "topic_partitions": []})


def batches(dice: random.Random, ids: dict[str, bytes]) -> Request:
    """Batches, or nothing, for partitions that there are, again and again, or for very many that there are not."""
    if dice.random() < 0.02:
        kind, codec = dice.choice(BOMBS)
        return produce([(dice.choice(["keyed", "dated"]), 0, bomb(kind, codec))], ids, 1)
    data, count = dice.choice([b"", plain_batch()]), min(many(dice), 2_000)
    there = dice.choice([4, count])
    return produce([("target", number % there, data) for number in range(count)], ids, dice.choice([-1, 0, 1, 5]))


def large_frames(ids: dict[str, bytes]) -> Iterator[bytes]:
    """The requests of ``large_requests`` in several sizes; none that would make topics."""
    for times in SOME:
        places = Places({"target": (ids["target"], times)})
        for title, version, fields in kafka_requests(places, times):
            if title not in {"CreateTopics: too many", "CreateTopics: one name"}:
                asked = request(title.partition(":")[0], fields)
                yield b"".join(write_request(1, "peer", asked, version))


# --- The peer ---------------------------------------------------------------------------------------------------------


class Peer(RawPeer):
    """It speaks Kafka's protocol."""

    def begin(self, sock: socket.socket) -> None:
        """Read from the first byte of a response on."""
        self._reader = KafkaFrameReader(small_frame_bytes_max=100 * _MEBIBYTE, frame_bytes_min=RESPONSE_BYTES_MIN)
        # Of requests that get a response, by correlation id, which a mutated one may share with another: api and
        # version, in order.
        self._asked: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)

    def send(self, *frames: bytes) -> bool:
        self.connected()
        for frame in frames:
            if len(frame) >= 4 + _HEADER.size:
                api_key, version, correlation_id = _HEADER.unpack_from(frame, 4)
                if api_key == messages.ProduceRequest.API_KEY and (read := _read(frame[4:])) and _is_silent(read[1]):
                    continue
                self._asked[correlation_id].append((api_key, version))
        return super().send(*frames)

    def ask(self, request: Request, version: int) -> list[Struct]:
        """The response; none if the broker closed the connection."""
        if self.send(b"".join(write_request(1, "peer", request, version))):
            return self.wait_for(1)
        return []

    def wait_for(self, correlation_id: int) -> list[Struct]:
        """Read until a response; none if the broker closed the connection. Raises TimeoutError if it hangs."""
        while self._sock is not None:
            while (frame := self._reader.next_frame()) is not None:
                got = int.from_bytes(frame[:4], "big", signed=True)
                self.largest = max(self.largest, len(frame))
                response = self._understood(got, frame)
                if got == correlation_id:
                    return [response]
            self._reader.receive_data(self.receive())
        return []

    def _understood(self, correlation_id: int, frame: memoryview) -> Struct:
        """The response, whose error codes are counted. A broker that answers nonsense fails the test here."""
        api_key, version = self._asked[correlation_id].popleft()
        if api_key == messages.ApiVersionsRequest.API_KEY and version not in APIS[api_key].versions:
            version = 0
        _, response = read_response(api_key, version, frame)
        self._count(response)
        return response

    def _count(self, part: Any) -> None:
        for field in part.__slots__:
            value = getattr(part, field)
            if field == "error_code":
                self.answers[str(value)] += 1
            elif isinstance(value, list) and value and isinstance(value[0], Struct):
                for item in value:
                    self._count(item)


def send_mutated(peer: Peer, count: int, dice: random.Random) -> int:
    ids = topic_ids(peer)
    instances = Instances(dice.randrange(1 << 30))
    end = b"".join(write_request(LAST, None, messages.ApiVersionsRequest(), 0))
    return send_bursts(peer, count, dice, lambda number: a_mutated_frame(number, dice, ids, instances), end)


def send_hostile(peer: Peer, count: int, dice: random.Random) -> int:
    ids = topic_ids(peer)
    unfinished = Unfinished(peer)
    frames = list(large_frames(ids))
    for _ in range(count):
        what = dice.random()
        if what < 0.002:
            unfinished.begin(struct.pack(">ihh", 60_000_000, 0, 9), dice)
        elif what < 0.7:
            if peer.send(dice.choice(frames)):
                peer.wait_for(1)
        elif what < 0.8:
            peer.ask(member(dice), 1)
        else:
            asked = batches(dice, ids)
            if _is_silent(asked):
                peer.send(b"".join(write_request(2, "peer", asked, 9)))
            else:
                peer.ask(asked, 9)
    unfinished.close()
    return count


if __name__ == "__main__":
    run(Peer, mutated=send_mutated, hostile=send_hostile)
