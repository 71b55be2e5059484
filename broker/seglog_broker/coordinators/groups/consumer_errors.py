"""What groups of the consumer protocol refuse: one sentence for each, with whose fault it is and what to do now."""

from collections.abc import Collection, Iterable, Sequence

from seglog_broker.coordinators.groups.consumer_member import Member
from seglog_broker.texts import counted
from seglog_protocol.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceError,
    FencedMemberEpochError,
    GroupMaxSizeError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownGroupError,
    UnknownMemberError,
    UnreleasedInstanceError,
    UnsupportedAssignorError,
)
from seglog_protocol.texts import members_text


def missing(field: str, when: str) -> InvalidRequestError:
    """To a request that lacks something."""
    return InvalidRequestError(f"{field} must be given {when}", field=field)


def empty(field: str) -> InvalidRequestError:
    """To a request with an empty name."""
    return InvalidRequestError(f"{field} must not be empty", field=field)


def owns_while_joining() -> InvalidRequestError:
    """To a member that joins and says that it has partitions."""
    return InvalidRequestError("a member that joins has no partitions: topic_partitions must be []", field="owned")


def not_an_epoch(epoch: int) -> InvalidRequestError:
    """To a member epoch below those with a meaning."""
    return InvalidRequestError(f"{epoch} is not a member epoch: -2 or more", field="member_epoch")


def no_assignor(group: str, name: str, assignors: Sequence[str]) -> UnsupportedAssignorError:
    """To a member that asks for an assignor that there is not."""
    return UnsupportedAssignorError(
        f"there is no assignor {name!r}: group.consumer.assignors has {', '.join(assignors)}", group=group
    )


def no_regular_expression(group: str, regex: str, reason: str) -> InvalidRegularExpressionError:
    """To a member that subscribes by what is not one, or is too much."""
    return InvalidRegularExpressionError(f"the regular expression {regex!r} is not taken: {reason}", group=group)


def group_is_full(group: str, size: int) -> GroupMaxSizeError:
    """To a member too many."""
    return GroupMaxSizeError(
        f"group {group!r} has {counted(size, 'member')}, as many as group.consumer.max.size allows: end one of them"
        " first",
        group=group,
    )


def unknown_member(group: str, member_id: str) -> UnknownMemberError:
    """To whoever is no member."""
    return UnknownMemberError(
        f"group {group!r} has no member {member_id!r}: join anew, with epoch 0", group=group, member_id=member_id
    )


def unknown_instance(group: str, member_id: str, instance_id: str) -> UnknownMemberError:
    """To a static member that is none."""
    return UnknownMemberError(
        f"group {group!r} has no member with group.instance.id {instance_id!r}: join anew, with epoch 0",
        group=group,
        member_id=member_id,
    )


def not_classic(group: str, member_id: str) -> UnknownMemberError:
    """To a request of the classic protocol for a member that uses the other one."""
    return UnknownMemberError(
        f"member {member_id!r} of group {group!r} uses the consumer protocol: join anew with an empty member id",
        group=group,
        member_id=member_id,
    )


def no_consumer_metadata(group: str) -> InconsistentGroupProtocolError:
    """To a consumer of the classic protocol that does not say what it reads."""
    return InconsistentGroupProtocolError(
        f"group {group!r} has members of the consumer protocol: only consumers can join it, with the protocol type"
        " consumer and metadata that names their topics",
        group=group,
    )


def nothing_in_common(group: str, protocols: Iterable[str], others: Iterable[str]) -> InconsistentGroupProtocolError:
    """To a consumer of the classic protocol whose assignors are not those of the other classic members."""
    return InconsistentGroupProtocolError(
        f"the assignors {', '.join(protocols)} are not among those that all classic members of group {group!r} have:"
        f" {', '.join(others)}; give the consumer one of these",
        group=group,
    )


def other_protocol(group: str, member: Member, protocol: str) -> InconsistentGroupProtocolError:
    """To a member of the classic protocol that syncs with another assignor than it was told."""
    return InconsistentGroupProtocolError(
        f"member {member.member_id!r} of group {group!r} was told the protocol type consumer and the assignor"
        f" {protocol}, and came with others: join again",
        group=group,
    )


def rebalance_in_progress(group: str) -> RebalanceInProgressError:
    """To a member of the classic protocol for which there is another assignment."""
    return RebalanceInProgressError(f"group {group!r} rebalances: join again", group=group)


def asked_again(group: str, member_id: str) -> CoordinatorNotAvailableError:
    """To a request that took long, while another one of the same member changed what that has."""
    return CoordinatorNotAvailableError(
        f"member {member_id!r} of group {group!r} has asked again, and only its last request is answered", group=group
    )


def not_upgraded(group: str, reason: str) -> UnknownGroupError:
    """To a consumer of the consumer protocol where the group is to stay a classic one."""
    return UnknownGroupError(
        f"the members of group {group!r} use the classic protocol, and {reason}: start this one with"
        " group.protocol=classic, too, or end the others first",
        group=group,
    )


def _named(member: Member) -> str:
    return members_text([(member.member_id, member.subscription.client_host)])


def fenced_instance(group: str, member_id: str, owner: Member) -> FencedInstanceError:
    """To a consumer whose place another one has taken."""
    return FencedInstanceError(
        f"member {member_id!r} of group {group!r} was replaced by {_named(owner)}, which has group.instance.id"
        f" {owner.instance_id!r} too: end one of them",
        group=group,
        instance_id=owner.instance_id,
    )


def unreleased_instance(group: str, owner: Member) -> UnreleasedInstanceError:
    """To a consumer whose group instance id another one uses."""
    return UnreleasedInstanceError(
        f"member {_named(owner)} of group {group!r} has group.instance.id"
        f" {owner.instance_id!r} and has not left: wait for the end of its session, or give this consumer another one",
        group=group,
        instance_id=owner.instance_id,
    )


def fenced_epoch(group: str, member: Member, epoch: int) -> FencedMemberEpochError:
    """To a member with an epoch that is neither its own nor the one before."""
    return FencedMemberEpochError(
        f"member {member.member_id!r} of group {group!r} has epoch {member.epoch} and came with {epoch}: give up all"
        " partitions and join anew, with epoch 0",
        group=group,
    )


def stale_epoch(group: str, member: Member, epoch: int) -> StaleMemberEpochError:
    """To a commit or look-up with another epoch than the member's."""
    return StaleMemberEpochError(
        f"member {member.member_id!r} of group {group!r} has epoch {member.epoch} and came with {epoch}: try again with"
        " the epoch of its next heartbeat",
        group=group,
    )


def illegal_generation(group: str, member: Member, generation: int) -> IllegalGenerationError:
    """To a member of the classic protocol with another generation than its epoch."""
    return IllegalGenerationError(
        f"member {member.member_id!r} of group {group!r} is of generation {member.epoch} and came with {generation}:"
        " join again",
        group=group,
        generation=member.epoch,
    )


def not_empty(group: str, members: Collection[Member]) -> NonEmptyGroupError:
    """To whoever deletes a group that lives."""
    return NonEmptyGroupError.of(group, [(member.member_id, member.subscription.client_host) for member in members])
