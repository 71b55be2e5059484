"""ShareFetch and ShareAcknowledge: records of share groups. Source of the rules: Kafka's KafkaApis.

ShareFetch
  1   flexible; acknowledgements of records that were fetched before
  2   exact limits of records, renewed locks

ShareAcknowledge
  1   flexible
  2   renewed locks
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from seglog_broker.api.share_collection import Taken
from seglog_broker.api.share_fetch import ShareFetchService
from seglog_broker.api.share_sessions import FIRST_EPOCH, LAST_EPOCH, Place, SessionRefusedError, ShareSession
from seglog_broker.coordinators.coordinator_runtime import Waiting
from seglog_broker.coordinators.groups.share import MEMBER_ID_CHARACTERS_MAX
from seglog_broker.coordinators.share.in_flight import RENEW, Acknowledgement
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import Failure, failure_of
from seglog_broker.partitions.scheduler import Spread
from seglog_broker.runtime import budget
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

NONE: Final = Failure(ErrorCode.NONE, None)

_OF_COORDINATOR: Final = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE
"""Codes with which a fetch is final for Kafka's Java client; at NOT_LEADER_OR_FOLLOWER it fetches again."""

ACKNOWLEDGED_A_TURN: Final = budget.items_of(cost=60)
"""Partitions in which records are acknowledged before other tasks run."""


async def share_fetch(context: RequestContext, request: messages.ShareFetchRequest) -> messages.ShareFetchResponse:
    """Acknowledge records and acquire others, when there are some; answered when the acknowledgements are durable."""
    service, epoch = context.broker.share_fetches, request.share_session_epoch
    try:
        _check_names(request)
        _check_renewal(request)
        session = await _session_of(context, service, request)
    except SessionRefusedError as refused:
        return messages.ShareFetchResponse(error_code=refused.code, error_message=refused.message)
    acknowledging = await _acknowledge(context, service, request) if _has_acknowledgements(request) else {}
    taken: Mapping[Place, Taken] = {}
    if epoch != LAST_EPOCH and not request.is_renew_ack:
        taken = await service.fetch(session, session.rotated(epoch), request)
    outcome = await _outcome(acknowledging)
    if epoch == LAST_EPOCH:
        service.end_session(session)
    parts = {
        place: _fetched(context, place, taken.get(place, Taken()), outcome.get(place, NONE))
        for place in (*taken, *outcome)
    }
    return messages.ShareFetchResponse(
        acquisition_lock_timeout_ms=service.lock_ms(session.group),
        responses=_by_topic(parts, messages.ShareFetchResponse.ShareFetchableTopicResponse),
    )


def _fetched(context: RequestContext, place: Place, taken: Taken, acknowledged: Failure) -> Any:
    """A partition in a response."""
    context.reserve(PART_BYTES + len(taken.records) + PART_BYTES * len(taken.acquired))
    code, why = NONE if taken.error is None else _failure(context, place, taken.error)
    return messages.ShareFetchResponse.PartitionData(
        partition_index=place[1],
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER if code in _OF_COORDINATOR else code,
        error_message=why,
        acknowledge_error_code=acknowledged.code,
        acknowledge_error_message=acknowledged.message,
        records=taken.records,
        acquired_records=[
            messages.ShareFetchResponse.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in taken.acquired
        ],
    )


async def share_acknowledge(
    context: RequestContext, request: messages.ShareAcknowledgeRequest
) -> messages.ShareAcknowledgeResponse:
    """Acknowledge records; answered when that is durable."""
    service = context.broker.share_fetches
    try:
        _check_names(request)
        session = service.sessions.go_on(request.group_id or "", request.member_id or "", request.share_session_epoch)
    except SessionRefusedError as refused:
        return messages.ShareAcknowledgeResponse(error_code=refused.code, error_message=refused.message)
    outcome = await _outcome(await _acknowledge(context, service, request))
    if request.share_session_epoch == LAST_EPOCH:
        service.end_session(session)
    parts = {
        place: messages.ShareAcknowledgeResponse.PartitionData(
            partition_index=place[1], error_code=code, error_message=why
        )
        for place, (code, why) in outcome.items()
    }
    return messages.ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=service.lock_ms(session.group),
        responses=_by_topic(parts, messages.ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse),
    )


def _by_topic(parts: Mapping[Place, Any], cls: Any) -> list[Any]:
    """Topics of a response, with their partitions."""
    topics: dict[bytes, Any] = {}
    for (topic_id, _), part in parts.items():
        if topic_id not in topics:
            topics[topic_id] = cls(topic_id=topic_id)
        topics[topic_id].partitions.append(part)
    return list(topics.values())


# --- Sessions ---------------------------------------------------------------------------------------------------------


def _check_names(request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest) -> None:
    """Raise SessionRefusedError for a request without a group or a member."""
    if not request.group_id:
        raise SessionRefusedError(ErrorCode.INVALID_REQUEST, "group_id must not be empty: set group.id")
    if not request.member_id or len(request.member_id) > MEMBER_ID_CHARACTERS_MAX:
        raise SessionRefusedError(
            ErrorCode.INVALID_REQUEST,
            f"member_id must have 1 to {MEMBER_ID_CHARACTERS_MAX} characters, as a UUID has",
        )


def _check_renewal(request: messages.ShareFetchRequest) -> None:
    """Raise SessionRefusedError for a request that renews locks and fetches, too."""
    limits = ("max_bytes", "min_bytes", "max_records", "max_wait_ms")
    if request.is_renew_ack and (wrong := [name for name in limits if getattr(request, name) != 0]):
        raise SessionRefusedError(
            ErrorCode.INVALID_REQUEST, f"a request that renews locks fetches nothing: set {', '.join(wrong)} to 0"
        )


async def _session_of(
    context: RequestContext, service: ShareFetchService, request: messages.ShareFetchRequest
) -> ShareSession:
    """The session that a request begins, or belongs to, with its changes. Raises SessionRefusedError."""
    group, member, epoch = request.group_id or "", request.member_id or "", request.share_session_epoch
    places = [
        (bytes(topic.topic_id), partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    if epoch == FIRST_EPOCH:
        if _has_acknowledgements(request):
            raise SessionRefusedError(
                ErrorCode.INVALID_REQUEST, "the request that begins a share session acknowledges nothing"
            )
        context.session.at_end = service.note_left
        try:
            return service.sessions.begin(group, member, context.session, places)
        except SessionRefusedError:
            await service.idle(request.max_wait_ms)  # or the client would ask again at once
            raise
    session = service.sessions.go_on(group, member, epoch)
    if epoch != LAST_EPOCH:
        forgotten = [
            (bytes(each.topic_id), number) for each in request.forgotten_topics_data for number in each.partitions
        ]
        service.sessions.change(session, places, forgotten)
    return session


# --- Acknowledgements -------------------------------------------------------------------------------------------------


def _has_acknowledgements(request: messages.ShareFetchRequest) -> bool:
    return any(partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions)


async def _acknowledge(
    context: RequestContext,
    service: ShareFetchService,
    request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest,
) -> dict[Place, Waiting[None] | Failure]:
    """Acknowledge what a request says; for each partition why nothing was, or what to wait for."""
    outcome: dict[Place, Waiting[None] | Failure] = {}
    topics: Sequence[Any] = request.topics
    parts = ((bytes(topic.topic_id), partition) for topic in topics for partition in topic.partitions)
    async for topic_id, partition in Spread(context.turn, parts, ACKNOWLEDGED_A_TURN, ACKNOWLEDGED_A_TURN):
        place = topic_id, partition.partition_index
        acks = [
            Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
            for batch in partition.acknowledgement_batches
        ]
        if not acks:
            outcome[place] = NONE
        elif not request.is_renew_ack and any(RENEW in ack.types for ack in acks):
            outcome[place] = Failure(ErrorCode.INVALID_REQUEST, "no lock is renewed where is_renew_ack is false")
        else:
            try:
                outcome[place] = service.acknowledge(request.group_id or "", request.member_id or "", place, acks)
            except SeglogError as error:
                outcome[place] = _failure(context, place, error)
    return outcome


async def _outcome(acknowledging: Mapping[Place, Waiting[None] | Failure]) -> dict[Place, Failure]:
    """How acknowledgements have ended, once they are durable."""
    outcome: dict[Place, Failure] = {}
    for place, done in acknowledging.items():
        if isinstance(done, Failure):
            outcome[place] = done
            continue
        try:
            await done.wait()
            outcome[place] = NONE
        except SeglogError as error:
            outcome[place] = failure_of(error, "ShareAcknowledge")
    return outcome


def _failure(context: RequestContext, place: Place, error: SeglogError) -> Failure:
    """Code and message of ``error`` about a partition."""
    if context.topic_with_id(place[0]) is None:
        return Failure(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id: it was deleted")
    return failure_of(error, "ShareFetch")


APIS: Final = (
    Api(78, "ShareFetch", range(1, 3), handle=share_fetch, waits=True, begins=True, is_carried=True),
    Api(79, "ShareAcknowledge", range(1, 3), handle=share_acknowledge, waits=True, begins=True, is_carried=True),
)
