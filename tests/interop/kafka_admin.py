"""Raw requests about configuration to a real Kafka, so that it is also asked what no client would let through."""

import io
import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple, Self

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


class Entry(NamedTuple):
    """One entry of an answer to DescribeConfigs; ``type`` and ``source`` are Kafka's numbers."""

    name: str
    value: str | None
    is_read_only: bool
    source: int
    is_sensitive: bool
    synonyms: list[tuple[str, str | None, int]]
    type: int
    documentation: str | None


class Outcome(NamedTuple):
    """Kafka's error code, 0 for none, and its message."""

    code: int
    message: str | None


class Admin:
    """One connection to the Kafka on a port of this machine. A context manager."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def create_topic(self, name: str, config: Sequence[tuple[str, str]] = ()) -> Outcome:
        """CreateTopics v2, one partition."""
        settings = b"".join(_text(key) + _text(value) for key, value in config)
        topic = _text(name) + struct.pack(">ihii", 1, 1, 0, len(config)) + settings
        answer = self._ask(19, 2, struct.pack(">i", 1) + topic + struct.pack(">ib", 30_000, 0))
        answer.numbers("ii")
        answer.text()
        return Outcome(answer.number("h"), answer.text())

    def describe(self, resource: int, name: str, keys: Sequence[str] | None = None) -> tuple[Outcome, list[Entry]]:
        """DescribeConfigs v3 with synonyms and documentation; None for all keys. Entries are in the order of names."""
        wanted = struct.pack(">i", -1 if keys is None else len(keys)) + b"".join(_text(key) for key in keys or ())
        answer = self._ask(32, 3, struct.pack(">ib", 1, resource) + _text(name) + wanted + b"\1\1")
        answer.numbers("ii")
        outcome = Outcome(answer.number("h"), answer.text() or None)
        answer.number("b")
        answer.text()
        return outcome, sorted(_entry(answer) for _ in range(answer.number("i")))

    def alter_incrementally(
        self, resource: int, name: str, changes: Sequence[tuple[str, int, str | None]], *, validate_only: bool = False
    ) -> Outcome:
        """IncrementalAlterConfigs v0."""
        body = b"".join(_text(key) + struct.pack(">b", operation) + _text(value) for key, operation, value in changes)
        return self._alter(44, resource, name, len(changes), body, validate_only=validate_only)

    def alter(
        self, resource: int, name: str, settings: Sequence[tuple[str, str | None]], *, validate_only: bool = False
    ) -> Outcome:
        """AlterConfigs v0."""
        body = b"".join(_text(key) + _text(value) for key, value in settings)
        return self._alter(33, resource, name, len(settings), body, validate_only=validate_only)

    def _alter(self, api: int, resource: int, name: str, count: int, body: bytes, *, validate_only: bool) -> Outcome:
        head = struct.pack(">ib", 1, resource) + _text(name) + struct.pack(">i", count)
        answer = self._ask(api, 0, head + body + struct.pack(">b", validate_only))
        answer.numbers("ii")
        return Outcome(answer.number("h"), answer.text())

    def _ask(self, api: int, version: int, body: bytes) -> "_Answer":
        self._asked += 1
        request = struct.pack(">hhi", api, version, self._asked) + _text("seglog") + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        [size] = struct.unpack(">i", self._read(4))
        answer = _Answer(self._read(size))
        assert answer.number("i") == self._asked
        return answer

    def _read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            assert piece, "Kafka closed the connection"
            found += piece
        return bytes(found)


class _Answer:
    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(f">{layout}", self._content.read(struct.calcsize(f">{layout}")))

    def number(self, layout: str) -> int:
        return self.numbers(layout)[0]

    def text(self) -> str | None:
        size = self.number("h")
        return None if size < 0 else self._content.read(size).decode()


def _entry(answer: _Answer) -> Entry:
    name, value = answer.text() or "", answer.text()
    is_read_only, source, is_sensitive = answer.numbers("bbb")
    synonyms = [(answer.text() or "", answer.text(), answer.number("b")) for _ in range(answer.number("i"))]
    return Entry(
        name, value, bool(is_read_only), source, bool(is_sensitive), synonyms, answer.number("b"), answer.text()
    )


def _text(value: str | None) -> bytes:
    if value is None:
        return struct.pack(">h", -1)
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded
