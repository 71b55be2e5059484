"""Transactions of 1, 10 and 1,000 records, by 1 and 16 producers: how many a second, beside a real Kafka.

Each producer has a transactional id, a connection and a partition of its own. One of its transactions is a batch of
records of 100 bytes, and the commit when that is acknowledged; the next one begins when the commit is answered. Through
Kafka's protocol these are Produce with acks=all and EndTxn, of the versions that Kafka 4's clients speak: the same
requests to seglog and to Kafka. The native protocol has one more, which makes the partition part of the transaction.
Requests are encoded once. For each transaction the producer id, the epoch and the checksum of the batch are patched in
the encoded bytes.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from benchmarks.batches import FIRST_TIMESTAMP, RECORD_BYTES
from benchmarks.group_wire import CONCURRENT_TRANSACTIONS, Replies, contest, find_coordinator, frame, when_loaded
from benchmarks.harness import Bench, Benchmark, BenchmarkError, Row
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.sides import KafkaServer
from benchmarks.raw_client import GREETING, append_frame, encode
from benchmarks.talks import converse, header_of
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.checksum import crc32c
from seglog_protocol.kafka import messages as kafka
from seglog_protocol.messages import (
    EndTransactionRequest,
    ExtendTransactionRequest,
    InitProducerRequest,
    TransactionPartition,
)
from seglog_protocol.record_batch import ATTRIBUTES_POSITION, CRC_POSITION, HEADER_SIZE, parse_header, seal_batch

TOPIC: Final = "bench-transactions"
RECORDS: Final = (1, 10, 1000)
PRODUCERS: Final = (1, 16)

_STATE_TOPIC: Final = "__transaction_state"
_INIT_PRODUCER_ID: Final = 4
_PRODUCE: Final = 12
_END_TXN: Final = 5
"""Versions: the first of Produce and EndTxn with which partitions are added by producing, and the epoch rises."""

NEEDED: Final = {"Produce": (0, _PRODUCE), "EndTxn": (26, _END_TXN), "InitProducerId": (22, _INIT_PRODUCER_ID)}
"""Number and version of what a transaction asks."""

_TRANSACTIONS: Final = 1
"""The kind of coordinator that FindCoordinator is to find."""

_TIMEOUT_MS: Final = 60_000


class Epoch(NamedTuple):
    """Of a producer, for its next transaction."""

    producer_id: int
    epoch: int


_PLACE: Final = Epoch(0x7EED_1D5A_7EED_1D5B, 0x7BAD)
"""Stands in requests where those of a producer are to be written, in as many bytes as any have."""


def _batch(records: int) -> bytes:
    """The records of each transaction, as a producer writes them first in its epoch."""
    built = encode_batch([(FIRST_TIMESTAMP, None, b"x" * RECORD_BYTES, ())] * records, transactional=True)
    header = parse_header(built)._replace(producer_id=_PLACE.producer_id, producer_epoch=_PLACE.epoch, base_sequence=0)
    return seal_batch(header, built[HEADER_SIZE:])


class Template:
    """A request with a place for a producer, and with its batch if it has one."""

    def __init__(self, data: bytes, batch: bytes = b"") -> None:
        self._data = bytearray(data)
        self._id_at = data.index(struct.pack(">q", _PLACE.producer_id))
        self._epoch_at = data.index(struct.pack(">h", _PLACE.epoch), self._id_at + 8)
        batch_at = data.index(batch)
        self._crc_at = batch_at + CRC_POSITION
        self._covered = (
            memoryview(self._data)[batch_at + ATTRIBUTES_POSITION : batch_at + len(batch)] if batch else None
        )

    def of(self, own: Epoch) -> bytearray:
        """The request of a producer."""
        struct.pack_into(">q", self._data, self._id_at, own.producer_id)
        struct.pack_into(">h", self._data, self._epoch_at, own.epoch)
        if self._covered is not None:
            struct.pack_into(">I", self._data, self._crc_at, crc32c(self._covered))
        return self._data


class Producer(ABC):
    """A ``Talk`` in which the end of a transaction counts."""

    framing = Replies

    def __init__(self, requests: Sequence[Template]) -> None:
        self.requests = requests
        self._own = Epoch(-1, -1)
        self._step = 0

    @abstractmethod
    def begin(self, replies: Replies) -> None:
        """Take the transactional id."""

    @abstractmethod
    def _take(self, reply: bytes, is_end: bool) -> bool:
        """Take an answer, and the next epoch from the last one; False where the same is to be asked again."""

    def request(self) -> bytearray:
        """``Talk.request``."""
        return self.requests[self._step].of(self._own)

    def answered(self, reply: bytes) -> bool:
        """``Talk.answered``."""
        following = (self._step + 1) % len(self.requests)
        if not self._take(reply, not following):
            return False
        self._step = following
        return not following


class KafkaProducer(Producer):
    """Through Kafka's protocol."""

    def __init__(self, number: int, records: int) -> None:
        self._id = f"bench-{number}"
        batch = _batch(records)
        cls = kafka.ProduceRequest
        part = cls.PartitionProduceData(index=number, records=memoryview(batch))
        topics = [cls.TopicProduceData(name=TOPIC, partition_data=[part])]
        produce = cls(transactional_id=self._id, acks=-1, timeout_ms=_TIMEOUT_MS, topic_data=topics)
        end = kafka.EndTxnRequest(
            transactional_id=self._id, producer_id=_PLACE.producer_id, producer_epoch=_PLACE.epoch, committed=True
        )
        super().__init__([Template(frame(produce, _PRODUCE), batch), Template(frame(end, _END_TXN))])

    def begin(self, replies: Replies) -> None:
        """``Producer.begin``."""
        find_coordinator(replies, self._id, _TRANSACTIONS)
        request = kafka.InitProducerIdRequest(transactional_id=self._id, transaction_timeout_ms=_TIMEOUT_MS)

        def init() -> int:
            found = replies.ask(request, _INIT_PRODUCER_ID)
            self._own = Epoch(found.producer_id, found.producer_epoch)
            return int(found.error_code)

        when_loaded(init, "InitProducerId")

    def _take(self, reply: bytes, is_end: bool) -> bool:
        # Behind the correlation id and tagged fields: a throttle time, or one topic, its name, one partition's index.
        at = 4 + 1 + (4 if is_end else 1 + 1 + len(TOPIC) + 1 + 4)
        code, producer_id, epoch = _OUTCOME.unpack_from(reply, at)
        if code and code != CONCURRENT_TRANSACTIONS:
            raise BenchmarkError(f"{'EndTxn' if is_end else 'Produce'} was answered with error {code}")
        if is_end and not code:
            self._own = Epoch(producer_id, epoch)
        return not code


_OUTCOME: Final = struct.Struct(">hqh")
"""The error, and of EndTxn the producer's next id and epoch."""


class NativeProducer(Producer):
    """Through the native protocol."""

    def __init__(self, number: int, records: int) -> None:
        self._id = f"bench-native-{number}"
        batch = _batch(records)
        extend = ExtendTransactionRequest(self._id, *_PLACE, [TransactionPartition(TOPIC, number)])
        end = EndTransactionRequest(self._id, *_PLACE, commit=True)
        append = append_frame(TOPIC, [batch], "os", number)
        super().__init__([Template(encode(extend)), Template(append, batch), Template(encode(end))])

    def begin(self, replies: Replies) -> None:
        """``Producer.begin``."""
        header_of(replies.ask_frame(GREETING))
        self._take(replies.ask_frame(encode(InitProducerRequest(self._id, _TIMEOUT_MS))), is_end=True)

    def _take(self, reply: bytes, is_end: bool) -> bool:
        header = header_of(reply)
        if is_end:
            self._own = Epoch(header["producer_id"], header["producer_epoch"])
        return True


def prepare_server(server: KafkaServer) -> None:
    """Make the topic, and by a transaction that of the coordinator's state."""
    with connect_kafka(server.port) as connection:
        connection.create_topic(TOPIC, partitions=max(PRODUCERS))
    converse(server.port, [KafkaProducer(0, records=1)], 0)


def _run(bench: Bench) -> Iterator[Row]:
    with contest(bench, "transactions", prepare_server, TOPIC, _STATE_TOPIC) as beside:
        beside.warm_up(bench.pick(8, 0.2), max(PRODUCERS), 10)
        for producers in PRODUCERS:
            for records in RECORDS:
                name = f"{producers} producer{'s' * (producers > 1)}, {records:,} record{'s' * (records > 1)}"
                yield from beside.rows(bench, name, producers, bench.pick(3, 0.2), records)
        yield from beside.absence()


BENCHMARK: Final = Benchmark(
    "transactions", "transactions that are committed, each producer one at a time, durable", "", _run, 900
)
