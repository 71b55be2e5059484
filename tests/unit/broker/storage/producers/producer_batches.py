"""Batch headers for tests of producer state: only the header of a batch matters to it."""

from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_protocol.record_batch import CONTROL_BIT, MAGIC, TRANSACTIONAL_BIT, BatchHeader

NOW = 1_700_000_000_000


def data(
    producer_id: int,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    at: int = 0,
    timestamp: int = NOW,
    transactional: bool = False,
) -> BatchHeader:
    """A batch of ``count`` records at offset ``at``."""
    attributes = TRANSACTIONAL_BIT if transactional else 0
    return BatchHeader(
        at, 49, 0, MAGIC, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count
    )


def last_records(state: ProducerState) -> dict[int, tuple[int, int]]:
    """By producer the last offset of its data, -1 without any, and its epoch."""
    return {entry.producer_id: (entry.last_offset, entry.producer_epoch) for entry in state.entries()}


def plain(count: int = 1, *, at: int = 0) -> BatchHeader:
    """A batch that is not idempotent. The sequence is what Kafka's group coordinator writes there."""
    return data(-1, 0, count, epoch=-1, at=at)


def control(producer_id: int, *, epoch: int = 0, at: int = 0, timestamp: int = NOW, count: int = 1) -> BatchHeader:
    """The batch of an end marker; with ``count`` 0 what compaction leaves of it."""
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    return BatchHeader(at, 49, 0, MAGIC, 0, attributes, 0, timestamp, timestamp, producer_id, epoch, -1, count)
