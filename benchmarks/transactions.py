"""Transactions of 1, 10 and 1,000 records, by 1 and 16 producers: how many a second, beside a real Kafka.

Each producer has a transactional id, a connection and a partition of its own. One of its transactions is a batch of
records of 100 bytes, and the commit when that is acknowledged; the next one begins when the commit is answered. Through
Kafka's protocol these are Produce with acks=all and EndTxn, of the versions that Kafka 4's clients speak: the same
requests to seglog and to Kafka. The native protocol has one more, which makes the partition part of the transaction.
"""

import selectors
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, Protocol

from benchmarks.batches import FIRST_TIMESTAMP, RECORD_BYTES
from benchmarks.group_wire import (
    FIND_COORDINATOR,
    Contest,
    Measured,
    Replies,
    frame,
    measured,
    real_kafka,
    when_loaded,
)
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row
from benchmarks.kafka_door import Door, daemon_with_door
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.servers import PeerServer
from benchmarks.peers.sides import KafkaServer
from benchmarks.raw_client import SOCKET_SECONDS_MAX, append_frame, encode, open_socket
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.frames import decode_map
from seglog_protocol.kafka import messages as kafka
from seglog_protocol.kafka import read_response
from seglog_protocol.messages import (
    EndTransactionRequest,
    ExtendTransactionRequest,
    HelloRequest,
    InitProducerRequest,
    TransactionPartition,
)
from seglog_protocol.record_batch import HEADER_SIZE, parse_header, seal_batch

TOPIC: Final = "bench-transactions"
RECORDS: Final = (1, 10, 1000)
PRODUCERS: Final = (1, 16)

_STATE_TOPIC: Final = "__transaction_state"
_INIT_PRODUCER_ID: Final = 4
_PRODUCE: Final = 12
_END_TXN: Final = 5
"""Versions: the first of Produce and EndTxn with which partitions are added by producing, and the epoch rises."""

_TRANSACTIONS: Final = 1
"""The kind of coordinator that FindCoordinator is to find."""

_CONCURRENT_TRANSACTIONS: Final = 51
"""The transaction before has been decided, and is not finished yet: clients ask again."""

_TIMEOUT_MS: Final = 60_000


class Epoch(NamedTuple):
    """Of a producer, for its next transaction."""

    producer_id: int
    epoch: int


class Batch:
    """The records of each transaction of a producer."""

    def __init__(self, records: int) -> None:
        built = encode_batch([(FIRST_TIMESTAMP, None, b"x" * RECORD_BYTES, ())] * records, transactional=True)
        self._header, self._body = parse_header(built), built[HEADER_SIZE:]

    def sealed(self, own: Epoch) -> bytes:
        """As a producer writes it first in its epoch."""
        header = self._header._replace(producer_id=own.producer_id, producer_epoch=own.epoch, base_sequence=0)
        return seal_batch(header, self._body)


class Producer(Protocol):
    """What one producer asks, request by request."""

    def begin(self, replies: Replies) -> None:
        """Take the transactional id."""
        ...

    def request(self) -> bytes:
        """The next request."""
        ...

    def answered(self, reply: bytes) -> bool:
        """Take the answer to it; whether that was the end of a transaction. Raises BenchmarkError for an error."""
        ...


class KafkaProducer:
    """Through Kafka's protocol."""

    def __init__(self, number: int, batch: Batch) -> None:
        self._id = f"bench-{number}"
        self._partition = number
        self._batch = batch
        self._own = Epoch(-1, -1)
        self._is_written = False

    def begin(self, replies: Replies) -> None:
        """``Producer.begin``."""
        asked = kafka.FindCoordinatorRequest(key_type=_TRANSACTIONS, coordinator_keys=[self._id])
        when_loaded(lambda: int(replies.ask(asked, FIND_COORDINATOR).coordinators[0].error_code), "FindCoordinator")
        request = kafka.InitProducerIdRequest(transactional_id=self._id, transaction_timeout_ms=_TIMEOUT_MS)

        def init() -> int:
            found = replies.ask(request, _INIT_PRODUCER_ID)
            self._own = Epoch(found.producer_id, found.producer_epoch)
            return int(found.error_code)

        when_loaded(init, "InitProducerId")

    def request(self) -> bytes:
        """``Producer.request``."""
        producer_id, epoch = self._own
        if self._is_written:
            end = kafka.EndTxnRequest(
                transactional_id=self._id, producer_id=producer_id, producer_epoch=epoch, committed=True
            )
            return frame(end, _END_TXN)
        cls = kafka.ProduceRequest
        part = cls.PartitionProduceData(index=self._partition, records=memoryview(self._batch.sealed(self._own)))
        topics = [cls.TopicProduceData(name=TOPIC, partition_data=[part])]
        return frame(cls(transactional_id=self._id, acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=topics), _PRODUCE)

    def answered(self, reply: bytes) -> bool:
        """``Producer.answered``."""
        api, version = (kafka.EndTxnRequest, _END_TXN) if self._is_written else (kafka.ProduceRequest, _PRODUCE)
        response: Any = read_response(api.API_KEY, version, memoryview(reply))[1]
        code = response.error_code if self._is_written else response.responses[0].partition_responses[0].error_code
        if code == _CONCURRENT_TRANSACTIONS:
            return False
        if code:
            raise BenchmarkError(f"{api.__name__} was answered with error {code}")
        is_end = self._is_written
        if is_end:
            self._own = Epoch(response.producer_id, response.producer_epoch)
        self._is_written = not is_end
        return is_end


class NativeProducer:
    """Through the native protocol."""

    def __init__(self, number: int, batch: Batch) -> None:
        self._id = f"bench-native-{number}"
        self._partition = number
        self._batch = batch
        self._own = Epoch(-1, -1)
        self._step = 0

    def begin(self, replies: Replies) -> None:
        """``Producer.begin``."""
        replies.ask_frame(encode(HelloRequest("seglog", "benchmarks")))
        self._take_epoch(_header(replies.ask_frame(encode(InitProducerRequest(self._id, _TIMEOUT_MS)))))

    def request(self) -> bytes:
        """``Producer.request``."""
        if self._step == 0:
            part = TransactionPartition(TOPIC, self._partition)
            return encode(ExtendTransactionRequest(self._id, *self._own, [part]))
        if self._step == 1:
            return append_frame(TOPIC, [self._batch.sealed(self._own)], "os", self._partition)
        return encode(EndTransactionRequest(self._id, *self._own, commit=True))

    def answered(self, reply: bytes) -> bool:
        """``Producer.answered``."""
        header = _header(reply)
        self._step = (self._step + 1) % 3
        if self._step:
            return False
        self._take_epoch(header)
        return True

    def _take_epoch(self, header: Mapping[str, Any]) -> None:
        self._own = Epoch(header["producer_id"], header["producer_epoch"])


def _header(reply: bytes) -> dict[str, Any]:
    """Of a frame of the native protocol without its length. Raises BenchmarkError for an error in it."""
    end = 4 + int.from_bytes(reply[:4], "big")
    header = decode_map(reply[4:end], "header")
    if b"error" in reply[4:end]:
        raise BenchmarkError(f"the daemon answered {header}")
    return header


def _transactions_in(port: int, producers: Sequence[Producer], seconds: float) -> tuple[int, float]:
    """Each producer makes one transaction after the other on a connection of its own; their number, seconds."""
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for producer in producers:
            replies = Replies(stack.enter_context(open_socket(port)))
            producer.begin(replies)
            selector.register(replies.sock, selectors.EVENT_READ, (producer, replies))
        began = time.perf_counter()
        ends = began + seconds
        for key in selector.get_map().values():
            key.data[1].sock.sendall(key.data[0].request())
        count, busy = 0, len(producers)
        while busy:
            ready = selector.select(SOCKET_SECONDS_MAX)
            if not ready:
                raise BenchmarkError(f"no answer within {SOCKET_SECONDS_MAX} s")
            for key, _ in ready:
                producer, replies = key.data
                for reply in replies.receive():
                    is_end = producer.answered(reply)
                    count += is_end
                    if is_end and time.perf_counter() >= ends:
                        busy -= 1
                    else:
                        replies.sock.sendall(producer.request())
        return count, time.perf_counter() - began


def _measure(
    pid: int, port: int, make: Callable[[int, Batch], Producer], producers: int, records: int, seconds: float
) -> Measured:
    batch = Batch(records)
    return measured(pid, lambda: _transactions_in(port, [make(n, batch) for n in range(producers)], seconds))


def _measure_kafka(server: KafkaServer, *case: Any) -> Measured:
    return _measure(server.pid, server.port, KafkaProducer, *case)


def _measure_native(opened: Door, *case: Any) -> Measured:
    return _measure(opened.pid, opened.running.port, NativeProducer, *case)


def _create_topic(port: int) -> None:
    with connect_kafka(port) as connection:
        connection.create_topic(TOPIC, partitions=max(PRODUCERS))


def _run(bench: Bench) -> Iterator[Row]:
    with daemon_with_door(bench) as opened, real_kafka(bench) as server:
        _create_topic(opened.port)
        if isinstance(server, PeerServer):
            _create_topic(server.port)
            _measure_kafka(server, 1, 1, 0.1)  # makes the topic of the coordinator's state
        topics = [TOPIC, _STATE_TOPIC]
        contest = Contest("transactions/s", opened, server, _measure_kafka, _measure_native, topics)
        contest.warm_up(bench.pick(8, 0.2), max(PRODUCERS), 10)
        for producers in PRODUCERS:
            for records in RECORDS:
                name = f"{producers} producer{'s' * (producers > 1)}, {records:,} record{'s' * (records > 1)}"
                yield from contest.rows(bench, name, producers, records, bench.pick(3, 0.2))
        yield from contest.absence()


BENCHMARK: Final = Benchmark(
    "transactions", "transactions that are committed, each producer one at a time, durable", "", _run, 900
)
