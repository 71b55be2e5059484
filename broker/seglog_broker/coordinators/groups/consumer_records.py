"""The records of groups to which the broker assigns partitions, in ``__consumer_offsets``, as structs of Kafka's.

They are groups of the consumer protocol and share groups.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, cast

from seglog_broker.coordinators.groups.assignors import NOTHING, Assignment
from seglog_broker.coordinators.groups.consumer_member import ClassicProtocols, MemberState, Progress, Subscription
from seglog_broker.coordinators.groups.membership import Each
from seglog_broker.coordinators.groups.shared_topics import ByTopic, NamedPartitions, SharedTopics
from seglog_broker.coordinators.state_machine import Outbox, Record
from seglog_protocol.kafka import Message, messages
from seglog_protocol.steps import Pace, Steps


class RecordType(IntEnum):
    """The versions of their keys, with the names of Kafka's structs."""

    METADATA = 3
    PARTITION_METADATA = 4
    """Until Kafka 4.0; now there is a hash of it in METADATA. It is never written but as a tombstone."""
    MEMBER_METADATA = 5
    TARGET_ASSIGNMENT_METADATA = 6
    TARGET_ASSIGNMENT_MEMBER = 7
    CURRENT_MEMBER_ASSIGNMENT = 8
    SHARED_TOPICS = 15
    """Of share groups alone (STATE_PARTITION_METADATA), whose other types have the names above and other versions."""
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


Value = GroupEpoch | AssignmentEpoch | MatchedTopics | Subscription | Progress | Assignment | SharedTopics | None
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
    RecordType.SHARED_TOPICS,
    RecordType.METADATA,
)
_VALUES_IN_ORDER: Final = (
    RecordType.MEMBER_METADATA,
    RecordType.REGULAR_EXPRESSION,
    RecordType.METADATA,
    RecordType.TARGET_ASSIGNMENT_MEMBER,
    RecordType.TARGET_ASSIGNMENT_METADATA,
    RecordType.CURRENT_MEMBER_ASSIGNMENT,
    RecordType.SHARED_TOPICS,
)


def order_of_record(key: RecordKey, is_tombstone: bool) -> tuple[bool, int, str]:
    """Records that are written together are sorted by this: tombstones first, members before their assignments."""
    order = _TOMBSTONES_IN_ORDER if is_tombstone else _VALUES_IN_ORDER
    return (not is_tombstone, order.index(key.type), key.name)


Kinds = Mapping[RecordType, tuple[int, str]]
"""The records of a kind of group: the versions of keys, and the names of structs, without Key or Value."""


def make_record(
    kinds: Kinds, group_id: str, key: RecordKey, value: Value, in_order: Callable[[frozenset[str]], list[str]]
) -> Record:
    """A record as it is written; ``in_order`` sorts the names of topics of a subscription."""
    version, name = kinds[key.type]
    struct = getattr(messages, f"{name}Key")(group_id=group_id)
    if key.name:
        is_regex = key.type is RecordType.REGULAR_EXPRESSION
        setattr(struct, "regular_expression" if is_regex else "member_id", key.name)
    cls = getattr(messages, f"{name}Value")
    written: Message | None = None
    match value:
        case GroupEpoch():
            written = cls(epoch=value.epoch, metadata_hash=value.metadata_hash)
        case AssignmentEpoch():
            written = cls(assignment_epoch=value.epoch, assignment_timestamp=value.assigned_ms)
        case Subscription():
            written = _subscription_value(cls, value, in_order(value.topics))
        case Progress():
            written = _progress_value(cls, value)
        case MatchedTopics():
            written = cls(topics=sorted(value.topics), timestamp=value.matched_ms)
        case SharedTopics():
            written = _shared_value(value)
        case Mapping():
            written = cls(topic_partitions=_each(value, cls.TopicPartition))
    return Record(struct, version, written)


def read_record(kinds: Kinds, record: Record) -> Steps[tuple[RecordKey, Value] | None]:
    """Key and value of a record from the log; None for one of another type."""
    kind = next((kind for kind, (version, _) in kinds.items() if version == record.key_version), None)
    if kind is None:
        return None
    key, read = RecordKey(kind, name_in(record.key)), cast("Any", record.value)
    if read is None:
        return key, None
    match kind:
        case RecordType.METADATA:
            return key, GroupEpoch(read.epoch, read.metadata_hash)
        case RecordType.TARGET_ASSIGNMENT_METADATA:
            return key, AssignmentEpoch(read.assignment_epoch, read.assignment_timestamp)
        case RecordType.MEMBER_METADATA:
            return key, _read_subscription(read)
        case RecordType.CURRENT_MEMBER_ASSIGNMENT:
            return key, (yield from _read_progress(read))
        case RecordType.TARGET_ASSIGNMENT_MEMBER:
            return key, _assignment(read.topic_partitions)
        case RecordType.REGULAR_EXPRESSION:
            return key, MatchedTopics(frozenset(read.topics), read.timestamp)
        case RecordType.SHARED_TOPICS:
            return key, (yield from _read_shared(read))
        case RecordType.PARTITION_METADATA:
            return key, NOTHING  # it matters that there is a record


def name_in(key: Any) -> str:
    """The member id or the regular expression in a key; "" where its type has none."""
    name: str = getattr(key, "member_id", "") or getattr(key, "regular_expression", "")
    return name


# --- Values -----------------------------------------------------------------------------------------------------------


def _made(cls: Any, **fields: object) -> Any:
    """A struct with those of these fields that it has: those of share groups have some of the others."""
    return cls(**{name: fields[name] for name in cls.__slots__})


def _each(assignment: Assignment, cls: Any, **more: Callable[[bytes, list[int]], object]) -> list[Any]:
    """The structs of an assignment, which are made when they are written: there may be very many."""
    more = {name: field for name, field in more.items() if name in cls.__slots__}

    def of(topic: bytes) -> Any:
        numbers = sorted(assignment[topic])
        fields = {name: field(topic, numbers) for name, field in more.items()}
        return cls(topic_id=topic, partitions=numbers, **fields)

    return cast("list[Any]", Each(sorted(assignment), of))


def _subscription_value(cls: Any, subscription: Subscription, names: list[str]) -> Message:
    """A member's subscription; ``names`` are those of its topics, sorted."""
    classic = subscription.classic
    made: Message = _made(
        cls,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=names,
        subscribed_topic_regex=subscription.regex,
        rebalance_timeout_ms=subscription.rebalance_timeout_ms,
        server_assignor=subscription.assignor,
        classic_member_metadata=classic
        and cls.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                cls.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols
            ],
        ),
    )
    return made


def _read_subscription(value: Any) -> Subscription:
    """The inverse of ``_subscription_value``."""
    said = Subscription(
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=frozenset(value.subscribed_topic_names),
    )
    if not isinstance(value, messages.ConsumerGroupMemberMetadataValue):
        return said
    classic = value.classic_member_metadata
    return said._replace(
        instance_id=value.instance_id,
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


def _progress_value(cls: Any, progress: Progress) -> Message:
    """A member's current assignment."""

    def epochs(topic: bytes, numbers: list[int]) -> list[int]:
        return [progress.since.get((topic, number), progress.epoch) for number in numbers]

    made: Message = _made(
        cls,
        member_epoch=progress.epoch,
        previous_member_epoch=progress.previous_epoch,
        state=progress.state,
        assigned_partitions=_each(progress.assigned, cls.TopicPartitions, assignment_epochs=epochs),
        partitions_pending_revocation=_each(progress.revoking, cls.TopicPartitions, assignment_epochs=epochs),
    )
    return made


def _read_progress(value: Any) -> Steps[Progress]:
    """The inverse of ``_progress_value``."""
    since: dict[tuple[bytes, int], int] = {}
    pace = Pace()
    revoking = getattr(value, "partitions_pending_revocation", None)
    for topic in () if revoking is None else (*value.assigned_partitions, *revoking):
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
        _assignment(revoking or ()),
        since,
    )


_State = messages.ShareGroupStatePartitionMetadataValue


def _shared_value(shared: SharedTopics) -> _State:
    """How far the state of share partitions is."""

    def named(topics: ByTopic) -> list[_State.TopicPartitionsInfo]:
        def of(topic: bytes) -> _State.TopicPartitionsInfo:
            name, numbers = topics[topic]
            return _State.TopicPartitionsInfo(topic_id=topic, topic_name=name, partitions=sorted(numbers))

        return cast("list[_State.TopicPartitionsInfo]", Each(sorted(topics), of))

    deleting = [_State.TopicInfo(topic_id=topic, topic_name=name) for topic, name in sorted(shared.deleting.items())]
    return _State(
        initializing_topics=named(shared.initializing),
        initialized_topics=named(shared.initialized),
        deleting_topics=deleting,
    )


def _read_shared(value: _State) -> Steps[SharedTopics]:
    """The inverse of ``_shared_value``."""
    initializing = yield from _read_named(value.initializing_topics)
    initialized = yield from _read_named(value.initialized_topics)
    deleting = {bytes(topic.topic_id): topic.topic_name for topic in value.deleting_topics}
    return SharedTopics(initializing, initialized, deleting)


def _read_named(topics: Iterable[_State.TopicPartitionsInfo]) -> Steps[dict[bytes, NamedPartitions]]:
    named: dict[bytes, NamedPartitions] = {}
    pace = Pace()
    for topic in topics:
        named[bytes(topic.topic_id)] = NamedPartitions(topic.topic_name, frozenset(topic.partitions))
        if pace.is_due(1 + len(topic.partitions)):
            yield
    return named


def topics_in(record: Record) -> int:
    """The number of topics in a record."""
    fields = (
        "subscribed_topic_names",
        "topic_partitions",
        "assigned_partitions",
        "partitions_pending_revocation",
        "topics",
        "initializing_topics",
        "initialized_topics",
    )
    return sum(len(getattr(record.value, field, ())) for field in fields)


def _assignment(topics: Iterable[Any]) -> Assignment:
    return {bytes(topic.topic_id): frozenset(topic.partitions) for topic in topics if topic.partitions}


CONSUMER_RECORDS: Final[Kinds] = {
    RecordType.METADATA: (3, "ConsumerGroupMetadata"),
    RecordType.PARTITION_METADATA: (4, "ConsumerGroupPartitionMetadata"),
    RecordType.MEMBER_METADATA: (5, "ConsumerGroupMemberMetadata"),
    RecordType.TARGET_ASSIGNMENT_METADATA: (6, "ConsumerGroupTargetAssignmentMetadata"),
    RecordType.TARGET_ASSIGNMENT_MEMBER: (7, "ConsumerGroupTargetAssignmentMember"),
    RecordType.CURRENT_MEMBER_ASSIGNMENT: (8, "ConsumerGroupCurrentMemberAssignment"),
    RecordType.REGULAR_EXPRESSION: (16, "ConsumerGroupRegularExpression"),
}
"""Those of groups of the consumer protocol."""

SHARE_RECORDS: Final[Kinds] = {
    RecordType.MEMBER_METADATA: (10, "ShareGroupMemberMetadata"),
    RecordType.METADATA: (11, "ShareGroupMetadata"),
    RecordType.TARGET_ASSIGNMENT_METADATA: (12, "ShareGroupTargetAssignmentMetadata"),
    RecordType.TARGET_ASSIGNMENT_MEMBER: (13, "ShareGroupTargetAssignmentMember"),
    RecordType.CURRENT_MEMBER_ASSIGNMENT: (14, "ShareGroupCurrentMemberAssignment"),
    RecordType.SHARED_TOPICS: (15, "ShareGroupStatePartitionMetadata"),
}
"""Those of share groups."""


# --- Appending --------------------------------------------------------------------------------------------------------


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
