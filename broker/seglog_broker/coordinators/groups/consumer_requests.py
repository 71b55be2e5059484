"""The request of members of the consumer protocol, and its result."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from seglog_broker.coordinators.client_patterns import PatternError
from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer_member import AWAY_EPOCH, JOINING_EPOCH
from seglog_broker.coordinators.groups.group_memory import MEMBER_BYTES, NAME_BYTES
from seglog_broker.coordinators.groups.membership import Limits
from seglog_protocol.errors import InvalidRequestError, UnsupportedAssignorError

Matching = frozenset[str] | PatternError
"""The names of topics that a regular expression matches, or why it is not taken."""

MaySee = Callable[[str], bool]
"""True of the topics that a client may describe: no expression matches others for it."""


def all_topics(_: str) -> bool:
    """``MaySee`` of who may describe any topic."""
    return True


class ConsumerHeartbeat(NamedTuple):
    """A ConsumerGroupHeartbeat. Fields that are None are unchanged since the member's last one.

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
    """The member's partitions, as it reports them."""
    client_id: str = ""
    client_host: str = ""
    matching: Matching | None = None
    """The topics that ``regex`` matches, if the group has no member with that expression yet."""

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for members; 0 if it changes no subscription."""
        if self.topics is None and self.regex is None:
            return 0
        matched = self.matching if isinstance(self.matching, frozenset) else ()
        named = self.topics or ()
        size = MEMBER_BYTES + len(self.client_id) + len(self.instance_id or "") + len(self.rack_id or "")
        size += sum(map(len, named)) + NAME_BYTES * len(named)
        return size + len(self.regex or "") + NAME_BYTES * len(matched)

    @property
    def is_full(self) -> bool:
        """True for a full request, of a member that joins or lost a response: it gets its full assignment."""
        subscribes = self.topics is not None or self.regex is not None
        return self.member_epoch == 0 or (self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None)


def check_heartbeat(group: str, request: ConsumerHeartbeat, limits: Limits) -> None:
    """Raise InvalidRequestError for a request that no member makes, or UnsupportedAssignorError."""
    epoch = request.member_epoch
    if epoch < AWAY_EPOCH:
        raise InvalidRequestError(f"{epoch} is not a member epoch: -2 or more", field="member_epoch")
    if epoch != JOINING_EPOCH and not request.member_id:
        raise _empty("member_id")
    for field, value in (("instance_id", request.instance_id), ("rack_id", request.rack_id)):
        if value is not None and not value.strip():
            raise _empty(field)
    if epoch == AWAY_EPOCH and request.instance_id is None:
        raise _missing("instance_id", "by a static member that leaves for a while")
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms < 0:
            raise _missing("rebalance_timeout_ms", "by a member that joins")
        if request.owned is None or request.owned:
            problem = "a member that joins has no partitions: topic_partitions must be []"
            raise InvalidRequestError(problem, field="owned")
        if request.topics is None and request.regex is None:
            raise _missing("topics", "by a member that joins, or a regular expression")
    if request.assignor is not None and request.assignor not in limits.consumer_assignors:
        raise UnsupportedAssignorError(
            f"there is no assignor {request.assignor!r}: group.consumer.assignors has"
            f" {', '.join(limits.consumer_assignors)}",
            group=group,
        )


def _empty(field: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field} must not be empty", field=field)


def _missing(field: str, when: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field} must be given {when}", field=field)


class HeartbeatResult(NamedTuple):
    """The answer to a ConsumerHeartbeat, or a ShareHeartbeat."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """The member's whole current assignment; None: unchanged."""
