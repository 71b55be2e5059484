"""A coordinator of one share group in virtual time, whose records are durable at once."""

from typing import Any

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.consumer_requests import HeartbeatResult
from seglog_broker.coordinators.groups.records import KINDS
from seglog_broker.coordinators.groups.share import (
    Initialize,
    ShareGroup,
    ShareHeartbeat,
)
from seglog_broker.coordinators.share.settings import share_settings
from seglog_broker.coordinators.state_machine import Now, Outbox, Record, decode_record, encode_record
from seglog_protocol.steps import finished
from tests.unit.broker.coordinators.groups.consumer_coordinator import WALL_MS, Encoded, Topics, replayed

GROUP = "workers"


class ShareCoordinator:
    """What goes in comes with the virtual time; records are kept in ``log``, encoded, and effects in ``effects``.

    An assignment may follow another at once, unless ``interval_ms`` is another.
    """

    def __init__(self, topics: Topics | None = None, *, interval_ms: int = 0, members_max: int = 200) -> None:
        self.topics = Topics(orders=4) if topics is None else topics
        self.settings = share_settings({}, BrokerConfig())._replace(
            assignment_interval_ms=interval_ms, members_max=members_max
        )
        self.outbox = Outbox()
        self.now_ms = 0
        self.log: list[Encoded] = []
        self.records: list[Record] = []
        """Those of the last request, as they are read."""
        self.effects: list[Initialize] = []
        self.group = self.make_group()

    def make_group(self) -> ShareGroup:
        return ShareGroup(GROUP, self.outbox, lambda: self.settings, self.topics)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def beat(self, member_id: str, epoch: int = 0, *topics: str, **changes: Any) -> HeartbeatResult:
        """A heartbeat, which is that of a member that joins and reads orders unless it says otherwise."""
        named = topics or (("orders",) if epoch == 0 else None)
        request = ShareHeartbeat(member_id, epoch, None, named, "app", "/10.0.0.1")._replace(**changes)
        result = finished(self.group.heartbeat(request, self.now))
        self.deliver()
        return result

    def initialize(self, *, is_done: bool = True) -> None:
        """The state of partitions is made, or cannot be."""
        wanted = list(self.effects)
        self.effects.clear()
        for effect in wanted:
            finished(self.group.end_initializing(effect.start_offsets, is_done=is_done))
            self.deliver()

    def ready(self, member_id: str, *topics: str) -> int:
        """A member that joins and has its partitions; its epoch."""
        self.beat(member_id, 0, *topics)
        self.initialize()
        return self.beat(member_id, self.epoch(member_id)).member_epoch

    def epoch(self, member_id: str) -> int:
        return next(member.epoch for member in self.group.members if member.member_id == member_id)

    def describe(self) -> ConsumerGroupDescription:
        described = self.group.describe(self.now)
        return described._replace(members=list(described.members))

    def has(self, member_id: str) -> dict[str, list[int]]:
        """What a member is assigned, by topic."""
        [member] = [member for member in self.describe().members if member.member_id == member_id]
        return {assigned.topic: list(assigned.partitions) for assigned in member.assigned}

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
        written = [finished(encode_record(record)) for record in taken.records]
        self.records = [finished(decode_record(KINDS, key, value, {})) for key, value in written]
        self.log += written
        self.effects += taken.effects
        for answer, result in taken.replies:
            answer(result)

    def restart(self) -> None:
        """Begin again from the log, in the way of a broker that starts."""
        self.outbox = Outbox()
        self.group = self.make_group()
        replay = replayed(self.log)
        assert not replay.unknown
        for record in replay.share.get(GROUP, {}).values():
            finished(self.group.replay(record))
        self.group.restored(self.now)
