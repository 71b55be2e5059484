"""What native requests ask of rules: the operations that Kafka asks for what is alike.

A request about one thing is refused as a whole; of one about many those are refused that the client may not use, each
with its own error. Replies leave out what the client may not describe, as Kafka's do.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.session import Session
from seglog_broker.runtime import budget
from seglog_protocol import messages
from seglog_protocol.access import CLUSTER, Kind, Operation
from seglog_protocol.errors import AuthorizationError, SeglogError, TransactionalIdAuthorizationError, without_frames
from seglog_protocol.record_batch import HEADER_SIZE, transactional_producer


class Ask(NamedTuple):
    """One operation with what a ``field`` of the request names, if anything; without a field, with the cluster."""

    operation: Operation
    kind: Kind = Kind.CLUSTER
    field: str = ""


class Items(NamedTuple):
    """An operation with the topic of each struct in a ``field`` of the request."""

    operation: Operation
    field: str = "partitions"
    answered: str = ""
    """The field of the reply with a result for each; empty: the request is refused as a whole."""
    result: Callable[..., Any] = dict
    """Makes the result of one that is refused."""


_READS_GROUP: Final = Ask(Operation.READ, Kind.GROUP, "group")
_SEES_GROUP: Final = Ask(Operation.DESCRIBE, Kind.GROUP, "group")
_SEES_TOPIC: Final = Ask(Operation.DESCRIBE, Kind.TOPIC, "topic")
_IN_TRANSACTION: Final = Ask(Operation.WRITE, Kind.TRANSACTIONAL_ID, "transactional_id")

ASKS: Final[Mapping[str, tuple[Ask, ...]]] = MappingProxyType(
    {
        messages.AbortTransactionRequest.api: (Ask(Operation.CLUSTER_ACTION),),
        messages.AlterTopicRequest.api: (Ask(Operation.ALTER_CONFIGS, Kind.TOPIC, "topic"),),
        messages.CommitOffsetsRequest.api: (_IN_TRANSACTION, _READS_GROUP),
        messages.CommittedOffsetsRequest.api: (_SEES_GROUP,),
        messages.DeleteTopicRequest.api: (Ask(Operation.DELETE, Kind.TOPIC, "topic"),),
        messages.DescribeBrokerRequest.api: (Ask(Operation.DESCRIBE_CONFIGS),),
        messages.DescribeGroupRequest.api: (_SEES_GROUP,),
        messages.EndTransactionRequest.api: (_IN_TRANSACTION,),
        messages.ExplainRequest.api: (_SEES_TOPIC, _SEES_GROUP),
        messages.ExplainSegmentsRequest.api: (_SEES_TOPIC,),
        messages.ExtendTransactionRequest.api: (_IN_TRANSACTION,),
        messages.GroupHeartbeatRequest.api: (_READS_GROUP,),
        messages.InitProducerRequest.api: (_IN_TRANSACTION,),
        messages.JoinGroupRequest.api: (_READS_GROUP,),
        messages.LeaveGroupRequest.api: (_READS_GROUP,),
        messages.MetricsRequest.api: (Ask(Operation.DESCRIBE),),
        messages.SamplesRequest.api: (Ask(Operation.DESCRIBE),),
        messages.SyncGroupRequest.api: (_READS_GROUP,),
    }
)
"""By api. A field that is None asks for nothing."""

_SEES_EACH: Final = Items(Operation.DESCRIBE, "partitions", "partitions")

ITEMS: Final[Mapping[str, Items]] = MappingProxyType(
    {
        messages.AppendRequest.api: Items(Operation.WRITE, "partitions", "partitions", messages.AppendResult),
        messages.CommitOffsetsRequest.api: Items(Operation.READ, "offsets", "offsets", messages.CommitOffsetResult),
        messages.CommittedOffsetsRequest.api: _SEES_EACH._replace(answered="offsets", result=messages.CommittedOffset),
        messages.ExtendTransactionRequest.api: Items(Operation.WRITE),
        messages.FetchRequest.api: Items(Operation.READ, "partitions", "partitions", messages.FetchResult),
        messages.FlushRequest.api: Items(Operation.WRITE, "partitions", "partitions", messages.FlushResult),
        messages.LagRequest.api: _SEES_EACH._replace(result=messages.LagResult),
        messages.OffsetsRequest.api: _SEES_EACH._replace(result=messages.OffsetsResult),
        messages.TruncateRequest.api: Items(Operation.DELETE, "partitions", "partitions", messages.TruncateResult),
    }
)
"""By api."""


class Refused:
    """The refused items of a request, which are not served."""

    def __init__(self, items: Items, asked: list[Any], errors: Mapping[str, AuthorizationError]) -> None:
        self._items = items
        self._asked = asked
        self._errors = errors

    def whole(self, reply: Any) -> Any:
        """The reply to the whole request, made of that to the rest of it."""
        found = iter(getattr(reply, self._items.answered))
        following = next(found, None)
        results = []
        for item in self._asked:
            error = self._errors.get(item.topic)
            if error is not None:
                results.append(self._items.result(item.topic, item.partition, error=without_frames(error)))
                continue
            takes_all = item.partition is None  # all partitions of the topic
            while following is not None and following.topic == item.topic:
                results.append(following)
                following = next(found, None)
                if not takes_all:
                    break
        return msgspec.structs.replace(reply, **{self._items.answered: results})


def refused_topics(session: Session, operation: Operation, items: Iterable[Any]) -> dict[str, AuthorizationError]:
    """The errors of topics, among those of ``items``, with which the client may not do an operation."""
    refused: dict[str, AuthorizationError] = {}
    asked = None
    for item in items:
        if item.topic != asked:  # mostly many partitions of a topic follow each other
            asked = item.topic
            if asked not in refused and (error := session.refusal(operation, Kind.TOPIC, asked)) is not None:
                refused[asked] = error
    return refused


def refused_appends(
    broker: Broker, session: Session, request: messages.AppendRequest, payload: memoryview
) -> dict[str, AuthorizationError]:
    """The errors of topics to which nothing of an append is written.

    An append names no transactional id, as Kafka's does: that of a batch is the one whose transaction its producer has
    open, and without one partitions refuse it.
    """
    refused = refused_topics(session, Operation.WRITE, request.partitions)
    position = 0
    for item in request.partitions:
        if item.size >= HEADER_SIZE and position + item.size <= len(payload):
            producer_id = transactional_producer(payload, position)
            error = None if producer_id is None else _refused_producer(broker, session, producer_id)
            if error is not None:
                refused.setdefault(item.topic, error)
        position += item.size
    return refused


def _refused_producer(broker: Broker, session: Session, producer_id: int) -> AuthorizationError | None:
    """Why the client may not take part in a producer's open transaction, without its id; None if it may."""
    id_ = broker.transactions.open.id_of(producer_id)
    if id_ is None or session.allows(Operation.WRITE, Kind.TRANSACTIONAL_ID, id_):
        return None
    return TransactionalIdAuthorizationError(
        f"{session.principal} may not WRITE the transactional id of producer {producer_id}: who administers this "
        "broker can allow it",
        principal=session.principal,
        transactional_id="",
    )


def admitted(broker: Broker, session: Session, request: Any) -> tuple[Any, Refused | None]:
    """What is served of a request; and what is refused, None for nothing. Raises AuthorizationError if it all is."""
    for operation, kind, field in ASKS.get(request.api, ()):
        name = getattr(request, field) if field else CLUSTER
        if name is not None and (error := session.refusal(operation, kind, name)) is not None:
            raise error
    _check_more(broker, session, request)
    items = ITEMS.get(request.api)
    asked = None if items is None else getattr(request, items.field)
    if items is None or asked is None:
        return request, None
    errors = refused_topics(session, items.operation, asked)
    if not errors:
        return request, None
    if not items.answered:
        raise next(iter(errors.values()))
    changes: dict[str, Any] = {items.field: [item for item in asked if item.topic not in errors]}
    if isinstance(request, messages.FetchRequest):
        changes["max_wait_ms"] = 0  # as with any error of a partition
    return msgspec.structs.replace(request, **changes), Refused(items, asked, errors)


def _check_more(broker: Broker, session: Session, request: Any) -> None:
    """Raise AuthorizationError where more than one operation lets a client ask, and it may do none of them."""
    error: SeglogError | None = None
    if isinstance(request, messages.CreateTopicRequest):
        if not session.sees(Operation.CREATE, Kind.CLUSTER):
            error = session.refusal(Operation.CREATE, Kind.TOPIC, request.topic)
    elif isinstance(request, messages.InitProducerRequest) and request.transactional_id is None:
        if not session.sees(Operation.WRITE, Kind.TOPIC, None):
            error = session.refusal(Operation.IDEMPOTENT_WRITE, Kind.CLUSTER)
    elif isinstance(request, messages.CommitOffsetsRequest) and request.producer_id is not None:
        error = _refused_producer(broker, session, request.producer_id)
    elif isinstance(request, messages.AlterTopicRequest) and request.partitions is not None:
        error = session.refusal(Operation.ALTER, Kind.TOPIC, request.topic)
    if error is not None:
        raise error


# --- What is left out -------------------------------------------------------------------------------------------------

NAMES_A_TURN: Final = budget.items_of(cost=4)
"""Names that are asked for before other tasks run."""


async def answered(
    broker: Broker, session: Session, request: messages.Request, host: str
) -> tuple[messages.Message, bytes]:
    """The reply and its payload, without what the client may not describe."""
    if not broker.authority.is_enforced:
        return await broker.answer(request, host, session.principal)
    match request:
        case messages.TopicsRequest():
            return await _topics(broker, session, request)
        case messages.ListGroupsRequest() if not session.sees(Operation.DESCRIBE, Kind.CLUSTER):
            return await _page(broker, session, request, "groups", Kind.GROUP, "group")
        case messages.TransactionsRequest():
            for id_ in request.transactional_ids or ():
                if (error := session.refusal(Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, id_)) is not None:
                    raise error
            if request.transactional_ids is not None:
                reply, payload = await broker.answer(request)
                assert isinstance(reply, messages.TransactionsReply)
            else:
                reply, payload = await _page(
                    broker, session, request, "transactions", Kind.TRANSACTIONAL_ID, "transactional_id"
                )
            seen = [_without_hidden(session, each) for each in reply.transactions]
            return msgspec.structs.replace(reply, transactions=seen), payload
        case messages.CommittedOffsetsRequest(partitions=None):
            reply, payload = await broker.answer(request, host, session.principal)
            assert isinstance(reply, messages.CommittedOffsetsReply)
            shown = [each for each in reply.offsets if session.sees(Operation.DESCRIBE, Kind.TOPIC, each.topic)]
            return msgspec.structs.replace(reply, offsets=shown), payload
    return await broker.answer(request, host, session.principal)


async def _page(broker: Broker, session: Session, request: Any, field: str, kind: Kind, name: str) -> tuple[Any, bytes]:
    """The next page of things that has one that the client may describe, or the last one.

    However few the client asks for, the pages that are looked through are long: each costs a look at all that there is.
    """
    limit, request = request.limit, msgspec.structs.replace(request, limit=None)
    while True:
        await broker.turn()
        reply, payload = await broker.answer(request)
        everything = getattr(reply, field)
        shown = [each for each in everything if session.sees(Operation.DESCRIBE, kind, getattr(each, name))]
        if limit is not None and len(shown) > limit:
            return msgspec.structs.replace(reply, **{field: shown[:limit], "more": True}), payload
        if shown or not everything or not getattr(reply, "more", None):
            return msgspec.structs.replace(reply, **{field: shown}), payload
        request = msgspec.structs.replace(request, after=getattr(everything[-1], name))


def _without_hidden(session: Session, each: messages.TransactionDescription) -> messages.TransactionDescription:
    if each.partitions is None:
        return each
    shown = [part for part in each.partitions if session.sees(Operation.DESCRIBE, Kind.TOPIC, part.topic)]
    return msgspec.structs.replace(each, partitions=shown)


async def _topics(
    broker: Broker, session: Session, request: messages.TopicsRequest
) -> tuple[messages.TopicsReply, bytes]:
    hidden: list[SeglogError] = []
    shown: list[str] = []
    if request.names is not None:
        names = list(dict.fromkeys(request.names))
    else:
        names = sorted(name for name in broker.directory.registry.topics if name > request.after)
    for number, name in enumerate(names, start=1):
        if number % NAMES_A_TURN == 0:
            await broker.turn()
        if session.sees(Operation.DESCRIBE, Kind.TOPIC, name):
            shown.append(name)
            if request.names is None and len(shown) > request.limit:
                break  # it says that there are more
        elif request.names is not None and (error := session.refusal(Operation.DESCRIBE, Kind.TOPIC, name)) is not None:
            hidden.append(without_frames(error))
    reply, payload = await broker.topics(msgspec.structs.replace(request, names=shown))
    if request.config and not all(session.sees(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, name) for name in shown):
        payload = _without_settings(session, payload)
    return msgspec.structs.replace(reply, unknown=[*reply.unknown, *hidden]), payload


def _without_settings(session: Session, payload: bytes) -> bytes:
    """Descriptions of topics without the settings that the client may not see."""
    described = [
        each
        if session.sees(Operation.DESCRIBE_CONFIGS, Kind.TOPIC, each.name)
        else msgspec.structs.replace(each, config=None)
        for each in messages.decode_descriptions(payload)
    ]
    return messages.page_of([messages.pack_fields(each) for each in described])
