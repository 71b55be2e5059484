"""What groups have in common to whose members the broker assigns partitions: they have sessions and epochs."""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final

from seglog_broker.coordinators.deadlines import Deadlines
from seglog_broker.coordinators.groups import membership
from seglog_broker.coordinators.groups.assignors import NOTHING, Assign, Assignment
from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription, as_classic, describe_member
from seglog_broker.coordinators.groups.consumer_member import Member
from seglog_broker.coordinators.groups.consumer_state import ConsumerState, size_of_member
from seglog_broker.coordinators.groups.epochs import Epochs
from seglog_broker.coordinators.groups.topics import Topics
from seglog_broker.coordinators.state_machine import Answer, Now, Outbox, Record, StateMachine
from seglog_broker.texts import counted
from seglog_protocol import errors
from seglog_protocol.steps import Steps

SESSION: Final = "session "
REVOCATION: Final = "revocation "
JOIN: Final = "join "
SYNC: Final = "sync "
"""The kinds of a member's deadlines: prefixes of their keys, before its id."""


class GroupState(StrEnum):
    """Kafka's words for the state of a group."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group epoch has no target assignment yet."""
    RECONCILING = "Reconciling"
    """A member has not reached the target assignment yet."""
    STABLE = "Stable"


class GroupCore:
    """The members of a group, and their sessions.

    Records carry ``state``, and its changes are decided by ``state.journal.append()``. All else is in memory alone and
    starts again after a restart: sessions and other deadlines, the known topics, an assignment that is being computed.
    """

    def __init__(self, state: ConsumerState, topics: Topics, assign: Assign) -> None:
        self.group_id: Final = state.group_id
        self.topics: Final = topics
        self.state: Final = state
        self.epochs: Final = Epochs(state, topics, assign)
        self.deadlines: Final = Deadlines()
        self.last_seen: Final[dict[str, int]] = {}
        """Last heartbeat by member id, monotonic ms."""
        self.empty_since_ms: int | None = None
        """Wall time (ms) at which the group became empty; undefined while it has members."""

    def session_timeout_ms(self, member: Member) -> int:
        """How long a member may be silent."""
        raise NotImplementedError

    def unknown(self, what: str, member_id: str) -> errors.UnknownMemberError:
        """The error for a request of a member that is not in the group."""
        return errors.UnknownMemberError(
            f"group {self.group_id!r} has no {what}: rejoin with epoch 0", group=self.group_id, member_id=member_id
        )

    def find(self, member_id: str) -> Member:
        """A member. Raises UnknownMemberError."""
        member = self.state.members.get(member_id)
        if member is None:
            raise self.unknown(f"member {member_id!r}", member_id)
        return member

    def check_room(self, key: str, limit: int) -> None:
        """Raise GroupMaxSizeError if there is no room for a member more; ``limit`` is the value of ``key``."""
        if len(self.state.members) >= limit:
            raise errors.GroupMaxSizeError(
                f"group {self.group_id!r} has {counted(limit, 'member')}, as many as {key} allows: end one of them"
                " first",
                group=self.group_id,
            )

    def fenced(self, member: Member, epoch: int) -> errors.FencedMemberEpochError:
        """The error for a member that came with another epoch than its own."""
        return errors.FencedMemberEpochError(
            f"member {member.member_id!r} of group {self.group_id!r} has epoch {member.epoch} and came with {epoch}:"
            " give up all partitions and rejoin with epoch 0",
            group=self.group_id,
        )

    def live_on(self, member: Member, now: Now) -> None:
        """Restart the member's session timer."""
        self.last_seen[member.member_id] = now.monotonic_ms
        self.deadlines.set(SESSION + member.member_id, now.monotonic_ms + self.session_timeout_ms(member))

    def forget(self, member_id: str) -> None:
        """Remove a member, in whose place there may be another one."""
        self.state.remove_member(member_id)
        self.last_seen.pop(member_id, None)
        for purpose in (SESSION, REVOCATION, JOIN, SYNC):
            self.deadlines.discard(purpose + member_id)

    def remove(self, member_ids: Collection[str], now: Now) -> None:
        """Remove members."""
        for member_id in member_ids:
            self.forget(member_id)
        self.epochs.begin()
        if not self.state.members:
            self.empty_since_ms = now.wall_ms


class AssignedGroup(StateMachine):
    """A group whose members are those of ``core``."""

    kind: str

    def __init__(self, outbox: Outbox, core: GroupCore) -> None:
        super().__init__(core.group_id, outbox)
        self._core = core
        self._state = core.state

    @property
    def generation(self) -> int:
        """The group epoch of the latest change, under the name that it has in classic groups; 0 before the first."""
        return self._state.group_epoch

    @property
    def is_empty(self) -> bool:
        """True if it has no members."""
        return not self._state.members

    @property
    def is_unused(self) -> bool:
        """True if it never had members, nor share partitions."""
        state = self._state
        return self.is_empty and state.group_epoch == state.epoch_at_first and state.shared is None

    @property
    def subscribed_topics(self) -> AbstractSet[str]:
        """The names of the topics that its members read, whether they exist or not."""
        return self._state.name_sets.all_names

    @property
    def empty_since_ms(self) -> int | None:
        """Wall time (ms) at which it became empty; None while it has members, or if it never had any.

        No record carries it: a group that is restored without members is empty since then.
        """
        return self._core.empty_since_ms if self.is_empty else None

    @property
    def deadline_ms(self) -> int | None:
        """When ``advance`` has something to do, ms of the monotonic clock; None: only after another request."""
        return self._core.deadlines.earliest()

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for members."""
        return self._state.size

    def size_of(self, member_id: str) -> int | None:
        """Bytes that a member takes of the budget for members; None if it is not in the group."""
        member = self._state.members.get(member_id)
        return None if member is None else size_of_member(member)

    @property
    def members(self) -> Collection[Member]:
        """Its members."""
        return self._state.members.values()

    def describe(self, now: Now) -> ConsumerGroupDescription:
        """A description for admins."""
        raise NotImplementedError

    def described_as_classic(self, now: Now) -> membership.GroupDescription:
        """A description as if all its members used the classic protocol."""
        return as_classic(self.describe(now), self.kind)

    def _described(
        self, state: GroupState, assignment_epoch: int, assignor: str, targets: Mapping[str, Assignment], now: Now
    ) -> ConsumerGroupDescription:
        core = self._core
        return ConsumerGroupDescription(
            self.key,
            state.value,
            self.generation,
            assignment_epoch,
            assignor,
            membership.Each(
                self.members,
                lambda member: describe_member(
                    member,
                    targets.get(member.member_id, NOTHING),
                    core.topics,
                    core.session_timeout_ms(member),
                    now.monotonic_ms - core.last_seen.get(member.member_id, now.monotonic_ms),
                ),
            ),
        )

    def check_delete(self) -> None:
        """Raise NonEmptyGroupError unless the group is empty."""
        if not self.is_empty:
            hosts = [(member.member_id, member.subscription.client_host) for member in self.members]
            raise errors.NonEmptyGroupError.of(self.key, hosts)

    def delete(self) -> None:
        """Append tombstones for all that the group has written. Nothing may be asked of it any more."""
        self._state.delete()
        self._state.journal.append()

    def rebalance(self, now: Now) -> None:  # noqa: ARG002 - as ClassicGroup's
        """Begin another epoch, if there are members, as if another one had joined."""
        if not self.is_empty:
            self._core.epochs.begin()
            self._state.journal.append()

    def write_failed(self, now: Now) -> None:  # noqa: ARG002 - as ClassicGroup's
        """Write records that are not durable again with the next ones."""
        self._state.journal.write_failed()

    def replay(self, record: Record) -> Steps[None]:
        """Change the state as a record says."""
        return self._state.replay(record)

    def end_join(self, answer: Answer, now: Now) -> None:
        """A join that waits has lost its connection: its member stays until its session ends."""

    def advance(self, now: Now) -> None:
        """Remove members whose session has ended, or that did not do in time what was asked of them."""
        core = self._core
        gone: dict[str, None] = {}
        while (key := core.deadlines.pop_due(now.monotonic_ms)) is not None:
            purpose, _, member_id = key.partition(" ")
            gone[member_id] = None
            if f"{purpose} " == SESSION and len(gone) <= membership.TOLD_MAX:
                member = core.find(member_id)
                timeout_ms = core.session_timeout_ms(member)
                membership.warn_of_silence(self.key, member_id, member.subscription.client_id, timeout_ms)
        if gone:
            core.remove(gone, now)
            self._state.journal.append()

    def end_session(self, member_id: str, now: Now) -> None:
        """End a member's session before its deadline. Raises UnknownMemberError."""
        self._core.remove([self._core.find(member_id).member_id], now)
        self._state.journal.append()

    def restored(self, now: Now) -> None:
        """Go on from the records that were replayed. Sessions of members begin now."""
        for member in self.members:
            self._core.live_on(member, now)
        if self.is_empty:
            self._core.empty_since_ms = now.wall_ms
