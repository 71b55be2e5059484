"""ShareFetch and ShareAcknowledge: records of share groups. Source of the rules: Kafka's KafkaApis."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from seglog_broker.api.share_collection import Taken, Wanted
from seglog_broker.api.share_fetch import ShareFetchService
from seglog_broker.api.share_sessions import (
    FIRST_EPOCH,
    LAST_EPOCH,
    Place,
    SessionRefusedError,
    ShareSession,
)
from seglog_broker.coordinators.coordinator_runtime import Waiting
from seglog_broker.coordinators.share.in_flight import Acknowledgement
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import Failure, error_code, error_message
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.errors import SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

MEMBER_CHARACTERS_MAX: Final = 36
"""Of the id of a member of a share group: those of a UUID."""

RENEW: Final = 4
RENEW_VERSION_MIN: Final = 2
"""The type of an acknowledgement that renews the lock of a record, and the first versions that have it."""

NONE: Final = Failure(ErrorCode.NONE, None)

_OF_COORDINATOR: Final = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)

_FetchedPartition = messages.ShareFetchResponse.PartitionData
_FetchedTopic = messages.ShareFetchResponse.ShareFetchableTopicResponse
_AcquiredRecords = messages.ShareFetchResponse.AcquiredRecords
_AcknowledgedPartition = messages.ShareAcknowledgeResponse.PartitionData
_AcknowledgedTopic = messages.ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse


async def share_fetch(context: RequestContext, request: messages.ShareFetchRequest) -> messages.ShareFetchResponse:
    """Acknowledge records and acquire others, when there are some; answered when the acknowledgements are durable."""
    service = context.broker.share_fetches
    try:
        _check_names(request)
        _check_renewal(context, request)
        session = await _session_of(context, service, request)
    except SessionRefusedError as refused:
        return messages.ShareFetchResponse(error_code=refused.code, error_message=refused.message)
    epoch = request.share_session_epoch
    acknowledging = None
    if any(partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions):
        acknowledging = await _acknowledge(context, service, request)
    taken: Mapping[Place, Taken] = {}
    is_renewal = context.version >= RENEW_VERSION_MIN and request.is_renew_ack
    if epoch != LAST_EPOCH and not is_renewal:
        wanted = Wanted(
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            max_records=request.max_records,
            batch_size=request.batch_size,
            is_record_limit=request.share_acquire_mode == 1,
        )
        taken = await service.fetch(session, session.rotated(epoch), wanted)
    outcome = {} if acknowledging is None else await _outcome(acknowledging)
    if epoch == LAST_EPOCH:
        service.end_session(session)
    response = messages.ShareFetchResponse(acquisition_lock_timeout_ms=service.lock_ms(session.group))
    topics: dict[bytes, _FetchedTopic] = {}
    for place in dict.fromkeys([*taken, *outcome]):
        topic_id, partition = place
        if topic_id not in topics:
            topics[topic_id] = _FetchedTopic(topic_id=topic_id)
            response.responses.append(topics[topic_id])
        code, why = outcome.get(place, NONE)
        data = _FetchedPartition(
            partition_index=partition, acknowledge_error_code=code, acknowledge_error_message=why, records=b""
        )
        if place in taken:
            _note_taken(context, data, place, taken[place])
        topics[topic_id].partitions.append(data)
    return response


def _note_taken(context: RequestContext, data: _FetchedPartition, place: Place, taken: Taken) -> None:
    context.reserve(PART_BYTES + len(taken.records) + PART_BYTES * len(taken.acquired))
    if taken.error is not None:
        data.error_code, data.error_message = _failure(context, place, taken.error)
        if data.error_code in _OF_COORDINATOR:
            data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # Java 4.4 throws for the others, and tries this again
    data.records = taken.records
    data.acquired_records = [
        _AcquiredRecords(first_offset=each.first, last_offset=each.last, delivery_count=each.delivery_count)
        for each in taken.acquired
    ]


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
    response = messages.ShareAcknowledgeResponse(acquisition_lock_timeout_ms=service.lock_ms(session.group))
    topics: dict[bytes, _AcknowledgedTopic] = {}
    for (topic_id, partition), (code, why) in outcome.items():
        if topic_id not in topics:
            topics[topic_id] = _AcknowledgedTopic(topic_id=topic_id)
            response.responses.append(topics[topic_id])
        topics[topic_id].partitions.append(
            _AcknowledgedPartition(partition_index=partition, error_code=code, error_message=why)
        )
    return response


# --- Sessions ---------------------------------------------------------------------------------------------------------


def _check_names(request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest) -> None:
    """Raise SessionRefusedError for a request without a group or a member."""
    if not request.group_id:
        raise SessionRefusedError(ErrorCode.INVALID_REQUEST, "group_id must not be empty: set group.id")
    if not request.member_id or len(request.member_id) > MEMBER_CHARACTERS_MAX:
        raise SessionRefusedError(
            ErrorCode.INVALID_REQUEST,
            f"member_id must have 1 to {MEMBER_CHARACTERS_MAX} characters, as a UUID has",
        )


def _check_renewal(context: RequestContext, request: messages.ShareFetchRequest) -> None:
    """Raise SessionRefusedError for a request that renews locks and fetches, too."""
    if context.version >= RENEW_VERSION_MIN and request.is_renew_ack:
        limits = ("max_bytes", "min_bytes", "max_records", "max_wait_ms")
        wrong = [name for name in limits if getattr(request, name) != 0]
        if wrong:
            raise SessionRefusedError(
                ErrorCode.INVALID_REQUEST,
                f"a request that renews locks fetches nothing: set {', '.join(wrong)} to 0",
            )


async def _session_of(
    context: RequestContext, service: ShareFetchService, request: messages.ShareFetchRequest
) -> ShareSession:
    """The session that a request begins, or belongs to, with its changes. Raises SessionRefusedError."""
    group, member, epoch = request.group_id or "", request.member_id or "", request.share_session_epoch
    places = _places(request.topics)
    if epoch == FIRST_EPOCH:
        if any(partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions):
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


def _places(topics: Sequence[Any]) -> list[Place]:
    return [(bytes(topic.topic_id), partition.partition_index) for topic in topics for partition in topic.partitions]


# --- Acknowledgements -------------------------------------------------------------------------------------------------


async def _acknowledge(
    context: RequestContext,
    service: ShareFetchService,
    request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest,
) -> dict[Place, Waiting[None] | Failure]:
    """Acknowledge what a request says; for each partition why nothing was, or what to wait for."""
    outcome: dict[Place, Waiting[None] | Failure] = {}
    wanted: dict[Place, list[Acknowledgement]] = {}
    is_renewal = context.version >= RENEW_VERSION_MIN and request.is_renew_ack
    topics: Sequence[Any] = request.topics
    async for topic in in_turns(context, topics):
        topic_id = bytes(topic.topic_id)
        is_known = context.topic_with_id(topic_id) is not None
        for partition in topic.partitions:
            place = topic_id, partition.partition_index
            if not is_known:
                outcome[place] = _UNKNOWN_TOPIC_ID
                continue
            acks = [
                Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in partition.acknowledgement_batches
            ]
            why = _why_wrong(acks, RENEW if is_renewal else RENEW - 1)
            if why is not None:
                outcome[place] = Failure(ErrorCode.INVALID_REQUEST, why)
            elif acks:
                wanted[place] = acks
            else:
                outcome[place] = NONE
    for place, done in service.acknowledge(request.group_id or "", request.member_id or "", wanted).items():
        outcome[place] = _failure(context, place, done) if isinstance(done, SeglogError) else done
    return outcome


_UNKNOWN_TOPIC_ID: Final = Failure(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id: it was deleted")


def _why_wrong(acks: Sequence[Acknowledgement], type_max: int) -> str | None:
    """Say what is wrong with the acknowledgements of a partition, before any record is looked at."""
    last = -1
    for ack in acks:
        if ack.first > ack.last or ack.first < last:
            return f"acknowledged offsets must rise: {ack.first} to {ack.last} comes after {last}"
        if not ack.types or (len(ack.types) > 1 and len(ack.types) != ack.last - ack.first + 1):
            return f"offsets {ack.first} to {ack.last} need one type of acknowledgement, or one each"
        if min(ack.types) < 0 or max(ack.types) > type_max:
            return f"the types of acknowledgements for offsets {ack.first} to {ack.last} must be 0 to {type_max} here"
        last = ack.last
    return None


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
            outcome[place] = Failure(error_code(error), error_message(error))
    return outcome


def _failure(context: RequestContext, place: Place, error: SeglogError) -> Failure:
    if context.topic_with_id(place[0]) is None:
        return _UNKNOWN_TOPIC_ID
    return Failure(error_code(error), error_message(error))


APIS: Final = (
    Api(
        78,
        "ShareFetch",
        range(1, 3),
        handle=share_fetch,
        refuse=lambda _, __, e: messages.ShareFetchResponse(error_code=error_code(e), error_message=error_message(e)),
        begins=True,
        is_carried=True,
    ),
    Api(
        79,
        "ShareAcknowledge",
        range(1, 3),
        handle=share_acknowledge,
        refuse=lambda _, __, e: messages.ShareAcknowledgeResponse(
            error_code=error_code(e), error_message=error_message(e)
        ),
        begins=True,
        is_carried=True,
    ),
)
