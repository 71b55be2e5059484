"""A hostile peer: ``python -m tests.process.faults.hostile_peer PORT KIND COUNT SEED`` sends requests to a daemon.

``mutated`` sends ordinary requests with values, types or bytes changed. ``hostile`` sends well-formed requests that are
excessive: long lists, unknown names, announced bytes that never come, batches that decompress to a thousand times their
size. It uses the topics ``target``, ``keyed`` and ``dated`` and unknown ones, and prints a line of JSON at the end: the
number of requests, of connections, and of replies by code.
"""

import math
import random
import socket
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.compression import Codec
from seglog_protocol.frames import PREFIX, Frame, FrameReader, encode_frame, encode_value
from seglog_protocol.messages import PROTOCOL_NAME
from tests.process.faults.large_requests import SOME, Places, native_requests
from tests.process.faults.raw_peer import LAST, RawPeer, Unfinished, run, send_bursts

TOPICS: Final = ("target", "keyed", "dated")
MIB: Final = 1024 * 1024

Header = dict[str, Any]
Sent = tuple[Header, bytes]


# --- Batches ----------------------------------------------------------------------------------------------------------


@cache
def plain_batch() -> bytes:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, b"key", b"value")
    return builder.build()


@cache
def bomb(kind: str, codec: Codec) -> bytes:
    """A batch of less than a megabyte that decompresses to about 60."""
    builder = BatchBuilder()
    if kind == "value":
        builder.append(-1, b"key", bytes(60 * MIB))
    elif kind == "too large":
        builder.append(-1, b"key", bytes(70 * MIB))
    elif kind == "records":
        for _ in range(500_000):
            builder.append(-1, b"", b"")
    elif kind == "headers":
        builder.append(-1, b"key", b"", [("", b"")] * 1_000_000)
    elif kind == "last without a key":
        for _ in range(100_000):
            builder.append(-1, b"", b"")
        builder.append(-1, None, b"")
    return builder.build(codec)


BOMBS: Final = [
    (kind, codec)
    for kind in ("value", "too large", "records", "headers", "last without a key")
    for codec in (Codec.GZIP, Codec.ZSTD, Codec.LZ4)
]


# --- Ordinary requests, changed ---------------------------------------------------------------------------------------


def ordinary(dice: random.Random) -> Sent:
    batch = plain_batch()
    topic = dice.choice(TOPICS)
    place: Header = {"topic": topic, "partition": dice.randrange(4)}
    append: Header = {"api": "append", "partitions": [place | {"size": len(batch)}] * dice.choice([1, 1, 2])}
    choices: list[Header] = [
        append | {"ack": dice.choice(["os", "disk"]), "create": True},
        {"api": "fetch", "v": 2, "partitions": [place | {"offset": 0}], "max_wait_ms": 0, "topic_ids": {topic: "x"}},
        {"api": "create_topic", "topic": topic, "partitions": 1, "config": {"retention.ms": 5}},
        {"api": "alter_topic", "topic": topic, "config": {"segment.bytes": 1_048_576}, "reset": ["retention.ms"]},
        {"api": "cancel", "target": 3},
        {"api": "hello", "protocol": PROTOCOL_NAME},
        {"api": "delete_topic", "topic": "missing"},
        {"api": "init_producer"},
        dice.choice([header for _, header in native_requests(Places({topic: (b"", 4)}), 3)]),
    ]
    header = dice.choices(choices, [40, 10, 1, 1, 3, 2, 1, 1, 41])[0]
    payload = batch * len(header["partitions"]) if header.get("create") else b""
    return {"id": dice.randrange(1, 1000), "v": 1} | header, payload


STRANGE: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 1.5, math.nan, "", "x", "ordr", "t" * 300,
    "ü" * 100, b"", b"\xff" * 10, [], {}, [[]], [None], {"topic": "target"}, [1] * 100, {"a": {"b": {"c": []}}},
)  # fmt: skip


def changed(value: Any, dice: random.Random) -> Any:
    """A copy of the request with one value changed."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        what = dice.random()
        if what < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if what < 0.2:
            return value | {dice.choice(["", "offset", "extra", "t" * 100]): dice.choice(STRANGE)}
        return value | {key: changed(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        at = dice.randrange(len(value))
        return [*value[:at], changed(value[at], dice), *value[at + 1 :]]
    if isinstance(value, int) and dice.random() < 0.5:
        return min(2**64 - 1, max(-(2**63), value + dice.choice([-1, 1, 100, 2**32])))
    return dice.choice(STRANGE)


def mutated(dice: random.Random) -> tuple[bytes, bool]:
    """The bytes of a request, and whether its connection may well end with it."""
    header, payload = ordinary(dice)
    what = dice.random()
    if what < 0.6:
        strange = changed(header, dice)
        if isinstance(strange, dict):
            strange = {"id": 1, **strange} if dice.random() < 0.9 else strange
            if strange.get("api") == "fetch" and type(strange.get("max_wait_ms")) is not int:
                strange["max_wait_ms"] = 10  # not half a minute
        packed = encode_value(strange)
        return PREFIX.pack(4 + len(packed) + len(payload), len(packed)) + packed + payload, not (
            isinstance(strange, dict) and "id" in strange
        )
    if what < 0.9 and payload:
        changed_payload = bytearray(payload)
        for _ in range(dice.randint(1, 4)):
            changed_payload[dice.randrange(len(changed_payload))] = dice.randrange(256)
        return encode_frame(header, [changed_payload]), False
    data = bytearray(encode_frame(header, [payload]))
    first = 0 if dice.random() < 0.02 else PREFIX.size
    for _ in range(dice.randint(1, 3)):
        data[dice.randrange(first, len(data))] = dice.randrange(256)
    return bytes(data), True


# --- Well-formed, and much --------------------------------------------------------------------------------------------


def many(dice: random.Random) -> int:
    return int(10 ** (dice.random() * 4))


def append_of(batches: list[tuple[str, int, bytes]]) -> bytes:
    places = [{"topic": topic, "partition": number, "size": len(data)} for topic, number, data in batches]
    return encode_frame(
        {"id": 1, "v": 1, "api": "append", "partitions": places, "ack": "os"}, [d for _, _, d in batches]
    )


def large_frames() -> Iterator[bytes]:
    """The requests of ``large_requests`` in several sizes."""
    for times in SOME:
        requests = [header for _, header in native_requests(Places({"target": (b"", times)}), times)]
        for header in (*requests, {"api": "topics", "names": [[[[]]]] * times * 20}):
            yield encode_frame({"id": 1, "v": 1} | header)


# --- The peer ---------------------------------------------------------------------------------------------------------


class Peer(RawPeer):
    """It speaks the native protocol."""

    def begin(self, sock: socket.socket) -> None:
        """Say hello."""
        self._reader = FrameReader()
        sock.sendall(encode_frame({"id": 0, "api": "hello", "v": 1, "protocol": PROTOCOL_NAME}))
        self.wait_for(0)

    def wait_for(self, request_id: int) -> Frame | None:
        """Read until a reply; none if the broker closed the connection. Raises TimeoutError if it hangs."""
        while self._sock is not None:
            while (frame := self._reader.next_frame()) is not None:
                self.largest = max(self.largest, len(frame.packed) + len(frame.payload))
                error = frame.header.get("error")
                self.answers["fine" if error is None else str(error.get("code"))] += 1
                if frame.header.get("id") == request_id:
                    return frame
            data = self.receive()
            for at in range(0, len(data), 64 * 1024):
                self._reader.receive_data(data[at : at + 64 * 1024])
        return None

    def ask(self, header: Header, payload: bytes = b"") -> tuple[Header, int]:
        """Send a request; returns the reply's header, which must not be an error, and its payload's size in bytes."""
        frame = self.answer(encode_frame({"id": 1, "v": 1} | header, [payload]))
        assert "error" not in frame.header, frame.header
        return frame.header, len(frame.payload)

    def answer(self, request: bytes) -> Frame:
        """The reply, which may be an error, to a request with the id 1."""
        frame = self.wait_for(1) if self.send(request) else None
        assert frame is not None, "the broker hung up"
        return frame


def send_mutated(peer: Peer, count: int, dice: random.Random) -> int:
    end = encode_frame({"id": LAST, "api": "cancel", "v": 1, "target": LAST})
    return send_bursts(peer, count, dice, lambda _: mutated(dice), end, patience=0.2)


def send_hostile(peer: Peer, count: int, dice: random.Random) -> int:
    frames = list(large_frames())
    unfinished = Unfinished(peer)
    for _ in range(count):
        what = dice.random()
        if what < 0.002:
            unfinished.begin(PREFIX.pack(60_000_000, 100), dice)
            continue
        if what < 0.004:
            kind, codec = dice.choice(BOMBS)
            frame = append_of([(dice.choice(["keyed", "dated"]), 0, bomb(kind, codec))])
        elif what < 0.05:
            batches = range(min(many(dice), 2_000))
            frame = append_of([(dice.choice(TOPICS), number % 4, plain_batch()) for number in batches])
        else:
            frame = dice.choice(frames)
        if peer.send(frame):
            peer.wait_for(1)
    unfinished.close()
    return count


if __name__ == "__main__":
    run(Peer, mutated=send_mutated, hostile=send_hostile)
