"""The members of a classic group, and what they have in common."""

from collections import Counter
from collections.abc import Iterator, Mapping

from seglog_broker.coordinators.groups import classic_errors as errors
from seglog_broker.coordinators.groups.classic_member import ClassicMember
from seglog_broker.coordinators.groups.membership import Answer


class ClassicMembers:
    """The members of a group, by id and by group instance id; who waits for a generation, which protocols they share.

    Nothing here but ``select_protocol`` and ``rebalance_timeout_ms`` looks at all of them.
    """

    __slots__ = ("_group_id", "_supporters", "by_id", "id_of_instance", "joined", "size")

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._supporters: Counter[str] = Counter()  # protocol -> members that have it
        self.by_id: dict[str, ClassicMember] = {}
        self.id_of_instance: dict[str, str] = {}
        self.joined = 0
        """How many wait for the next generation."""
        self.size = 0
        """Bytes that they take of the budget for members."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[ClassicMember]:
        return iter(self.by_id.values())

    def find(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member. Raises UnknownMemberError, or FencedInstanceError if another took its place."""
        if instance_id is not None:
            owner = self.id_of_instance.get(instance_id)
            if owner is None:
                raise errors.unknown_instance(self._group_id, member_id, instance_id)
            if owner != member_id:
                raise errors.fenced(self._group_id, member_id, instance_id)
        member = self.by_id.get(member_id)
        if member is None:
            raise errors.unknown_member(self._group_id, member_id)
        return member

    def of_instance(self, instance_id: str) -> ClassicMember | None:
        """The static member with this group instance id."""
        member_id = self.id_of_instance.get(instance_id)
        return None if member_id is None else self.by_id[member_id]

    def add(self, member: ClassicMember) -> None:
        """Take a member, whose id and instance id nobody has."""
        assert member.member_id not in self.by_id
        assert member.instance_id not in self.id_of_instance
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.id_of_instance[member.instance_id] = member.member_id
        self._supporters.update(member.protocols.keys())
        self.joined += member.join_answer is not None
        self.size += member.size

    def remove(self, member: ClassicMember) -> None:
        """Have it no more. It does not wait any longer."""
        assert not member.is_waiting
        del self.by_id[member.member_id]
        self.size -= member.size
        if member.instance_id is not None:
            del self.id_of_instance[member.instance_id]
        self._forget_protocols(member)

    def set_protocols(self, member: ClassicMember, protocols: Mapping[str, bytes]) -> None:
        """Have it vote for these from now on."""
        self._forget_protocols(member)
        self.size -= member.size
        member.protocols = protocols
        self.size += member.size
        self._supporters.update(protocols.keys())

    def set_assignment(self, member: ClassicMember, assignment: bytes) -> None:
        """Have it get ``assignment``."""
        self.size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def set_join_answer(self, member: ClassicMember, answer: Answer | None) -> Answer | None:
        """Let ``answer`` wait for the next generation, or none; the answer that did until now."""
        before, member.join_answer = member.join_answer, answer
        self.joined += (answer is not None) - (before is not None)
        return before

    def share_one_of(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether all members have one of these protocols."""
        count = len(self.by_id)
        return any(self._supporters[name] == count for name in protocols)

    def select_protocol(self) -> str:
        """The protocol with the most votes: each member votes for the first of its own that all have."""
        count = len(self.by_id)
        votes: Counter[str] = Counter()
        for member in self:
            votes[next(name for name in member.protocols if self._supporters[name] == count)] += 1
        return votes.most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        """The longest of all members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def _forget_protocols(self, member: ClassicMember) -> None:
        for name in member.protocols:
            self._supporters[name] -= 1
            if not self._supporters[name]:
                del self._supporters[name]
