"""What groups have in common to whose members the broker assigns partitions: they have members and epochs."""

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from enum import StrEnum

from seglog_broker.coordinators.groups.consumer_member import Member
from seglog_broker.coordinators.groups.consumer_state import ConsumerState, size_of_member
from seglog_broker.coordinators.groups.epochs import Epochs
from seglog_broker.coordinators.state_machine import Now, Outbox, Record, StateMachine
from seglog_protocol.errors import NonEmptyGroupError
from seglog_protocol.steps import Steps


class GroupState(StrEnum):
    """Kafka's words for the state of a group."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group epoch has no target assignment yet."""
    RECONCILING = "Reconciling"
    """A member has not reached the target assignment yet."""
    STABLE = "Stable"


class AssignedGroup(StateMachine):
    """A group whose records carry ``state``."""

    def __init__(self, group_id: str, outbox: Outbox, state: ConsumerState, epochs: Epochs) -> None:
        super().__init__(group_id, outbox)
        self._state = state
        self._epochs = epochs

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

    def check_delete(self) -> None:
        """Raise NonEmptyGroupError unless the group is empty."""
        if not self.is_empty:
            hosts = [(member.member_id, member.subscription.client_host) for member in self.members]
            raise NonEmptyGroupError.of(self.key, hosts)

    def delete(self) -> None:
        """Append tombstones for all that the group has written. Nothing may be asked of it any more."""
        self._state.delete()
        self._state.journal.append()

    def rebalance(self, now: Now) -> None:  # noqa: ARG002 - as ClassicGroup's
        """Begin another epoch, if there are members, as if another one had joined."""
        if not self.is_empty:
            self._epochs.begin()
            self._state.journal.append()

    def write_failed(self, now: Now) -> None:  # noqa: ARG002 - as ClassicGroup's
        """Write records that are not durable again with the next ones."""
        self._state.journal.write_failed()

    def replay(self, record: Record) -> Steps[None]:
        """Change the state as a record says."""
        return self._state.replay(record)
