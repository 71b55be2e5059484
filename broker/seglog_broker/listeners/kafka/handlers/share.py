"""ShareFetch and ShareAcknowledge: records of share groups. Source of the rules: Kafka's KafkaApis.

ShareFetch
  1   flexible; acknowledgements of records that were fetched before
  2   exact limits of records, renewed locks

ShareAcknowledge
  1   flexible
  2   renewed locks
"""

from typing import Final

from seglog_broker.api.share_collection import Taken
from seglog_broker.api.share_sessions import FIRST_EPOCH, LAST_EPOCH, Place, SessionRefusedError
from seglog_broker.listeners.kafka.context import Api, Repeats, RequestContext
from seglog_broker.listeners.kafka.handlers.share_parts import (
    Acknowledging,
    acknowledged,
    barred_topics,
    check_names,
    check_renewal,
    fetched,
    has_acknowledgements,
    session_of,
)
from seglog_protocol.errors import TopicAuthorizationError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode


async def share_fetch(context: RequestContext, request: messages.ShareFetchRequest) -> messages.ShareFetchResponse:
    """Acknowledge records and acquire others, when there are some; answered when the acknowledgements are durable."""
    service, epoch = context.broker.share_fetches, request.share_session_epoch
    try:
        check_names(context, request)
        check_renewal(request)
        session = session_of(context, service, request)
    except SessionRefusedError as refused:
        if epoch == FIRST_EPOCH and refused.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            await service.idle(request.max_wait_ms)  # or the client would ask again at once
        return messages.ShareFetchResponse(error_code=refused.code, error_message=refused.message)
    acknowledging = Acknowledging(context, service, request, request.topics if has_acknowledgements(request) else ())
    while not acknowledging.go_on():
        await context.turn()
    taken: dict[Place, Taken] = {}
    if epoch != LAST_EPOCH and not request.is_renew_ack:
        places = session.rotated(epoch)
        if barred := barred_topics(context, (topic_id for topic_id, _ in places)):
            error = TopicAuthorizationError("the client may not read the topic")
            taken = {place: Taken(error=error) for place in places if place[0] in barred}
            places = [place for place in places if place[0] not in barred]
        if places or not taken:
            taken |= await service.fetch(session, places, request)
    for written in acknowledging.written.values():
        await written.ended.wait()
    if epoch == LAST_EPOCH:
        service.end_session(session)
    return fetched(context, service.lock_ms(session.group), taken, acknowledging.outcome())


async def share_acknowledge(
    context: RequestContext, request: messages.ShareAcknowledgeRequest
) -> messages.ShareAcknowledgeResponse:
    """Acknowledge records; answered when that is durable."""
    service = context.broker.share_fetches
    try:
        check_names(context, request)
        session = service.sessions.go_on(request.group_id or "", request.member_id or "", request.share_session_epoch)
    except SessionRefusedError as refused:
        return messages.ShareAcknowledgeResponse(error_code=refused.code, error_message=refused.message)
    acknowledging = Acknowledging(context, service, request, request.topics)
    while not acknowledging.go_on():
        await context.turn()
    for written in acknowledging.written.values():
        await written.ended.wait()
    if request.share_session_epoch == LAST_EPOCH:
        service.end_session(session)
    return acknowledged(service.lock_ms(session.group), acknowledging.outcome())


_ACKNOWLEDGED: Final = ("topics", "partitions", "acknowledgement_batches")
_REPEATS: Final = Repeats(
    (((), "share_session_epoch"), (_ACKNOWLEDGED, "first_offset"), (_ACKNOWLEDGED, "last_offset")),
    numbers=(),
)

APIS: Final = (
    Api(
        78,
        "ShareFetch",
        range(1, 3),
        handle=share_fetch,
        waits=True,
        begins=True,
        repeats=_REPEATS,
        is_carried=True,
    ),
    Api(79, "ShareAcknowledge", range(1, 3), handle=share_acknowledge, waits=True, begins=True, is_carried=True),
)
