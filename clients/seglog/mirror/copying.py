"""Records copied in rounds: read, sent, acknowledged, found where they were to be, and the position committed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from seglog.mirror.claim import Claim, ClaimLostError
from seglog.mirror.cluster import Cluster
from seglog.mirror.errors import AWAY, MirrorError, translated
from seglog.mirror.positions import Partition, Position
from seglog.mirror.resuming import sendable

ROUND_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 3.0
_READ_AT_ONCE: Final = 5000
_READ_WAIT_SECONDS: Final = 0.1
_MIN_BATCH_BYTES: Final = 1024
_BATCH_BYTES: Final = 1_000_000
_OVERHEAD_BYTES: Final = 512
"""What a batch has beside what librdkafka counts as its size."""

_BEGUN_AGAIN: Final = frozenset(
    {
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.DUPLICATE_SEQUENCE_NUMBER,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
_OUT_OF_RANGE: Final = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})  # noqa: SLF001
_PASSING: Final = frozenset({KafkaError._MAX_POLL_EXCEEDED, KafkaError.UNKNOWN_TOPIC_OR_PART})  # noqa: SLF001


class BeginAgainError(Exception):
    """What is known of the positions may be wrong: to be read anew from the target."""


@dataclass(slots=True)
class _Sent:
    """Of one partition in this round: as in Position, for what is sent and not yet acknowledged."""

    source: int
    target: int
    straight_from: int


@dataclass
class Copier:
    """Copies partitions from ``positions`` on; every round ends with all of it durable, or raises.

    ``is_asked_to_end`` is looked at while a side is away, which is waited for otherwise.
    """

    source: Cluster
    target: Cluster
    claim: Claim
    positions: dict[Partition, Position]
    compression: str
    batch_bytes: int
    is_asked_to_end: Callable[[], bool]
    copied: int = 0
    _failure: tuple[Any, Partition] | None = None  # the first, and of which partition

    def __post_init__(self) -> None:
        self._sent = {where: _Sent(p.source, p.target, p.straight_from) for where, p in self.positions.items()}
        group = f"seglog-mirror-to-{self.target.cluster_id}"
        self._consumer = self.source.consumer(group, **{"enable.partition.eof": True})
        size = max(_MIN_BATCH_BYTES, min(_BATCH_BYTES, self.batch_bytes - _OVERHEAD_BYTES))
        settings: dict[str, Any] = {"linger.ms": 5, "compression.type": self.compression, "batch.size": size}
        self._producer = self.target.producer(**settings, on_delivery=self._on_failure)
        self._consumer.assign([TopicPartition(*where, what.source) for where, what in self.positions.items()])

    def round(self) -> int:
        """Copy for about a second, or until nothing is there; how many records.

        Raises ClaimLostError and BeginAgainError, after which positions are read anew, and SeglogError.
        """
        self.claim.check()
        deadline = time.monotonic() + ROUND_SECONDS
        count = 0
        while time.monotonic() < deadline:
            messages = self._consumer.consume(_READ_AT_ONCE, _READ_WAIT_SECONDS)
            count += self._produce(messages)
            self._producer.poll(0)
            if self._failure is not None or not messages:
                break
        self.source.raise_refused()
        self._finish(count)
        return count

    def close(self) -> None:
        """Give up what is not sent yet, and wait a little for what is under way."""
        self._producer.purge(in_flight=False)
        self._producer.flush(_CLOSE_SECONDS)
        self._consumer.close()

    def _produce(self, messages: list[Any]) -> int:
        """Hand messages of the source to the target's producer; returns how many."""
        sent, produce = self._sent, self._producer.produce
        count = 0
        for message in messages:
            where = Partition(message.topic(), message.partition())
            if message.error() is not None:
                self._on_error(message, where)
                continue
            offset, timestamp = message.offset(), sendable(message.timestamp()[1])
            at = sent[where]
            if offset < at.source:
                continue
            fields = (where.topic, message.value(), message.key(), where.number)
            while True:
                try:
                    produce(*fields, timestamp=timestamp, headers=message.headers())
                    break
                except BufferError:
                    self._make_room(where, offset)
                except KafkaException as error:
                    if self._failure is None:
                        self._failure = error.args[0], where
                    return count
            if offset != at.source:
                at.straight_from = offset
            at.source = offset + 1
            at.target += 1
            count += 1
        return count

    def _make_room(self, where: Partition, offset: int) -> None:
        if not len(self._producer):
            raise MirrorError(f"the record at offset {offset:,} of {where} is larger than a mirror can send")
        self._producer.poll(0.1)
        self._watch()

    def _on_error(self, message: Any, where: Partition) -> None:
        code = message.error().code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
            at = self._sent[where]
            if message.offset() > at.source:  # behind its last record are ends of transactions
                at.straight_from = at.source = message.offset()
        elif code in _OUT_OF_RANGE:
            raise BeginAgainError
        elif code not in AWAY and code not in _PASSING:
            raise translated(message.error(), self.source.name, self.source.trouble)

    def _on_failure(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = error, Partition(message.topic(), message.partition())

    def _finish(self, count: int) -> None:
        """Wait until all is acknowledged, see that it is where it should be, and commit how far that is."""
        while self._producer.flush(0.5):
            self._watch()
        self._raise_failure()
        changed = {
            where: Position(self.positions[where].origin, at.source, at.target, at.straight_from)
            for where, at in self._sent.items()
            if at.source != self.positions[where].source
        }
        if not changed:
            return
        if count:
            ends = self.target.end_offsets(changed)
            for where, position in changed.items():
                if ends[where] != position.target:
                    raise BeginAgainError
        self.claim.check()
        self.claim.write(changed)
        self.positions |= changed
        self.copied += count
        offsets = [TopicPartition(*where, what.source) for where, what in changed.items()]
        self._consumer.commit(offsets=offsets, asynchronous=True)  # for whoever looks at the group's lag

    def _watch(self) -> None:
        """While the target keeps us waiting."""
        self.claim.check()
        self.target.raise_refused()
        self._raise_failure()
        if self.is_asked_to_end() and self.target.trouble:
            raise ClaimLostError

    def _raise_failure(self) -> None:
        if self._failure is None:
            return
        error, where = self._failure
        code = error.code()
        if code in _BEGUN_AGAIN or code in AWAY or code == KafkaError._PURGE_QUEUE:  # noqa: SLF001
            raise BeginAgainError
        failure = translated(error, self.target.name)
        begin = f"from offset {self.positions[where].source:,} of the source on"
        raise type(failure)(f"{where}, {begin}, a record is refused: {failure.message}")
