"""TxnOffsetCommit: offsets that count when a transaction is committed.

Source of the rules: Kafka's KafkaApis and OffsetMetadataManager.

TxnOffsetCommit
  2   leader epoch of the record
  3   flexible; the member of the group
  4   TRANSACTION_ABORTABLE
  5   adds the group's partition to the transaction: transaction version 2
  6   topics by id; STALE_MEMBER_EPOCH
"""

from collections.abc import Sequence
from typing import Final

from seglog_broker.coordinators.groups.committed_offsets import Committer, OffsetToCommit
from seglog_broker.coordinators.records import ProducerIdAndEpoch
from seglog_broker.listeners.kafka.context import Api, Repeats, RequestContext
from seglog_broker.listeners.kafka.errors import transaction_code
from seglog_broker.listeners.kafka.handlers.group_offsets import answer_commit, to_commit
from seglog_broker.listeners.kafka.turns import TOPIC_COST, in_turns
from seglog_broker.runtime.budget import Turns
from seglog_protocol.errors import (
    CoordinatorLoadingError,
    InvalidTransactionStateError,
    SeglogError,
    StaleMemberEpochError,
)
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

ADDS_PARTITION_VERSION: Final = 5
"""The first version that adds the group's partition to the transaction; before, AddOffsetsToTxn does that."""

_Topic = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = messages.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


async def txn_offset_commit(
    context: RequestContext, request: messages.TxnOffsetCommitRequest
) -> messages.TxnOffsetCommitResponse:
    """Store offsets, each with its own result; answered once they are durable."""
    response = messages.TxnOffsetCommitResponse()
    wanted: list[OffsetToCommit] = []
    places: list[_Partition] = []
    turns = Turns(context.turn)
    for asked in request.topics:
        await turns.spend(TOPIC_COST)
        answered = _Topic(name=asked.name, topic_id=asked.topic_id)
        response.topics.append(answered)
        name: str | None = asked.name
        if context.version >= 6:
            topic = context.topic_with_id(asked.topic_id)
            name = None if topic is None else topic.name
        async for item in in_turns(context, asked.partitions):
            place = _Partition(partition_index=item.partition_index)
            answered.partitions.append(place)
            if name is None:
                place.error_code = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            places.append(place)
            wanted.append(to_commit(name, item))
    if wanted:
        await answer_commit(context, places, _commit(context, request, wanted), _code)
    return response


async def _commit(
    context: RequestContext, request: messages.TxnOffsetCommitRequest, wanted: Sequence[OffsetToCommit]
) -> Sequence[SeglogError | None]:
    committer = Committer(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
    transaction = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    context.groups.check_named(request.group_id)
    if context.version >= ADDS_PARTITION_VERSION:
        await context.transactions.add_offsets(request.transactional_id, transaction, request.group_id, version=2)
    else:
        context.transactions.check_producer(request.transactional_id, transaction)
    return await context.groups.commit(request.group_id, committer, wanted, transaction)


def _code(context: RequestContext, error: Exception | None) -> ErrorCode:
    """The code for ``error`` that clients of the request's version know."""
    if isinstance(error, StaleMemberEpochError) and context.version < 6:
        return ErrorCode.ILLEGAL_GENERATION
    if isinstance(error, InvalidTransactionStateError) and context.version >= 4:
        return ErrorCode.TRANSACTION_ABORTABLE
    if isinstance(error, CoordinatorLoadingError) and context.version < 2:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # producers before Kafka 2.0 do not know the other code
    return ErrorCode.NONE if error is None else transaction_code(error, "TxnOffsetCommit", context.version)


_REPEATS: Final = Repeats(("topics", "partitions"), "committed_offset", ("topics", "partitions"))

APIS: Final = (Api(28, "TxnOffsetCommit", range(7), handle=txn_offset_commit, repeats=_REPEATS),)
