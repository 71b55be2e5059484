"""Requests of the members of groups, their results, and descriptions of groups for admins."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar, overload

from seglog_broker.coordinators.groups.group_memory import MEMBER_BYTES, size_of_protocols
from seglog_broker.logger import get_logger
from seglog_protocol import errors

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of groups whose members share the partitions of topics."""

NO_GENERATION: Final = -1
"""The generation in a request that does not come from a member."""

PROTOCOLS_MAX: Final = 100
"""Assignors that a member may name. Clients have one to four; Kafka knows no limit but that of a request's bytes."""


TOLD_MAX: Final = 8
"""Members of which a turn tells that they are gone: a line for each of thousands would take longer than a turn may."""

log = get_logger()

CommitCheck = Callable[[bytes, int], None]
"""Raises the GroupError for a partition, by topic id and number, whose offset the member may not commit."""


class Limits(NamedTuple):
    """The keys of the configuration that groups depend on, under Kafka's names; times are ms."""

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"


def warn_of_silence(group: str, member_id: str, client_id: str, timeout_ms: int) -> None:
    """Log that a session ended without a word of its member."""
    log.warning(
        "group_member_timed_out",
        group=group[:100],
        member=member_id[:100],
        client_id=client_id[:100],
        session_timeout_ms=timeout_ms,
        consequence="others get its partitions, and what it has not committed comes again",
    )


# --- The classic protocol ---------------------------------------------------------------------------------------------


class JoinRequest(NamedTuple):
    """JoinGroup: a consumer becomes a member, or a member takes part in the next generation."""

    member_id: str
    """Empty: the consumer is no member yet."""
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    """Names of assignors and the metadata for each, the preferred one first."""
    needs_known_member_id: bool = True
    """True if a new dynamic member gets its id first and has to join again with it (JoinGroup from version 4 on)."""
    may_skip_assignment: bool = False
    """True if the leader understands ``skip_assignment`` (from version 9 on)."""

    @property
    def join_timeout_ms(self) -> int:
        """Time that a rebalance waits for it: none if below 0, as in Kafka."""
        return max(0, self.rebalance_timeout_ms)

    @property
    def size(self) -> int:
        """Bytes that the member takes of the budget for members, or its id alone."""
        named = 2 * len(self.client_id if self.instance_id is None else self.instance_id) + len(self.client_id)
        return MEMBER_BYTES + named + size_of_protocols(self.protocols)

    def new_member_id(self, random: str) -> str:
        """The id that the coordinator gives a new member; people find its client in it."""
        return f"{self.client_id if self.instance_id is None else self.instance_id}-{random}"

    def check(self, group: str, limits: Limits) -> None:
        """Raise InvalidSessionTimeoutError for one not allowed, InconsistentGroupProtocolError for many assignors."""
        if len(self.protocols) > PROTOCOLS_MAX:
            raise errors.InconsistentGroupProtocolError(
                f"a member of group {group!r} names {len(self.protocols):,} assignors, of at most {PROTOCOLS_MAX}: give"
                " the consumer those that it uses",
                group=group,
            )
        minimum, maximum = limits.min_session_timeout_ms, limits.max_session_timeout_ms
        if not minimum <= self.session_timeout_ms <= maximum:
            raise errors.InvalidSessionTimeoutError(
                f"the session timeout of {self.session_timeout_ms:,} ms is not between group.min.session.timeout.ms"
                f" ({minimum:,}) and group.max.session.timeout.ms ({maximum:,}): give the consumer another one",
                group=group,
                minimum=minimum,
                maximum=maximum,
            )


class JoinedMember(NamedTuple):
    """A member in the leader's JoinGroup response."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """A generation, or with ``error`` why there is none."""

    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[JoinedMember] = ()
    """For the leader alone."""
    skip_assignment: bool = False
    error: errors.SeglogError | None = None


def member_id_required(group: str, member_id: str) -> JoinResult:
    """The result for a new dynamic member: the id to join again with."""
    error = errors.MemberIdRequiredError(
        f"group {group!r} has an id for the new member: join again with {member_id!r}", group=group, member_id=member_id
    )
    return JoinResult(member_id, error=error)


class SyncRequest(NamedTuple):
    """A member wants its assignment; the leader brings those of all."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    """Both None before version 5: not checked."""
    assignments: Mapping[str, bytes] = {}


class SyncResult(NamedTuple):
    """The assignment of a member, or with ``error`` why there is none."""

    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None
    error: errors.SeglogError | None = None


class LeavingMember(NamedTuple):
    """A member that leaves, by its id, or a static one by its instance id with an empty ``member_id``."""

    member_id: str
    instance_id: str | None = None


class LeaveResult(NamedTuple):
    """The result for one LeavingMember."""

    member_id: str
    instance_id: str | None
    error: errors.SeglogError | None = None


# --- Descriptions -----------------------------------------------------------------------------------------------------


ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")


class MemberDescription(NamedTuple):
    """A member as admins see it; ``metadata`` and ``assignment`` are in the format of the group's protocol type."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    session_timeout_ms: int
    quiet_ms: int
    """Since its last heartbeat, or request in place of one."""


class Each(Sequence[MadeT], Generic[ItemT, MadeT]):
    """Items that are made one at a time, when they are asked for: all of them may take long, and much memory."""

    def __init__(self, items: Iterable[ItemT], make: Callable[[ItemT], MadeT]) -> None:
        self._items = list(items)
        self._make = make

    def __iter__(self) -> Iterator[MadeT]:
        return map(self._make, self._items)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, at: int) -> MadeT: ...

    @overload
    def __getitem__(self, at: slice) -> "Each[ItemT, MadeT]": ...

    def __getitem__(self, at: int | slice) -> "MadeT | Each[ItemT, MadeT]":
        return Each(self._items[at], self._make) if isinstance(at, slice) else self._make(self._items[at])


class GroupDescription(NamedTuple):
    """A group as admins see it.

    ``state`` in Kafka's words: Empty, PreparingRebalance, CompletingRebalance, Stable, Dead; for groups of the consumer
    protocol Empty, Assigning, Reconciling, Stable.
    """

    group: str
    kind: str
    """``classic`` or ``consumer``."""
    state: str
    generation: int
    """The group epoch, for groups of the consumer protocol."""
    protocol_type: str
    protocol: str
    """The assignor."""
    leader: str
    members: Sequence[MemberDescription]


class ListedGroup(NamedTuple):
    """A group in a list of all. A group that has only offsets has an empty ``protocol_type`` and no members."""

    group: str
    kind: str
    """``classic`` or ``consumer``."""
    state: str
    protocol_type: str
    members: int
    partitions: int
    """With a committed offset."""
    empty_since_ms: int | None = None
    """Wall time (ms) at which it became empty; None while it has members, or if it never had any."""
    expires_ms: int | None = None
    """Wall time (ms) at which its last offset expires if no member joins; None while it has members."""
