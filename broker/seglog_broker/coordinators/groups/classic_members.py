"""The members of a classic group, what they have in common, and the record of a generation of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from seglog_broker.coordinators.groups.group_memory import MEMBER_BYTES, size_of_protocols
from seglog_broker.coordinators.groups.records import CLASSIC_GROUP
from seglog_broker.coordinators.state_machine import Answer, Now, Record
from seglog_protocol.errors import FencedInstanceError, UnknownMemberError
from seglog_protocol.kafka.messages import GroupMetadataKey, GroupMetadataValue
from seglog_protocol.texts import members_text

_VALUE_VERSION: Final = 3
"""The version of a generation's record."""


@dataclass(slots=True, eq=False)
class ClassicMember:
    """A member. Times are ms, ``last_seen_ms`` of the monotonic clock."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Mapping[str, bytes]
    """Metadata by the name of the assignor, the preferred one first."""
    last_seen_ms: int = 0
    assignment: bytes = b""
    is_new: bool = False
    """It has not got a generation yet, so it does not send heartbeats."""
    join_answer: Answer | None = None
    """Waits for the next generation."""
    sync_answer: Answer | None = None
    """Waits for the leader's assignments."""

    @property
    def is_waiting(self) -> bool:
        """True if a request of it waits, so that no heartbeat is expected."""
        return self.join_answer is not None or self.sync_answer is not None

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for members."""
        named = len(self.member_id) + len(self.instance_id or "") + len(self.client_id)
        return MEMBER_BYTES + named + size_of_protocols(self.protocols.items()) + len(self.assignment)

    def supports_only(self, protocols: Mapping[str, bytes]) -> bool:
        """True if these are its protocols, with the same metadata and in the same order of preference."""
        return list(self.protocols.items()) == list(protocols.items())


def protocols_by_name(protocols: Sequence[tuple[str, bytes]]) -> dict[str, bytes]:
    """Of assignors that are named twice, the first counts."""
    named: dict[str, bytes] = {}
    for name, metadata in protocols:
        named.setdefault(name, metadata)
    return named


class ClassicMembers:
    """The members of a group, by id and by group instance id; who waits for a generation, which protocols they share.

    Nothing here but ``select_protocol`` and ``rebalance_timeout_ms`` looks at all of them.
    """

    __slots__ = ("_group_id", "_supporters", "by_id", "id_of_instance", "joined", "size")

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._supporters: Counter[str] = Counter()  # protocol -> members that support it
        self.by_id: dict[str, ClassicMember] = {}
        self.id_of_instance: dict[str, str] = {}
        self.joined = 0
        """The number of members that wait for the next generation."""
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
                raise UnknownMemberError(
                    f"group {self._group_id!r} has no member with the instance id {instance_id!r}: it was removed, or"
                    " never joined; rejoin with an empty member id",
                    group=self._group_id,
                    member_id=member_id,
                )
            if owner != member_id:
                raise self.fenced(member_id, instance_id)
        member = self.by_id.get(member_id)
        if member is None:
            raise UnknownMemberError(
                f"group {self._group_id!r} has no member {member_id!r}: it left, its session timed out, or the group"
                " went on without it; rejoin with an empty member id",
                group=self._group_id,
                member_id=member_id,
            )
        return member

    def fenced(self, member_id: str, instance_id: str) -> FencedInstanceError:
        """The error for a consumer whose place as a static member another one takes."""
        return FencedInstanceError(
            f"another consumer has joined group {self._group_id!r} as instance {instance_id!r} and took the place of"
            f" member {member_id!r}: give each running consumer an instance id of its own",
            group=self._group_id,
            instance_id=instance_id,
        )

    def text(self) -> str:
        """Up to five members with their hosts, and how many there are beside."""
        return members_text(self.names()) or "none yet"

    def names(self) -> list[tuple[str, str]]:
        """Each member id with its host."""
        return [(member.member_id, member.client_host) for member in self]

    def of_instance(self, instance_id: str) -> ClassicMember | None:
        """The static member with this group instance id."""
        member_id = self.id_of_instance.get(instance_id)
        return None if member_id is None else self.by_id[member_id]

    def add(self, member: ClassicMember) -> None:
        """Add a member, whose id and instance id are new."""
        assert member.member_id not in self.by_id
        assert member.instance_id not in self.id_of_instance
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.id_of_instance[member.instance_id] = member.member_id
        self._supporters.update(member.protocols.keys())
        self.joined += member.join_answer is not None
        self.size += member.size

    def remove(self, member: ClassicMember) -> None:
        """Remove a member, which has no request that waits."""
        assert not member.is_waiting
        del self.by_id[member.member_id]
        self.size -= member.size
        if member.instance_id is not None:
            del self.id_of_instance[member.instance_id]
        self._forget_protocols(member)

    def set_protocols(self, member: ClassicMember, protocols: Mapping[str, bytes]) -> None:
        """Replace the protocols of a member."""
        self._forget_protocols(member)
        self.size -= member.size
        member.protocols = protocols
        self.size += member.size
        self._supporters.update(protocols.keys())

    def set_assignment(self, member: ClassicMember, assignment: bytes) -> None:
        """Replace the assignment of a member."""
        self.size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def set_join_answer(self, member: ClassicMember, answer: Answer | None) -> Answer | None:
        """Let ``answer`` wait for the next generation, or none. Returns the answer that did before."""
        before, member.join_answer = member.join_answer, answer
        self.joined += (answer is not None) - (before is not None)
        return before

    def share_one_of(self, protocols: Mapping[str, bytes]) -> bool:
        """True if all members have one of these protocols."""
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


# --- Records ----------------------------------------------------------------------------------------------------------


def metadata_record(
    group_id: str,
    protocol_type: str,
    generation: int,
    protocol: str | None,
    leader: str,
    members: Iterable[ClassicMember],
    assignments: Mapping[str, bytes],
    now: Now,
) -> Record:
    """A generation with these members and their ``assignments``; with none, it has neither a protocol nor a leader."""
    written = [
        GroupMetadataValue.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.protocols[protocol or ""],
            assignment=assignments.get(member.member_id, b""),
        )
        for member in members
    ]
    value = GroupMetadataValue(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol if written else None,
        leader=leader if written else None,
        current_state_timestamp=now.wall_ms,
        members=written,
    )
    least_size = sum(len(member.subscription) + len(member.assignment) for member in written)
    return Record(GroupMetadataKey(group=group_id), CLASSIC_GROUP, value, _VALUE_VERSION, least_size)


def restored_member(written: GroupMetadataValue.MemberMetadata, protocol: str) -> ClassicMember:
    """The member of a record, which supports the protocol of its generation alone."""
    timeout_ms = written.rebalance_timeout
    return ClassicMember(
        written.member_id,
        written.group_instance_id,
        written.client_id,
        written.client_host,
        written.session_timeout,
        written.session_timeout if timeout_ms < 0 else timeout_ms,
        {protocol: bytes(written.subscription)},
        assignment=bytes(written.assignment),
    )


def tombstone(group_id: str) -> Record:
    """The record that deletes a group."""
    return Record(GroupMetadataKey(group=group_id), CLASSIC_GROUP, None)
