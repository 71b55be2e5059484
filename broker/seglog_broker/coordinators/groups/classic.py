"""A group of Kafka's classic protocol: its members join, one of them leads and assigns, all sync, then heartbeat.

Rules and names are those of Kafka's group coordinator.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from seglog_broker.coordinators.groups.classic_members import ClassicMember, protocols_by_name, tombstone
from seglog_broker.coordinators.groups.classic_phases import ClassicPhases, ClassicState
from seglog_broker.coordinators.groups.membership import (
    CommitCheck,
    Each,
    GroupDescription,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    Limits,
    MemberDescription,
    SyncRequest,
    SyncResult,
    member_id_required,
)
from seglog_broker.coordinators.state_machine import Answer, Now, Outbox
from seglog_broker.texts import counted
from seglog_protocol import errors
from seglog_protocol.steps import Steps, no_steps

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""Time that a new member may wait for its first generation. It sends no heartbeats yet, so nothing else ends it."""


class ClassicGroup(ClassicPhases):
    """A classic group.

    - Every ``answer`` that is given to ``join`` or ``sync`` stands exactly once in ``outbox.replies``, now or later.
    - Replies are true as soon as all records that came before them are durable, or with them: they are to be sent
      in order. A generation is written when it is handed out, so it never goes back, even if the broker stops before
      the leader has assigned; that record has no members, so they rejoin after a restart.
    - Where records could not be written, their replies and those after them are answered with errors by the
      coordinator, and ``write_failed`` is called.
    - A session ends when ``advance`` comes after its deadline. A heartbeat that comes before ``advance`` is in time.
    """

    kind: Final = "classic"
    takes_classic: Final = True
    """True if members of the classic protocol may join it as it is."""
    consumer: Final = None
    """For members of the consumer protocol, once it is upgraded."""
    share: Final = None
    expires: Final = True

    def __init__(self, group_id: str, outbox: Outbox, limits: Callable[[], Limits], new_id: Callable[[], str]) -> None:
        super().__init__(group_id, outbox, limits)
        self._new_id = new_id

    @property
    def classic(self) -> "ClassicGroup":
        """For members that use the classic protocol."""
        return self

    def upgraded(self, upgrade: Callable[["ClassicGroup"], Steps[None]]) -> Steps[None]:
        """Have ``upgrade`` put a group that takes members of the consumer protocol in its place."""
        return upgrade(self)

    # --- What it is ---------------------------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, ClassicMember]:
        """Its members by their ids, to be read only."""
        return self._members.by_id

    @property
    def is_empty(self) -> bool:
        """True if it has no members, and no rebalance under way."""
        return self.state is ClassicState.EMPTY

    @property
    def is_unused(self) -> bool:
        """True if it never had a generation, and no member wants to join it."""
        return self.is_empty and self.generation == 0

    @property
    def empty_since_ms(self) -> int | None:
        """Wall time (ms) at which it became empty; None while it has members, or if that is not known."""
        return self.state_since_ms if self.is_empty and self.state_since_ms >= 0 else None

    def size_of(self, member_id: str) -> int | None:
        """Bytes that a member takes of the budget for members; None if it is not in the group."""
        member = self._members.by_id.get(member_id)
        return None if member is None else member.size

    def end_join(self, answer: Answer, now: Now) -> None:
        """A join that waits has lost its connection: where no generation was ever handed out, the member goes, too."""
        if self.generation == 0:
            for member in [member for member in self._members if member.join_answer is answer]:
                self.remove(member, self.left(member.member_id))
                self.rebalance_or_complete(now)
            self.end_if_unused()

    def described_as_classic(self, now: Now) -> GroupDescription:
        """For admins. As in Kafka, the protocol and the members' metadata stand in it while it is Stable."""
        protocol = (self.protocol or "") if self.state is ClassicState.STABLE else ""
        return GroupDescription(
            self.key,
            "classic",
            self.state.value,
            self.generation,
            self.protocol_type,
            protocol,
            self.leader,
            Each(
                self._members,
                lambda member: MemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.protocols.get(protocol, b""),
                    member.assignment,
                    member.session_timeout_ms,
                    max(0, now.monotonic_ms - member.last_seen_ms),
                ),
            ),
        )

    # --- Requests of members ------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, answer: Answer, now: Now) -> Steps[None]:
        """Make a consumer a member, or a member part of the next generation; ``answer`` gets a JoinResult."""
        try:
            self._join(request, answer, now)
        except errors.GroupError as error:
            self.reply(answer, JoinResult(request.member_id, error=error))
        return no_steps()

    def sync(self, request: SyncRequest, answer: Answer, now: Now) -> Steps[None]:
        """Give a member its assignment as soon as the leader brings it; ``answer`` gets a SyncResult."""
        try:
            self._sync(request, answer, now)
        except errors.GroupError as error:
            self.reply(answer, SyncResult(error=error))
        return no_steps()

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None, now: Now) -> None:
        """Restart a member's session timer. Raises the GroupError that tells it what to do."""
        member = self._find(member_id, generation, instance_id)
        self.note_life(member, now)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise self.rebalance_in_progress()

    def leave(self, members: Sequence[LeavingMember], now: Now) -> list[LeaveResult]:
        """End memberships; one result for each, in order."""
        results = []
        count = len(self._members)
        for leaving in members:
            error: errors.GroupError | None = None
            try:
                self._leave(leaving)
            except errors.GroupError as refused:
                error = refused
            results.append(LeaveResult(leaving.member_id, leaving.instance_id, error))
        if len(self._members) < count:
            self.rebalance_or_complete(now)
        else:
            self.complete_join_if_all(now)
        return results

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, now: Now, *, in_transaction: bool = False
    ) -> CommitCheck | None:
        """Raise the GroupError for a commit that is not the group's.

        One of a member counts as a heartbeat, except in a transaction, where the producer sends it. A client that is no
        member (``generation`` below 0) may commit while the group is empty; in a transaction always, for old producers
        do not say whose offsets they commit. Returns None: for all partitions.
        """
        if generation < 0 and self.is_empty:
            return None
        if generation < 0 and not member_id and instance_id is None:
            if in_transaction:
                return None
            raise errors.UnknownMemberError(
                f"group {self.key!r} has live members, and only they may commit: stop them first; members:"
                f" {self._members.text()}",
                group=self.key,
            )
        member = self._find(member_id, generation, instance_id)
        if in_transaction:
            return None
        self.note_life(member, now)
        if self.state is ClassicState.COMPLETING_REBALANCE:
            raise self.rebalance_in_progress()
        return None

    def check_fetch(self, member_id: str, generation: int, instance_id: str | None) -> None:
        """Anybody may look up its offsets: it does not look at who asks, as in Kafka."""

    def check_delete(self) -> None:
        """Raise NonEmptyGroupError unless the group is empty."""
        if not self.is_empty:
            raise errors.NonEmptyGroupError.of(self.key, self._members.names())

    def delete(self) -> None:
        """Append the tombstone of the group. Nothing may be asked of it any more."""
        self.outbox.records.append(tombstone(self.key))

    # --- Without a request of a member --------------------------------------------------------------------------------

    def end_session(self, member_id: str, now: Now) -> None:
        """End a member's session before its deadline. Raises UnknownMemberError."""
        self._end_session(self._members.find(member_id, None).member_id, now)

    def rebalance(self, now: Now) -> None:
        """Have all members rejoin, if there are any, as if another one had joined."""
        if self.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            self.prepare_rebalance(now)

    def refuse_waits(self) -> None:
        """Answer all requests that wait: their members have to rejoin."""
        for member in self._members:
            self._refuse_waits(member, self.rebalance_in_progress())

    # --- Joining ------------------------------------------------------------------------------------------------------

    def _join(self, request: JoinRequest, answer: Answer, now: Now) -> None:
        limits = self._limits()
        request.check(self.key, limits)
        member_id, instance_id = request.member_id, request.instance_id
        member: ClassicMember | None = None
        if member_id in self.pending:
            if instance_id is not None:
                raise errors.UnknownMemberError(
                    f"group {self.key!r} gave the id {member_id!r} to a member without an instance id: rejoin with an"
                    " empty member id",
                    group=self.key,
                    member_id=member_id,
                )
        elif member_id:
            member = self._members.find(member_id, instance_id)
        elif instance_id is not None:
            member = self._members.of_instance(instance_id)
        self._check_size(request, member, limits, now)
        protocols = protocols_by_name(request.protocols)
        self._check_protocols(request, protocols)

        if member is not None and member_id:
            self._rejoin(member, request, protocols, answer, now)
        elif member is not None:
            self._replace_static_member(member, request, protocols, answer, now)
        elif member_id or instance_id is not None or not request.needs_known_member_id:
            self._add_member(member_id or request.new_member_id(self._new_id()), request, protocols, answer, now)
        else:
            member_id = request.new_member_id(self._new_id())
            self.add_pending(member_id, now.monotonic_ms + request.session_timeout_ms)
            self.reply(answer, member_id_required(self.key, member_id))

    def _check_size(self, request: JoinRequest, member: ClassicMember | None, limits: Limits, now: Now) -> None:
        """Raise GroupMaxSizeError for a member too many.

        While members join, those count that have, so that a group which became too large loses the last to join.
        """
        if self.is_empty:
            return
        if self.state is ClassicState.PREPARING_REBALANCE:
            is_in, count = member is not None and member.join_answer is not None, self._members.joined
        else:
            is_in, count = member is not None, len(self._members)
        if is_in or count < limits.max_size:
            return
        error = errors.GroupMaxSizeError(
            f"group {self.key!r} has {counted(limits.max_size, 'member')}, as many as group.max.size allows: end one of"
            " them first",
            group=self.key,
        )
        if member is not None and request.member_id:
            self.remove(member, error)
            self.complete_join_if_all(now)
        elif request.member_id in self.pending:
            self.drop_pending(request.member_id)
            self.complete_join_if_all(now)
        raise error

    def _check_protocols(self, request: JoinRequest, protocols: Mapping[str, bytes]) -> None:
        """Raise InconsistentGroupProtocolError for a member that the others have nothing in common with."""
        if not protocols or not request.protocol_type:
            raise errors.InconsistentGroupProtocolError(
                f"a member of group {self.key!r} has to name a protocol type and at least one protocol", group=self.key
            )
        if not self._members:
            return
        problem = None
        if request.protocol_type != self.protocol_type:
            problem = (
                f"is of the protocol type {self.protocol_type!r}, not {request.protocol_type!r}: use another group"
            )
        elif not self._members.share_one_of(protocols):
            problem = f"has members that support none of {', '.join(protocols)}: give all of them a common assignor"
        if problem is not None:
            raise errors.InconsistentGroupProtocolError(
                f"group {self.key!r} {problem}; members: {self._members.text()}", group=self.key
            )

    def _add_member(
        self, member_id: str, request: JoinRequest, protocols: Mapping[str, bytes], answer: Answer, now: Now
    ) -> None:
        if not self._members:
            self.protocol_type = request.protocol_type
        self.drop_pending(member_id)
        self._members.add(
            ClassicMember(
                member_id,
                request.instance_id,
                request.client_id,
                request.client_host,
                request.session_timeout_ms,
                request.join_timeout_ms,
                protocols,
                now.monotonic_ms,
                is_new=True,
                join_answer=answer,
            )
        )
        self.sessions.set(member_id, now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self.newcomers = True
        self.rebalance_or_complete(now)

    def _rejoin(
        self, member: ClassicMember, request: JoinRequest, protocols: Mapping[str, bytes], answer: Answer, now: Now
    ) -> None:
        """A member joins again: it lost the answer to its last request, takes part in a rebalance, or wants one."""
        leads_stable_group = self.state is ClassicState.STABLE and member.member_id == self.leader
        if self.state is ClassicState.PREPARING_REBALANCE or leads_stable_group or not member.supports_only(protocols):
            self._update_and_wait(member, request, protocols, answer, now)
            self.rebalance_or_complete(now)
        else:
            self.note_life(member, now)
            self.reply(answer, self.join_result(member))

    def _update_and_wait(
        self, member: ClassicMember, request: JoinRequest, protocols: Mapping[str, bytes], answer: Answer, now: Now
    ) -> None:
        self._members.set_protocols(member, protocols)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.join_timeout_ms
        member.last_seen_ms = now.monotonic_ms
        older = self._members.set_join_answer(member, answer)
        if older is not None:
            self.reply(older, JoinResult(member.member_id, error=self.asked_again(member.member_id)))
        if member.is_new:
            self.sessions.set(member.member_id, now.monotonic_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        else:
            self.sessions.discard(member.member_id)

    def _replace_static_member(
        self, member: ClassicMember, request: JoinRequest, protocols: Mapping[str, bytes], answer: Answer, now: Now
    ) -> None:
        """The consumer of a static member was started again: it gets a new id, and who has the old one is fenced."""
        leader_before, new_id = self.leader, request.new_member_id(self._new_id())
        self._refuse_waits(member, self._members.fenced(member.member_id, member.instance_id or ""))
        self.rename(member, new_id)
        self._update_and_wait(member, request, protocols, answer, now)
        if self.state is not ClassicState.STABLE or self._members.select_protocol() != self.protocol:
            self.rebalance_or_complete(now)
            return
        self._members.set_join_answer(member, None)
        self.end_wait(member, now)
        self.write_members(now)
        if request.may_skip_assignment:
            is_leader = new_id == self.leader
            self.reply(answer, self.join_result(member)._replace(skip_assignment=is_leader))
        else:  # it must not take itself for the leader, or it would assign
            self.reply(answer, self.join_result(member)._replace(leader=leader_before, members=()))

    # --- Assignments, and members that leave --------------------------------------------------------------------------

    def _sync(self, request: SyncRequest, answer: Answer, now: Now) -> None:
        member = self._find(request.member_id, request.generation, request.instance_id)
        protocol_type, protocol = self.protocol_type, self.protocol
        if request.protocol_type not in (None, protocol_type) or request.protocol not in (None, protocol):
            raise errors.InconsistentGroupProtocolError(
                f"this generation of group {self.key!r} has the protocol {protocol!r} of type {protocol_type!r}, not"
                f" {request.protocol!r} of type {request.protocol_type!r}: join again",
                group=self.key,
            )
        if self.state is ClassicState.PREPARING_REBALANCE:
            self.note_life(member, now)
            raise self.rebalance_in_progress()
        self.unsynced.discard(member.member_id)
        member.last_seen_ms = now.monotonic_ms
        if self.state is ClassicState.STABLE:
            self.end_wait(member, now)
            self.reply(answer, self.sync_result(member))
            return
        if member.sync_answer is not None:
            self.reply(member.sync_answer, SyncResult(error=self.asked_again(member.member_id)))
        member.sync_answer = answer
        self.sessions.discard(member.member_id)
        if member.member_id == self.leader:
            self.assign(request.assignments, now)

    def _leave(self, leaving: LeavingMember) -> None:
        if leaving.member_id in self.pending:
            self.drop_pending(leaving.member_id)
            return
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = self._members.id_of_instance.get(leaving.instance_id, "")
        member = self._members.find(member_id, leaving.instance_id)
        self.remove(member, self.left(member_id))

    def _find(self, member_id: str, generation: int, instance_id: str | None) -> ClassicMember:
        """The member. Raises UnknownMemberError, FencedInstanceError, or IllegalGenerationError."""
        member = self._members.find(member_id, instance_id)
        if generation != self.generation:
            raise errors.IllegalGenerationError(
                f"group {self.key!r} is at generation {self.generation}, member {member_id!r} at {generation}: join"
                " again",
                group=self.key,
                generation=self.generation,
            )
        return member
