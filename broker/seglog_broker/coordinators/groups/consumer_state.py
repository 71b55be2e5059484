"""What a group of the consumer protocol consists of, as its records have it."""

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.assignors import NOTHING, Assignment
from seglog_broker.coordinators.groups.consumer_member import LEFT_EPOCH, Member, Progress
from seglog_broker.coordinators.groups.consumer_records import (
    RecordKey,
    RecordType,
    key_struct,
    progress_value,
    read_progress,
    read_subscription,
    read_target,
    subscription_value,
    target_value,
    topics_in,
)
from seglog_broker.coordinators.groups.group_memory import GROUP_BYTES, MEMBER_BYTES, NAME_BYTES, PARTITION_BYTES
from seglog_broker.coordinators.groups.record_journal import RecordJournal
from seglog_broker.coordinators.state_machine import Decision, Record
from seglog_protocol.kafka import Message
from seglog_protocol.kafka.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from seglog_protocol.steps import Pace, Steps


class MatchedTopics(NamedTuple):
    """The topics that a regular expression matches; ``matched_ms`` is of the wall clock."""

    topics: frozenset[str]
    matched_ms: int


class _NameSets:
    """The sets of names by which members subscribe, each kept once however many members have it."""

    def __init__(self) -> None:
        self._sets: Final[dict[frozenset[str], list[frozenset[str]]]] = {}
        self._sorted: Final[dict[frozenset[str], list[str]]] = {}
        self._counts: Final[dict[str, int]] = {}  # of the sets and expressions that have a name
        self.size = 0

    @property
    def all_names(self) -> AbstractSet[str]:
        """Those of all sets, and those that expressions match."""
        return self._counts.keys()

    def count(self, names: Iterable[str]) -> None:
        """Count names once more."""
        counts = self._counts
        for name in names:
            counts[name] = counts.get(name, 0) + 1

    def discount(self, names: Iterable[str]) -> None:
        """Count names, which were counted before, once less. One that nothing counts is gone."""
        counts = self._counts
        for name in names:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    def shared(self, names: frozenset[str]) -> frozenset[str]:
        """The set that is kept, if there is one with these names."""
        kept = self._sets.get(names)
        return names if kept is None else kept[0]

    def in_order(self, names: frozenset[str]) -> list[str]:
        """A set that is kept, sorted, once for all records that have it. The list is not to be changed."""
        if names not in self._sorted:
            self._sorted[names] = sorted(names)
        return self._sorted[names]

    def add(self, names: frozenset[str]) -> None:
        kept = self._sets.setdefault(names, [])
        kept.append(names)
        if len(kept) == 1:
            self.count(names)
            self.size += size_of_names(names)

    def drop(self, names: frozenset[str]) -> None:
        kept = self._sets[names]
        kept.pop()
        if not kept:
            del self._sets[names]
            self._sorted.pop(names, None)
            self.discount(names)
            self.size -= size_of_names(names)


def size_of_names(names: Collection[str]) -> int:
    """Bytes that they take of the budget for members."""
    return sum(map(len, names)) + NAME_BYTES * len(names)


def size_of_member(member: Member) -> int:
    """Bytes that it takes of the budget for members, without the names of its topics."""
    said = member.subscription
    size = MEMBER_BYTES + len(member.member_id) + len(said.client_id) + len(said.regex)
    if said.classic is not None:
        size += sum(len(name) + len(metadata) for name, metadata in said.classic.protocols)
    return size + PARTITION_BYTES * len(member.progress.since)


def _size_of_target(target: Assignment) -> int:
    return PARTITION_BYTES * len(target) + 32 * sum(map(len, target.values()))


class ConsumerState:
    """Members, what they are to have and what they have. Every change is noted in the journal."""

    def __init__(self, group_id: str, decision: Decision) -> None:
        self.group_id: Final = group_id
        self.journal: Final = RecordJournal(decision, self._record)
        self.members: Final[dict[str, Member]] = {}
        self.id_of_instance: Final[dict[str, str]] = {}
        self.targets: Final[dict[str, Assignment]] = {}
        self.matched: Final[dict[str, MatchedTopics]] = {}
        """By the regular expressions of members."""
        self.group_epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_ms = 0
        """When the assignment was made, of the wall clock."""
        self.is_deleted = False
        self.has_partition_metadata = False
        """Whether there is a record of type 4, which is to be removed."""
        self.classic_count = 0
        """How many members use the classic protocol."""
        self.name_sets: Final = _NameSets()
        self.moves = 0
        """How often a member came to have other partitions."""
        self._owners: Final[dict[tuple[bytes, int], str]] = {}
        self._size = GROUP_BYTES + len(group_id)
        self._pace: Final = Pace()  # of records from the log

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for members."""
        return self._size + self.name_sets.size

    # --- Reading ------------------------------------------------------------------------------------------------------

    def static_member(self, instance_id: str | None) -> Member | None:
        """The member with this group instance id."""
        return None if instance_id is None else self.members.get(self.id_of_instance.get(instance_id, ""))

    def owner(self, topic: bytes, partition: int) -> str | None:
        """The id of the member that has a partition, even if it has been asked to give it up."""
        return self._owners.get((topic, partition))

    def topics_of(self, member: Member) -> AbstractSet[str]:
        """The names of the topics that it reads."""
        subscription = member.subscription
        matched = self.matched.get(subscription.regex)
        return subscription.topics | matched.topics if matched is not None else subscription.topics

    def all_topics(self) -> AbstractSet[str]:
        """The names of the topics that any member reads, now and whenever they are looked at."""
        return self.name_sets.all_names

    def is_used(self, regex: str) -> bool:
        """Whether a member subscribes by this expression."""
        return any(member.subscription.regex == regex for member in self.members.values())

    # --- Changes ------------------------------------------------------------------------------------------------------

    def put_member(self, member: Member) -> None:
        """Have ``member``, or have it so from now on."""
        before = self.members.get(member.member_id)
        if before == member:
            return
        names = self.name_sets.shared(member.subscription.topics)
        if names is not member.subscription.topics:
            member = member._replace(subscription=member.subscription._replace(topics=names))
        self.members[member.member_id] = member
        self._size += size_of_member(member)
        if before is not None:
            self._size -= size_of_member(before)
        if before is None or before.subscription.topics is not member.subscription.topics:
            self.name_sets.add(member.subscription.topics)
            if before is not None:
                self.name_sets.drop(before.subscription.topics)
        self.classic_count += (member.classic is not None) - (before is not None and before.classic is not None)
        if before is None or before.subscription != member.subscription:
            self.journal.note(RecordKey(RecordType.MEMBER_METADATA, member.member_id))
            if member.instance_id is not None:
                self.id_of_instance[member.instance_id] = member.member_id
        if before is None or before.progress != member.progress:
            self.journal.note(RecordKey(RecordType.CURRENT_MEMBER_ASSIGNMENT, member.member_id))
            self.moves += 1
            if before is not None:
                self._release(member.member_id, before.progress.since.keys() - member.progress.since.keys())
            self._own(member)

    def remove_member(self, member_id: str) -> None:
        """Have it no more, nor anything that it had or was to have."""
        member = self.members.pop(member_id)
        self._size -= size_of_member(member)
        self.name_sets.drop(member.subscription.topics)
        self.classic_count -= member.classic is not None
        self._drop_target(member_id)
        self._release(member_id, member.progress.since)
        if member.instance_id is not None and self.id_of_instance.get(member.instance_id) == member_id:
            del self.id_of_instance[member.instance_id]
        for record_type in (
            RecordType.CURRENT_MEMBER_ASSIGNMENT,
            RecordType.TARGET_ASSIGNMENT_MEMBER,
            RecordType.MEMBER_METADATA,
        ):
            self.journal.note(RecordKey(record_type, member_id))

    def _own(self, member: Member) -> None:
        free = [partition for partition in member.progress.since if partition not in self._owners]
        self._owners.update(dict.fromkeys(free, member.member_id))

    def _release(self, member_id: str, partitions: Iterable[tuple[bytes, int]]) -> None:
        for partition in partitions:
            if self._owners.get(partition) == member_id:
                del self._owners[partition]

    def set_target(self, member_id: str, target: Assignment) -> None:
        """Have a member get ``target``."""
        if self.targets.get(member_id) != target:
            self._keep_target(member_id, target)
            self.journal.note(RecordKey(RecordType.TARGET_ASSIGNMENT_MEMBER, member_id))

    def _keep_target(self, member_id: str, target: Assignment) -> None:
        self._size += _size_of_target(target) - _size_of_target(self.targets.get(member_id, NOTHING))
        self.targets[member_id] = target

    def _drop_target(self, member_id: str) -> None:
        self._size -= _size_of_target(self.targets.pop(member_id, NOTHING))

    def set_assignment_epoch(self, epoch: int, wall_ms: int) -> None:
        """Have all targets, those that stay the same too, belong to ``epoch``."""
        self.assignment_epoch, self.assigned_ms = epoch, wall_ms
        self.journal.note(RecordKey(RecordType.TARGET_ASSIGNMENT_METADATA))

    def set_group_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Have the next assignment belong to ``epoch``, for topics with ``metadata_hash``."""
        self.group_epoch, self.metadata_hash = epoch, metadata_hash
        self.journal.note(RecordKey(RecordType.METADATA))
        if self.has_partition_metadata:
            self.has_partition_metadata = False
            self.journal.note(RecordKey(RecordType.PARTITION_METADATA))

    def set_matched(self, regex: str, matched: MatchedTopics | None) -> None:
        """Have the topics that an expression matches; None: nobody subscribes by it any more."""
        self._keep_matched(regex, matched)
        self.journal.note(RecordKey(RecordType.REGULAR_EXPRESSION, regex))

    def _keep_matched(self, regex: str, matched: MatchedTopics | None) -> None:
        before = self.matched.pop(regex, None)
        if before is not None:
            self._size -= MEMBER_BYTES + len(regex) + NAME_BYTES * len(before.topics)
            self.name_sets.discount(before.topics)
        if matched is not None:
            self._size += MEMBER_BYTES + len(regex) + NAME_BYTES * len(matched.topics)
            self.name_sets.count(matched.topics)
            self.matched[regex] = matched

    def delete(self) -> None:
        """Have tombstones for all records there are, or may be: those that are not known to be durable, too."""
        self.journal.write_failed()
        self.journal.note_all(self._keys())
        self.is_deleted = True
        self.members.clear()

    def _keys(self) -> Iterator[RecordKey]:
        yield RecordKey(RecordType.METADATA)
        yield RecordKey(RecordType.TARGET_ASSIGNMENT_METADATA)
        if self.has_partition_metadata:
            yield RecordKey(RecordType.PARTITION_METADATA)
        for member_id in self.members:
            yield RecordKey(RecordType.MEMBER_METADATA, member_id)
            yield RecordKey(RecordType.CURRENT_MEMBER_ASSIGNMENT, member_id)
        for member_id in self.targets:
            yield RecordKey(RecordType.TARGET_ASSIGNMENT_MEMBER, member_id)
        for regex in self.matched:
            yield RecordKey(RecordType.REGULAR_EXPRESSION, regex)

    # --- Records ------------------------------------------------------------------------------------------------------

    def _record(self, key: RecordKey) -> Record:
        value = None if self.is_deleted else self._value(key)
        return Record(key_struct(self.group_id, key), key.type, value)

    def _value(self, key: RecordKey) -> Message | None:
        member = self.members.get(key.name)
        match key.type:
            case RecordType.METADATA:
                return ConsumerGroupMetadataValue(epoch=self.group_epoch, metadata_hash=self.metadata_hash)
            case RecordType.TARGET_ASSIGNMENT_METADATA:
                return ConsumerGroupTargetAssignmentMetadataValue(
                    assignment_epoch=self.assignment_epoch, assignment_timestamp=self.assigned_ms
                )
            case RecordType.MEMBER_METADATA:
                return member and subscription_value(
                    member.subscription, self.name_sets.in_order(member.subscription.topics)
                )
            case RecordType.CURRENT_MEMBER_ASSIGNMENT:
                return member and progress_value(member.progress)
            case RecordType.TARGET_ASSIGNMENT_MEMBER:
                target = self.targets.get(key.name)
                return None if target is None else target_value(target)
            case RecordType.REGULAR_EXPRESSION:
                matched = self.matched.get(key.name)
                return matched and ConsumerGroupRegularExpressionValue(
                    topics=sorted(matched.topics), timestamp=matched.matched_ms
                )
            case RecordType.PARTITION_METADATA:
                return None

    def replay(self, record: Record) -> Steps[None]:
        """Take a record from the log. What it says is durable; records of types that are not known are passed over."""
        key, key_version, value = record.key, record.key_version, record.value
        if key_version == RecordType.METADATA:
            if isinstance(value, ConsumerGroupMetadataValue):
                self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif key_version == RecordType.PARTITION_METADATA:
            self.has_partition_metadata = value is not None
        elif key_version == RecordType.TARGET_ASSIGNMENT_METADATA:
            if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
                self.assignment_epoch, self.assigned_ms = value.assignment_epoch, value.assignment_timestamp
        elif isinstance(key, ConsumerGroupTargetAssignmentMemberKey):
            if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
                self._keep_target(key.member_id, read_target(value))
            else:
                self._drop_target(key.member_id)
        elif isinstance(key, ConsumerGroupRegularExpressionKey):
            if isinstance(value, ConsumerGroupRegularExpressionValue):
                matched = MatchedTopics(frozenset(value.topics), value.timestamp)
                self._keep_matched(key.regular_expression, matched)
            else:
                self._keep_matched(key.regular_expression, None)
        elif isinstance(key, ConsumerGroupMemberMetadataKey | ConsumerGroupCurrentMemberAssignmentKey):
            yield from self._replay_member(key.member_id, key_version, value)
        self.journal.forget()
        if self._pace.is_due(topics_in(record)):
            yield

    def replayed(self) -> None:
        """Take it that there are no more records. Meanwhile a member may have got what another had in its last one."""
        self._owners.clear()
        for member in self.members.values():
            self._own(member)

    def _replay_member(self, member_id: str, key_version: int, value: Message | None) -> Steps[None]:
        member = self.members.get(member_id, Member(member_id))
        if isinstance(value, ConsumerGroupMemberMetadataValue):
            self.put_member(member._replace(subscription=read_subscription(value)))
        elif isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            self.put_member(member._replace(progress=(yield from read_progress(value))))
        elif member_id in self.members and key_version == RecordType.MEMBER_METADATA:
            target = self.targets.get(member_id)
            self.remove_member(member_id)
            if target is not None:
                self._keep_target(member_id, target)
        elif member_id in self.members:
            self.put_member(member._replace(progress=Progress(LEFT_EPOCH, LEFT_EPOCH, assigned=NOTHING)))
