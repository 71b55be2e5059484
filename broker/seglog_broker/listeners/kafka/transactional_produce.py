"""Produce requests of transactional producers: what is done before their batches are appended, and their errors.

From ADDS_PARTITIONS_VERSION on, the request adds its partitions to the transaction; before, AddPartitionsToTxn has done
that. Either way partitions take only batches of transactions that they are part of, so nothing else is asked here.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

from seglog_broker.coordinators.state_machine import ProducerIdAndEpoch
from seglog_broker.coordinators.transactions.facts import Partition
from seglog_broker.listeners.kafka.context import RequestContext
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_protocol import errors
from seglog_protocol.access import Kind, Operation
from seglog_protocol.internal_topics import is_internal
from seglog_protocol.kafka import messages
from seglog_protocol.record_batch import HEADER_SIZE, TRANSACTIONAL_BIT, is_transactional

ADDS_PARTITIONS_VERSION: Final = 12
"""The first version of Produce whose requests add partitions to transactions: transaction version 2."""

ABORTABLE_VERSION: Final = 11
"""The first one whose clients know TRANSACTION_ABORTABLE."""

TOPIC_ID_VERSION: Final = 13

_ATTRIBUTES_AND_PRODUCER: Final = Struct(">21xh20xqh")
"""In a batch header."""

Batch = tuple[str, int, memoryview]
"""A batch with its topic and partition."""


def is_barred(context: RequestContext, request: messages.ProduceRequest) -> bool:
    """True for batches of a transaction whose id the client may not use: none of the request is appended."""
    id_ = request.transactional_id
    if id_ is None or context.session.sees(Operation.WRITE, Kind.TRANSACTIONAL_ID, id_):
        return False
    batches = (item.records or memoryview(b"") for topic in request.topic_data for item in topic.partition_data)
    if not any(map(is_transactional, batches)):
        return False
    return not context.session.allows(Operation.WRITE, Kind.TRANSACTIONAL_ID, id_)


def batches_of(context: RequestContext, request: messages.ProduceRequest) -> list[Batch]:
    """What a request wants to append; the topic is empty if no topic has the id, or the client may not write to it."""
    batches: list[Batch] = []
    for topic in request.topic_data:
        name = topic.name
        if context.version >= TOPIC_ID_VERSION:
            known = context.topic_with_id(topic.topic_id)
            name = "" if known is None else known.name
        if name and not context.session.sees(Operation.WRITE, Kind.TOPIC, name):
            name = ""
        batches += [(name, item.index, item.records) for item in topic.partition_data if item.records is not None]
    return batches


def must_wait(context: RequestContext, transactional_id: str | None, batches: Sequence[Batch]) -> bool:
    """Whether ``admit`` has something to do, or to refuse, before the batches are appended."""
    if transactional_id is None:
        return _has_transactional(batches)
    try:
        added = _added(context, transactional_id, batches)
        if added is None:
            return False
        context.transactions.check(transactional_id)
    except errors.SeglogError:
        return True
    if context.version < ADDS_PARTITIONS_VERSION:
        return False
    return not context.transactions.has_partitions(transactional_id, *added)


async def admit(
    context: RequestContext, transactional_id: str | None, batches: Sequence[Batch]
) -> errors.SeglogError | None:
    """Add the partitions of a request to its transaction. The error of all its batches, where that is not possible."""
    if transactional_id is None:
        return _without_id() if _has_transactional(batches) else None
    try:
        added = _added(context, transactional_id, batches)
        if added is not None:
            context.transactions.check(transactional_id)
        if added is not None and context.version >= ADDS_PARTITIONS_VERSION:
            await context.transactions.add_partitions(transactional_id, *added, version=2)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return errors.without_frames(_of_produce(as_seglog_error(error, "Produce")))
    return None


def _has_transactional(batches: Iterable[Batch]) -> bool:
    return any(is_transactional(records) for _, _, records in batches)


def _without_id() -> errors.TransactionalIdMissingError:
    # Kafka has no code of its own for this: the one it answers is that of an id that the client may not use.
    return errors.TransactionalIdMissingError(
        "the batch belongs to a transaction, and the Produce request names no transactional id: this is no matter of "
        "permissions, the client has to send both or neither",
        field="transactional_id",
    )


def _added(
    context: RequestContext, transactional_id: str, batches: Iterable[Batch]
) -> tuple[ProducerIdAndEpoch, list[Partition]] | None:
    """The producer, and the partitions that it adds; None if no batch belongs to a transaction.

    Partitions that do not exist, or are the broker's own, are left out: their batches are refused for that. Raises
    InvalidProducerIdMappingError for batches of more than one producer.
    """
    producers: set[tuple[int, int]] = set()
    partitions: list[Partition] = []
    for name, index, records in batches:
        if len(records) < HEADER_SIZE:
            continue
        attributes, producer_id, epoch = _ATTRIBUTES_AND_PRODUCER.unpack_from(records)
        if not attributes & TRANSACTIONAL_BIT:
            continue
        producers.add((producer_id, epoch))
        exists = context.topics.get(name)
        if exists is not None and 0 <= index < exists.partitions and not is_internal(name):
            partitions.append((name, index))
    if len(producers) > 1:
        raise errors.InvalidProducerIdMappingError(
            "the batches of one request are of more than one producer", transactional_id=transactional_id
        )
    if not partitions:
        return None
    [producer] = producers
    return ProducerIdAndEpoch(*producer), partitions


def _of_produce(error: errors.SeglogError) -> errors.SeglogError:
    """An error of the coordinator as producers know it: what passes has a code of partitions that they try again."""
    if isinstance(error, errors.ProducerFencedError):
        return errors.InvalidProducerEpochError(error.message)
    if isinstance(error, errors.CoordinatorLoadingError):
        return errors.PartitionRecoveringError(error.message)
    if isinstance(error, errors.CoordinatorNotAvailableError):
        unavailable = errors.StorageError(error.message)
        unavailable.retriable = True
        return unavailable
    return error


def refused_by_partition(
    context: RequestContext, transactional_id: str | None, error: errors.InvalidTransactionStateError
) -> errors.SeglogError:
    """The error of a batch that its partition does not take because it expects no transaction of the producer."""
    if transactional_id is None or error.first_offset >= 0:
        return error
    try:
        context.transactions.check_producer(
            transactional_id, ProducerIdAndEpoch(error.producer_id, error.producer_epoch)
        )
    except errors.SeglogError as refusal:
        return errors.without_frames(_of_produce(refusal))
    if context.version >= ABORTABLE_VERSION:
        return errors.TransactionAbortableError(error.message, transactional_id=transactional_id)
    return error
