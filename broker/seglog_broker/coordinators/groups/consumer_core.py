"""The core of a group of the consumer protocol: members of either protocol, target assignment, reconciliation."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from seglog_broker.coordinators.groups.assigned_group import REVOCATION, GroupCore
from seglog_broker.coordinators.groups.assignors import ASSIGNORS, NOTHING, Assignment
from seglog_broker.coordinators.groups.consumer_member import (
    AWAY_EPOCH,
    JOINING_EPOCH,
    Member,
    MemberState,
    Progress,
    Reconciliation,
    Subscription,
)
from seglog_broker.coordinators.groups.consumer_state import ConsumerState
from seglog_broker.coordinators.groups.membership import Limits
from seglog_broker.coordinators.groups.topics import TopicRegexes, Topics
from seglog_broker.coordinators.state_machine import Now, Outbox
from seglog_protocol import errors
from seglog_protocol.steps import ITEMS_A_STEP, Steps
from seglog_protocol.texts import members_text


class ConsumerCore(GroupCore):
    """The members of a group of the consumer protocol, and their reconciliation towards the target assignment."""

    def __init__(self, group_id: str, outbox: Outbox, limits: Callable[[], Limits], topics: Topics) -> None:
        super().__init__(
            ConsumerState(group_id, outbox),
            topics,
            lambda *asked: ASSIGNORS[self.preferred_assignor()](*asked),  # noqa: PLW0108 - another one later
        )
        self.limits: Final = limits
        self.regexes: Final = TopicRegexes(self.state)

    # --- Members ------------------------------------------------------------------------------------------------------

    def illegal_generation(self, member: Member, generation: int) -> errors.IllegalGenerationError:
        """The error for a member of the classic protocol with another generation than its epoch."""
        return errors.IllegalGenerationError(
            f"member {member.member_id!r} of group {self.group_id!r} is of generation {member.epoch} and came with"
            f" {generation}: join again",
            group=self.group_id,
            generation=member.epoch,
        )

    def find_static(self, member_id: str, instance_id: str) -> Member:
        """A static member. Raises UnknownMemberError, or FencedInstanceError if another took its place."""
        owner = self.state.static_member(instance_id)
        if owner is None:
            raise self.unknown(f"member with group.instance.id {instance_id!r}", member_id)
        if owner.member_id != member_id:
            raise errors.FencedInstanceError(
                f"member {member_id!r} of group {self.group_id!r} was replaced by {_named(owner)}, which has"
                f" group.instance.id {instance_id!r} too: end one of them",
                group=self.group_id,
                instance_id=instance_id,
            )
        return owner

    def make_or_replace(self, member_id: str, instance_id: str | None) -> tuple[Member, Member | None]:
        """A new member, and the static one that it replaces. Raises UnreleasedInstanceError, GroupMaxSizeError."""
        owner = self.state.static_member(instance_id)
        if owner is None:
            self.check_size()
            return Member(member_id), None
        if owner.classic is None and owner.epoch != AWAY_EPOCH:
            raise errors.UnreleasedInstanceError(
                f"member {_named(owner)} of group {self.group_id!r} has group.instance.id {instance_id!r} and has not"
                " left: wait for the end of its session, or give this consumer another one",
                group=self.group_id,
                instance_id=instance_id,
            )
        progress = owner.progress._replace(epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)
        return Member(member_id, owner.subscription, progress), owner

    def check_size(self) -> None:
        """Raise GroupMaxSizeError if there is no room for a member more."""
        self.check_room("group.consumer.max.size", self.limits().consumer_max_size)

    def replace(self, old: Member, new: Member) -> None:
        """Replace a static member; ``new`` gets its target assignment."""
        target = self.state.targets.get(old.member_id, NOTHING)
        self.epochs.restart()  # the computation knows the old one
        self.forget(old.member_id)
        self.state.put_member(new)
        self.state.set_target(new.member_id, target)

    def adopt(self, members: Iterable[Member], epoch: int, now: Now) -> None:
        """Take over members; their current assignment is also their target assignment, of ``epoch``."""
        for member in members:
            self.state.put_member(member)
            self.state.set_target(member.member_id, member.progress.assigned)
            self.live_on(member, now)
        self.state.set_group_epoch(epoch, 0)  # the next look at the topics begins another
        self.state.set_assignment_epoch(epoch, now.wall_ms)
        self.empty_since_ms = now.wall_ms

    def remove(self, member_ids: Collection[str], now: Now) -> None:
        """Remove members."""
        regexes = {self.state.members[member_id].subscription.regex for member_id in member_ids}
        super().remove(member_ids, now)
        self.regexes.drop_unused(regexes)

    def session_timeout_ms(self, member: Member) -> int:
        """The group's, or that of a member of the classic protocol, which has its own."""
        classic = member.classic
        return self.limits().consumer_session_timeout_ms if classic is None else classic.session_timeout_ms

    # --- Assigning ----------------------------------------------------------------------------------------------------

    def settle(
        self, member: Member, subscription: Subscription, topics_differ: bool, owned: Assignment | None, now: Now
    ) -> Steps[Member]:
        """Subscribe ``member``, make a target assignment if one is due, and reconcile the member towards it.

        ``topics_differ`` if the group reads other topics for another reason; ``owned``: as in Reconciliation. Raises
        UnknownMemberError, and CoordinatorNotAvailableError to one of two requests that came at the same time.
        """
        state, before = self.state, member.subscription
        subscription = subscription._replace(topics=state.name_sets.shared(subscription.topics))
        updated = member._replace(subscription=subscription)
        changed = subscription.topics != before.topics or subscription.regex != before.regex
        assignor = None if subscription.assignor == before.assignor else self.preferred_assignor()
        state.put_member(updated)
        reassigns = assignor is not None and self.preferred_assignor() != assignor
        self.live_on(updated, now)
        if subscription.regex != before.regex:
            self.regexes.drop_unused([before.regex])
        topics_differ |= self.regexes.refresh(now)
        if changed or topics_differ or reassigns or state.group_epoch == 0:
            self.epochs.begin()
        yield from self.epochs.settled(now)
        updated = self._unchanged(updated)
        if changed or not updated.is_at(state.assignment_epoch):
            updated = yield from self._reconcile(updated, changed, owned, now)
        return updated

    def _unchanged(self, member: Member) -> Member:
        """A member after other tasks ran. Raises as ``settle`` if it has other partitions by now."""
        found = self.find(member.member_id)
        if found.progress is not member.progress:
            raise errors.CoordinatorNotAvailableError(
                f"member {member.member_id!r} of group {self.group_id!r} has asked again, and only its last request is"
                " answered",
                group=self.group_id,
            )
        return found

    def preferred_assignor(self) -> str:
        """The one that most members ask for; the first of the configuration if none does."""
        votes = Counter(member.subscription.assignor for member in self.state.members.values())
        asked = [(-count, name) for name, count in votes.items() if name is not None and name in ASSIGNORS]
        return min(asked)[1] if asked else self.limits().consumer_assignors[0]

    def await_revocation(self, member: Member, now: Now) -> None:
        """Start the rebalance timer of a member of the consumer protocol that has partitions to revoke."""
        key = REVOCATION + member.member_id
        if member.classic is None and member.progress.state is MemberState.UNREVOKED_PARTITIONS:
            self.deadlines.set(key, now.monotonic_ms + member.subscription.rebalance_timeout_ms)
        else:
            self.deadlines.discard(key)

    def is_behind(self, member: Member) -> bool:
        """True if a member of the classic protocol has to rejoin, to revoke partitions or to get its own."""
        if member.epoch < self.state.group_epoch:
            return True
        match member.progress.state:
            case MemberState.UNREVOKED_PARTITIONS:
                return True
            case MemberState.UNRELEASED_PARTITIONS:
                has = member.progress.assigned
                return all(
                    self.state.owner(topic, number) is None
                    for topic, numbers in self.state.targets.get(member.member_id, NOTHING).items()
                    for number in numbers - has.get(topic, frozenset())
                )
        return False

    def _reconcile(
        self, member: Member, subscription_changed: bool, owned: Assignment | None, now: Now
    ) -> Steps[Member]:
        state = self.state
        while True:
            moves = state.moves
            progress = yield from self._next_progress(member, subscription_changed, owned)
            member = self._unchanged(member)
            if moves == state.moves:
                break  # else another member may have got what this one was to get
        if progress == member.progress:
            return member
        updated = member._replace(progress=progress)
        state.put_member(updated)
        self.await_revocation(updated, now)
        if len(progress.since) > ITEMS_A_STEP:
            yield  # before records are made
        return updated

    def _next_progress(self, member: Member, subscription_changed: bool, owned: Assignment | None) -> Steps[Progress]:
        state, names = self.state, self.state.topics_of(member)
        return Reconciliation(
            state.assignment_epoch,
            state.targets.get(member.member_id, NOTHING),
            lambda topic: self.topics.name(topic) in names,
            subscription_changed,
            owned,
            lambda topic, partition: state.owner(topic, partition) not in {None, member.member_id},
        ).next(member.progress)


def _named(member: Member) -> str:
    return members_text([(member.member_id, member.subscription.client_host)])
