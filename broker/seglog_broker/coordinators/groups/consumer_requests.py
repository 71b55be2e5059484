"""The request of members of the consumer protocol, and its result."""

from collections.abc import Sequence
from typing import NamedTuple

from seglog_broker.coordinators.groups import consumer_errors as errors
from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.client_patterns import PatternError
from seglog_broker.coordinators.groups.consumer_member import AWAY_EPOCH, JOINING_EPOCH
from seglog_broker.coordinators.groups.group_memory import MEMBER_BYTES, NAME_BYTES
from seglog_broker.coordinators.groups.membership import Limits

Matching = frozenset[str] | PatternError
"""The names of topics that a regular expression matches, or why it is not taken."""


class ConsumerHeartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat. What is None is as it was in the member's last one.

    ``member_epoch`` is 0 of a member that joins, -1 of one that leaves, -2 of a static one that will be back.
    """

    member_id: str
    """Empty: the group makes one (version 0)."""
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    """-1: as it was."""
    topics: Sequence[str] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    """What the member has."""
    client_id: str = ""
    client_host: str = ""
    matching: Matching | None = None
    """What ``regex`` matches, if the group has no member with that expression yet."""

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for members; 0 if it says nothing that is kept."""
        if self.topics is None and self.regex is None:
            return 0
        matched = self.matching if isinstance(self.matching, frozenset) else ()
        named = self.topics or ()
        size = MEMBER_BYTES + len(self.client_id) + sum(map(len, named)) + NAME_BYTES * len(named)
        return size + len(self.regex or "") + NAME_BYTES * len(matched)

    @property
    def is_full(self) -> bool:
        """Whether it says everything, as a member does that joins, or lost an answer, so that it is told everything."""
        subscribes = self.topics is not None or self.regex is not None
        return self.member_epoch == 0 or (self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None)


def check_heartbeat(group: str, request: ConsumerHeartbeat, limits: Limits) -> None:
    """Raise InvalidRequestError for a request that no member makes, or UnsupportedAssignorError."""
    epoch = request.member_epoch
    if epoch < AWAY_EPOCH:
        raise errors.not_an_epoch(epoch)
    if epoch != JOINING_EPOCH and not request.member_id:
        raise errors.empty("member_id")
    for field, value in (("instance_id", request.instance_id), ("rack_id", request.rack_id)):
        if value is not None and not value.strip():
            raise errors.empty(field)
    if epoch == AWAY_EPOCH and request.instance_id is None:
        raise errors.missing("instance_id", "by a static member that leaves for a while")
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms < 0:
            raise errors.missing("rebalance_timeout_ms", "by a member that joins")
        if request.owned is None or request.owned:
            raise errors.owns_while_joining()
        if request.topics is None and request.regex is None:
            raise errors.missing("topics", "by a member that joins, or a regular expression")
    if request.assignor is not None and request.assignor not in limits.consumer_assignors:
        raise errors.no_assignor(group, request.assignor, limits.consumer_assignors)


class ConsumerHeartbeatResult(NamedTuple):
    """The answer to a ConsumerHeartbeat."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """All that the member is to have now; None: what it has been told before."""
