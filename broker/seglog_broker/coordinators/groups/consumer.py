"""A group of the consumer protocol (KIP-848): the broker assigns partitions, members follow with their heartbeats.

Whenever members, their subscriptions or topics change the group epoch grows, and the next heartbeat makes the target
assignment of that epoch. Each member is reconciled towards it by itself: it gets partitions to revoke, reports that
it has, and only then others get them. A member epoch is that of the target assignment which the member has reached.
"""

from collections.abc import Callable, Iterable
from typing import Final

from seglog_broker.coordinators.groups import consumer_member, membership
from seglog_broker.coordinators.groups.assigned_group import REVOCATION, AssignedGroup, GroupState
from seglog_broker.coordinators.groups.assignors import NOTHING
from seglog_broker.coordinators.groups.consumer_classic import ClassicMembership
from seglog_broker.coordinators.groups.consumer_core import ConsumerCore
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, HeartbeatResult, check_heartbeat
from seglog_broker.coordinators.groups.topics import Topics
from seglog_broker.coordinators.state_machine import Now, Outbox
from seglog_protocol.errors import GroupError, StaleMemberEpochError
from seglog_protocol.steps import Steps, finished, no_steps

DOWNGRADE_POLICIES: Final = frozenset({"downgrade", "bidirectional"})
"""Values of group.consumer.migration.policy."""


class ConsumerGroup(AssignedGroup):
    """A group of the consumer protocol.

    - The answer to a request is true when all records that the group appended before, or with it, are durable.
    - Among the replies in ``outbox`` are the group's own, by which it learns which records are durable.
    - What may take long is done in steps, between which other requests of the group may come.
    - Where records could not be written, ``write_failed`` is called, and requests until then are answered with errors.
      What the group has decided stays, and is written again with what it decides next.
    - A session ends when ``advance`` comes after its deadline. A heartbeat that comes before ``advance`` is in time.
    - A group of which ``is_unused`` is true after a request was refused may be forgotten.
    """

    kind = "consumer"
    protocol_type: Final = membership.CONSUMER_PROTOCOL_TYPE
    expires: Final = True
    """Without members and committed offsets it is forgotten."""
    share: Final = None
    _core: ConsumerCore

    def __init__(
        self,
        group_id: str,
        outbox: Outbox,
        limits: Callable[[], membership.Limits],
        new_id: Callable[[], str],
        topics: Topics,
    ) -> None:
        super().__init__(outbox, ConsumerCore(group_id, outbox, limits, topics))
        self._new_id = new_id
        self.regexes = self._core.regexes
        """The regular expressions of its members."""
        self.classic = ClassicMembership(self._core, outbox, new_id)
        """For members that use the classic protocol."""

    @property
    def consumer(self) -> "ConsumerGroup":
        """For members of the consumer protocol."""
        return self

    @property
    def takes_classic(self) -> bool:
        """True if members of the classic protocol may join it as it is. Without members it becomes a classic one."""
        return not self.is_empty

    def upgraded(self, _upgrade: object) -> Steps[None]:
        """Nothing: it is upgraded."""
        return no_steps()

    def upgrade(self, members: Iterable[consumer_member.Member], generation: int, now: Now) -> None:
        """Take the place of a classic group; its members stay, and have to rejoin. ``begin`` decides the records."""
        self._core.adopt(members, generation, now)

    def begin(self) -> None:
        """Append the records of a group that takes the place of a classic one."""
        self._state.journal.append()

    # --- What it is ---------------------------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        """Kafka's word for its state."""
        state = self._state
        if not state.members:
            return GroupState.EMPTY
        if state.group_epoch > state.assignment_epoch:
            return GroupState.ASSIGNING
        if all(member.is_at(state.assignment_epoch) for member in state.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def may_be_classic(self) -> bool:
        """True if there are members, all use the classic protocol, and the configuration allows a downgrade."""
        count, limits = self._state.classic_count, self._core.limits()
        return (
            0 < count == len(self._state.members) <= limits.max_size
            and limits.consumer_migration_policy in DOWNGRADE_POLICIES
        )

    def describe(self, now: Now) -> ConsumerGroupDescription:
        """A description for admins."""
        state = self._state
        epoch = state.group_epoch if self.is_empty else state.assignment_epoch
        return self._described(self.state, epoch, self._core.preferred_assignor(), state.targets, now)

    # --- Requests of members ------------------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat, now: Now) -> Steps[HeartbeatResult]:
        """A member's heartbeat, by which it also joins, leaves and subscribes; the result may carry its assignment.

        Raises the GroupError that tells it what to do, or InvalidRequestError.
        """
        check_heartbeat(self.key, request, self._core.limits())
        if request.member_epoch in {consumer_member.LEFT_EPOCH, consumer_member.AWAY_EPOCH}:
            result = self._leave(request, now)
        else:
            result = yield from self._live(request, now)
        self._state.journal.append()
        return result

    def _live(self, request: ConsumerHeartbeat, now: Now) -> Steps[HeartbeatResult]:
        member, replaced = self._find_or_make(request)
        subscription = _updated(member.subscription, request)
        topics_differ = self.regexes.take_new(subscription.regex, request.matching, now)
        if replaced is not None:
            self._core.replace(replaced, member)
        updated = yield from self._core.settle(member, subscription, topics_differ, request.owned, now)
        is_told = request.is_full or updated.progress.assigned != member.progress.assigned
        return HeartbeatResult(
            updated.member_id,
            updated.epoch,
            self._core.limits().consumer_heartbeat_interval_ms,
            updated.progress.assigned if is_told else None,
        )

    def _find_or_make(self, request: ConsumerHeartbeat) -> tuple[consumer_member.Member, consumer_member.Member | None]:
        """The member as it is, or a new one; and the static member whose place it takes."""
        joins, instance_id = request.member_epoch == consumer_member.JOINING_EPOCH, request.instance_id
        if instance_id is not None and not joins:
            member: consumer_member.Member | None = self._core.find_static(request.member_id, instance_id)
        else:
            member = self._state.members.get(request.member_id)
        if member is None or (joins and self._state.static_member(instance_id) is not None):
            if not joins:
                raise self._core.unknown(f"member {request.member_id!r}", request.member_id)
            return self._core.make_or_replace(request.member_id or self._new_id(), instance_id)
        if not joins:
            self._check_epoch(member, request)
        return member, None

    def _check_epoch(self, member: consumer_member.Member, request: ConsumerHeartbeat) -> None:
        """Raise FencedMemberEpochError, except to a member that did not get the answer with its epoch."""
        progress, epoch = member.progress, request.member_epoch
        if epoch == progress.epoch:
            fenced = progress.state is consumer_member.MemberState.UNKNOWN and request.owned != NOTHING
        else:
            lost_answer = epoch == progress.previous_epoch < progress.epoch
            fenced = not lost_answer or not consumer_member.has_only(request.owned, progress.assigned)
        if fenced:
            raise self._core.fenced(member, epoch)

    def _leave(self, request: ConsumerHeartbeat, now: Now) -> HeartbeatResult:
        if request.instance_id is None:
            member = self._core.find(request.member_id)
        else:
            member = self._core.find_static(request.member_id, request.instance_id)
        if request.member_epoch == consumer_member.AWAY_EPOCH:
            self._core.deadlines.discard(REVOCATION + member.member_id)
            away = member.progress._replace(epoch=consumer_member.AWAY_EPOCH, revoking=NOTHING)
            progress = finished(away.following(member.progress))
            self._state.put_member(member._replace(progress=progress))
        else:
            self._core.remove([member.member_id], now)
        return HeartbeatResult(member.member_id, request.member_epoch)

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        instance_id: str | None,
        now: Now,  # noqa: ARG002 - no heartbeat, other than in classic groups
        *,
        in_transaction: bool = False,
    ) -> membership.CommitCheck | None:
        """Raise the GroupError for a commit of no member, or with an epoch that is not there yet.

        A member that does not know its epoch yet may commit for the partitions that it has owned since the epoch in its
        request (KIP-1251): the result decides that; None: all of them. A client that is no member (``epoch`` below 0)
        may commit while the group is empty; in a transaction always, for old producers do not say whose offsets they
        commit.
        """
        if epoch < 0 and (self.is_empty or (in_transaction and not member_id and instance_id is None)):
            return None
        member = self._core.find(member_id)
        if epoch == member.epoch:
            return None
        if epoch > member.epoch:
            raise self._other_epoch(member, epoch)
        since = member.progress.since

        def check(topic_id: bytes, partition: int) -> None:
            if since.get((topic_id, partition), member.epoch) > epoch:
                raise self._other_epoch(member, epoch)

        return check

    def check_fetch(self, member_id: str, epoch: int, instance_id: str | None) -> None:  # noqa: ARG002 - as above
        """Raise the GroupError for a member that looks up offsets and is not of this epoch."""
        if epoch >= 0 or member_id:
            member = self._core.find(member_id)
            if epoch != member.epoch:
                raise self._other_epoch(member, epoch)

    def _other_epoch(self, member: consumer_member.Member, epoch: int) -> GroupError:
        """The error for a member that sends another epoch than its own."""
        if member.classic is not None:
            return self._core.illegal_generation(member, epoch)
        return StaleMemberEpochError(
            f"member {member.member_id!r} of group {self.key!r} has epoch {member.epoch} and came with {epoch}: try"
            " again with the epoch of its next heartbeat",
            group=self.key,
        )

    def restored(self, now: Now) -> None:
        """Go on from the records that were replayed. Sessions of members begin now."""
        self._state.replayed()
        self._core.regexes.restored()
        super().restored(now)
        for member in self.members:
            self._core.await_revocation(member, now)


def _updated(subscription: consumer_member.Subscription, request: ConsumerHeartbeat) -> consumer_member.Subscription:
    """A member's subscription with the changes of a request."""
    said, before = request, subscription
    return consumer_member.Subscription(
        before.instance_id if said.instance_id is None else said.instance_id,
        before.rack_id if said.rack_id is None else said.rack_id,
        said.client_id,
        said.client_host,
        before.topics if said.topics is None else frozenset(said.topics),
        before.regex if said.regex is None else said.regex,
        before.rebalance_timeout_ms if said.rebalance_timeout_ms < 0 else said.rebalance_timeout_ms,
        before.assignor if said.assignor is None else said.assignor,
    )
