"""A member of a group of the consumer protocol, and its reconciliation towards its target assignment."""

from collections.abc import Callable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.assignors import NOTHING, Assignment
from seglog_protocol.steps import Pace, Steps

JOINING_EPOCH: Final = 0
"""The member epoch of a member that joins, and has no partitions yet."""

LEFT_EPOCH: Final = -1
"""The member epoch of a member that leaves, and in records of one that has left."""

AWAY_EPOCH: Final = -2
"""The member epoch of a static member that has left and keeps its place up to the end of its session."""


_NONE: Final[frozenset[int]] = frozenset()


class MemberState(IntEnum):
    """Kafka's numbers for how far a member is."""

    STABLE = 0
    """Its current assignment is the target assignment of its epoch."""
    UNREVOKED_PARTITIONS = 1
    """It must revoke partitions, and did not report yet that it has."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members must revoke first."""
    UNKNOWN = 127
    """A state of a newer broker."""

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":  # noqa: ARG003 - any that is not one of these
        return cls.UNKNOWN


class ClassicProtocols(NamedTuple):
    """The part of a subscription that only members of the classic protocol have."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Names of assignors and the metadata for each, the preferred one first."""

    @property
    def first(self) -> str:
        """The name of the preferred one, by which the member reads what it is assigned."""
        return self.protocols[0][0]


class Subscription(NamedTuple):
    """A member's subscription, with its client and instance."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    """Names."""
    regex: str = ""
    """Empty: none."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicProtocols | None = None
    """None: it uses the consumer protocol."""


class Progress(NamedTuple):
    """A member's current assignment."""

    epoch: int = JOINING_EPOCH
    previous_epoch: int = LEFT_EPOCH
    """Accepted until the next epoch: the response with ``epoch`` may have been lost."""
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    revoking: Assignment = NOTHING
    """Partitions that it must revoke. They are its own until it reports that it has."""
    since: Mapping[tuple[bytes, int], int] = MappingProxyType({})
    """The member epoch with which it got each partition that it owns, or must revoke."""

    def following(self, before: "Progress") -> "Steps[Progress]":
        """This assignment after ``before``: partitions that the member had before keep their epochs."""
        since: dict[tuple[bytes, int], int] = {}
        pace = Pace()
        for assignment in (self.assigned, self.revoking):
            for topic, numbers in assignment.items():
                for number in numbers:
                    since[topic, number] = before.since.get((topic, number), self.epoch)
                if pace.is_due(len(numbers)):
                    yield
        return self._replace(since=since)


class Member(NamedTuple):
    """A member. Whatever changes makes another one."""

    member_id: str
    subscription: Subscription = Subscription()
    progress: Progress = Progress()

    @property
    def instance_id(self) -> str | None:
        """Of a static member."""
        return self.subscription.instance_id

    @property
    def epoch(self) -> int:
        """Its member epoch."""
        return self.progress.epoch

    @property
    def classic(self) -> ClassicProtocols | None:
        """None: it uses the consumer protocol."""
        return self.subscription.classic

    def is_at(self, assignment_epoch: int) -> bool:
        """True if its current assignment is the target assignment of that epoch."""
        return self.progress.state is MemberState.STABLE and self.epoch == assignment_epoch


def has_only(owned: Assignment | None, assigned: Assignment) -> bool:
    """True if a member reports partitions, and none but assigned ones; None: it reports nothing."""
    return owned is not None and all(owned[topic] <= assigned.get(topic, frozenset()) for topic in owned)


class Reconciliation(NamedTuple):
    """Computes a member's next current assignment. Partitions are revoked before others are assigned."""

    target_epoch: int
    target: Assignment
    is_read: Callable[[bytes], bool]
    """True for the ids of topics to which the member subscribes. Partitions of others are revoked at once."""
    subscription_changed: bool
    """By the request that is being served."""
    owned: Assignment | None
    """The partitions that the member reports; None: it reports nothing, and may still own all that it was assigned."""
    is_taken: Callable[[bytes, int], bool]
    """True if another member owns a partition."""

    def next(self, progress: Progress) -> Steps[Progress]:
        """The next current assignment; the same if the member has to wait."""
        match progress.state:
            case MemberState.STABLE:
                if progress.epoch != self.target_epoch:
                    return (yield from self._approach(progress, progress.epoch))
            case MemberState.UNREVOKED_PARTITIONS:
                if not self._still_has(progress.revoking):
                    return (yield from self._approach(progress, progress.epoch))
            case MemberState.UNRELEASED_PARTITIONS:
                return (yield from self._approach(progress, progress.epoch))
            case MemberState.UNKNOWN:
                return (yield from self._approach(progress, self.target_epoch))
        return (yield from self._without_unsubscribed(progress)) if self.subscription_changed else progress

    def _approach(self, progress: Progress, epoch: int) -> Steps[Progress]:
        kept: dict[bytes, frozenset[int]] = {}
        revoking: dict[bytes, frozenset[int]] = {}
        available: dict[bytes, frozenset[int]] = {}
        waits = False
        pace = Pace()
        for topic in sorted(self.target.keys() | progress.assigned.keys()):
            wanted = self.target.get(topic, _NONE) if self.is_read(topic) else _NONE
            has = progress.assigned.get(topic, _NONE)
            missing = wanted - has
            free = frozenset(number for number in missing if not self.is_taken(topic, number))
            waits = waits or free != missing
            for into, numbers in ((kept, has & wanted), (revoking, has - wanted), (available, (has & wanted) | free)):
                if numbers:
                    into[topic] = numbers
            if pace.is_due(1 + len(wanted) + len(has)):
                yield
        if self._still_has(revoking):
            after = Progress(epoch, progress.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
        else:
            state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
            after = Progress(self.target_epoch, progress.epoch, state, available)
        return (yield from after.following(progress))

    def _without_unsubscribed(self, progress: Progress) -> Steps[Progress]:
        """Revoke partitions of topics to which it does not subscribe any more, though there is no new target."""
        assigned: dict[bytes, frozenset[int]] = {}
        revoking = dict(progress.revoking)
        pace = Pace()
        for topic, numbers in progress.assigned.items():
            if self.is_read(topic):
                assigned[topic] = numbers
            else:
                revoking[topic] = revoking.get(topic, _NONE) | numbers
            if pace.is_due():
                yield
        if len(assigned) == len(progress.assigned):
            return progress
        if self._still_has(revoking):
            after = progress._replace(state=MemberState.UNREVOKED_PARTITIONS, assigned=assigned, revoking=revoking)
        else:
            after = progress._replace(assigned=assigned)
        return (yield from after.following(progress))

    def _still_has(self, revoking: Assignment) -> bool:
        """True if the member may still own any of these."""
        if not revoking:
            return False
        return self.owned is None or any(
            numbers & self.owned.get(topic, frozenset()) for topic, numbers in revoking.items()
        )
