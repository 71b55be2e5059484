"""The load generator: a process that floods a server with ready-made requests. ``python -m benchmarks.peers.load``.

It reads a job a line from stdin, as JSON, and prints its result, as JSON. The same code drives seglog, Apache Kafka and
the bare loops: all of them begin requests and replies with a length of four bytes, and Redis replies with one in
digits. Requests are bytes from the job; of replies only lengths are looked at, and where they are as long as expected
only two of them a read. What depends on answers is made in ``benchmarks.talks``.
"""

import json
import select
import socket
import ssl
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Any, Final

from benchmarks.group_commits import kafka_committer, native_committer
from benchmarks.group_wire import nothing
from benchmarks.harness import BenchmarkError, percentile
from benchmarks.queues.kafka import KafkaWorker
from benchmarks.queues.rabbitmq import RabbitWorker
from benchmarks.queues.redis import RedisWorker
from benchmarks.raw_client import SOCKET_SECONDS_MAX, exchange, open_socket
from benchmarks.talks import Talk, converse
from benchmarks.transactions import KafkaProducer, NativeProducer

RECEIVE_BYTES: Final = 256 * 1024
_EXCHANGE_BYTES: Final = 4 * 1024 * 1024
TALKS: Final[Mapping[str, Callable[..., Talk]]] = {
    "commits, kafka": kafka_committer,
    "commits, native": native_committer,
    "transactions, kafka": KafkaProducer,
    "transactions, native": NativeProducer,
    "jobs, kafka": KafkaWorker,
    "jobs, redis": RedisWorker,
    "jobs, rabbitmq": RabbitWorker,
}
"""What connections talk about, and in which protocol."""

REFILL_SHARE: Final = 4
"""Requests are sent again once a fourth of the depth is answered, as one block. One by one, the many small reads and
sends of this process would take the processor time that the server needs."""


class ReplyCounter:
    """Counts the whole replies that a socket receives."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._kept = 0  # bytes of a reply that is not whole yet
        self._size = 4  # of the last whole reply

    def receive(self) -> int:
        """Receive once; replies that became whole. Replies larger than RECEIVE_BYTES are not for this."""
        kept = self._kept
        got = self.sock.recv_into(self._view[kept:] if kept else self._view)
        if not got:
            raise BenchmarkError("the server hung up")
        end = kept + got
        count, position = self._whole(end)
        self._kept = end - position
        if self._kept:
            self._buffer[: self._kept] = self._buffer[position:end]
        return count

    def _whole(self, end: int) -> tuple[int, int]:
        """How many replies are whole, and where the last of them ends."""
        size = self._size
        count = end // size
        # Replies grow with the offsets in them, so where the first and the last are of one size all are.
        if count and self._length_at(0) == size and self._length_at((count - 1) * size) == size:
            return count, count * size
        return self._walk(end)

    def _length_at(self, position: int) -> int:
        return 4 + int.from_bytes(self._view[position : position + 4], "big")

    def _walk(self, end: int) -> tuple[int, int]:
        count = position = 0
        while end - position >= 4 and position + (size := self._length_at(position)) <= end:
            self._size = size
            position += size
            count += 1
        return count, position


class RedisCounter(ReplyCounter):
    """The same of Redis, whose replies are ``$``, a length in digits, and so many bytes, each part with a line end."""

    def _whole(self, end: int) -> tuple[int, int]:
        count = position = 0
        while (head := self._buffer.find(b"\r\n", position, end)) >= 0:
            if self._buffer[position] != ord("$"):
                raise BenchmarkError(f"Redis answered {bytes(self._buffer[position:head])!r:.300}")
            following = head + 2 + int(self._buffer[position + 1 : head]) + 2
            if following > end:
                break
            position = following
            count += 1
        return count, position


class Flow:
    """One connection on which ``depth`` requests are unanswered at most: ``frames`` in turn, all equally long."""

    def __init__(self, counter: ReplyCounter, frames: Sequence[bytes], depth: int) -> None:
        self._sock = counter.sock
        self._counter = counter
        self._size = len(frames[0])
        self._count = len(frames)
        # So many and ``depth`` more, so that what is sent at a time lies in a row.
        self._ring = memoryview(b"".join(islice(cycle(frames), len(frames) + depth)))
        self._refill = max(1, depth // REFILL_SHARE)
        self._owed = depth
        self.sent = 0

    def begin(self) -> None:
        """Send the first ``depth`` requests."""
        self.refill()

    def receive(self) -> int:
        """Receive once; answers."""
        count = self._counter.receive()
        self._owed += count
        return count

    @property
    def has_pending(self) -> bool:
        """Whether bytes are decrypted already, of which the kernel does not tell."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0

    def is_due(self) -> bool:
        """Whether it is time to send again."""
        return self._owed >= self._refill

    def refill(self) -> int:
        """Send as many requests as were answered since the last time; how many."""
        owed, self._owed = self._owed, 0
        first = self.sent % self._count
        self._sock.sendall(self._ring[first * self._size : (first + owed) * self._size])
        self.sent += owed
        return owed


def flood(
    socks: Sequence[socket.socket],
    frames: Sequence[bytes],
    depth: int,
    seconds: float,
    bytes_max: int,
    counter: Callable[[socket.socket], ReplyCounter] = ReplyCounter,
) -> tuple[int, float]:
    """Send ``frames`` in turn, over and over; answers, and the seconds from the first request to the last answer.

    Ends after ``seconds`` or ``bytes_max`` sent, when all is answered.
    """
    clock = time.perf_counter
    flows = [Flow(counter(sock), frames, depth) for sock in socks]
    count_max = max(depth * len(socks), bytes_max // len(frames[0]))
    began = clock()
    ends = began + seconds
    for flow in flows:
        flow.begin()
    sent, answered = depth * len(flows), 0
    if len(flows) == 1:
        (flow,) = flows
        while answered < sent:
            answered += flow.receive()
            if flow.is_due() and sent < count_max and clock() < ends:
                sent += flow.refill()
        return answered, clock() - began
    by_descriptor = {sock.fileno(): flow for sock, flow in zip(socks, flows, strict=True)}
    with select.epoll(len(flows)) as poll:
        for descriptor in by_descriptor:
            poll.register(descriptor, select.EPOLLIN)
        while answered < sent:
            for descriptor, _ in poll.poll(SOCKET_SECONDS_MAX) or nothing():
                flow = by_descriptor[descriptor]
                answered += flow.receive()
                while flow.has_pending:
                    answered += flow.receive()
                if flow.is_due() and sent < count_max and clock() < ends:
                    sent += flow.refill()
    return answered, clock() - began


def exchanges(sock: socket.socket, frames: Sequence[bytes], seconds: float) -> tuple[list[float], int]:
    """Send the requests in turn, round and round, one at a time, for ``seconds``.

    Returns how long each took, in seconds, and how many bytes were answered in all.
    """
    clock = time.perf_counter
    buffer = memoryview(bytearray(_EXCHANGE_BYTES))
    times: list[float] = []
    received = 0
    began = clock()
    ends = began + seconds
    while not times or began < ends:
        received += exchange(sock, frames[len(times) % len(frames)], buffer)
        now = clock()
        times.append(now - began)
        began = now
    return times, received


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Do what one line asks for."""
    if job["kind"] == "talks":
        talks = [TALKS[job["talk"]](number, *job["arguments"]) for number in range(job["connections"])]
        cpu = time.process_time()
        answered, seconds = converse(job["port"], talks, job["seconds"])
        return {"answered": answered, "seconds": seconds, "client_cpu_seconds": time.process_time() - cpu}
    frames = [b64decode(text) for text in job["frames"]]
    greetings = [b64decode(text) for text in (*job.get("login", ()), job["greeting"]) if text]
    authority = job.get("authority", "")
    with ExitStack() as stack:
        socks = [stack.enter_context(open_socket(job["port"], greetings, authority)) for _ in range(job["connections"])]
        cpu = time.process_time()
        if job["kind"] == "flood":
            counter = RedisCounter if job.get("redis") else ReplyCounter
            answered, seconds = flood(socks, frames, job["depth"], job["seconds"], job["bytes_max"], counter)
            found: dict[str, Any] = {"answered": answered, "seconds": seconds}
        else:
            times, received = exchanges(socks[0], frames, job["seconds"])
            found = {"answered": len(times), "seconds": sum(times), "received": received}
            found |= {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
        return found | {"client_cpu_seconds": time.process_time() - cpu}


def main() -> None:
    """Until stdin ends. A job that fails is answered with the reason."""
    for line in sys.stdin:
        try:
            found = run(json.loads(line))
        except (BenchmarkError, OSError) as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
