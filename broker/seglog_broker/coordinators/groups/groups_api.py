"""The groups that a broker serves, as listeners use them; ``GroupService`` implements it.

Whoever calls may be cancelled while it waits: what is decided stays so.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from seglog_broker.coordinators.groups.consumer_description import ConsumerGroupDescription
from seglog_broker.coordinators.groups.consumer_requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from seglog_broker.coordinators.groups.membership import (
    NO_GENERATION,
    GroupDescription,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from seglog_protocol.errors import SeglogError


class Committer(NamedTuple):
    """Who commits or looks up offsets: a member of a generation (or of a member epoch), or nobody in particular."""

    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None


class OffsetToCommit(NamedTuple):
    """The offset of the next record to be read in a partition; ``leader_epoch`` is -1 if unknown.

    ``topic_id`` is that of the topic that was read, "" for whichever has the name.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: str = ""


class Committed(NamedTuple):
    """A committed offset, or that there is none: ``offset`` -1. Times are ms of the wall clock.

    ``expires_ms`` is when it is to be forgotten as things stand; None: not as long as the group has members that read
    the topic. ``is_unstable``: a transaction that is open has committed something else.
    """

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1
    expires_ms: int | None = None
    is_unstable: bool = False


class ListedGroup(NamedTuple):
    """A group in a list of all. A group that is nothing but offsets has an empty ``protocol_type`` and no members."""

    group: str
    kind: str
    """``classic`` or ``consumer``."""
    state: str
    protocol_type: str
    members: int
    partitions: int
    """With a committed offset."""
    empty_since_ms: int | None = None
    """Since when it has no members, ms of the wall clock; None: it has some, or it never had any."""
    expires_ms: int | None = None
    """When its last offset is forgotten if nobody comes back; None while it has members."""


class Groups(Protocol):
    """What is asked of groups.

    Every method may raise a GroupError for the group as a whole: InvalidGroupIdError for an id that is too long,
    CoordinatorLoadingError while what groups committed is read, CoordinatorNotAvailableError where it cannot be
    written.

    The group with the empty id has offsets but no members, as in Kafka, where old consumers commit for it. It is
    committed for, looked up, described, listed and deleted; all other methods raise InvalidGroupIdError.
    """

    def check(self, group: str, /) -> None:
        """Raise what any request about ``group`` would raise at the moment; for FindCoordinator."""
        ...

    async def join(self, group: str, request: JoinRequest, /) -> JoinResult:
        """Wait for the next generation. Errors stand in the result, those for the group as a whole too."""
        ...

    async def sync(self, group: str, request: SyncRequest, /) -> SyncResult:
        """Wait for the leader's assignments. Errors stand in the result."""
        ...

    def heartbeat(self, group: str, member_id: str, generation: int, instance_id: str | None = None, /) -> None:
        """Note that a member lives. Raises the GroupError that tells it what to do."""
        ...

    async def consumer_heartbeat(self, group: str, request: ConsumerHeartbeat, /) -> ConsumerHeartbeatResult:
        """Note that a member of the consumer protocol lives, joins or leaves; returns when its answer is durable.

        Raises the GroupError that tells it what to do, or InvalidRequestError.
        """
        ...

    async def leave(self, group: str, members: Sequence[LeavingMember], /) -> list[LeaveResult]:
        """End memberships; one result per member, in order."""
        ...

    async def commit(
        self, group: str, committer: Committer, offsets: Sequence[OffsetToCommit], /
    ) -> list[SeglogError | None]:
        """Store offsets; returns when they are durable, with an error or None for each, in order.

        Raises UnknownMemberError, IllegalGenerationError and their like for all of them.
        """
        ...

    def committed(
        self, group: str, partitions: Sequence[tuple[str, int]] | None, committer: Committer | None = None, /
    ) -> list[Committed]:
        """What is committed: one for each partition, in order; or of all, by topic and number.

        ``committer`` is checked if there is one. A group that nobody knows has committed nothing.
        """
        ...

    def committed_topics(self, group: str, committer: Committer | None = None, /) -> dict[str, list[int]]:
        """The partitions for which there may be something committed, ascending, by topic; ``committed`` looks it up."""
        ...

    async def list_groups(self, after: str | None = None, limit: int | None = None, /) -> list[ListedGroup]:
        """Groups by name, those behind ``after``, ``limit`` of them at most."""
        ...

    def describe(self, group: str, /) -> tuple[GroupDescription, ListedGroup]:
        """A group; one of the consumer protocol as if its members used the classic one. Raises UnknownGroupError."""
        ...

    def describe_consumer(self, group: str, /) -> ConsumerGroupDescription:
        """A group of the consumer protocol. Raises UnknownGroupError, for a classic one, too."""
        ...

    async def delete(self, groups: Sequence[str], /) -> list[SeglogError | None]:
        """Delete groups without members and their offsets; an error or None for each, in order."""
        ...

    async def delete_offsets(self, group: str, partitions: Sequence[tuple[str, int]], /) -> list[SeglogError | None]:
        """Forget offsets; an error or None for each, in order: GroupSubscribedError for a topic that members read.

        Raises UnknownGroupError; NonEmptyGroupError for a group with members of another protocol type.
        """
        ...
