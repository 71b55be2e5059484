"""Members of a group of the consumer protocol that use the classic one: a group changes over one consumer at a time.

The broker assigns to them, too. A heartbeat tells such a member to rejoin when it has partitions to revoke or to get.
It is never the leader. Its generation is its member epoch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from seglog_broker.coordinators.groups import membership
from seglog_broker.coordinators.groups.assigned_group import JOIN, SYNC
from seglog_broker.coordinators.groups.classic_members import protocols_by_name
from seglog_broker.coordinators.groups.consumer_core import ConsumerCore
from seglog_broker.coordinators.groups.consumer_member import ClassicProtocols, Member, MemberState, Subscription
from seglog_broker.coordinators.groups.consumer_protocol import ClassicSubscription, read_subscription, write_assignment
from seglog_broker.coordinators.groups.topics import by_id, by_name
from seglog_broker.coordinators.state_machine import Answer, Now, Outbox
from seglog_protocol import errors
from seglog_protocol.steps import Steps


@dataclass(eq=False, repr=False)
class ClassicMembership:
    """The requests of a ClassicGroup, for the classic members of a group of the consumer protocol."""

    _core: ConsumerCore
    _outbox: Outbox
    _new_id: Callable[[], str]

    def join(self, request: membership.JoinRequest, answer: Answer, now: Now) -> Steps[None]:
        """Add a member, or reconcile one towards its target assignment; ``answer`` gets a JoinResult."""
        try:
            result = yield from self._join(request, now)
        except errors.GroupError as error:
            result = membership.JoinResult(request.member_id, error=error)
        self._core.state.journal.append()
        self._outbox.replies.append((answer, result))

    def sync(self, request: membership.SyncRequest, answer: Answer, now: Now) -> Steps[None]:
        """Answer with the member's current assignment: ``answer`` gets a SyncResult."""
        try:
            result = yield from self._sync(request, now)
        except errors.GroupError as error:
            result = membership.SyncResult(error=error)
        self._outbox.replies.append((answer, result))

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None, now: Now) -> None:
        """Restart a member's session timer. Raises the GroupError that tells it what to do."""
        member = self._find(member_id, generation, instance_id)
        self._core.live_on(member, now)
        self._core.epochs.look()
        self._core.state.journal.append()
        if self._core.is_behind(member):
            raise self._join_again(member, now)

    def leave(self, members: Sequence[membership.LeavingMember], now: Now) -> list[membership.LeaveResult]:
        """End memberships, those of the consumer protocol too, as admins do; one result for each, in order."""
        results = []
        gone: dict[str, None] = {}
        for leaving in members:
            error: errors.GroupError | None = None
            try:
                member = self._find_leaving(leaving)
                if member.member_id in gone:
                    raise self._core.unknown(f"member {member.member_id!r}", member.member_id)
                gone[member.member_id] = None
            except errors.GroupError as refused:
                error = refused
            results.append(membership.LeaveResult(leaving.member_id, leaving.instance_id, error))
        if gone:
            self._core.remove(gone, now)
            self._core.state.journal.append()
        return results

    def _join(self, request: membership.JoinRequest, now: Now) -> Steps[membership.JoinResult]:
        """A JoinGroup of a classic member in a group of the consumer protocol."""
        core, group_id = self._core, self._core.group_id
        request.check(group_id, core.limits())
        protocols = protocols_by_name(request.protocols)
        said = yield from self._read(request.protocol_type, protocols)
        owned = yield from by_id(said.owned, core.topics)
        if core.state.is_deleted:  # the group was downgraded in between
            raise core.unknown(f"member {request.member_id!r}", request.member_id)
        self._check_protocols(request.member_id, protocols)
        if not request.member_id and request.instance_id is None and request.needs_known_member_id:
            core.check_size()
            member_id = request.new_member_id(self._new_id())
            return membership.member_id_required(group_id, member_id)
        member, replaced = self._find_or_make(request)
        subscription = Subscription(
            request.instance_id,
            said.rack_id,
            request.client_id,
            request.client_host,
            said.topics,
            rebalance_timeout_ms=request.join_timeout_ms,
            classic=ClassicProtocols(request.session_timeout_ms, tuple(protocols.items())),
        )
        if replaced is not None:
            core.replace(replaced, member)
        updated = yield from core.settle(member, subscription, False, owned, now)
        core.deadlines.discard(JOIN + updated.member_id)
        core.deadlines.set(SYNC + updated.member_id, now.monotonic_ms + subscription.rebalance_timeout_ms)
        return membership.JoinResult(
            updated.member_id, updated.epoch, membership.CONSUMER_PROTOCOL_TYPE, next(iter(protocols))
        )

    def _find_or_make(self, request: membership.JoinRequest) -> tuple[Member, Member | None]:
        """The member as it is, or a new one; and the static member whose place it takes."""
        core, member_id, instance_id = self._core, request.member_id, request.instance_id
        if member_id and instance_id is not None:
            return self._check_classic(core.find_static(member_id, instance_id)), None
        if member_id in core.state.members:
            return self._check_classic(core.state.members[member_id]), None
        return core.make_or_replace(member_id or request.new_member_id(self._new_id()), instance_id)

    def _read(self, protocol_type: str, protocols: Mapping[str, bytes]) -> Steps[ClassicSubscription]:
        """The consumer's subscription, which is the same for each assignor but for its user data."""
        said = None
        if protocols and protocol_type == membership.CONSUMER_PROTOCOL_TYPE:
            said = yield from read_subscription(next(iter(protocols.values())))
        if said is None:
            raise errors.InconsistentGroupProtocolError(
                f"group {self._core.group_id!r} has members of the consumer protocol: only consumers can join it, with"
                " the protocol type consumer and metadata that names their topics",
                group=self._core.group_id,
            )
        return said

    def _check_protocols(self, member_id: str, protocols: Mapping[str, bytes]) -> None:
        """Raise InconsistentGroupProtocolError for a member that shares no assignor with the other classic members."""
        shared: set[str] | None = None
        for member in self._core.state.members.values():
            if member.classic is not None and member.member_id != member_id:
                names = {name for name, _ in member.classic.protocols}
                shared = names if shared is None else shared & names
        if shared is not None and shared.isdisjoint(protocols):
            raise errors.InconsistentGroupProtocolError(
                f"the assignors {', '.join(protocols)} are not among those that all classic members of group"
                f" {self._core.group_id!r} have: {', '.join(sorted(shared))}; give the consumer one of these",
                group=self._core.group_id,
            )

    def _sync(self, request: membership.SyncRequest, now: Now) -> Steps[membership.SyncResult]:
        core = self._core
        member = self._find(request.member_id, request.generation, request.instance_id)
        assert member.classic is not None
        protocol = member.classic.first
        if request.protocol_type not in (None, membership.CONSUMER_PROTOCOL_TYPE) or request.protocol not in (
            None,
            protocol,
        ):
            raise errors.InconsistentGroupProtocolError(
                f"member {member.member_id!r} of group {core.group_id!r} was told the protocol type consumer and the"
                f" assignor {protocol}, and came with others: join again",
                group=core.group_id,
            )
        # A member that has partitions to revoke learns here which it keeps, and rejoins when it has revoked the others.
        if core.state.group_epoch > member.epoch and member.progress.state is not MemberState.UNREVOKED_PARTITIONS:
            raise self._join_again(member, now)
        core.deadlines.discard(SYNC + member.member_id)
        core.live_on(member, now)
        assignment = yield from write_assignment(by_name(member.progress.assigned, core.topics))
        return membership.SyncResult(assignment, membership.CONSUMER_PROTOCOL_TYPE, protocol)

    def _join_again(self, member: Member, now: Now) -> errors.GroupError:
        """Tells a member to rejoin, for which it has its rebalance timeout from the first time on."""
        key = JOIN + member.member_id
        if key not in self._core.deadlines:
            self._core.deadlines.set(key, now.monotonic_ms + member.subscription.rebalance_timeout_ms)
        group_id = self._core.group_id
        return errors.RebalanceInProgressError(f"group {group_id!r} rebalances: join again", group=group_id)

    def _find(self, member_id: str, generation: int, instance_id: str | None) -> Member:
        """A classic member. Raises UnknownMemberError, FencedInstanceError, or IllegalGenerationError."""
        core = self._core
        member = core.find(member_id) if instance_id is None else core.find_static(member_id, instance_id)
        self._check_classic(member)
        if generation != member.epoch:
            raise core.illegal_generation(member, generation)
        return member

    def _find_leaving(self, leaving: membership.LeavingMember) -> Member:
        core, instance_id = self._core, leaving.instance_id
        if instance_id is None:
            return core.find(leaving.member_id)
        owner = core.state.static_member(instance_id)
        if not leaving.member_id and owner is not None:
            return owner
        return core.find_static(leaving.member_id, instance_id)

    def _check_classic(self, member: Member) -> Member:
        if member.classic is None:
            raise errors.UnknownMemberError(
                f"member {member.member_id!r} of group {self._core.group_id!r} uses the consumer protocol: rejoin with"
                " an empty member id",
                group=self._core.group_id,
                member_id=member.member_id,
            )
        return member
