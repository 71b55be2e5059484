"""Producers: InitProducerId, DescribeProducers.

InitProducerId
  2   flexible
  3   the id and epoch of a producer that goes on
  4   PRODUCER_FENCED
  5   TRANSACTION_ABORTABLE

DescribeProducers
  0   flexible
"""

from collections.abc import Iterator
from typing import Final

from seglog_broker.coordinators.records import ProducerIdAndEpoch
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import error_code, failure_of, transaction_code
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.logger import get_logger
from seglog_broker.runtime import budget
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_broker.storage.io.filenames import why_invalid_topic
from seglog_protocol.errors import (
    InvalidRequestError,
    InvalidTopicError,
    InvalidTransactionTimeoutError,
    UnknownPartitionError,
)
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import InitProducerReply, InitProducerRequest
from seglog_protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

PRODUCERS_A_TURN: Final = budget.items_of(4)
"""Producers that are described before other tasks run."""

log = get_logger()

_Partition = messages.DescribeProducersResponse.PartitionResponse
_Producer = messages.DescribeProducersResponse.ProducerState


async def describe_producers(
    context: RequestContext, request: messages.DescribeProducersRequest
) -> messages.DescribeProducersResponse:
    """The producers that partitions know, each partition once."""
    response = messages.DescribeProducersResponse()
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        answered = messages.DescribeProducersResponse.TopicResponse(name=topic.name, partitions=[])
        response.topics.append(answered)
        for number in topic.partition_indexes:
            if (topic.name, number) in seen:
                continue
            seen.add((topic.name, number))
            await context.turn()
            result = _Partition(partition_index=number, active_producers=[])
            answered.partitions.append(result)
            try:
                for producer in _producers(context, topic.name, number):
                    if len(result.active_producers) % PRODUCERS_A_TURN == PRODUCERS_A_TURN - 1:
                        await context.turn()
                    result.active_producers.append(producer)
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                result.active_producers = []
                result.error_code, result.error_message = failure_of(error, "DescribeProducers")
    return response


def _producers(context: RequestContext, topic: str, number: int) -> Iterator[_Producer]:
    why = why_invalid_topic(topic)
    if why is not None:
        raise InvalidTopicError(f"{topic[:60]!r} cannot be a topic's name: {why}", topic=topic[:60])
    if number < 0:
        raise UnknownPartitionError(f"there is no partition {number}", topic=topic, partition=number)
    log = context.broker.partitions.readable(topic, number).log
    for entry in list(log.producers.entries()):
        context.reserve(PART_BYTES)
        yield _Producer(
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.current_txn_first_offset,
        )


async def init_producer_id(
    context: RequestContext, request: messages.InitProducerIdRequest
) -> messages.InitProducerIdResponse:
    """A producer id: a new one, or for a transactional producer its own, with an epoch that fences those before it."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return messages.InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_PRODUCER_EPOCH)
    producer_id, epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    code = ErrorCode.NONE
    try:
        if request.transactional_id is None:
            reply, _ = await context.broker.answer(InitProducerRequest())
            assert isinstance(reply, InitProducerReply)
            producer_id, epoch = reply.producer_id, reply.producer_epoch
        else:
            expected = None
            if request.producer_id != NO_PRODUCER_ID:
                expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
            producer_id, epoch = await context.transactions.init_producer(
                request.transactional_id, request.transaction_timeout_ms, expected
            )
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        if request.transactional_id is None:
            code = error_code(as_seglog_error(error, "InitProducerId"))
        else:
            code = transaction_code(error, "InitProducerId", context.version)
            if isinstance(error, InvalidRequestError | InvalidTransactionTimeoutError):
                # The response has a code alone, and the client ends by it: what it is to do stands here.
                log.warning(
                    "transactional_producer_refused",
                    transactional_id=request.transactional_id[:100],
                    error=code.name,
                    reason=error.message,
                )
    return messages.InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)


APIS: Final = (
    Api(22, "InitProducerId", range(6), handle=init_producer_id),
    Api(61, "DescribeProducers", range(1), handle=describe_producers),
)
