"""The state of a group to which the broker assigns partitions, as far as its records carry it."""

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from seglog_broker.coordinators.groups import group_memory
from seglog_broker.coordinators.groups.assignors import NOTHING, Assignment
from seglog_broker.coordinators.groups.consumer_member import LEFT_EPOCH, Member, Progress, Subscription
from seglog_broker.coordinators.groups.consumer_records import (
    CONSUMER_RECORDS,
    AssignmentEpoch,
    GroupEpoch,
    Kinds,
    MatchedTopics,
    RecordJournal,
    RecordKey,
    RecordType,
    Value,
    make_record,
    read_record,
    topics_in,
)
from seglog_broker.coordinators.groups.shared_topics import SharedTopics
from seglog_broker.coordinators.state_machine import Outbox, Record
from seglog_protocol.steps import Pace, Steps


class _NameSets:
    """The sets of topic names to which members subscribe, each kept once for all members."""

    def __init__(self) -> None:
        self._sets: Final[dict[frozenset[str], list[frozenset[str]]]] = {}
        self._sorted: Final[dict[frozenset[str], list[str]]] = {}
        self._counts: Final[dict[str, int]] = {}  # of the sets and expressions that contain a name
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
        """A set that is kept, sorted, once for all records. The list is not to be changed."""
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
    return sum(map(len, names)) + group_memory.NAME_BYTES * len(names)


def size_of_member(member: Member) -> int:
    """Bytes that it takes of the budget for members, without the names of its topics."""
    said = member.subscription
    named = (member.member_id, said.instance_id or "", said.rack_id or "", said.client_id, said.regex)
    size = group_memory.MEMBER_BYTES + sum(map(len, named))
    if said.classic is not None:
        size += group_memory.size_of_protocols(said.classic.protocols)
    progress = member.progress
    size += group_memory.TOPIC_BYTES * len(progress.revoking) + group_memory.PARTITION_BYTES * len(progress.since)
    return size + (
        group_memory.TOPIC_BYTES * len(progress.assigned) if progress.since else _size_of_target(progress.assigned)
    )


def _size_of_target(target: Assignment) -> int:
    return group_memory.TOPIC_BYTES * len(target) + group_memory.NUMBER_BYTES * sum(map(len, target.values()))


class ConsumerState:
    """The members of a group with their current and target assignments, its epochs, and the matches of its expressions.

    All of it is carried by records. What is decided is noted in the journal, which makes the records, and replayed.
    """

    def __init__(self, group_id: str, outbox: Outbox, kinds: Kinds = CONSUMER_RECORDS, epoch_at_first: int = 0) -> None:
        self._kinds: Final = kinds
        self.epoch_at_first: Final = epoch_at_first
        """The group epoch before any change."""
        self.group_id: Final = group_id
        self.journal: Final = RecordJournal(outbox, self._record)
        self.members: Final[dict[str, Member]] = {}
        self.id_of_instance: Final[dict[str, str]] = {}
        self.targets: Final[dict[str, Assignment]] = {}
        self.matched: Final[dict[str, MatchedTopics]] = {}
        """By the regular expressions of members."""
        self.group_epoch = epoch_at_first
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assigned_ms = 0
        """When the assignment was made, of the wall clock."""
        self.is_deleted = False
        self.has_partition_metadata = False
        """True if a record of key version 4 must get a tombstone."""
        self.shared: SharedTopics | None = None
        """Of a share group: how far the state of its partitions is; None: there is no record of it."""
        self.classic_count = 0
        """The number of members that use the classic protocol."""
        self.name_sets: Final = _NameSets()
        self.moves = 0
        """Counts changes of members' current assignments."""
        self._owners: Final[dict[tuple[bytes, int], str]] = {}
        self._size = group_memory.GROUP_BYTES + len(group_id)
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
        """The id of the member that owns a partition, even if it must revoke it."""
        return self._owners.get((topic, partition))

    def topics_of(self, member: Member) -> AbstractSet[str]:
        """The names of the topics that it reads."""
        subscription = member.subscription
        matched = self.matched.get(subscription.regex)
        return subscription.topics | matched.topics if matched is not None else subscription.topics

    def is_used(self, regex: str) -> bool:
        """True if a member subscribes by this expression."""
        return any(member.subscription.regex == regex for member in self.members.values())

    # --- Decisions: records, which change the state as they do when they come from the log ----------------------------

    def put_member(self, member: Member) -> None:
        """Add a member, or give one another subscription or current assignment."""
        before, member_id = self.members.get(member.member_id), member.member_id
        if before is None or before.subscription != member.subscription:
            self._decide(RecordKey(RecordType.MEMBER_METADATA, member_id), member.subscription)
        if before is None or before.progress != member.progress:
            self._decide(RecordKey(RecordType.CURRENT_MEMBER_ASSIGNMENT, member_id), member.progress)

    def remove_member(self, member_id: str) -> None:
        """Remove a member with its current and target assignment."""
        self._decide(RecordKey(RecordType.MEMBER_METADATA, member_id), None)
        self._decide(RecordKey(RecordType.CURRENT_MEMBER_ASSIGNMENT, member_id), None)
        self._decide(RecordKey(RecordType.TARGET_ASSIGNMENT_MEMBER, member_id), None)

    def set_target(self, member_id: str, target: Assignment) -> None:
        """Give a member another target assignment."""
        if self.targets.get(member_id) != target:
            self._decide(RecordKey(RecordType.TARGET_ASSIGNMENT_MEMBER, member_id), target)

    def set_assignment_epoch(self, epoch: int, wall_ms: int) -> None:
        """Note that all target assignments, those that stay the same too, are those of ``epoch``."""
        self._decide(RecordKey(RecordType.TARGET_ASSIGNMENT_METADATA), AssignmentEpoch(epoch, wall_ms))

    def set_group_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Begin ``epoch``, for topics with ``metadata_hash``."""
        self._decide(RecordKey(RecordType.METADATA), GroupEpoch(epoch, metadata_hash))
        if self.has_partition_metadata:
            self._decide(RecordKey(RecordType.PARTITION_METADATA), None)

    def set_matched(self, regex: str, matched: MatchedTopics | None) -> None:
        """Note the topics that an expression matches; None: no member subscribes by it any more."""
        self._decide(RecordKey(RecordType.REGULAR_EXPRESSION, regex), matched)

    def set_shared(self, shared: SharedTopics) -> None:
        """Note how far the state of share partitions is."""
        self._decide(RecordKey(RecordType.SHARED_TOPICS), shared)

    def delete(self) -> None:
        """Decide tombstones for all records there are, or may be: those that are not known to be durable, too."""
        self.journal.write_failed()
        self.journal.note_all(self._keys())
        self.is_deleted = True
        self.members.clear()

    def _keys(self) -> Iterator[RecordKey]:
        yield RecordKey(RecordType.METADATA)
        yield RecordKey(RecordType.TARGET_ASSIGNMENT_METADATA)
        if self.has_partition_metadata:
            yield RecordKey(RecordType.PARTITION_METADATA)
        if self.shared is not None:
            yield RecordKey(RecordType.SHARED_TOPICS)
        for member_id in self.members:
            yield RecordKey(RecordType.MEMBER_METADATA, member_id)
            yield RecordKey(RecordType.CURRENT_MEMBER_ASSIGNMENT, member_id)
        for member_id in self.targets:
            yield RecordKey(RecordType.TARGET_ASSIGNMENT_MEMBER, member_id)
        for regex in self.matched:
            yield RecordKey(RecordType.REGULAR_EXPRESSION, regex)

    def _decide(self, key: RecordKey, value: Value) -> None:
        self.journal.note(key)
        self._replay(key, value)

    def _record(self, key: RecordKey) -> Record:
        """The record with this key as it is to be written now."""
        value = None if self.is_deleted else self._value(key)
        return make_record(self._kinds, self.group_id, key, value, self.name_sets.in_order)

    def _value(self, key: RecordKey) -> Value:
        member = self.members.get(key.name)
        match key.type:
            case RecordType.METADATA:
                return GroupEpoch(self.group_epoch, self.metadata_hash)
            case RecordType.TARGET_ASSIGNMENT_METADATA:
                return AssignmentEpoch(self.assignment_epoch, self.assigned_ms)
            case RecordType.MEMBER_METADATA:
                return member and member.subscription
            case RecordType.CURRENT_MEMBER_ASSIGNMENT:
                return member and member.progress
            case RecordType.TARGET_ASSIGNMENT_MEMBER:
                return self.targets.get(key.name)
            case RecordType.REGULAR_EXPRESSION:
                return self.matched.get(key.name)
            case RecordType.SHARED_TOPICS:
                return self.shared
            case RecordType.PARTITION_METADATA:
                return None

    # --- Replay: nothing else changes what records carry --------------------------------------------------------------

    def replay(self, record: Record) -> Steps[None]:
        """Take a record from the log; one of an unknown type is passed over."""
        read = yield from read_record(self._kinds, record)
        if read is not None:
            self._replay(*read)
        if self._pace.is_due(topics_in(record)):
            yield

    def replayed(self) -> None:
        """End the replay of the log: the last records count, because a partition may have moved between members."""
        self._owners.clear()
        for member in self.members.values():
            self._own(member)

    def _replay(self, key: RecordKey, value: Value) -> None:
        """Change the state as a record says."""
        name = key.name
        match value:
            case GroupEpoch():
                self.group_epoch, self.metadata_hash = value
            case AssignmentEpoch():
                self.assignment_epoch, self.assigned_ms = value
            case Subscription():
                self._keep_member(self.members.get(name, Member(name))._replace(subscription=value))
            case Progress():
                self._keep_member(self.members.get(name, Member(name))._replace(progress=value))
            case MatchedTopics():
                self._keep_matched(name, value)
            case SharedTopics():
                self._keep_shared(value)
            case None:
                self._replay_tombstone(key)
            case _ if key.type == RecordType.PARTITION_METADATA:
                self.has_partition_metadata = True
            case _:
                self._size += _size_of_target(value) - _size_of_target(self.targets.get(name, NOTHING))
                self.targets[name] = value

    def _replay_tombstone(self, key: RecordKey) -> None:
        match key.type:
            case RecordType.MEMBER_METADATA:
                self._drop_member(key.name)
            case RecordType.CURRENT_MEMBER_ASSIGNMENT if key.name in self.members:
                self._keep_member(self.members[key.name]._replace(progress=Progress(LEFT_EPOCH, LEFT_EPOCH)))
            case RecordType.TARGET_ASSIGNMENT_MEMBER:
                self._size -= _size_of_target(self.targets.pop(key.name, NOTHING))
            case RecordType.REGULAR_EXPRESSION:
                self._keep_matched(key.name, None)
            case RecordType.PARTITION_METADATA:
                self.has_partition_metadata = False
            case RecordType.SHARED_TOPICS:
                self._keep_shared(None)

    def _keep_member(self, member: Member) -> None:
        before = self.members.get(member.member_id)
        names = self.name_sets.shared(member.subscription.topics)
        if names is not member.subscription.topics:
            member = member._replace(subscription=member.subscription._replace(topics=names))
        self.members[member.member_id] = member
        self._size += size_of_member(member)
        self.classic_count += member.classic is not None
        self.name_sets.add(names)
        if before is not None:
            self._size -= size_of_member(before)
            self.classic_count -= before.classic is not None
            self.name_sets.drop(before.subscription.topics)
        if member.instance_id is not None:
            self.id_of_instance[member.instance_id] = member.member_id
        if before is None or before.progress is not member.progress:
            self.moves += 1
            if before is not None:
                self._release(member.member_id, before.progress.since.keys() - member.progress.since.keys())
            self._own(member)

    def _drop_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._size -= size_of_member(member)
        self.name_sets.drop(member.subscription.topics)
        self.classic_count -= member.classic is not None
        self._release(member_id, member.progress.since)
        if member.instance_id is not None and self.id_of_instance.get(member.instance_id) == member_id:
            del self.id_of_instance[member.instance_id]

    def _keep_matched(self, regex: str, matched: MatchedTopics | None) -> None:
        before = self.matched.pop(regex, None)
        if before is not None:
            self._size -= group_memory.MEMBER_BYTES + len(regex) + group_memory.NAME_BYTES * len(before.topics)
            self.name_sets.discount(before.topics)
        if matched is not None:
            self._size += group_memory.MEMBER_BYTES + len(regex) + group_memory.NAME_BYTES * len(matched.topics)
            self.name_sets.count(matched.topics)
            self.matched[regex] = matched

    def _keep_shared(self, shared: SharedTopics | None) -> None:
        self._size += (0 if shared is None else shared.size) - (0 if self.shared is None else self.shared.size)
        self.shared = shared

    def _own(self, member: Member) -> None:
        free = [partition for partition in member.progress.since if partition not in self._owners]
        self._owners.update(dict.fromkeys(free, member.member_id))

    def _release(self, member_id: str, partitions: Iterable[tuple[bytes, int]]) -> None:
        for partition in partitions:
            if self._owners.get(partition) == member_id:
                del self._owners[partition]
