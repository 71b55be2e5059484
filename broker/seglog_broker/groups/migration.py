"""A group changes from the classic to the consumer protocol, or back, with its generation, and while members live.

Upgrade: a consumer of the consumer protocol joins a classic group. Downgrade: the last of these leaves one that still
has classic members. Both as Kafka does it; there a group without members begins again at epoch 0, here no epoch and no
generation goes back.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from seglog_broker.groups import consumer_errors as errors
from seglog_broker.groups.assignments import assigned_partitions, encode_assignment
from seglog_broker.groups.assignors import Assignment
from seglog_broker.groups.classic import ClassicGroup
from seglog_broker.groups.classic_member import ClassicMember, protocols_by_name
from seglog_broker.groups.consumer import ConsumerGroup
from seglog_broker.groups.consumer_member import ClassicProtocols, Member, MemberState, Progress, Subscription
from seglog_broker.groups.consumer_requests import Topics
from seglog_broker.groups.membership import CONSUMER_PROTOCOL_TYPE, Effects, Limits, Now
from seglog_broker.groups.subscriptions import ClassicSubscription, read_subscription
from seglog_broker.groups.topic_names import by_id, by_name

_Read = Callable[[bytes], ClassicSubscription | None]

UPGRADE_POLICIES: Final = frozenset({"upgrade", "bidirectional"})
"""Values of group.consumer.migration.policy."""


def upgraded(
    group: ClassicGroup,
    effects: Effects,
    limits: Callable[[], Limits],
    new_id: Callable[[], str],
    topics: Topics,
    now: Now,
) -> ConsumerGroup:
    """The group as one of the consumer protocol, to take the place of ``group``, whose tombstone is not written here.

    Members that have had a generation stay. All that wait are told to join again. Raises UnknownGroupError, and nothing
    has changed, where the configuration, or what members have said, does not let the group change.
    """
    read = cache(read_subscription)  # members of one application say the same
    _check_upgrade(group, limits(), read)
    taken: set[tuple[bytes, int]] = set()
    members = [
        _consumer_member(group, member, topics, taken, read) for member in group.members.values() if not member.is_new
    ]
    group.refuse_waits()
    return ConsumerGroup.upgraded(group.group_id, group.generation, members, effects, limits, new_id, topics, now)


def downgraded(
    group: ConsumerGroup,
    effects: Effects,
    limits: Callable[[], Limits],
    new_id: Callable[[], str],
    topics: Topics,
    now: Now,
) -> ClassicGroup:
    """The group as a classic one, to take the place of ``group``, whose tombstones are not written here.

    All its members, if it has any, use the classic protocol (``may_be_classic``).
    """
    members = [_classic_member(member, topics, now) for member in group.members]
    return ClassicGroup.downgraded(group.group_id, group.group_epoch, members, effects, limits, new_id, now)


def _check_upgrade(group: ClassicGroup, limits: Limits, read: _Read) -> None:
    if group.is_empty:
        return
    reason = None
    if limits.consumer_migration_policy not in UPGRADE_POLICIES:
        reason = f"group.consumer.migration.policy is {limits.consumer_migration_policy}"
    elif group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        reason = f"they are no consumers, but of the type {group.protocol_type!r}"
    elif len(group.members) > limits.consumer_max_size:
        reason = f"they are more than group.consumer.max.size ({limits.consumer_max_size:,})"
    else:
        unread = [
            member.member_id
            for member in group.members.values()
            if read(_metadata(group, member)) is None or assigned_partitions(member.assignment) is None
        ]
        if unread:
            reason = f"what {unread[0]!r} says of itself, or was assigned, is not in Kafka's format"
    if reason is not None:
        raise errors.not_upgraded(group.group_id, reason)


def _metadata(group: ClassicGroup, member: ClassicMember) -> bytes:
    """For the assignor of the generation; for its own first one if the group has none yet."""
    of_generation = member.protocols.get(group.protocol or "")
    return next(iter(member.protocols.values())) if of_generation is None else of_generation


def _consumer_member(
    group: ClassicGroup, member: ClassicMember, topics: Topics, taken: set[tuple[bytes, int]], read: _Read
) -> Member:
    said = read(_metadata(group, member))
    had = assigned_partitions(member.assignment)
    assert said is not None, "this was checked"
    assert had is not None, "this was checked"
    # A cooperative member that joins has kept what it says, whatever the generation under way was to assign to it.
    has = _not_taken([by_id(had, topics), by_id(said.owned, topics)], taken)
    progress = Progress(group.generation, group.generation, MemberState.STABLE, has).following(Progress())
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


def _not_taken(assignments: Iterable[Assignment], taken: set[tuple[bytes, int]]) -> Assignment:
    """All partitions of the assignments but those that are taken; then they are, too."""
    free = {(topic, number) for has in assignments for topic in has for number in has[topic]} - taken
    taken |= free
    by_topic: dict[bytes, set[int]] = {}
    for topic, number in free:
        by_topic.setdefault(topic, set()).add(number)
    return {topic: frozenset(numbers) for topic, numbers in by_topic.items()}


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
        assignment=encode_assignment(by_name(member.progress.assigned, topics)),
    )
