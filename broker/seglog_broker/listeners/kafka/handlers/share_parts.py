"""The parts of ShareFetch and ShareAcknowledge that wait for nothing: what requests say, and what is answered."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from seglog_broker.api.share_collection import NOTHING, Taken
from seglog_broker.api.share_fetch import ShareFetchService
from seglog_broker.api.share_sessions import FIRST_EPOCH, LAST_EPOCH, Place, SessionRefusedError, ShareSession
from seglog_broker.coordinators.decisions import Waiting
from seglog_broker.coordinators.groups.share import MEMBER_ID_CHARACTERS_MAX
from seglog_broker.coordinators.share.in_flight import RENEW, Acknowledgement
from seglog_broker.listeners.kafka.context import RequestContext
from seglog_broker.listeners.kafka.errors import Failure, failure_of
from seglog_broker.runtime import budget
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import Kind, Operation
from seglog_protocol.errors import SeglogError, TopicAuthorizationError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

NONE: Final = Failure(ErrorCode.NONE, None)
BARRED: Final = Failure(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)

ACKNOWLEDGED_A_TURN: Final = budget.items_of(cost=60)
"""Partitions in which records are acknowledged before other tasks run."""


# --- Sessions ---------------------------------------------------------------------------------------------------------


def check_names(
    context: RequestContext, request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest
) -> None:
    """Raise SessionRefusedError for a request without a group or a member, or if the client may not read the group."""
    if not request.group_id:
        raise SessionRefusedError(ErrorCode.INVALID_REQUEST, "group_id must not be empty: set group.id")
    code = context.code_for(Operation.READ, Kind.GROUP, request.group_id)
    if code:
        raise SessionRefusedError(code, None)
    if not request.member_id or len(request.member_id) > MEMBER_ID_CHARACTERS_MAX:
        raise SessionRefusedError(
            ErrorCode.INVALID_REQUEST,
            f"member_id must have 1 to {MEMBER_ID_CHARACTERS_MAX} characters, as a UUID has",
        )


def check_renewal(request: messages.ShareFetchRequest) -> None:
    """Raise SessionRefusedError for a request that renews locks and fetches, too."""
    limits = ("max_bytes", "min_bytes", "max_records", "max_wait_ms")
    if request.is_renew_ack and (wrong := [name for name in limits if getattr(request, name) != 0]):
        raise SessionRefusedError(
            ErrorCode.INVALID_REQUEST, f"a request that renews locks fetches nothing: set {', '.join(wrong)} to 0"
        )


def session_of(
    context: RequestContext, service: ShareFetchService, request: messages.ShareFetchRequest
) -> ShareSession:
    """The session that a request begins, or belongs to, with its changes. Raises SessionRefusedError."""
    group, member, epoch = request.group_id or "", request.member_id or "", request.share_session_epoch
    places = [(topic.topic_id, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    if epoch == FIRST_EPOCH:
        if has_acknowledgements(request):
            raise SessionRefusedError(
                ErrorCode.INVALID_REQUEST, "the request that begins a share session acknowledges nothing"
            )
        context.session.at_end = service.note_left
        return service.sessions.begin(group, member, context.session, places)
    session = service.sessions.go_on(group, member, epoch)
    if epoch != LAST_EPOCH:
        forgotten = [(each.topic_id, number) for each in request.forgotten_topics_data for number in each.partitions]
        service.sessions.change(session, places, forgotten)
    return session


def barred_topics(context: RequestContext, topic_ids: Iterable[bytes]) -> set[bytes]:
    """The ids of those topics that the client may not read."""
    barred = set()
    for topic_id in set(topic_ids):
        topic = context.topic_with_id(topic_id)
        if topic is not None and not context.session.allows(Operation.READ, Kind.TOPIC, topic.name):
            barred.add(topic_id)
    return barred


# --- Acknowledgements -------------------------------------------------------------------------------------------------


def has_acknowledgements(request: messages.ShareFetchRequest) -> bool:
    """True if a fetch acknowledges something."""
    for topic in request.topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                return True
    return False


class Acknowledging:
    """The acknowledgements of one request."""

    def __init__(
        self,
        context: RequestContext,
        service: ShareFetchService,
        request: messages.ShareFetchRequest | messages.ShareAcknowledgeRequest,
        topics: Iterable[Any],
    ) -> None:
        """``topics`` are those of the request, none if it acknowledges nothing."""
        self._context = context
        self._service = service
        self._group, self._member = request.group_id or "", request.member_id or ""
        self._may_renew = request.is_renew_ack
        topics = list(topics)
        self._barred = barred_topics(context, (topic.topic_id for topic in topics))
        self._parts = [(topic.topic_id, partition) for topic in topics for partition in topic.partitions]
        self._done = 0  # of them
        self._outcome: dict[Place, Failure] = {}
        self.written: dict[Place, Waiting[None]] = {}
        """To be durable before it is answered."""

    def go_on(self) -> bool:
        """Acknowledge in some more partitions; False if there are others yet."""
        end = min(self._done + ACKNOWLEDGED_A_TURN, len(self._parts))
        while self._done < end:
            topic_id, partition = self._parts[self._done]
            self._acknowledge((topic_id, partition.partition_index), partition)
            self._done += 1
        return self._done == len(self._parts)

    def _acknowledge(self, place: Place, partition: Any) -> None:
        """Acknowledge in a partition; note why nothing was, or what to wait for."""
        acks = []
        renews = False
        for batch in partition.acknowledgement_batches:
            acks.append(Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types))
            renews = renews or RENEW in batch.acknowledge_types
        self._outcome[place] = NONE
        if place[0] in self._barred:
            self._outcome[place] = BARRED
        elif renews and not self._may_renew:
            self._outcome[place] = Failure(ErrorCode.INVALID_REQUEST, "no lock is renewed where is_renew_ack is false")
        elif acks:
            try:
                self.written[place] = self._service.sources.acknowledge(self._group, self._member, place, acks)
            except SeglogError as error:
                self._outcome[place] = _failure(self._context, place, error)

    def outcome(self) -> dict[Place, Failure]:
        """How acknowledgements have ended, when all that was written is durable, or is not."""
        for place, written in self.written.items():
            if (error := written.error) is not None:
                self._outcome[place] = failure_of(error, "ShareAcknowledge")
        return self._outcome


# --- Responses --------------------------------------------------------------------------------------------------------


def fetched(
    context: RequestContext, lock_ms: int, taken: Mapping[Place, Taken], outcome: Mapping[Place, Failure]
) -> messages.ShareFetchResponse:
    """The response to a fetch that has ended so."""
    context.usage.note_fetched(sum([len(each.records) for each in taken.values()]))
    parts = {}
    for place in (*taken, *outcome):
        if place not in parts:
            parts[place] = _fetched(context, place, taken.get(place, NOTHING), outcome.get(place, NONE))
    return messages.ShareFetchResponse(
        acquisition_lock_timeout_ms=lock_ms,
        responses=_by_topic(parts, messages.ShareFetchResponse.ShareFetchableTopicResponse),
    )


def _fetched(context: RequestContext, place: Place, taken: Taken, acknowledged: Failure) -> Any:
    """A partition in a response."""
    context.reserve(PART_BYTES + len(taken.records) + PART_BYTES * len(taken.acquired))
    code, why = NONE if taken.error is None else _failure(context, place, taken.error)
    if code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER  # Kafka's Java client fetches again; those are final for it
    return messages.ShareFetchResponse.PartitionData(
        partition_index=place[1],
        error_code=code,
        error_message=why,
        acknowledge_error_code=acknowledged.code,
        acknowledge_error_message=acknowledged.message,
        records=taken.records,
        acquired_records=[
            messages.ShareFetchResponse.AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)
            for first, last, count in taken.acquired
        ],
    )


def acknowledged(lock_ms: int, outcome: Mapping[Place, Failure]) -> messages.ShareAcknowledgeResponse:
    """The response to acknowledgements that have ended so."""
    parts = {
        place: messages.ShareAcknowledgeResponse.PartitionData(
            partition_index=place[1], error_code=code, error_message=why
        )
        for place, (code, why) in outcome.items()
    }
    return messages.ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=lock_ms,
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


def _failure(context: RequestContext, place: Place, error: SeglogError) -> Failure:
    """Code and message of ``error`` about a partition."""
    if context.topic_with_id(place[0]) is None:
        return Failure(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic with this id: it was deleted")
    if isinstance(error, TopicAuthorizationError):
        return BARRED
    return failure_of(error, "ShareFetch")
