"""A group changes from the classic to the consumer protocol, or back, with its generation, and while members live.

Upgrade: a consumer of the consumer protocol joins a classic group. Downgrade: the last of these leaves one that still
has classic members. Both as Kafka does it; there a group without members begins again at epoch 0, here no epoch and no
generation goes back.
"""

from collections.abc import Callable
from typing import Final

from seglog_broker.coordinators.groups import consumer_protocol
from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.classic import ClassicGroup
from seglog_broker.coordinators.groups.classic_members import ClassicMember, protocols_by_name
from seglog_broker.coordinators.groups.consumer import ConsumerGroup
from seglog_broker.coordinators.groups.consumer_member import (
    ClassicProtocols,
    Member,
    MemberState,
    Progress,
    Subscription,
)
from seglog_broker.coordinators.groups.membership import CONSUMER_PROTOCOL_TYPE, Limits
from seglog_broker.coordinators.groups.topics import Topics, by_id, by_name
from seglog_broker.coordinators.state_machine import Now
from seglog_protocol.errors import UnknownGroupError
from seglog_protocol.steps import ITEMS_A_STEP, Pace, Steps

UPGRADE_POLICIES: Final = frozenset({"upgrade", "bidirectional"})
"""Values of group.consumer.migration.policy."""


def upgraded(
    group: ClassicGroup, make: Callable[[], ConsumerGroup], limits: Callable[[], Limits], topics: Topics, now: Now
) -> Steps[ConsumerGroup]:
    """The group, of those that ``make`` makes, that is to take the place of ``group`` at once; nothing is decided here.

    Members that have had a generation stay. Raises UnknownGroupError where the configuration, or the metadata of
    members, does not let the group change.
    """
    while True:
        before = _as_it_is(group)
        members = yield from _consumer_members(group, limits, topics)
        is_large = any(len(member.progress.since) > ITEMS_A_STEP for member in members)
        if is_large:
            yield
        made = make()
        made.upgrade(members, group.generation, now)
        if is_large:
            yield
        if _as_it_is(group) == before:
            return made


def downgraded(group: ConsumerGroup, made: ClassicGroup, topics: Topics, now: Now) -> ClassicGroup:
    """``made``, which is new, as what is to take the place of ``group``, whose tombstones are not decided here.

    All its members, if it has any, use the classic protocol (``may_be_classic``).
    """
    members = [_classic_member(member, topics, now) for member in group.members]
    made.downgrade(members, group.generation, now)
    return made


def _as_it_is(group: ClassicGroup) -> tuple[object, ...]:
    """The state on which the members of its successor depend."""
    members = group.members.values()
    return group.generation, group.protocol, [(member, member.protocols, member.assignment) for member in members]


def _consumer_members(group: ClassicGroup, limits: Callable[[], Limits], topics: Topics) -> Steps[list[Member]]:
    _check_upgrade(group, limits())
    read: dict[bytes, consumer_protocol.ClassicSubscription | None] = {}  # members of one application send the same
    taken: set[tuple[bytes, int]] = set()
    made: list[Member] = []
    for member in list(group.members.values()):
        # For the assignor of the generation; for its own first one if the group has none yet.
        metadata = member.protocols.get(group.protocol or "", next(iter(member.protocols.values())))
        if metadata not in read:
            read[metadata] = yield from consumer_protocol.read_subscription(metadata)
        said = read[metadata]
        had = yield from consumer_protocol.read_assignment(member.assignment)
        if said is None or had is None:
            reason = f"what {member.member_id!r} says of itself, or was assigned, is not in Kafka's format"
            raise _not_upgraded(group.key, reason)
        if member.is_new:
            continue
        # A cooperative member that joins owns what it reports, whatever the generation under way assigns to it.
        has: dict[bytes, frozenset[int]] = {}
        for partitions in (had, said.owned):
            yield from _take((yield from by_id(partitions, topics)), taken, has)
        progress = Progress(group.generation, group.generation, MemberState.STABLE, has)
        made.append(_consumer_member(member, said, (yield from progress.following(Progress()))))
    return made


def _check_upgrade(group: ClassicGroup, limits: Limits) -> None:
    if group.is_empty:
        return
    reason = None
    if limits.consumer_migration_policy not in UPGRADE_POLICIES:
        reason = f"group.consumer.migration.policy is {limits.consumer_migration_policy}"
    elif group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        reason = f"they are no consumers, but of the type {group.protocol_type!r}"
    elif len(group.members) > limits.consumer_max_size:
        reason = f"they are more than group.consumer.max.size ({limits.consumer_max_size:,})"
    if reason is not None:
        raise _not_upgraded(group.key, reason)


def _not_upgraded(group: str, reason: str) -> UnknownGroupError:
    """The error for a consumer of the consumer protocol where the group is to stay a classic one."""
    return UnknownGroupError(
        f"the members of group {group!r} use the classic protocol, and {reason}: start this one with"
        " group.protocol=classic, too, or end the others first",
        group=group,
    )


def _consumer_member(member: ClassicMember, said: consumer_protocol.ClassicSubscription, progress: Progress) -> Member:
    subscription = Subscription(
        member.instance_id,
        said.rack_id,
        member.client_id,
        member.client_host,
        said.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicProtocols(member.session_timeout_ms, tuple(member.protocols.items())),
    )
    return Member(member.member_id, subscription, progress)


def _take(assignment: Assignment, taken: set[tuple[bytes, int]], into: dict[bytes, frozenset[int]]) -> Steps[None]:
    """Add the partitions of an assignment that are not ``taken`` to ``into``, and to ``taken``."""
    pace = Pace()
    for topic, numbers in assignment.items():
        free = [number for number in numbers if (topic, number) not in taken]
        if free:
            taken.update([(topic, number) for number in free])
            into[topic] = into.get(topic, frozenset()).union(free)
        if pace.is_due(len(numbers)):
            yield


def _classic_member(member: Member, topics: Topics, now: Now) -> ClassicMember:
    said, classic = member.subscription, member.classic
    assert classic is not None, "a group with members of the consumer protocol does not change"
    return ClassicMember(
        member.member_id,
        said.instance_id,
        said.client_id,
        said.client_host,
        classic.session_timeout_ms,
        said.rebalance_timeout_ms,
        protocols_by_name(classic.protocols),
        now.monotonic_ms,
        assignment=consumer_protocol.encode_assignment(by_name(member.progress.assigned, topics)),
    )
