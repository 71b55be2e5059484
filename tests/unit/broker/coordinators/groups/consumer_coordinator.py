"""Coordinators of one group in virtual time, whose records are durable at once."""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, Generic, TypeVar

from seglog_broker.coordinators.client_patterns import ClientPattern, PatternError
from seglog_broker.coordinators.groups import topics
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.consumer_requests import (
    ConsumerHeartbeat,
    HeartbeatResult,
    Matching,
)
from seglog_broker.coordinators.groups.membership import CommitCheck, Limits
from seglog_broker.coordinators.groups.records import GroupReplay
from seglog_broker.coordinators.groups.share import Initialize, ShareGroup
from seglog_broker.coordinators.groups.topics import TopicSize
from seglog_broker.coordinators.state_machine import Now, Outbox, Record, encode_record
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import parse_header
from seglog_protocol.records import decode_records
from seglog_protocol.steps import finished

GROUP = "workers"
REBALANCE_MS = 30_000
WALL_MS = 1_700_000_000_000
"""The wall clock when the virtual time begins."""

Encoded = tuple[bytes, bytes | None]
"""Key and value of a record."""


class Topics(topics.Topics):
    """Topics that a test makes, enlarges and deletes. Whoever does that tells the group."""

    def __init__(self, **partitions: int) -> None:
        self._ids = count(1)
        self._topics: dict[str, TopicSize] = {}
        self.version = 0
        for name, number in partitions.items():
            self.make(name, number)

    def make(self, name: str, partitions: int, topic_id: bytes | None = None) -> None:
        """A topic with an id of its own, also if there was one of that name."""
        self.version += 1
        self._topics[name] = TopicSize(topic_id or next(self._ids).to_bytes(16, "big"), partitions)

    def enlarge(self, name: str, partitions: int) -> None:
        self.version += 1
        self._topics[name] = self._topics[name]._replace(partitions=partitions)

    def delete(self, name: str) -> None:
        self.version += 1
        del self._topics[name]

    def find(self, name: str) -> TopicSize | None:
        return self._topics.get(name)

    def name(self, topic_id: bytes) -> str | None:
        return next((name for name, topic in self._topics.items() if topic.topic_id == topic_id), None)

    def names(self) -> Iterable[str]:
        return list(self._topics)

    def matching(self, regex: str) -> Matching:
        try:
            return frozenset(filter(None, ClientPattern(regex).matching(self._topics)))
        except PatternError as error:
            return error

    def tell(self, group: ConsumerGroup) -> None:
        """Have the group know what its expressions match now."""
        for regex in group.regexes:
            matching = self.matching(regex)
            assert not isinstance(matching, PatternError)
            group.regexes.note(regex, None, matching)

    def by_name(self, assignment: Mapping[bytes, Iterable[int]]) -> dict[str, list[int]]:
        """An assignment for people."""
        return {self.name(topic) or topic.hex(): sorted(numbers) for topic, numbers in sorted(assignment.items())}


GroupT = TypeVar("GroupT", ConsumerGroup, ShareGroup)


class VirtualTime:
    """A group in virtual time, whose records are durable at once."""

    group: Any

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.now_ms = 0

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def pass_time(self, ms: int) -> None:
        """Let so many ms pass; the group is called at each of its deadlines."""
        end_ms = self.now_ms + ms
        while (deadline := self.group.deadline_ms) is not None and deadline <= end_ms:
            self.now_ms = max(self.now_ms, deadline)
            self.group.advance(self.now)
            self.deliver()
        self.now_ms = end_ms

    def deliver(self) -> None:
        """All records become durable, all replies are sent."""
        taken = self.outbox.take()
        self.keep(taken)
        for answer, result in taken.replies:
            answer(result)

    def keep(self, taken: Outbox) -> None:
        """Keep the records, which are durable."""
        raise NotImplementedError


class AssignedCoordinator(VirtualTime, Generic[GroupT]):
    """A group to which the broker assigns partitions; records are kept in ``log``, encoded, effects in ``effects``."""

    def __init__(self, topics: Topics | None = None) -> None:
        super().__init__()
        self.topics = Topics(orders=4) if topics is None else topics
        self.log: list[Encoded] = []
        self.effects: list[Initialize] = []
        self.group: GroupT = self.make_group()

    def make_group(self) -> GroupT:
        raise NotImplementedError

    def describe(self) -> ConsumerGroupDescription:
        described = self.group.describe(self.now)
        return described._replace(members=list(described.members))

    def has(self, member_id: str) -> dict[str, list[int]]:
        """What a member is assigned, by topic."""
        [member] = [member for member in self.describe().members if member.member_id == member_id]
        return {assigned.topic: list(assigned.partitions) for assigned in member.assigned}

    def keep(self, taken: Outbox) -> None:
        self.log += [finished(encode_record(record)) for record in taken.records]
        self.effects += taken.effects

    def fail_to_write(self) -> list[Record]:
        """The disk is full: what was to be written and answered is gone; the records that were to be written."""
        records = self.outbox.take().records
        self.group.write_failed(self.now)
        return records

    def restart(self) -> None:
        """Begin again from the log, in the way of a broker that starts."""
        self.outbox = Outbox()
        self.group = self.make_group()
        restore(self.group, replayed(self.log), self.now)


class ConsumerCoordinator(AssignedCoordinator[ConsumerGroup]):
    """A group of the consumer protocol."""

    def __init__(self, topics: Topics | None = None, **limits: Any) -> None:
        self.limits = Limits(**limits)
        self._ids = count(1)
        super().__init__(topics)

    def make_group(self) -> ConsumerGroup:
        return ConsumerGroup(GROUP, self.outbox, lambda: self.limits, self.new_id, self.topics)

    def new_id(self) -> str:
        return str(next(self._ids))

    def beat(self, member_id: str = "new", epoch: int = 0, **changes: Any) -> HeartbeatResult:
        """A heartbeat, which is that of a member that joins and reads orders unless it says otherwise."""
        request = ConsumerHeartbeat(member_id, epoch, client_id="app", client_host="/10.0.0.1")
        if epoch == 0:
            request = request._replace(rebalance_timeout_ms=REBALANCE_MS, topics=["orders"], owned={})
        request = request._replace(**changes)
        if request.regex:
            request = request._replace(matching=self.topics.matching(request.regex))
        result = finished(self.group.heartbeat(request, self.now))
        self.deliver()
        return result

    def commit(self, member_id: str, epoch: int) -> CommitCheck | None:
        return self.group.check_commit(member_id, epoch, None, self.now)

    def settled(self, *member_ids: str, rounds: int = 6) -> dict[str, int]:
        """Have members go on until all have what they are to have, giving up at once; their epochs."""
        members = {member.member_id: member for member in self.group.members}
        epochs = {member_id: members[member_id].epoch for member_id in member_ids}
        for _ in range(rounds):
            for member_id in member_ids:
                has = next(m for m in self.group.members if m.member_id == member_id).progress.assigned
                epochs[member_id] = self.beat(member_id, epochs[member_id], owned=has).member_epoch
            if self.group.state == "Stable":
                return epochs
        raise AssertionError(f"not stable after {rounds} rounds: {self.describe()}")

    def joined(self, *member_ids: str, **changes: Any) -> dict[str, int]:
        """Have new members, and all of them stable; their epochs."""
        for member_id in member_ids:
            self.beat(member_id, **changes)
        return self.settled(*member_ids)

    def restart(self) -> None:
        super().restart()
        self.topics.tell(self.group)


def replayed(log: Iterable[tuple[bytes | None, bytes | None]]) -> GroupReplay:
    """What a log of records adds up to."""
    replay = GroupReplay({"orders": "id-of-orders"})
    for number, (key, value) in enumerate(log):
        batch = encode_batch([(0, key, value, ())], base_offset=number)
        header = parse_header(batch)
        finished(replay.read(header, decode_records(header, batch)))
    return replay


def restore(group: ConsumerGroup | ShareGroup, replay: GroupReplay, now: Now) -> None:
    """Have a new group be as its records have it."""
    assert not replay.unknown
    for record in (replay.consumer if group.share is None else replay.share).get(group.key, {}).values():
        finished(group.replay(record))
    group.restored(now)
