"""The records of groups of the consumer protocol in ``__consumer_offsets``, as structs of Kafka's."""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer_member import ClassicProtocols, MemberState, Progress, Subscription
from seglog_broker.coordinators.groups.membership import Each
from seglog_broker.coordinators.state_machine import Record
from seglog_protocol.kafka import Message
from seglog_protocol.kafka.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
)
from seglog_protocol.steps import Pace, Steps

MadeT = TypeVar("MadeT")


class RecordType(IntEnum):
    """The versions of their keys, with the names of Kafka's structs."""

    METADATA = 3
    PARTITION_METADATA = 4
    """Until Kafka 4.0; now there is a hash of it in METADATA. It is never written but as a tombstone."""
    MEMBER_METADATA = 5
    TARGET_ASSIGNMENT_METADATA = 6
    TARGET_ASSIGNMENT_MEMBER = 7
    CURRENT_MEMBER_ASSIGNMENT = 8
    REGULAR_EXPRESSION = 16


class RecordKey(NamedTuple):
    """Which record of a group: ``name`` is a member id or a regular expression where its type has one."""

    type: RecordType
    name: str = ""


# Kafka reads no tombstone of a group that still has members, nor of a member that still has partitions.
_TOMBSTONES_IN_ORDER: Final = (
    RecordType.CURRENT_MEMBER_ASSIGNMENT,
    RecordType.TARGET_ASSIGNMENT_MEMBER,
    RecordType.TARGET_ASSIGNMENT_METADATA,
    RecordType.MEMBER_METADATA,
    RecordType.REGULAR_EXPRESSION,
    RecordType.PARTITION_METADATA,
    RecordType.METADATA,
)
_VALUES_IN_ORDER: Final = (
    RecordType.MEMBER_METADATA,
    RecordType.REGULAR_EXPRESSION,
    RecordType.METADATA,
    RecordType.TARGET_ASSIGNMENT_MEMBER,
    RecordType.TARGET_ASSIGNMENT_METADATA,
    RecordType.CURRENT_MEMBER_ASSIGNMENT,
)


def order_of_record(key: RecordKey, is_tombstone: bool) -> tuple[bool, int, str]:
    """Records that are written together are sorted by this: tombstones first, members before what they have."""
    order = _TOMBSTONES_IN_ORDER if is_tombstone else _VALUES_IN_ORDER
    return (not is_tombstone, order.index(key.type), key.name)


def key_struct(group_id: str, key: RecordKey) -> Message:
    """The key of a record as it is written."""
    match key.type:
        case RecordType.METADATA:
            return ConsumerGroupMetadataKey(group_id=group_id)
        case RecordType.PARTITION_METADATA:
            return ConsumerGroupPartitionMetadataKey(group_id=group_id)
        case RecordType.MEMBER_METADATA:
            return ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=key.name)
        case RecordType.TARGET_ASSIGNMENT_METADATA:
            return ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
        case RecordType.TARGET_ASSIGNMENT_MEMBER:
            return ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=key.name)
        case RecordType.CURRENT_MEMBER_ASSIGNMENT:
            return ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=key.name)
        case RecordType.REGULAR_EXPRESSION:
            return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=key.name)


# --- Values -----------------------------------------------------------------------------------------------------------


def subscription_value(subscription: Subscription, names: list[str]) -> ConsumerGroupMemberMetadataValue:
    """What a member has said of itself; ``names`` are those of its topics, sorted."""
    classic = subscription.classic
    return ConsumerGroupMemberMetadataValue(
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=names,
        subscribed_topic_regex=subscription.regex,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        server_assignor=subscription.assignor,
        classic_member_metadata=classic
        and ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ConsumerGroupMemberMetadataValue.ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in classic.protocols
            ],
        ),
    )


def read_subscription(value: ConsumerGroupMemberMetadataValue) -> Subscription:
    """The contrary of ``subscription_value``."""
    classic = value.classic_member_metadata
    return Subscription(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
        regex=value.subscribed_topic_regex or "",
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        classic=None
        if classic is None
        else ClassicProtocols(
            classic.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols),
        ),
    )


def progress_value(progress: Progress) -> ConsumerGroupCurrentMemberAssignmentValue:
    """What a member has been told to have."""

    def topics(assignment: Assignment) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
        def of(topic: bytes) -> ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions:
            numbers = sorted(assignment[topic])
            return ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
                topic_id=topic,
                partitions=numbers,
                assignment_epochs=[progress.since.get((topic, number), progress.epoch) for number in numbers],
            )

        return _each(assignment, of)

    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=progress.epoch,
        previous_member_epoch=progress.previous_epoch,
        state=progress.state,
        assigned_partitions=topics(progress.assigned),
        partitions_pending_revocation=topics(progress.revoking),
    )


def _each(assignment: Assignment, of: Callable[[bytes], MadeT]) -> list[MadeT]:
    """The structs of an assignment, which are made when they are written: there may be very many."""
    return cast("list[MadeT]", Each(sorted(assignment), of))


def read_progress(value: ConsumerGroupCurrentMemberAssignmentValue) -> Steps[Progress]:
    """The contrary of ``progress_value``."""
    since: dict[tuple[bytes, int], int] = {}
    pace = Pace()
    for topics in (value.assigned_partitions, value.partitions_pending_revocation):
        for topic in topics:
            topic_id = bytes(topic.topic_id)
            since.update([((topic_id, number), epoch) for number, epoch in _with_epochs(topic, value.member_epoch)])
            if pace.is_due(1 + len(topic.partitions)):
                yield
    return Progress(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState(value.state),
        _assignment(value.assigned_partitions),
        _assignment(value.partitions_pending_revocation),
        since,
    )


def _with_epochs(
    topic: ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions, member_epoch: int
) -> Iterable[tuple[int, int]]:
    """Partitions, each with the epoch when it was assigned. Until Kafka 4.2 records do not say: the member's, then."""
    epochs = topic.assignment_epochs
    if epochs is None or len(epochs) != len(topic.partitions):
        epochs = [member_epoch] * len(topic.partitions)
    return zip(topic.partitions, epochs, strict=True)


def topics_in(record: Record) -> int:
    """How many topics a record names."""
    match record.value:
        case ConsumerGroupMemberMetadataValue(subscribed_topic_names=topics):
            return len(topics)
        case ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics):
            return len(topics)
        case ConsumerGroupCurrentMemberAssignmentValue(assigned_partitions=has, partitions_pending_revocation=revoking):
            return len(has) + len(revoking)
        case ConsumerGroupRegularExpressionValue(topics=topics):
            return len(topics)
    return 0


def target_value(assignment: Assignment) -> ConsumerGroupTargetAssignmentMemberValue:
    """What a member is to have."""
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=_each(
            assignment,
            lambda topic: ConsumerGroupTargetAssignmentMemberValue.TopicPartition(
                topic_id=topic, partitions=sorted(assignment[topic])
            ),
        )
    )


def read_target(value: ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    """The contrary of ``target_value``."""
    return _assignment(value.topic_partitions)


class _Topic(Protocol):
    topic_id: bytes
    partitions: list[int]


def _assignment(topics: Iterable[_Topic]) -> Assignment:
    return {bytes(topic.topic_id): frozenset(topic.partitions) for topic in topics if topic.partitions}
