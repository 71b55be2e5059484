"""The records of groups of the consumer protocol in ``__consumer_offsets``, as structs of Kafka's."""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar, cast

from seglog_broker.coordinators.groups.assignors import NOTHING, Assignment
from seglog_broker.coordinators.groups.consumer_member import ClassicProtocols, MemberState, Progress, Subscription
from seglog_broker.coordinators.groups.membership import Each
from seglog_broker.coordinators.state_machine import Outbox, Record
from seglog_protocol.kafka import Message, messages
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


class GroupEpoch(NamedTuple):
    """The value of METADATA: the epoch of the group's last change, and a hash of the topics that it was for."""

    epoch: int
    metadata_hash: int


class AssignmentEpoch(NamedTuple):
    """The value of TARGET_ASSIGNMENT_METADATA: the group epoch of the target assignment, and when it was made."""

    epoch: int
    assigned_ms: int
    """Wall time in ms."""


class MatchedTopics(NamedTuple):
    """The value of REGULAR_EXPRESSION: the topics that it matches; ``matched_ms`` is of the wall clock."""

    topics: frozenset[str]
    matched_ms: int


Value = GroupEpoch | AssignmentEpoch | MatchedTopics | Subscription | Progress | Assignment | None
"""The value of a record as the state keeps it; None: a tombstone."""


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
    """Records that are written together are sorted by this: tombstones first, members before their assignments."""
    order = _TOMBSTONES_IN_ORDER if is_tombstone else _VALUES_IN_ORDER
    return (not is_tombstone, order.index(key.type), key.name)


def key_struct(group_id: str, key: RecordKey) -> Message:
    """The key of a record as it is written."""
    match key.type:
        case RecordType.METADATA:
            return messages.ConsumerGroupMetadataKey(group_id=group_id)
        case RecordType.PARTITION_METADATA:
            return messages.ConsumerGroupPartitionMetadataKey(group_id=group_id)
        case RecordType.MEMBER_METADATA:
            return messages.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=key.name)
        case RecordType.TARGET_ASSIGNMENT_METADATA:
            return messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
        case RecordType.TARGET_ASSIGNMENT_MEMBER:
            return messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=key.name)
        case RecordType.CURRENT_MEMBER_ASSIGNMENT:
            return messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=key.name)
        case RecordType.REGULAR_EXPRESSION:
            return messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=key.name)


def name_in(key: Any) -> str:
    """The member id or the regular expression in a key; "" where its type has none."""
    name: str = getattr(key, "member_id", "") or getattr(key, "regular_expression", "")
    return name


def make_record(group_id: str, key: RecordKey, value: Value, in_order: Callable[[frozenset[str]], list[str]]) -> Record:
    """A record as it is written; ``in_order`` sorts the names of topics of a subscription."""
    written: Message | None = None
    match value:
        case GroupEpoch():
            written = messages.ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash)
        case AssignmentEpoch():
            written = messages.ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=value.epoch, assignment_timestamp=value.assigned_ms
            )
        case Subscription():
            written = subscription_value(value, in_order(value.topics))
        case Progress():
            written = progress_value(value)
        case MatchedTopics():
            written = messages.ConsumerGroupRegularExpressionValue(
                topics=sorted(value.topics), timestamp=value.matched_ms
            )
        case Mapping():
            written = target_value(value)
    return Record(key_struct(group_id, key), key.type, written)


def read_record(record: Record) -> Steps[tuple[RecordKey, Value] | None]:
    """Key and value of a record from the log; None for one of another type."""
    try:
        kind = RecordType(record.key_version)
    except ValueError:
        return None
    value: Value = None
    match record.value:
        case messages.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash):
            value = GroupEpoch(epoch, metadata_hash)
        case messages.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=made_ms):
            value = AssignmentEpoch(epoch, made_ms)
        case messages.ConsumerGroupMemberMetadataValue():
            value = read_subscription(record.value)
        case messages.ConsumerGroupCurrentMemberAssignmentValue():
            value = yield from read_progress(record.value)
        case messages.ConsumerGroupTargetAssignmentMemberValue():
            value = _assignment(record.value.topic_partitions)
        case messages.ConsumerGroupRegularExpressionValue(topics=topics, timestamp=matched_ms):
            value = MatchedTopics(frozenset(topics), matched_ms)
        case messages.ConsumerGroupPartitionMetadataValue():
            value = NOTHING  # it matters that there is a record
    return RecordKey(kind, name_in(record.key)), value


# --- Values -----------------------------------------------------------------------------------------------------------


def subscription_value(subscription: Subscription, names: list[str]) -> messages.ConsumerGroupMemberMetadataValue:
    """A member's subscription; ``names`` are those of its topics, sorted."""
    classic = subscription.classic
    return messages.ConsumerGroupMemberMetadataValue(
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=names,
        subscribed_topic_regex=subscription.regex,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        server_assignor=subscription.assignor,
        classic_member_metadata=classic
        and messages.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                messages.ConsumerGroupMemberMetadataValue.ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in classic.protocols
            ],
        ),
    )


def read_subscription(value: messages.ConsumerGroupMemberMetadataValue) -> Subscription:
    """The inverse of ``subscription_value``."""
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


def progress_value(progress: Progress) -> messages.ConsumerGroupCurrentMemberAssignmentValue:
    """A member's current assignment."""

    def topics(assignment: Assignment) -> list[messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
        def of(topic: bytes) -> messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions:
            numbers = sorted(assignment[topic])
            return messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
                topic_id=topic,
                partitions=numbers,
                assignment_epochs=[progress.since.get((topic, number), progress.epoch) for number in numbers],
            )

        return _each(assignment, of)

    return messages.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=progress.epoch,
        previous_member_epoch=progress.previous_epoch,
        state=progress.state,
        assigned_partitions=topics(progress.assigned),
        partitions_pending_revocation=topics(progress.revoking),
    )


def _each(assignment: Assignment, of: Callable[[bytes], MadeT]) -> list[MadeT]:
    """The structs of an assignment, which are made when they are written: there may be very many."""
    return cast("list[MadeT]", Each(sorted(assignment), of))


def read_progress(value: messages.ConsumerGroupCurrentMemberAssignmentValue) -> Steps[Progress]:
    """The inverse of ``progress_value``."""
    since: dict[tuple[bytes, int], int] = {}
    pace = Pace()
    for topic in (*value.assigned_partitions, *value.partitions_pending_revocation):
        topic_id, numbers, epochs = bytes(topic.topic_id), topic.partitions, topic.assignment_epochs
        if epochs is None or len(epochs) != len(numbers):
            epochs = [value.member_epoch] * len(numbers)  # records before Kafka 4.2 lack them
        since.update(zip([(topic_id, number) for number in numbers], epochs, strict=True))
        if pace.is_due(1 + len(numbers)):
            yield
    return Progress(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState(value.state),
        _assignment(value.assigned_partitions),
        _assignment(value.partitions_pending_revocation),
        since,
    )


def topics_in(record: Record) -> int:
    """The number of topics in a record."""
    fields = (
        "subscribed_topic_names",
        "topic_partitions",
        "assigned_partitions",
        "partitions_pending_revocation",
        "topics",
    )
    return sum(len(getattr(record.value, field, ())) for field in fields)


def target_value(assignment: Assignment) -> messages.ConsumerGroupTargetAssignmentMemberValue:
    """A member's target assignment."""
    return messages.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=_each(
            assignment,
            lambda topic: messages.ConsumerGroupTargetAssignmentMemberValue.TopicPartition(
                topic_id=topic, partitions=sorted(assignment[topic])
            ),
        )
    )


def _assignment(topics: Iterable[Any]) -> Assignment:
    return {bytes(topic.topic_id): frozenset(topic.partitions) for topic in topics if topic.partitions}


class RecordJournal:
    """Collects changes and appends their records to ``outbox``, in one go and in an order that Kafka can read.

    Appended records are kept until they are durable, which it learns by a reply of its own in ``outbox``. Where
    it could not be written, it is appended again, as it is then, with whatever is appended next.
    """

    def __init__(self, outbox: Outbox, record: Callable[[RecordKey], Record]) -> None:
        self._outbox: Final = outbox
        self._record: Final = record
        self._changed: set[RecordKey] = set()
        self._not_durable: dict[RecordKey, int] = {}  # -> the last round that it was part of
        self._rounds = 0

    def note(self, key: RecordKey) -> None:
        """Note that the record with ``key`` has another value, or none."""
        self._changed.add(key)

    def note_all(self, keys: Iterable[RecordKey]) -> None:
        """As ``note``, for several."""
        self._changed.update(keys)

    def append(self) -> None:
        """Append the records that changed, if any did."""
        if not self._changed:
            return
        self._rounds += 1
        records = {key: self._record(key) for key in self._changed}
        self._outbox.records += [
            records[key] for key in sorted(records, key=lambda key: order_of_record(key, records[key].value is None))
        ]
        self._not_durable.update(dict.fromkeys(records, self._rounds))
        self._changed.clear()
        self._outbox.replies.append((self._note_durable, self._rounds))

    def write_failed(self) -> None:
        """Append all records that are not known to be durable again with the next ones."""
        self._changed.update(self._not_durable)

    def _note_durable(self, result: Any, /) -> None:
        if isinstance(result, int):  # and not an error in its place
            self._not_durable = {key: last for key, last in self._not_durable.items() if last > result}
