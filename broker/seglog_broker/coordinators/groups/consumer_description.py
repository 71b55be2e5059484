"""Groups to which the broker assigns partitions, as admins see them."""

from collections.abc import Sequence
from typing import NamedTuple

from seglog_broker.coordinators.groups import membership
from seglog_broker.coordinators.groups.assignors import Assignment, merged
from seglog_broker.coordinators.groups.consumer_member import Member
from seglog_broker.coordinators.groups.consumer_protocol import encode_assignment, encode_subscription
from seglog_broker.coordinators.groups.topics import Topics


class PartitionsOfTopic(NamedTuple):
    """Some partitions of a topic, ascending."""

    topic_id: bytes
    topic: str
    partitions: Sequence[int]


class ConsumerMemberDescription(NamedTuple):
    """A member. Topics that are gone do not stand in its assignments.

    Partitions that it must revoke are among ``assigned`` until it reports that it has.
    """

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: Sequence[str]
    regex: str
    """Empty: none."""
    assigned: Sequence[PartitionsOfTopic]
    target: Sequence[PartitionsOfTopic]
    is_classic: bool
    """True if it uses the classic protocol."""
    session_timeout_ms: int
    quiet_ms: int
    """Since its last heartbeat, or request in place of one."""


class ConsumerGroupDescription(NamedTuple):
    """A group; states are Kafka's Empty, Assigning, Reconciling, Stable."""

    group: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: Sequence[ConsumerMemberDescription]


def describe_member(
    member: Member, target: Assignment, topics: Topics, session_timeout_ms: int, quiet_ms: int
) -> ConsumerMemberDescription:
    """A member of a group, with its target assignment."""
    said = member.subscription
    return ConsumerMemberDescription(
        member.member_id,
        said.instance_id,
        said.rack_id,
        member.epoch,
        said.client_id,
        said.client_host,
        sorted(said.topics),
        said.regex,
        _with_names(merged(member.progress.assigned, member.progress.revoking), topics),
        _with_names(target, topics),
        said.classic is not None,
        session_timeout_ms,
        max(0, quiet_ms),
    )


def _with_names(assignment: Assignment, topics: Topics) -> list[PartitionsOfTopic]:
    named = ((topic, topics.name(topic), numbers) for topic, numbers in assignment.items())
    found = [PartitionsOfTopic(topic, name, sorted(numbers)) for topic, name, numbers in named if name is not None]
    return sorted(found, key=lambda partitions: partitions.topic)


def as_classic(group: ConsumerGroupDescription, kind: str) -> membership.GroupDescription:
    """The group described as a classic one: subscriptions and assignments as classic members encode them."""
    return membership.GroupDescription(
        group.group,
        kind,
        group.state,
        group.group_epoch,
        kind,
        group.assignor,
        "",
        membership.Each(range(len(group.members)), lambda number: _as_classic_member(group.members[number])),
    )


def _as_classic_member(member: ConsumerMemberDescription) -> membership.MemberDescription:
    return membership.MemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        encode_subscription(member.topics),
        encode_assignment((assigned.topic, assigned.partitions) for assigned in member.assigned),
        member.session_timeout_ms,
        member.quiet_ms,
    )
