"""A coordinator of one share group in virtual time, whose records are durable at once."""

from typing import Any

from seglog_broker.config.broker_config import BrokerConfig
from seglog_broker.coordinators.groups.consumer_requests import HeartbeatResult
from seglog_broker.coordinators.groups.records import KINDS
from seglog_broker.coordinators.groups.share import ShareGroup, ShareHeartbeat
from seglog_broker.coordinators.share.settings import share_settings
from seglog_broker.coordinators.state_machine import Outbox, Record, decode_record
from seglog_protocol.steps import finished
from tests.unit.broker.coordinators.groups.consumer_coordinator import GROUP, AssignedCoordinator, Topics


class ShareCoordinator(AssignedCoordinator[ShareGroup]):
    """A share group, to which an assignment may follow another at once, unless ``interval_ms`` is another."""

    def __init__(self, topics: Topics | None = None, *, interval_ms: int = 0, members_max: int = 200) -> None:
        self.settings = share_settings({}, BrokerConfig())._replace(
            assignment_interval_ms=interval_ms, members_max=members_max
        )
        self.records: list[Record] = []
        """Those of the last request, as they are read."""
        super().__init__(topics)

    def make_group(self) -> ShareGroup:
        return ShareGroup(GROUP, self.outbox, lambda: self.settings, self.topics)

    def keep(self, taken: Outbox) -> None:
        before = len(self.log)
        super().keep(taken)
        self.records = [finished(decode_record(KINDS, key, value, {})) for key, value in self.log[before:]]

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
