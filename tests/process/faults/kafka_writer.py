"""An idempotent Kafka producer that runs through every kill of its broker: raw frames by our codec."""

import random
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request, Response
from tests.interop.kafka_wire import Wire
from tests.process.faults.living_clients import KEYS, Entry, Ledgers, Sender

_AHEAD_MAX: Final = 40
"""Records that nobody has looked at, as of ``living_clients.Writer``."""
_IN_FLIGHT_MAX: Final = 5
"""Requests without a response, as Kafka's clients have them: so many batches of a producer a broker remembers."""
_PRODUCE_VERSION: Final = 9
_RETRIED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER})
"""While a partition recovers, and what follows from that for the batches behind."""


class _Batch(NamedTuple):
    partition: int
    entries: list[Entry]
    data: bytes


class _AgainError(Exception):
    """All that has no ack is to be sent again."""


class KafkaWriter(Sender):
    """Sends a few records at a time, to one partition or several, until it is told to stop; every one gets its ack."""

    def __init__(self, name: str, port: int, topic: str, ledgers: Ledgers, acks: int) -> None:
        super().__init__(name, topic, ledgers)
        self.sent_again = 0
        self._port = port
        self._acks = acks
        self._dice = random.Random(name)
        self._counts = dict.fromkeys(self._ledgers, 0)
        self._producer: tuple[int, int] | None = None
        self._waiting: deque[list[_Batch]] = deque()  # without an ack, in order
        self._acked: deque[tuple[int, Entry, int]] = deque()
        self._is_abandoned = False

    def live(self) -> None:
        """Send records; reconnect and send again, as Kafka's clients do."""
        while not (self._is_over.is_set() and not self._waiting) and not self._is_abandoned:
            try:
                with Wire(self._port) as wire:
                    self._send_and_receive(wire)
            except (OSError, _AgainError):
                self.sent_again += len(self._waiting)
                self._is_over.wait(0.02)

    def _send_and_receive(self, wire: Wire) -> None:
        if self._producer is None:
            given = wire.ask(messages.InitProducerIdRequest(transactional_id=None), 4)
            if not isinstance(given, messages.InitProducerIdResponse) or given.error_code:
                raise _AgainError
            self._producer = given.producer_id, given.producer_epoch
        for batches in self._waiting:
            wire.send(self._produce(batches), _PRODUCE_VERSION)
        while not self._is_abandoned:
            while not self._is_over.is_set() and len(self._waiting) < _IN_FLIGHT_MAX and self._ahead < _AHEAD_MAX:
                self._waiting.append(list(self._new_batches()))
                wire.send(self._produce(self._waiting[-1]), _PRODUCE_VERSION)
                if self._dice.random() < 0.3:
                    break
            if self._waiting:
                self._note(wire.receive())
            elif self._is_over.is_set():
                return
            self._is_over.wait(self._dice.uniform(0.002, 0.02))

    @property
    def _ahead(self) -> int:
        return len(self._acked) + self.unacknowledged

    def _new_batches(self) -> Iterator[_Batch]:
        dice = self._dice
        assert self._producer is not None
        producer_id, producer_epoch = self._producer
        for partition in dice.sample(sorted(self._ledgers), k=dice.randrange(1, len(self._ledgers) + 1)):
            first = self._counts[partition]
            entries = []
            for number in range(first, first + dice.randrange(1, 6)):
                name = b"%s.%d:%d" % (self.name.encode(), partition, number)
                entry = Entry(
                    name, b"key %d" % dice.randrange(KEYS), b"%0*x" % (dice.randrange(1, 60), dice.getrandbits(60))
                )
                self._ledgers[partition].sent[name] = entry
                entries.append(entry)
            self._counts[partition] += len(entries)
            records = [(-1, entry.key, entry.value, (("name", entry.name),)) for entry in entries]
            data = encode_batch(records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=first)
            yield _Batch(partition, entries, data)

    def _produce(self, batches: list[_Batch]) -> Request:
        cls = messages.ProduceRequest
        parts = [cls.PartitionProduceData(index=batch.partition, records=memoryview(batch.data)) for batch in batches]
        topic = cls.TopicProduceData(name=self._topic, partition_data=parts)
        return cls(acks=self._acks, timeout_ms=30_000, topic_data=[topic])

    def _note(self, response: Response | None) -> None:
        """Note the acks of the oldest request; without a response the broker has gone."""
        if response is None:
            raise _AgainError
        assert isinstance(response, messages.ProduceResponse)
        results = response.responses[0].partition_responses
        if any(result.error_code in _RETRIED for result in results):
            raise _AgainError
        for batch, result in zip(self._waiting.popleft(), results, strict=True):
            assert (result.index, result.error_code) == (batch.partition, 0), result
            for number, entry in enumerate(batch.entries):
                self._acked.append((batch.partition, entry, result.base_offset + number))

    def take_acks(self) -> None:
        """See Sender."""
        self.check()
        while self._acked:
            partition, entry, offset = self._acked.popleft()
            self._ledgers[partition].note_ack(entry, offset)

    def abandon(self) -> None:
        """See Sender."""
        self._is_abandoned = True
        self._is_over.set()

    @property
    def unacknowledged(self) -> int:
        """See Sender."""
        return sum(len(batch.entries) for batches in list(self._waiting) for batch in batches)
