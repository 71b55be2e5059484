"""OffsetCommit, OffsetFetch, OffsetDelete: how far groups have read. Source of the rules: Kafka's KafkaApis.

OffsetCommit
  2   retention time: ``offsets.retention.minutes`` holds instead
  3   throttle time
  5   no retention time
  6   leader epoch of the record
  7   static members
  8   flexible
  9   members of the consumer protocol: STALE_MEMBER_EPOCH, GROUP_ID_NOT_FOUND
  10  topics by id

OffsetFetch
  1   offsets from ``__consumer_offsets``
  2   null: all topics; an error of the group
  3   throttle time
  5   leader epoch of the record
  6   flexible
  7   stable offsets only: UNSTABLE_OFFSET_COMMIT
  8   several groups
  9   member id and epoch, of the consumer protocol
  10  topics by id

OffsetDelete
  0   offsets of topics that no member subscribes to
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from seglog_broker.coordinators.groups.committed_offsets import Committed, Committer, OffsetToCommit
from seglog_broker.coordinators.groups.topics import NO_ID, id_bytes
from seglog_broker.listeners.kafka.context import Api, Ask, Repeats, RequestContext
from seglog_broker.listeners.kafka.errors import group_code
from seglog_broker.listeners.kafka.turns import PARTITION_COST, PARTITIONS_A_TURN, TOPIC_COST, each_outcome, in_turns
from seglog_broker.runtime.budget import Turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import Kind, Operation
from seglog_protocol.errors import SeglogError, StaleMemberEpochError, UnknownGroupError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.steps import Steps, finished, in_turns_of

_NO_OFFSET: Final = -1
_NO_EPOCH: Final = -1

_CommittedTopic = messages.OffsetCommitResponse.OffsetCommitResponseTopic
_CommittedPartition = messages.OffsetCommitResponse.OffsetCommitResponsePartition
_AskedGroup = messages.OffsetFetchRequest.OffsetFetchRequestGroup
_AskedTopic = messages.OffsetFetchRequest.OffsetFetchRequestTopics
_FoundGroup = messages.OffsetFetchResponse.OffsetFetchResponseGroup
_FoundTopic = messages.OffsetFetchResponse.OffsetFetchResponseTopics
_FoundPartition = messages.OffsetFetchResponse.OffsetFetchResponsePartitions
_DeletedTopic = messages.OffsetDeleteResponse.OffsetDeleteResponseTopic
_DeletedPartition = messages.OffsetDeleteResponse.OffsetDeleteResponsePartition


async def offset_commit(
    context: RequestContext, request: messages.OffsetCommitRequest
) -> messages.OffsetCommitResponse:
    """Store offsets, each with its own result; answered once they are durable.

    ``retention_time_ms`` of versions 2 to 4 is not looked at: ``offsets.retention.minutes`` holds for all.
    """
    response = messages.OffsetCommitResponse()
    kinds = _CommittedTopic, _CommittedPartition
    wanted, places = await offsets_to_commit(
        context, request.topics, response.topics, kinds, by_id=context.version >= 10
    )
    if wanted:
        committer = Committer(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
        results = context.groups.commit(request.group_id, committer, wanted)
        await answer_commit(context, places, results, _commit_code)
    return response


async def offsets_to_commit(
    context: RequestContext,
    asked: Iterable[Any],
    answered: list[Any],
    kinds: tuple[type[Any], type[Any]],
    *,
    by_id: bool,
) -> tuple[list[OffsetToCommit], list[Any]]:
    """The offsets that OffsetCommit or TxnOffsetCommit has asked for, and for each the partition of the response.

    Each topic and partition of ``asked`` goes to ``answered`` as one of ``kinds``. A partition of an unknown topic id,
    or of a topic that the client may not read, has its error there, and is left out of both lists.
    """
    make_topic, make_partition = kinds
    wanted: list[OffsetToCommit] = []
    places: list[Any] = []
    turns = Turns(context.turn)
    for topic in asked:
        await turns.spend(TOPIC_COST)
        answered.append(told := make_topic(name=topic.name, topic_id=topic.topic_id))
        name: str | None = topic.name
        if by_id:
            known = context.topic_with_id(topic.topic_id)
            name = None if known is None else known.name
        code = ErrorCode.UNKNOWN_TOPIC_ID
        if name is not None:
            code = context.code_for(Operation.READ, Kind.TOPIC, name)
        for first in range(0, len(topic.partitions), PARTITIONS_A_TURN):
            some = topic.partitions[first : first + PARTITIONS_A_TURN]
            await turns.spend(PARTITION_COST * len(some))
            for item in some:
                place = make_partition(partition_index=item.partition_index, error_code=code)
                told.partitions.append(place)
                if name is None or code:
                    continue
                places.append(place)
                metadata = item.committed_metadata or ""
                offset, epoch = item.committed_offset, item.committed_leader_epoch
                wanted.append(OffsetToCommit(name, item.partition_index, offset, epoch, metadata))
    return wanted, places


async def answer_commit(
    context: RequestContext,
    places: Sequence[Any],
    results: Awaitable[Sequence[SeglogError | None]],
    code_of: Callable[[RequestContext, Exception | None], ErrorCode],
) -> None:
    """Set the code of each partition of a response by the result of its offset, or by the error of all of them."""
    errors = await each_outcome(results, len(places))
    for number, (place, why) in enumerate(zip(places, errors, strict=True), start=1):
        if number % PARTITIONS_A_TURN == 0:
            await context.turn()
        place.error_code = code_of(context, why)


def _commit_code(context: RequestContext, error: Exception | None) -> ErrorCode:
    """The code for ``error`` that clients of the request's version know."""
    if context.version < 9:
        if isinstance(error, UnknownGroupError):
            return ErrorCode.ILLEGAL_GENERATION
        if isinstance(error, StaleMemberEpochError):
            return ErrorCode.UNSUPPORTED_VERSION
    return group_code(error, "OffsetCommit")


def offset_fetch(context: RequestContext, request: messages.OffsetFetchRequest) -> messages.OffsetFetchResponse | None:
    """Committed offsets; None for very many partitions."""
    asked = len(request.groups)
    of_groups: list[Sequence[Any] | None] = [group.topics for group in request.groups]
    for topics in of_groups if context.version >= 8 else [request.topics]:
        if topics is None:
            return None
        asked += sum([1 + len(topic.partition_indexes) for topic in topics])
    if asked > PARTITIONS_A_TURN:
        return None
    response = messages.OffsetFetchResponse()
    finished(_fetch(context, request, response))
    return response


async def offset_fetch_slowly(
    context: RequestContext, request: messages.OffsetFetchRequest
) -> messages.OffsetFetchResponse:
    """As ``offset_fetch``, for any number of partitions."""
    response = messages.OffsetFetchResponse()
    await in_turns_of(_fetch(context, request, response), context.turn)
    return response


def _fetch(
    context: RequestContext, request: messages.OffsetFetchRequest, response: messages.OffsetFetchResponse
) -> Steps[None]:
    """Fill ``response``; other tasks may run wherever this yields."""
    if context.version >= 8:
        for group in _once(request.groups):
            answered = _FoundGroup(group_id=group.group_id)
            response.groups.append(answered)
            yield from _fetch_group(context, group, answered, is_stable_wanted=request.require_stable)
        return
    topics = None
    if request.topics is not None:
        topics = [_AskedTopic(name=topic.name, partition_indexes=topic.partition_indexes) for topic in request.topics]
    found = _FoundGroup(group_id=request.group_id)
    asked = _AskedGroup(group_id=request.group_id, topics=topics)
    yield from _fetch_group(context, asked, found, is_stable_wanted=request.require_stable)
    if found.error_code and context.version < 2:
        found.topics = [_failed(topic, ErrorCode(found.error_code)) for topic in topics or ()]
    response.error_code = found.error_code
    for topic in found.topics:
        yield
        response.topics.append(
            messages.OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    messages.OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=place.partition_index,
                        committed_offset=place.committed_offset,
                        committed_leader_epoch=place.committed_leader_epoch,
                        metadata=place.metadata,
                        error_code=place.error_code,
                    )
                    for place in topic.partitions
                ],
            )
        )


def _once(groups: Sequence[_AskedGroup]) -> Iterator[_AskedGroup]:
    """The groups that are asked for, each once with all its offsets, and once with each list of topics."""
    seen: set[object] = set()
    for group in groups:
        topics = None
        if group.topics is not None:
            topics = tuple([(item.name, item.topic_id, tuple(item.partition_indexes)) for item in group.topics])
        if (group.group_id, topics) not in seen and (group.group_id, None) not in seen:
            seen.add((group.group_id, topics))
            yield group


class _Asker(NamedTuple):
    """The member that asks, and whether it wants stable offsets only: those without a pending transaction."""

    committer: Committer | None
    is_stable_wanted: bool


def _fetch_group(
    context: RequestContext, asked: _AskedGroup, found: _FoundGroup, *, is_stable_wanted: bool
) -> Steps[None]:
    """Find the committed offsets of one group, or its error.

    ``is_stable_wanted``: where a transaction of Kafka's is open that has committed something, there is an error
    instead, which clients retry.
    """
    committer = None  # before version 9, or for a client that is no member of a consumer group
    if asked.member_id is not None or asked.member_epoch >= 0:
        committer = Committer(asked.member_id or "", asked.member_epoch)
    asker = _Asker(committer, is_stable_wanted)
    try:
        context.check(Operation.DESCRIBE, Kind.GROUP, asked.group_id)
        context.reserve(PART_BYTES + 2 * len(asked.group_id))
        if asked.topics is None:
            yield from _fetch_all(context, found, asker)
        elif not asked.topics:
            context.groups.committed(asked.group_id, [], committer)
        else:
            for topic in asked.topics:
                yield from _fetch_topic(context, found, asker, topic)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        found.topics = []
        found.error_code = group_code(error, "OffsetFetch")


def _fetch_topic(context: RequestContext, group: _FoundGroup, asker: _Asker, asked: _AskedTopic) -> Steps[None]:
    found = _FoundTopic(name=asked.name, topic_id=asked.topic_id)
    name = asked.name
    if context.version >= 10:
        topic = context.topic_with_id(asked.topic_id)
        if topic is None:
            context.groups.committed(group.group_id, [], asker.committer)
            group.topics.append(_failed(asked, ErrorCode.UNKNOWN_TOPIC_ID))
            yield
            return
        name = topic.name
    code = context.code_for(Operation.DESCRIBE, Kind.TOPIC, name)
    if code:
        group.topics.append(_failed(asked, code))
        yield
        return
    group.topics.append(found)
    yield from _look_up(context, group, asker, name, asked.partition_indexes, found)


def _look_up(
    context: RequestContext,
    group: _FoundGroup,
    asker: _Asker,
    name: str,
    numbers: Sequence[int],
    found: _FoundTopic,
    *,
    only_known: bool = False,
) -> Steps[None]:
    """Add the committed offsets of a topic to ``found``; ``only_known`` leaves out partitions without one."""
    for begin in range(0, max(1, len(numbers)), PARTITIONS_A_TURN):
        some = [(name, number) for number in numbers[begin : begin + PARTITIONS_A_TURN]]
        committed = context.groups.committed(group.group_id, some, asker.committer)
        context.reserve(sum([PART_BYTES + 2 * len(item.metadata) for item in committed]))
        known = [item for item in committed if item.is_there or not only_known]
        found.partitions += _places(known, is_stable_wanted=asker.is_stable_wanted)
        yield


def _fetch_all(context: RequestContext, group: _FoundGroup, asker: _Asker) -> Steps[None]:
    """All committed offsets; where topics are named by id, without those of deleted topics."""
    topics = context.topics
    yield
    for name, numbers in context.groups.committed_topics(group.group_id, asker.committer).items():
        topic = topics.get(name)
        is_shown = context.session.sees(Operation.DESCRIBE, Kind.TOPIC, name)
        if not is_shown or (topic is None and context.version >= 10):
            continue
        found = _FoundTopic(name=name, topic_id=NO_ID if topic is None else id_bytes(topic.id))
        yield from _look_up(context, group, asker, name, numbers, found, only_known=True)
        if found.partitions:
            group.topics.append(found)


def _places(committed: Iterable[Committed], *, is_stable_wanted: bool) -> list[_FoundPartition]:
    return [
        _not_found(item.partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if item.is_unstable and is_stable_wanted
        else _FoundPartition(
            partition_index=item.partition,
            committed_offset=item.offset,
            committed_leader_epoch=item.leader_epoch,
            metadata=item.metadata,
        )
        for item in committed
    ]


def _failed(asked: _AskedTopic, code: ErrorCode) -> _FoundTopic:
    return _FoundTopic(
        name=asked.name,
        topic_id=asked.topic_id,
        partitions=[_not_found(number, code) for number in asked.partition_indexes],
    )


def _not_found(number: int, code: ErrorCode) -> _FoundPartition:
    return _FoundPartition(
        partition_index=number,
        committed_offset=_NO_OFFSET,
        committed_leader_epoch=_NO_EPOCH,
        metadata="",
        error_code=code,
    )


async def offset_delete(
    context: RequestContext, request: messages.OffsetDeleteRequest
) -> messages.OffsetDeleteResponse:
    """Delete offsets of topics that no member subscribes to; answered once that is durable."""
    response = messages.OffsetDeleteResponse()
    topics = context.topics
    wanted: list[tuple[str, int]] = []
    places: list[_DeletedPartition] = []
    turns = Turns(context.turn)
    for asked in request.topics:
        await turns.spend(TOPIC_COST)
        answered = _DeletedTopic(name=asked.name)
        response.topics.append(answered)
        topic = topics.get(asked.name)
        code = context.code_for(Operation.READ, Kind.TOPIC, asked.name)
        async for item in in_turns(context, asked.partitions):
            place = _DeletedPartition(partition_index=item.partition_index)
            answered.partitions.append(place)
            if code:
                place.error_code = code
            elif topic is None or not 0 <= item.partition_index < topic.partitions:
                place.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                places.append(place)
                wanted.append((topic.name, item.partition_index))
    try:
        errors = await context.groups.delete_offsets(request.group_id, wanted)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        return messages.OffsetDeleteResponse(error_code=group_code(error, "OffsetDelete"))
    async for place, why in in_turns(context, zip(places, errors, strict=True)):
        place.error_code = group_code(why, "OffsetDelete")
    return response


_COMMIT_REPEATS: Final = Repeats(((("topics", "partitions"), "committed_offset"),), ("topics", "partitions"))

_READ: Final = Ask(Operation.READ, Kind.GROUP, "group_id")

APIS: Final = (
    Api(8, "OffsetCommit", range(2, 11), handle=offset_commit, begins=True, repeats=_COMMIT_REPEATS, asks=_READ),
    Api(9, "OffsetFetch", range(1, 11), offset_fetch, offset_fetch_slowly),
    Api(
        47,
        "OffsetDelete",
        range(1),
        handle=offset_delete,
        asks=Ask(Operation.DELETE, Kind.GROUP, "group_id"),
        needs=(Operation.DELETE, Kind.GROUP),
        is_carried=True,
    ),
)
