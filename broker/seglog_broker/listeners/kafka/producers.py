"""What is known of producers and transactions: DescribeProducers, ListTransactions, DescribeTransactions."""

from collections.abc import Iterator
from typing import Final

from seglog_broker.coordinators.groups.client_patterns import ClientPattern, PatternError
from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.listeners.kafka.errors import failure_of
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_broker.storage.io.filenames import why_invalid_topic
from seglog_protocol.errors import InvalidTopicError, UnknownPartitionError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

PRODUCERS_A_TURN: Final = 500
"""Producers that are described before other tasks run."""

_STATES: Final = frozenset(
    {
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    }
)  # fmt: skip

_Partition = messages.DescribeProducersResponse.PartitionResponse
_Producer = messages.DescribeProducersResponse.ProducerState


async def describe_producers(
    caller: Caller, request: messages.DescribeProducersRequest, version: int
) -> messages.DescribeProducersResponse:
    """The producers that partitions know, each partition once."""
    del version
    response = messages.DescribeProducersResponse()
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        answered = messages.DescribeProducersResponse.TopicResponse(name=topic.name, partitions=[])
        response.topics.append(answered)
        for number in topic.partition_indexes:
            if (topic.name, number) in seen:
                continue
            seen.add((topic.name, number))
            await caller.turn()
            result = _Partition(partition_index=number, active_producers=[])
            answered.partitions.append(result)
            try:
                for producer in _producers(caller, topic.name, number):
                    if len(result.active_producers) % PRODUCERS_A_TURN == PRODUCERS_A_TURN - 1:
                        await caller.turn()
                    result.active_producers.append(producer)
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                result.active_producers = []
                result.error_code, result.error_message = failure_of(error, "DescribeProducers")
    return response


def _producers(caller: Caller, topic: str, number: int) -> Iterator[_Producer]:
    why = why_invalid_topic(topic)
    if why is not None:
        raise InvalidTopicError(f"{topic[:60]!r} cannot be a topic's name: {why}", topic=topic[:60])
    if number < 0:
        raise UnknownPartitionError(f"there is no partition {number}", topic=topic, partition=number)
    log = caller.engine.partitions.readable(topic, number).log
    for entry in list(log.producers.entries()):
        caller.take(PART_BYTES)
        yield _Producer(
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.current_txn_first_offset,
        )


def list_transactions(
    caller: Caller, request: messages.ListTransactionsRequest, version: int
) -> messages.ListTransactionsResponse:
    """There are no transactions."""
    del caller, version
    response = messages.ListTransactionsResponse()
    try:
        ClientPattern(request.transactional_id_pattern or "")
    except PatternError:
        response.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
        return response
    response.unknown_state_filters = [state for state in request.state_filters if state not in _STATES]
    return response


async def describe_transactions(
    caller: Caller, request: messages.DescribeTransactionsRequest, version: int
) -> messages.DescribeTransactionsResponse:
    """No transactional id is known."""
    del version
    return messages.DescribeTransactionsResponse(
        transaction_states=[
            messages.DescribeTransactionsResponse.TransactionState(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=transactional_id, topics=[]
            )
            async for transactional_id in in_turns(caller, request.transactional_ids)
        ]
    )
