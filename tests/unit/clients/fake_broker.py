"""A broker in a thread, with its logs in lists: what the blocking client is tested against.

It answers as the protocol says until a test scripts something else: ``script`` is asked first about every request, and
gives an answer, an error, ``CLOSE`` (break the connection off), ``SILENCE`` (never answer) or None (answer as usual).
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any

from seglog_protocol import messages
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import OffsetOutOfRangeError, SeglogError, TopicExistsError, UnknownTopicError
from seglog_protocol.frames import Frame, FrameReader, encode_frame, encode_value
from seglog_protocol.record_batch import parse_header, rewrite_offset_and_epoch
from seglog_protocol.records import Record, decode_records
from tests.support import request_of


class Fault(Enum):
    CLOSE = "close"
    SILENCE = "silence"


CLOSE, SILENCE = Fault.CLOSE, Fault.SILENCE

Answer = messages.Message | SeglogError | Fault | tuple[messages.Message, bytes]
Script = Callable[[messages.Request, memoryview], Answer | None]


@dataclass
class FakePartition:
    batches: list[bytes] = field(default_factory=list)
    earliest: int = 0
    latest: int = 0
    held_durable: int | None = None
    _appended: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def append(self, data: memoryview | bytes) -> int:
        """The base offset. A batch of an idempotent producer that is sent twice is in the log once."""
        batch = bytearray(data)
        header = parse_header(batch)
        base = self.latest
        if header.producer_id >= 0:
            base = self._appended.setdefault((header.producer_id, header.producer_epoch, header.base_sequence), base)
        rewrite_offset_and_epoch(batch, 0, base, 0)
        if base == self.latest:
            self.batches.append(bytes(batch))
            self.latest = parse_header(batch).next_offset
        return base

    @property
    def durable(self) -> int:
        return self.latest if self.held_durable is None else self.held_durable

    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in decode_records(parse_header(batch), batch)]

    def read(self, offset: int, max_bytes: int) -> bytes:
        found = b""
        for batch in self.batches:
            if parse_header(batch).last_offset < offset:
                continue
            if found and len(found) + len(batch) > max_bytes:
                break  # what is behind it must not come before it
            found += batch
        return found


class FakeBroker:
    def __init__(self, *, topics: dict[str, int] | None = None, max_message_bytes: int = 1_048_588) -> None:
        self.logs = {name: [FakePartition() for _ in range(count)] for name, count in (topics or {"t": 1}).items()}
        self.config: dict[str, dict[str, Any]] = {}
        self.max_message_bytes = max_message_bytes
        self.producer_ids = 0
        self.requests: list[messages.Request] = []
        self.script: Script = lambda _request, _payload: None
        self.changed = threading.Condition(threading.RLock())
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._port = 0
        self._listener: socket.socket | None = None
        self.start()

    # --- Life ---

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._port = self._listener.getsockname()[1]
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        """Break everything off; ``start`` listens again on the same port."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(10)
        self._threads.clear()

    def drop_connections(self) -> None:
        with self.changed:
            connections, self._connections = self._connections, []
            self.changed.notify_all()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _spawn(self, work: Callable[[socket.socket], None], about: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(about,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self.changed:
                if self._listener is not listener:
                    connection.close()
                    return
                self._connections.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameReader()
        with connection:
            try:
                while data := connection.recv(65536):
                    frames.receive_data(data)
                    while (frame := frames.next_frame()) is not None:
                        if frame.header["api"] == "fetch" and frame.header["max_wait_ms"]:
                            self._spawn(partial(self._answer_late, frame), connection)
                        elif not self._answer(connection, frame):
                            return
            except OSError:
                return

    # --- Answers ---

    def _answer_late(self, frame: Frame, connection: socket.socket) -> None:
        """A fetch that may wait; what comes behind it does not."""
        with suppress(OSError):
            if not self._answer(connection, frame):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, connection: socket.socket, frame: Frame) -> bool:
        request = request_of(frame.header)
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
            answer = self.script(request, frame.payload)
            if answer is None:
                answer = self._usual(request, frame.payload, connection)
            self.changed.notify_all()
        if answer is CLOSE:
            return False
        with self.changed:
            connection.sendall(encoded(frame, request, answer))
        return True

    def _usual(self, request: messages.Request, payload: memoryview, connection: socket.socket) -> Answer:
        match request:
            case messages.HelloRequest():
                limits = {"frame_bytes_max": 100 * 1024 * 1024}
                return messages.HelloReply(
                    "seglog", "fake/1", dict(messages.API_VERSIONS), limits, uptime_ms=61_000, partitions=1
                )
            case messages.TopicsRequest():
                return self._topics(request)
            case messages.InitProducerRequest():
                self.producer_ids += 1
                return messages.InitProducerReply(self.producer_ids, 0), b""
            case messages.CreateTopicRequest():
                if request.topic in self.logs:
                    return TopicExistsError(f"{request.topic} exists", topic=request.topic)
                self.logs[request.topic] = [FakePartition() for _ in range(request.partitions or 1)]
                return messages.CreateTopicReply(request.topic, "i" * 22, request.partitions or 1)
            case messages.DeleteTopicRequest():
                if request.topic not in self.logs:
                    return self._unknown(request.topic)
                del self.logs[request.topic]
                return messages.DeleteTopicReply(request.topic)
            case messages.OffsetsRequest():
                return self._offsets(request)
            case messages.LagRequest():
                return messages.LagReply([self.lag(asked) for asked in request.partitions], now_ms=1_700_000_000_000)
            case messages.AppendRequest():
                return self.append(request, payload)
            case messages.FlushRequest():
                return self._flush(request)
            case messages.FetchRequest():
                return self.fetch(request, connection)
            case messages.CancelRequest():
                return messages.CancelReply(cancelled=True)  # and yet it waits on, for an answer that nobody takes
            case _:
                raise AssertionError(request)

    @staticmethod
    def _unknown(topic: str) -> UnknownTopicError:
        return UnknownTopicError(f"there is no topic {topic}; did you mean t?", topic=topic, nearest="t")

    def _topics(self, request: messages.TopicsRequest) -> tuple[messages.Message, bytes]:
        names = sorted(self.logs) if request.names is None else request.names
        names = [name for name in names if name > request.after]
        page = [n for n in names if n in self.logs][: request.limit]
        described = [
            messages.TopicDescription(
                n, "i" * 22, len(self.logs[n]), self.max_message_bytes, 1 << 30, config=self.config.get(n)
            ).to_wire()
            for n in page
        ]
        unknown: list[SeglogError] = [self._unknown(name) for name in names if name not in self.logs]
        return messages.TopicsReply(more=len(names) > request.limit, unknown=unknown), encode_value(described)

    def _offsets(self, request: messages.OffsetsRequest) -> messages.Message:
        results: list[messages.OffsetsResult] = []
        for asked in request.partitions:
            log = self.logs.get(asked.topic)
            if log is None:
                results.append(messages.OffsetsResult(asked.topic, asked.partition, error=self._unknown(asked.topic)))
                continue
            for number in range(len(log)) if asked.partition is None else [asked.partition]:
                part = log[number]
                wanted = asked.timestamp
                at = None if wanted is None else next((r for r in part.records() if r.timestamp >= wanted), None)
                results.append(
                    messages.OffsetsResult(
                        asked.topic,
                        number,
                        part.earliest,
                        part.latest,
                        part.durable,
                        0,
                        None if at is None else at.offset,
                        None if at is None else at.timestamp,
                    )
                )
        return messages.OffsetsReply(results)

    def lag(self, asked: messages.LagPartition) -> messages.LagResult:
        """The ends, without times; nothing is ever lost."""
        log = self.logs.get(asked.topic)
        if log is None:
            return messages.LagResult(asked.topic, asked.partition, error=self._unknown(asked.topic))
        part = log[asked.partition]
        return messages.LagResult(asked.topic, asked.partition, part.earliest, part.latest, part.durable)

    def append(self, request: messages.AppendRequest, payload: memoryview) -> messages.AppendReply:
        results: list[messages.AppendResult] = []
        position = 0
        for asked in request.partitions:
            base = self.logs[asked.topic][asked.partition].append(payload[position : position + asked.size])
            position += asked.size
            results.append(messages.AppendResult(asked.topic, asked.partition, base, -1, request.ack, False))
        return messages.AppendReply(results)

    def _flush(self, request: messages.FlushRequest) -> messages.FlushReply:
        results: list[messages.FlushResult] = []
        for asked in request.partitions:
            log = self.logs.get(asked.topic)
            if log is None:
                results.append(messages.FlushResult(asked.topic, asked.partition, error=self._unknown(asked.topic)))
                continue
            part = log[asked.partition]
            part.held_durable = None
            results.append(messages.FlushResult(asked.topic, asked.partition, part.durable))
        return messages.FlushReply(results)

    def fetch(
        self, request: messages.FetchRequest, connection: socket.socket | None = None
    ) -> tuple[messages.Message, bytes]:
        found = self._read(request)
        if not any(result.size or result.error for result in found[0].partitions) and request.max_wait_ms:
            self.changed.wait_for(
                lambda: (
                    any(r.size or r.error for r in self._read(request)[0].partitions)
                    or (connection is not None and connection not in self._connections)
                ),
                request.max_wait_ms / 1000,
            )
            found = self._read(request)
        return found

    def _read(self, request: messages.FetchRequest) -> tuple[messages.FetchReply, bytes]:
        payload = b""
        results: list[messages.FetchResult] = []
        for asked in request.partitions:
            part = self.logs[asked.topic][asked.partition]
            error = self._why_out_of_range(asked, part)
            if error is not None:
                results.append(messages.FetchResult(asked.topic, asked.partition, error=error))
                continue
            room = request.max_bytes - len(payload)
            data = part.read(asked.offset or 0, min(asked.max_bytes, room)) if room > 0 else b""
            if payload and len(payload) + len(data) > request.max_bytes:
                data = b""
            payload += data
            results.append(
                messages.FetchResult(
                    asked.topic, asked.partition, len(data), asked.offset, part.earliest, part.latest, part.durable, 0
                )
            )
        return messages.FetchReply(results), payload

    @staticmethod
    def _why_out_of_range(asked: messages.FetchPartition, part: FakePartition) -> OffsetOutOfRangeError | None:
        if asked.offset is not None and part.earliest <= asked.offset <= part.latest:
            return None
        return OffsetOutOfRangeError(
            f"offset {asked.offset} is not in {part.earliest} to {part.latest}",
            topic=asked.topic,
            partition=asked.partition,
            requested=asked.offset,
            earliest=part.earliest,
            latest=part.latest,
        )

    # --- For tests ---

    def values(self, topic: str = "t", partition: int = 0) -> list[bytes | None]:
        with self.changed:
            return [record.value for record in self.logs[topic][partition].records()]

    def fill(self, count: int, *, partition: int = 0, per_batch: int = 3, first: int = 0) -> None:
        """Records "0", "1", ... whose timestamps are a second apart."""
        with self.changed:
            for start in range(first, first + count, per_batch):
                numbers = range(start, min(start + per_batch, first + count))
                records = [(n * 1000, b"k", b"%d" % n, ()) for n in numbers]
                self.logs["t"][partition].append(encode_batch(records))
            self.changed.notify_all()

    def asked(self, kind: type[messages.Request]) -> int:
        with self.changed:
            return sum(isinstance(request, kind) for request in self.requests)


def encoded(frame: Frame, request: messages.Request, answer: Answer) -> bytes:
    """The frame of an answer, and nothing where there is none."""
    if answer is SILENCE or (isinstance(request, messages.AppendRequest) and request.ack == "none"):
        return b""
    message, payload = answer if isinstance(answer, tuple) else (answer, b"")
    assert not isinstance(message, Fault)
    return encode_frame(messages.reply_header(frame.header["id"], message), [payload])


def on_append(answer: Callable[[messages.AppendRequest, memoryview], Answer | None]) -> Script:
    """A script that answers appends only."""
    return lambda request, payload: answer(request, payload) if isinstance(request, messages.AppendRequest) else None


@contextmanager
def fake_broker(**options: Any) -> Iterator[FakeBroker]:
    broker = FakeBroker(**options)
    try:
        yield broker
    finally:
        broker.stop()
