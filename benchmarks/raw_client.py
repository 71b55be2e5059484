"""Requests to a daemon on plain sockets: encoded before the clock runs, their replies thrown away."""

import socket
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from benchmarks.harness import BenchmarkError
from seglog_protocol.frames import FrameReader, encode_frame
from seglog_protocol.messages import (
    Ack,
    AppendPartition,
    AppendRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    FetchPartition,
    FetchRequest,
    HelloRequest,
    OffsetsPartition,
    OffsetsRequest,
    Request,
    request_header,
)

REQUEST_ID: Final = 7
"""One id for all: replies are counted, not matched."""

_RECEIVE_BYTES: Final = 4 * 1024 * 1024
_GREETING_BYTES: Final = 256 * 1024
SOCKET_SECONDS_MAX: Final = 60
"""Without an answer for so long a server counts as hanging."""


def encode(request: Request, payload: Sequence[bytes] = ()) -> bytes:
    """A whole frame."""
    return encode_frame(request_header(REQUEST_ID, request), payload)


GREETING: Final = encode(HelloRequest("seglog", "benchmarks"))


def append_frame(topic: str, batches: Sequence[bytes], ack: Ack, partition: int = 0) -> bytes:
    """An append of ``batches`` to one partition."""
    return encode(AppendRequest([AppendPartition(topic, partition, len(b)) for b in batches], ack), batches)


def fetch_frame(
    topic: str, offset: int, *, partitions: Sequence[int] = (0,), partition_bytes: int, max_wait_ms: int = 0
) -> bytes:
    """A fetch at the same offset of one or several partitions."""
    asked = [FetchPartition(topic, number, offset, max_bytes=partition_bytes) for number in partitions]
    return encode(FetchRequest(asked, max_wait_ms=max_wait_ms))


def time_frame(topic: str, timestamp: int | None) -> bytes:
    """A look-up of the ends of partition 0, and with ``timestamp`` (ms) of the first record from then on."""
    return encode(OffsetsRequest([OffsetsPartition(topic, 0, timestamp)]))


class Connection:
    """A blocking connection to a daemon."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._reader = FrameReader(2**31)
        self.hello, _ = self.ask_frame(GREETING)

    def ask(self, header: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Any request as a map; header and payload of the reply. BenchmarkError when that is an error."""
        return self.ask_frame(encode_frame({"id": REQUEST_ID, **header}))

    def ask_frame(self, frame: bytes) -> tuple[dict[str, Any], bytes]:
        """The same with a ready frame."""
        self.sock.sendall(frame)
        while (reply := self._reader.next_frame()) is None:
            size = self.sock.recv_into(self._reader.get_buffer())
            if size == 0:
                raise BenchmarkError("the daemon hung up")
            self._reader.received(size)
        partitions = reply.header.get("partitions", ())
        errors = [item["error"] for item in partitions if "error" in item] if isinstance(partitions, list) else []
        for error in (*([reply.header["error"]] if "error" in reply.header else []), *errors):
            raise BenchmarkError(f"the daemon answered {error}")
        return reply.header, bytes(reply.payload)

    def ask_at_rate(self, frame: bytes, rate: int, seconds: float) -> list[float]:
        """Send a request so many times a second; seconds from when each was due until its reply."""
        found = []
        began = time.perf_counter()
        for number in range(int(seconds * rate)):
            due = began + number / rate
            if (ahead := due - time.perf_counter()) > 0:
                time.sleep(ahead)
                due = time.perf_counter()  # the sleep's own lateness is not the broker's
            self.ask_frame(frame)
            found.append(time.perf_counter() - due)
        return found

    def create_topic(self, topic: str, partitions: int = 1, **config: str | int) -> None:
        """Keys of ``config`` have underscores for dots."""
        keys: dict[str, str | int | float | bool] = {key.replace("_", "."): value for key, value in config.items()}
        self.ask_frame(encode(CreateTopicRequest(topic, partitions, keys)))

    def delete_topic(self, topic: str) -> None:
        """And all its data."""
        self.ask_frame(encode(DeleteTopicRequest(topic)))

    def longest_turn_seconds(self) -> float:
        """Of the daemon's loop since its start, in processor time: by the clock it is as long as others make it."""
        return float(self.ask({"api": "metrics", "v": 1})[0]["metrics"]["loop_busy_seconds"])

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """Of one partition."""
        header, _ = self.ask_frame(encode(OffsetsRequest([OffsetsPartition(topic, partition)])))
        return int(header["partitions"][0]["latest"])


def open_socket(port: int, greetings: Sequence[bytes] = (), authority: str = "") -> socket.socket:
    """Blocking, with no delay for small requests, and greeted by requests whose replies are thrown away.

    With ``authority``, a PEM file, it speaks TLS. The kernel watches the time, and raises BlockingIOError for an answer
    that does not come: a timeout of Python's costs a system call for each operation.
    """
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", SOCKET_SECONDS_MAX, 0))
    if authority:
        sock = ssl.create_default_context(cafile=authority).wrap_socket(sock, server_hostname="localhost")
    for greeting in greetings:
        exchange(sock, greeting, memoryview(bytearray(_GREETING_BYTES)))
    return sock


@contextmanager
def connect(port: int) -> Iterator[Connection]:
    """A connection to a daemon that has said hello."""
    with open_socket(port) as sock:
        yield Connection(sock)


def requests_through(
    connection: Connection, topic: str, partition_bytes: int, partitions: int = 1, *, batch_size: int, records: int
) -> tuple[Sequence[bytes], int]:
    """The fetches that lead once through a topic of equal batches, and the bytes of each answer for a partition."""
    numbers = range(partitions)
    end = connection.end_offset(topic)
    offset, frames, chunk = 0, [], 0
    while offset < end:
        frame = fetch_frame(topic, offset, partitions=numbers, partition_bytes=partition_bytes)
        header, _ = connection.ask_frame(frame)
        sizes = {item["size"] for item in header["partitions"]}
        size = min(sizes)
        if not size or len(sizes) > 1 or size % batch_size:
            raise BenchmarkError(f"a fetch of equal partitions at offset {offset} gave {sorted(sizes)} bytes")
        frames.append(frame)
        chunk = max(chunk, size)
        offset += size // batch_size * records
    return frames, chunk


def exchange(sock: socket.socket, frame: bytes, buffer: memoryview) -> int:
    """One request, its answer received into ``buffer`` and forgotten; the answer's bytes."""
    sock.sendall(frame)
    got = 0
    while got < 4:
        got += _receive_into(sock, buffer[got:])
    size = 4 + int.from_bytes(buffer[:4], "big")
    while got < size:
        got += _receive_into(sock, buffer[: size - got])
    return size


def exchange_seconds(sock: socket.socket, frames: Sequence[bytes]) -> list[float]:
    """How long each request took to be answered, one at a time."""
    buffer = memoryview(bytearray(_RECEIVE_BYTES))
    clock = time.perf_counter
    times = []
    for frame in frames:
        began = clock()
        exchange(sock, frame, buffer)
        times.append(clock() - began)
    return times


def _receive_into(sock: socket.socket, buffer: memoryview) -> int:
    size = sock.recv_into(buffer)
    if size == 0:
        raise BenchmarkError("the server hung up")
    return size


# --- Filling ----------------------------------------------------------------------------------------------------------

_FILL_REQUEST_BYTES: Final = 1024 * 1024


def fill(connection: Connection, topic: str, batches: Iterator[bytes], partition: int = 0) -> int:
    """Append all batches, about 1 MiB a request, the last one durably; bytes."""
    total, size = 0, 0
    group: list[bytes] = []
    for batch in batches:
        if group and size + len(batch) > _FILL_REQUEST_BYTES:
            connection.ask_frame(append_frame(topic, group, "os", partition))
            group, size = [], 0
        group.append(batch)
        size += len(batch)
        total += len(batch)
    connection.ask_frame(append_frame(topic, group, "disk", partition))
    return total
