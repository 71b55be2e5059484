"""A blocking connection in Kafka's protocol for what is not measured: topics made and filled, ends looked up."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final, TypeVar

from benchmarks.harness import BenchmarkError
from benchmarks.peers import kafka_frames as frames
from benchmarks.raw_client import SOCKET_SECONDS_MAX, open_socket

_FILL_BYTES: Final = 1024 * 1024
"""About as much is unanswered while a topic is filled."""

_PAUSE_SECONDS: Final = 0.05

ResultT = TypeVar("ResultT")


def _dotted(config: Mapping[str, str | int]) -> dict[str, str]:
    return {key.replace("_", "."): str(value) for key, value in config.items()}


class KafkaConnection:
    """Requests one after the other; raises KafkaError for an error in a reply."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def ask(self, frame: bytes) -> bytes:
        """The whole reply to one request, its length included."""
        self._sock.sendall(frame)
        return self._reply()

    def not_offered(self, needed: Mapping[str, tuple[int, int]]) -> list[str]:
        """What of these requests, each with its number and version, it does not understand."""
        return frames.not_offered(self.ask(frames.versions_frame()), needed)

    def create_topic(self, topic: str, *, partitions: int = 1, **config: str | int) -> None:
        """Ready for appends. Keys of ``config`` have underscores for dots."""
        self._create(topic, _dotted(config), partitions)

    def create_topic_as_allowed(self, topic: str, **config: str | int) -> str:
        """``create_topic``, without ``config`` where that is refused. Returns what was refused and how, or nothing."""
        keys = _dotted(config)
        try:
            self._create(topic, keys)
        except frames.KafkaError as error:
            if not keys:
                raise
            self._create(topic, {})
            return f"{', '.join(f'{key}={value}' for key, value in keys.items())} ({error})"
        return ""

    def _create(self, topic: str, keys: Mapping[str, str], partitions: int = 1) -> None:
        frame = frames.create_topic_frame(topic, keys, partitions)
        self._when_ready(lambda: frames.created(self.ask(frame), topic))
        self._when_ready(lambda: self.end_offset(topic))

    def delete_topic(self, topic: str) -> None:
        """If it is there; its files go after ``log.segment.delete.delay.ms``."""
        frames.deleted(self.ask(frames.delete_topic_frame(topic)), topic)

    def alter_topic(self, topic: str, config: Mapping[str, str]) -> None:
        """Set keys."""
        frames.altered(self.ask(frames.alter_topic_frame(topic, config)))

    def end_offset(self, topic: str) -> int:
        """Behind the last record of partition 0."""
        return frames.listed(self.ask(frames.time_frame(topic, frames.LATEST)), topic)[1]

    def fetched_bytes(self, topic: str, offset: int, partition_bytes: int) -> int:
        """How much a fetch gives."""
        return frames.fetched(self.ask(frames.fetch_frame(topic, offset, partition_bytes=partition_bytes)), topic)

    def fill(self, topic: str, batches: Iterable[bytes]) -> int:
        """Append all batches, several unanswered at a time; bytes."""
        total = 0
        rest = iter(batches)
        first = next(rest, b"")
        if first:
            total += len(first)
            frames.produced(self.ask(frames.produce_frame(topic, first)), topic)
        together = max(1, _FILL_BYTES // max(1, len(first)))
        while group := list(islice(rest, together)):
            total += sum(map(len, group))
            self._sock.sendall(b"".join(frames.produce_frame(topic, batch) for batch in group))
            for _ in group:
                frames.produced(self._reply(), topic)
        return total

    def _reply(self) -> bytes:
        head = self._receive(4)
        return head + self._receive(int.from_bytes(head, "big"))

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            more = self._sock.recv_into(view[got:])
            if not more:
                raise BenchmarkError("the server hung up")
            got += more
        return bytes(data)

    @staticmethod
    def _when_ready(action: Callable[[], ResultT]) -> ResultT:
        """Its result, as soon as there is a broker for the topic, and it leads it."""
        ends = time.monotonic() + SOCKET_SECONDS_MAX
        while True:
            try:
                return action()
            except frames.KafkaError as error:
                if error.code not in frames.NOT_READY or time.monotonic() > ends:
                    raise
            time.sleep(_PAUSE_SECONDS)


@contextmanager
def connect_kafka(port: int) -> Iterator[KafkaConnection]:
    """A connection, closed afterwards."""
    with open_socket(port) as sock:
        yield KafkaConnection(sock)
