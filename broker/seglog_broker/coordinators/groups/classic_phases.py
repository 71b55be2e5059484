"""The phases of a classic group's rebalances, as members join, sync and leave, and time passes.

Empty -> PreparingRebalance, while members join -> CompletingRebalance, while the leader assigns -> Stable; and back
whenever members or their metadata change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from seglog_broker.coordinators.deadlines import Deadlines
from seglog_broker.coordinators.groups import classic_members, membership
from seglog_broker.coordinators.groups.consumer_protocol import subscribed_topics
from seglog_broker.coordinators.groups.group_memory import GROUP_BYTES, MEMBER_BYTES, NAME_BYTES
from seglog_broker.coordinators.state_machine import Answer, Now, Outbox, Record, StateMachine
from seglog_protocol.errors import GroupError, RebalanceInProgressError, UnknownMemberError
from seglog_protocol.kafka.messages import GroupMetadataValue
from seglog_protocol.steps import Steps

_NOBODY_JOINED_PAUSE_MIN_MS: Final = 1_000
"""Time before the next look for joined members, where only static members are left and none has joined."""


class ClassicState(StrEnum):
    """Kafka's words for what a group does."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


class ClassicPhases(StateMachine):
    """The state of a classic group, with its records and replies. The group decides who may be a member.

    Records carry the generation, its members with their assignments, its protocol and leader, and when it began: a
    change of these is a record, which is replayed. While a rebalance is under way, those who join, what they vote for
    and who is to lead is in memory alone, as are requests that wait, and deadlines: after a restart members rejoin.
    """

    def __init__(self, group_id: str, outbox: Outbox, limits: Callable[[], membership.Limits]) -> None:
        super().__init__(group_id, outbox)
        self._limits = limits
        self.state = ClassicState.EMPTY
        self.state_since_ms = -1
        """Wall time (ms) at which the state began; -1: not known."""
        self.generation = 0  # the last one that was handed out; 0 before the first
        self.protocol_type = ""  # of the members, or of the last ones; empty if there never were any
        self.protocol: str | None = None  # the assignor of the generation; None if that has no members
        self.leader = ""  # the id of the member that assigns; empty if there is none
        self._members = classic_members.ClassicMembers(group_id)
        self.pending: set[str] = set()
        """Ids that were given to consumers, which have not joined with them yet: ``add_pending``, ``drop_pending``."""
        self._pending_size = 0
        self.unsynced: set[str] = set()
        """Members that have joined the generation and did not sync yet."""
        self.sessions = Deadlines()
        """Deadlines of members that do not wait, of new ones, and of pending ids."""
        self.newcomers = False
        """True if new members came since the initial delay began, or was prolonged."""
        self.subscribed_topics: frozenset[str] | None = frozenset()
        """The topics that the members of the last generation read; None if their metadata is of an unknown format."""
        self._subscribed_size = 0
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms = 0  # counts while a member is unsynced
        self._initial_delay_end_ms: int | None = None  # while a group that was empty waits for more members

    def _replay(self, value: GroupMetadataValue) -> None:
        """Change what records carry, as a record says.

        The record of a generation that waits for its assignment has no members: these are in memory only.
        """
        self.generation = value.generation
        self.protocol_type = value.protocol_type
        self.state_since_ms = value.current_state_timestamp
        for written in value.members:
            member = self._members.by_id.get(written.member_id)
            if member is not None:
                self._members.set_assignment(member, bytes(written.assignment))
            elif written.group_instance_id not in self._members.id_of_instance:
                self._members.add(classic_members.restored_member(written, value.protocol or ""))
        if value.members:
            self.state = ClassicState.STABLE
            self.protocol, self.leader = value.protocol or "", value.leader or ""
        elif self._members:
            self.state = ClassicState.COMPLETING_REBALANCE
        else:
            self.state = ClassicState.EMPTY
            self.protocol, self.leader = None, ""
        self._read_subscriptions()

    def _decide(self, generation: int, assignments: Mapping[str, bytes] | None, now: Now) -> None:
        """Decide the record of a generation, with all members and their assignments, or without members."""
        members = () if assignments is None else self._members
        record = classic_members.metadata_record(
            self.key, self.protocol_type, generation, self.protocol, self.leader, members, assignments or {}, now
        )
        self.outbox.records.append(record)
        assert isinstance(record.value, GroupMetadataValue)
        self._replay(record.value)

    def write_members(self, now: Now) -> None:
        """Decide the record of this generation again: a member has another id."""
        self._decide(self.generation, {member.member_id: member.assignment for member in self._members}, now)

    def replay(self, record: Record) -> Steps[None]:
        """As ``StateMachine.replay``."""
        if isinstance(record.value, GroupMetadataValue):
            self._replay(record.value)
        yield from ()

    def restored(self, now: Now) -> None:
        """As ``StateMachine.restored``: sessions of members begin."""
        for member in self._members:
            self.end_wait(member, now)
        if len(self._members) > self._limits().max_size:
            self.prepare_rebalance(now)  # those who join too late are turned away

    def downgrade(self, members: Iterable[classic_members.ClassicMember], generation: int, now: Now) -> None:
        """Take the place of a group of the consumer protocol, whose members, of ``generation``, all have to rejoin."""
        self.protocol_type = membership.CONSUMER_PROTOCOL_TYPE
        for member in members:
            self._members.add(member)
            self.end_wait(member, now)
        if not self._members:
            self._decide(generation, None, now)
            return
        self.leader = next(iter(self._members)).member_id
        self.protocol = self._members.select_protocol()
        self._decide(generation, {member.member_id: member.assignment for member in self._members}, now)
        self.prepare_rebalance(now)

    @property
    def size(self) -> int:
        """Bytes that the group takes of the budget for members."""
        return GROUP_BYTES + len(self.key) + self._members.size + self._pending_size + self._subscribed_size

    # --- A rebalance --------------------------------------------------------------------------------------------------

    def rebalance_or_complete(self, now: Now) -> None:
        """Members have changed: begin a rebalance, or end the join phase if it waits for no member any longer."""
        if self.state is ClassicState.PREPARING_REBALANCE:
            self.complete_join_if_all(now)
        else:
            self.prepare_rebalance(now)

    def prepare_rebalance(self, now: Now) -> None:
        """Begin a rebalance: all members have to rejoin. Those that wait for an assignment are answered with that."""
        was_empty = self.state is ClassicState.EMPTY
        if self.state is ClassicState.COMPLETING_REBALANCE:
            for member in self._members:
                self._members.set_assignment(member, b"")
                if member.sync_answer is not None:
                    self.reply(member.sync_answer, membership.SyncResult(error=self.rebalance_in_progress()))
                    member.sync_answer = None
                    if member.join_answer is None:
                        self.end_wait(member, now)
        self.unsynced.clear()
        self.state, self.state_since_ms = ClassicState.PREPARING_REBALANCE, now.wall_ms
        timeout_ms = self._members.rebalance_timeout_ms()
        if was_empty:
            delay_ms = min(self._limits().initial_rebalance_delay_ms, timeout_ms)
            if delay_ms <= 0:
                self._end_join_phase(now)
                return
            self._initial_delay_end_ms = now.monotonic_ms + timeout_ms
            self._join_deadline_ms = now.monotonic_ms + delay_ms
            self.newcomers = False
        else:
            self._join_deadline_ms = now.monotonic_ms + timeout_ms
            self.complete_join_if_all(now)

    def end_if_unused(self) -> None:
        """End the rebalance where no member is left and no generation was ever completed."""
        if self.generation == 0 and not self._members and not self.pending:
            self.state, self.state_since_ms = ClassicState.EMPTY, -1
            self._join_deadline_ms = self._initial_delay_end_ms = None

    def complete_join_if_all(self, now: Now) -> None:
        """End the join phase if it waits for no member, nor for the end of the initial delay."""
        if self.state is not ClassicState.PREPARING_REBALANCE or self._initial_delay_end_ms is not None:
            return
        count = len(self._members)
        if not count or (self._members.joined == count and not self.pending):
            self._complete_join(now)

    def _end_join_phase(self, now: Now) -> None:
        """The time to join is over. The initial delay is prolonged as long as new members come, up to its end."""
        end_ms = self._initial_delay_end_ms
        if end_ms is not None and self.newcomers and now.monotonic_ms < end_ms:
            self.newcomers = False
            self._join_deadline_ms = min(now.monotonic_ms + self._limits().initial_rebalance_delay_ms, end_ms)
        else:
            self._complete_join(now)

    def _complete_join(self, now: Now) -> None:
        """Hand out the next generation. Dynamic members that did not join are dropped, static ones keep their place."""
        self._join_deadline_ms = self._initial_delay_end_ms = None
        if self._members.joined < len(self._members):
            for member in list(self._members):
                if member.join_answer is None and member.instance_id is None:
                    self._remove_late(member, "join")
        if self._members and not self._members.joined:
            pause_ms = max(self._members.rebalance_timeout_ms(), _NOBODY_JOINED_PAUSE_MIN_MS)
            self._join_deadline_ms = now.monotonic_ms + pause_ms
            return
        if not self._members:
            self._decide(self.generation + 1, None, now)
            return
        leader = self._members.by_id.get(self.leader)
        if leader is None or leader.join_answer is None:
            self.leader = next(member.member_id for member in self._members if member.join_answer is not None)
        self.protocol = self._members.select_protocol()
        self.unsynced.update(self._members.by_id)
        self._sync_deadline_ms = now.monotonic_ms + self._members.rebalance_timeout_ms()
        self._decide(self.generation + 1, None, now)
        for member in self._members:
            answer = self._members.set_join_answer(member, None)
            if answer is not None:
                member.is_new = False
                self.end_wait(member, now)
                self.reply(answer, self.join_result(member))

    def assign(self, assignments: Mapping[str, bytes], now: Now) -> None:
        """The leader has assigned; who is not in ``assignments`` gets nothing."""
        self._decide(self.generation, assignments, now)
        for member in self._members:
            if member.sync_answer is not None:
                self.reply(member.sync_answer, self.sync_result(member))
                member.sync_answer = None
                self.end_wait(member, now)

    def _remove_late(self, member: classic_members.ClassicMember, request: str) -> None:
        what = f"member {member.member_id!r} of group {self.key!r} did not {request} within the rebalance timeout"
        self.remove(member, self.gone(what, member.member_id))

    def write_failed(self, now: Now) -> None:
        """As ``StateMachine.write_failed``: members have to rejoin, as their generation may not be durable."""
        if self.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            for member in self._members:
                self._members.set_assignment(member, b"")
            self.prepare_rebalance(now)

    # --- Time ---------------------------------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """The first end of a session or of a phase, ms of the monotonic clock; None: nothing is awaited."""
        deadlines = (self.sessions.earliest(), self._group_deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def advance(self, now: Now) -> None:
        """Do what is due: sessions that end, and members that the group does not wait for any longer."""
        told = 0
        while True:
            member_id = self.sessions.pop_due(now.monotonic_ms)
            if member_id is not None:
                if member_id not in self.pending and told < membership.TOLD_MAX:
                    told += 1
                    member = self._members.by_id[member_id]
                    membership.warn_of_silence(self.key, member_id, member.client_id, member.session_timeout_ms)
                self._end_session(member_id, now)
                continue
            deadline = self._group_deadline_ms
            if deadline is None or deadline > now.monotonic_ms:
                return
            if self.state is ClassicState.PREPARING_REBALANCE:
                self._end_join_phase(now)
            else:
                for member in [member for member in self._members if member.member_id in self.unsynced]:
                    self._remove_late(member, "sync")
                self.prepare_rebalance(now)

    def _end_session(self, member_id: str, now: Now) -> None:
        """Remove a member, or an id that was given to a consumer, as if no heartbeat of it had come in time."""
        if member_id in self.pending:
            self.drop_pending(member_id)
            self.complete_join_if_all(now)
            return
        member = self._members.by_id[member_id]
        self.remove(
            member, self.gone(f"the session of member {member_id!r} of group {self.key!r} timed out", member_id)
        )
        self.rebalance_or_complete(now)

    @property
    def _group_deadline_ms(self) -> int | None:
        if self.state is ClassicState.PREPARING_REBALANCE:
            return self._join_deadline_ms
        return self._sync_deadline_ms if self.unsynced else None

    def note_life(self, member: classic_members.ClassicMember, now: Now) -> None:
        """Restart the session timer of a member, unless a request of it waits."""
        if member.is_waiting:
            member.last_seen_ms = now.monotonic_ms
        else:
            self.end_wait(member, now)

    def end_wait(self, member: classic_members.ClassicMember, now: Now) -> None:
        """Restart the member's session timer."""
        member.last_seen_ms = now.monotonic_ms
        self.sessions.set(member.member_id, now.monotonic_ms + member.session_timeout_ms)

    # --- Members that go, and requests that wait ----------------------------------------------------------------------

    def remove(self, member: classic_members.ClassicMember, error: GroupError) -> None:
        """Remove a member; requests of it that wait get ``error``. A new leader is chosen from those that join next."""
        self._refuse_waits(member, error)
        self._members.remove(member)
        self.sessions.discard(member.member_id)
        self.unsynced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = ""

    def rebalance_in_progress(self) -> RebalanceInProgressError:
        """The error for a member of the generation that ends."""
        return RebalanceInProgressError(f"group {self.key!r} makes a new generation: join it", group=self.key)

    def gone(self, what: str, member_id: str) -> UnknownMemberError:
        """The error for requests of a member that was removed; ``what`` happened to it."""
        return UnknownMemberError(f"{what}: rejoin with an empty member id", group=self.key, member_id=member_id)

    def left(self, member_id: str) -> UnknownMemberError:
        """The error for a request that waits while its member leaves."""
        return self.gone(f"member {member_id!r} has left group {self.key!r}", member_id)

    def asked_again(self, member_id: str) -> RebalanceInProgressError:
        """The error for a request that waits while the same member sends another one."""
        return RebalanceInProgressError(
            f"member {member_id!r} of group {self.key!r} has asked again, and only its last request waits",
            group=self.key,
        )

    def rename(self, member: classic_members.ClassicMember, member_id: str) -> None:
        """Give a member another id, and all that it had under the old one. It waits for nothing."""
        old_id, was_unsynced = member.member_id, member.member_id in self.unsynced
        self._members.remove(member)
        self.sessions.discard(old_id)
        self.unsynced.discard(old_id)
        member.member_id, member.is_new = member_id, False
        self._members.add(member)
        if was_unsynced:
            self.unsynced.add(member_id)
        if old_id == self.leader:
            self.leader = member_id

    def add_pending(self, member_id: str, due: int) -> None:
        """Keep an id that was given to a consumer until ``due``."""
        self.pending.add(member_id)
        self._pending_size += len(member_id) + MEMBER_BYTES
        self.sessions.set(member_id, due)

    def drop_pending(self, member_id: str) -> None:
        """Forget an id that was given to a consumer, if it is there."""
        if member_id in self.pending:
            self.pending.discard(member_id)
            self._pending_size -= len(member_id) + MEMBER_BYTES
            self.sessions.discard(member_id)

    def _refuse_waits(self, member: classic_members.ClassicMember, error: GroupError) -> None:
        """Answer the requests of a member that wait with ``error``."""
        join_answer = self._members.set_join_answer(member, None)
        if join_answer is not None:
            self.reply(join_answer, membership.JoinResult(member.member_id, error=error))
        if member.sync_answer is not None:
            self.reply(member.sync_answer, membership.SyncResult(error=error))
            member.sync_answer = None

    def join_result(self, member: classic_members.ClassicMember) -> membership.JoinResult:
        """The generation, as the member learns of it; with all members for the leader."""
        assert self.protocol is not None, "a generation with members has a protocol"
        members: Sequence[membership.JoinedMember] = ()
        if member.member_id == self.leader:
            members = [
                membership.JoinedMember(other.member_id, other.instance_id, other.protocols[self.protocol])
                for other in self._members
            ]
        return membership.JoinResult(
            member.member_id, self.generation, self.protocol_type, self.protocol, self.leader, members
        )

    def sync_result(self, member: classic_members.ClassicMember) -> membership.SyncResult:
        """Its assignment."""
        return membership.SyncResult(member.assignment, self.protocol_type, self.protocol)

    # --- Subscriptions and replies ------------------------------------------------------------------------------------

    def _read_subscriptions(self) -> None:
        """Note which topics the members read."""
        if not self._members:
            self.subscribed_topics = frozenset()
        elif self.protocol_type != membership.CONSUMER_PROTOCOL_TYPE:
            self.subscribed_topics = None
        else:
            protocol = self.protocol or ""
            self.subscribed_topics = subscribed_topics(member.protocols[protocol] for member in self._members)
        self._subscribed_size = sum(len(name) + NAME_BYTES for name in self.subscribed_topics or ())

    def reply(self, answer: Answer, result: membership.JoinResult | membership.SyncResult) -> None:
        """Decide the reply to a request."""
        self.outbox.replies.append((answer, result))
