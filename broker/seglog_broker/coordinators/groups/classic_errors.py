"""What classic groups refuse: one sentence for each, with whose fault it is and what to do now."""

from collections.abc import Collection, Iterable

from seglog_broker.coordinators.groups.classic_members import ClassicMember
from seglog_broker.coordinators.groups.membership import Limits
from seglog_broker.texts import counted
from seglog_protocol.errors import (
    FencedInstanceError,
    GroupMaxSizeError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from seglog_protocol.texts import members_text


def named(members: Collection[ClassicMember]) -> str:
    """Up to five members with their hosts, and how many there are beside."""
    return members_text([(member.member_id, member.client_host) for member in members]) or "none yet"


def member_id_required(group: str, member_id: str) -> MemberIdRequiredError:
    """To a new consumer, with the id to use."""
    return MemberIdRequiredError(
        f"group {group!r} has an id for the new member: join again with {member_id!r}", group=group, member_id=member_id
    )


def invalid_session_timeout(group: str, timeout_ms: int, limits: Limits) -> InvalidSessionTimeoutError:
    """To a consumer that the configuration refuses."""
    minimum, maximum = limits.min_session_timeout_ms, limits.max_session_timeout_ms
    return InvalidSessionTimeoutError(
        f"the session timeout of {timeout_ms:,} ms is not between group.min.session.timeout.ms ({minimum:,}) and"
        f" group.max.session.timeout.ms ({maximum:,}): give the consumer another one",
        group=group,
        minimum=minimum,
        maximum=maximum,
    )


def pending_member_is_static(group: str, member_id: str) -> UnknownMemberError:
    """To a consumer that was given its id as a dynamic member and now names an instance."""
    return UnknownMemberError(
        f"group {group!r} gave the id {member_id!r} to a member without an instance id: join anew with an empty"
        " member id",
        group=group,
        member_id=member_id,
    )


def group_is_full(group: str, size: int) -> GroupMaxSizeError:
    """To a member too many."""
    return GroupMaxSizeError(
        f"group {group!r} has {counted(size, 'member')}, as many as group.max.size allows: end one of them first",
        group=group,
    )


def no_protocols(group: str) -> InconsistentGroupProtocolError:
    """To a member that names no protocol type or no protocols."""
    return InconsistentGroupProtocolError(
        f"a member of group {group!r} has to name a protocol type and at least one protocol", group=group
    )


def inconsistent_protocols(
    group: str, protocol_type: str, protocols: Iterable[str], of_group: str, members: Collection[ClassicMember]
) -> InconsistentGroupProtocolError:
    """To a member that has nothing in common with the others."""
    if protocol_type != of_group:
        problem = f"is of the protocol type {of_group!r}, not {protocol_type!r}: use another group"
    else:
        problem = f"has members that support none of {', '.join(protocols)}: give all of them a common assignor"
    return InconsistentGroupProtocolError(f"group {group!r} {problem}; members: {named(members)}", group=group)


def other_protocol(
    group: str, protocol_type: str | None, protocol: str | None, type_of_group: str, of_group: str | None
) -> InconsistentGroupProtocolError:
    """To a member that syncs for a protocol which is not its generation's."""
    return InconsistentGroupProtocolError(
        f"this generation of group {group!r} has the protocol {of_group!r} of type {type_of_group!r}, not"
        f" {protocol!r} of type {protocol_type!r}: join again",
        group=group,
    )


def rebalance_in_progress(group: str) -> RebalanceInProgressError:
    """To a member of the generation that ends."""
    return RebalanceInProgressError(f"group {group!r} makes a new generation: join it", group=group)


def asked_again(group: str, member_id: str) -> RebalanceInProgressError:
    """To a request that waits while the same member sends another one."""
    return RebalanceInProgressError(
        f"member {member_id!r} of group {group!r} has asked again, and only its last request waits", group=group
    )


def illegal_generation(group: str, member_id: str, generation: int, of_group: int) -> IllegalGenerationError:
    """To a member of a generation that has ended."""
    return IllegalGenerationError(
        f"group {group!r} is at generation {of_group}, member {member_id!r} at {generation}: join again",
        group=group,
        generation=of_group,
    )


def fenced(group: str, member_id: str, instance_id: str) -> FencedInstanceError:
    """To the consumer whose place another one takes."""
    return FencedInstanceError(
        f"another consumer has joined group {group!r} as instance {instance_id!r} and took the place of member"
        f" {member_id!r}: give each running consumer an instance id of its own",
        group=group,
        instance_id=instance_id,
    )


def unknown_instance(group: str, member_id: str, instance_id: str) -> UnknownMemberError:
    """To whoever names an instance that is no member."""
    return UnknownMemberError(
        f"group {group!r} has no member with the instance id {instance_id!r}: it was removed, or never joined; join"
        " anew with an empty member id",
        group=group,
        member_id=member_id,
    )


def unknown_member(group: str, member_id: str) -> UnknownMemberError:
    """To whoever is no member."""
    return UnknownMemberError(
        f"group {group!r} has no member {member_id!r}: it left, its session timed out, or the group went on without"
        " it; join anew with an empty member id",
        group=group,
        member_id=member_id,
    )


def commit_beside_members(group: str, members: Collection[ClassicMember]) -> UnknownMemberError:
    """To whoever commits without being a member while there are some."""
    return UnknownMemberError(
        f"group {group!r} has live members, and only they may commit: stop them first; members: {named(members)}",
        group=group,
    )


def not_empty(group: str, members: Collection[ClassicMember]) -> NonEmptyGroupError:
    """To whoever wants to delete a group that has members."""
    return NonEmptyGroupError.of(group, [(member.member_id, member.client_host) for member in members])


def did_not_join(group: str, member_id: str) -> UnknownMemberError:
    """To a member that a rebalance went on without."""
    return UnknownMemberError(
        f"member {member_id!r} of group {group!r} did not join within the rebalance timeout: join anew with an empty"
        " member id",
        group=group,
        member_id=member_id,
    )


def did_not_sync(group: str, member_id: str) -> UnknownMemberError:
    """To a member that joined a generation and did not ask for its assignment."""
    return UnknownMemberError(
        f"member {member_id!r} of group {group!r} did not sync within the rebalance timeout: join anew with an empty"
        " member id",
        group=group,
        member_id=member_id,
    )


def session_timed_out(group: str, member_id: str) -> UnknownMemberError:
    """To a member that has not been heard of for too long."""
    return UnknownMemberError(
        f"the session of member {member_id!r} of group {group!r} timed out: join anew with an empty member id",
        group=group,
        member_id=member_id,
    )


def left(group: str, member_id: str) -> UnknownMemberError:
    """To a request that waits while its member leaves."""
    return UnknownMemberError(
        f"member {member_id!r} has left group {group!r}: join anew with an empty member id",
        group=group,
        member_id=member_id,
    )
