"""What is known of a transactional id, and its records in ``__transaction_state``: both sides of Kafka's format."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch, Record, RecordKind, Replay
from seglog_protocol.kafka.messages import TransactionLogKey, TransactionLogValue
from seglog_protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

KINDS: Final = {0: RecordKind("TransactionLogKey", "TransactionLogValue", 1)}

VALUE_VERSION: Final = 1
"""The version that Kafka 4 writes. Version 0 is without the ids before and after, and the client's version."""

PARTITION_BYTES_MIN: Final = 4
"""Bytes of a partition in a record."""

NO_TIME: Final = -1

Partition = tuple[str, int]
"""A topic and the number of a partition."""


class TransactionState(Enum):
    """Kafka's states of a transactional id, with the number that records have."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """As Kafka's tools and apis name it: "PrepareCommit"."""
        return "".join(part.title() for part in self.name.split("_"))

    @property
    def is_ending(self) -> bool:
        """Whether it is decided how the transaction ends, and markers are still to be written."""
        return self in _ENDING

    @property
    def is_complete(self) -> bool:
        """Whether the last transaction has ended, and none has begun since."""
        return self in _COMPLETE


_COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
_ENDING: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})

STATES: Final = {state.title: state for state in TransactionState}
"""By title."""


class TransactionFacts(NamedTuple):
    """All that a record says of a transactional id. Times are ms of the wall clock.

    - ``previous_producer_id`` is the id before the last decision, ``next_producer_id`` the one that the producer gets
      when its transaction has ended, because its epochs are used up; -1 for none.
    - ``start_ms`` is when the transaction began, -1 without one; ``updated_ms`` is the last decision.
    - ``version`` is the transaction version by which the client began or ended its last transaction, 0 before one.
    """

    producer_id: int = NO_PRODUCER_ID
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    timeout_ms: int = 0
    state: TransactionState = TransactionState.EMPTY
    partitions: Mapping[str, frozenset[int]] = {}
    start_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    version: int = 0

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """The id and epoch in force."""
        return ProducerIdAndEpoch(self.producer_id, self.epoch)


def record_of(transactional_id: str, facts: TransactionFacts) -> Record:
    """The record that says ``facts``."""
    value = TransactionLogValue(
        producer_id=facts.producer_id,
        previous_producer_id=facts.previous_producer_id,
        next_producer_id=facts.next_producer_id,
        producer_epoch=facts.epoch,
        transaction_timeout_ms=facts.timeout_ms,
        transaction_status=facts.state.value,
        # Kafka: null where nothing is open, which its reader relies on.
        transaction_partitions=None
        if facts.state is TransactionState.EMPTY
        else [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=sorted(numbers))
            for topic, numbers in facts.partitions.items()
        ],
        transaction_last_update_timestamp_ms=facts.updated_ms,
        transaction_start_timestamp_ms=facts.start_ms,
        client_transaction_version=facts.version,
    )
    least_size = PARTITION_BYTES_MIN * sum(map(len, facts.partitions.values()))
    return Record(TransactionLogKey(transactional_id=transactional_id), 0, value, VALUE_VERSION, least_size)


def tombstone(transactional_id: str) -> Record:
    """The record that forgets a transactional id."""
    return Record(TransactionLogKey(transactional_id=transactional_id), 0, None)


def facts_of(value: TransactionLogValue) -> TransactionFacts:
    """What a record says. Raises ValueError for a state that is not known."""
    return TransactionFacts(
        producer_id=value.producer_id,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=TransactionState(value.transaction_status),
        partitions={each.topic: frozenset(each.partition_ids) for each in value.transaction_partitions or ()},
        start_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        version=value.client_transaction_version,
    )


def by_topic(partitions: Iterable[Partition]) -> dict[str, frozenset[int]]:
    """Numbers of partitions by topic."""
    found: dict[str, set[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in found.items()}


class TransactionReplay(Replay):
    """The last record of each transactional id in a partition of ``__transaction_state``."""

    def __init__(self) -> None:
        super().__init__(KINDS)
        self.records: dict[str, Record] = {}

    def apply(self, record: Record) -> None:
        """Take in a record that counts. A record of a state that is not known is counted and skipped."""
        key, value = record.key, record.value
        assert isinstance(key, TransactionLogKey)
        if value is None:
            self.records.pop(key.transactional_id, None)
            return
        assert isinstance(value, TransactionLogValue)
        try:
            TransactionState(value.transaction_status)
        except ValueError:
            self.unknown[f"transactions in state {value.transaction_status} are not known here"] += 1
        else:
            self.records[key.transactional_id] = record
