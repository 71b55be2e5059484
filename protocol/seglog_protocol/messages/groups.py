"""Consumer groups: membership, committed offsets, and what people ask about them.

Membership is Kafka's classic protocol, so that the members of one group may come over either protocol. ``metadata`` and
``assignment`` are opaque to the broker; consumers put Kafka's ConsumerProtocolSubscription and
ConsumerProtocolAssignment there.
"""

from typing import ClassVar

from seglog_protocol.errors import SeglogError
from seglog_protocol.messages.base import Entries, Int31, Int32, Int63, Int64, Items, Message, Request, RequestPart

# --- Membership -------------------------------------------------------------------------------------------------------


class JoinProtocol(RequestPart):
    """An assignor that the member supports, and its metadata for it."""

    name: str
    metadata: bytes


class JoinGroupRequest(Request):
    """Join the next generation of a group; answered once all members have joined, or their rebalance timeouts are over.

    ``member_id`` is None for a consumer that is no member yet. Times are ms; a member is removed if it sends no
    heartbeat for ``session_timeout_ms``, or does not rejoin within ``rebalance_timeout_ms``. ``protocols``: the
    preferred one first.
    """

    api: ClassVar[str] = "join_group"
    group: str
    session_timeout_ms: Int31
    rebalance_timeout_ms: Int31
    protocols: Items[JoinProtocol]
    protocol_type: str = "consumer"
    member_id: str | None = None
    instance_id: str | None = None
    client_id: str | None = None
    reason: str | None = None


class JoinGroupMember(Message):
    """A member, in the reply to the leader."""

    member_id: str
    metadata: bytes
    instance_id: str | None = None


class JoinGroupReply(Message):
    """The generation that the member has joined, and its assignor; ``members`` for the leader alone.

    With ``skip_assignment`` the leader sends no assignments: the current ones stay.
    """

    member_id: str
    generation: Int64
    protocol: str
    leader: str
    members: list[JoinGroupMember] | None = None
    skip_assignment: bool | None = None


class SyncGroupAssignment(RequestPart):
    """The assignment of one member."""

    member_id: str
    assignment: bytes


class SyncGroupRequest(Request):
    """Get the member's assignment; the leader sends those of all members. Answered once it has."""

    api: ClassVar[str] = "sync_group"
    group: str
    member_id: str
    generation: Int32
    instance_id: str | None = None
    assignments: Items[SyncGroupAssignment] | None = None


class SyncGroupReply(Message):
    """The member's assignment; empty if the leader assigned nothing to it."""

    assignment: bytes


class GroupHeartbeatRequest(Request):
    """Restart the member's session timer. REBALANCE_IN_PROGRESS: the member must rejoin."""

    api: ClassVar[str] = "group_heartbeat"
    group: str
    member_id: str
    generation: Int32
    instance_id: str | None = None


class GroupHeartbeatReply(Message):
    """The member is one of the current generation."""


class LeavingGroupMember(RequestPart):
    """A member by its id, or a static one by its instance id."""

    member_id: str | None = None
    instance_id: str | None = None
    reason: str | None = None


class LeaveGroupRequest(Request):
    """End memberships now, not when their session times out."""

    api: ClassVar[str] = "leave_group"
    group: str
    members: Items[LeavingGroupMember]


class LeaveGroupResult(Message):
    """The result for one member."""

    member_id: str
    instance_id: str | None = None
    error: SeglogError | None = None


class LeaveGroupReply(Message):
    """One result per member, in request order."""

    members: list[LeaveGroupResult]


# --- Offsets ----------------------------------------------------------------------------------------------------------


class CommitOffset(RequestPart):
    """The offset of the next record to read in a partition, of ``leader_epoch`` if it is known.

    ``metadata`` is a text of the reader's own.
    """

    topic: str
    partition: Int31
    offset: Int63
    leader_epoch: Int31 | None = None
    metadata: str | None = None


class CommitOffsetsRequest(Request):
    """Store how far a group has read; answered when that is durable.

    A member gives its id and generation. A client that is no member leaves both out, and may commit while the group has
    no members. ``topic_ids`` maps names to the ids of the topics that were read: what was read of one that was
    deleted and made again since is refused. With ``transactional_id``, and the producer's id and epoch, the offsets
    become part of its transaction, and count when that is committed.
    """

    api: ClassVar[str] = "commit_offsets"
    version: ClassVar[int] = 2
    added: ClassVar[str | None] = "transactional_id"
    group: str
    offsets: Items[CommitOffset]
    member_id: str | None = None
    generation: Int32 | None = None
    instance_id: str | None = None
    topic_ids: Entries[str] | None = None
    transactional_id: str | None = None
    producer_id: Int63 | None = None
    producer_epoch: Int31 | None = None


class CommitOffsetResult(Message):
    """The result for one offset."""

    topic: str
    partition: Int64
    error: SeglogError | None = None


class CommitOffsetsReply(Message):
    """One result per offset, in request order."""

    offsets: list[CommitOffsetResult]


class GroupPartition(RequestPart):
    """A partition of a topic."""

    topic: str
    partition: Int31


class CommittedOffsetsRequest(Request):
    """Look up what a group has committed, for some partitions or (None) for all that it has.

    With ``stable`` a partition for which an open transaction has committed another offset has the error
    UNSTABLE_OFFSET_COMMIT until that ends: then records are not read again that the transaction has processed.
    """

    api: ClassVar[str] = "committed_offsets"
    version: ClassVar[int] = 2
    added: ClassVar[str | None] = "stable"
    group: str
    partitions: Items[GroupPartition] | None = None
    stable: bool | None = None


class CommittedOffset(Message):
    """A committed offset; ``offset`` is None where there is none.

    ``committed_ms`` is when it was committed, ``expires_ms`` when it expires as things stand (None: not while members
    subscribe to the topic); ms of the broker's wall clock.
    """

    topic: str
    partition: Int64
    offset: Int64 | None = None
    leader_epoch: Int64 | None = None
    metadata: str | None = None
    committed_ms: Int64 | None = None
    expires_ms: Int64 | None = None
    error: SeglogError | None = None


class CommittedOffsetsReply(Message):
    """One per partition: in request order, or by topic and number."""

    offsets: list[CommittedOffset]
    now_ms: Int64


# --- For people -------------------------------------------------------------------------------------------------------


class ListGroupsRequest(Request):
    """All groups, by name; those after ``after``, ``limit`` of them at most."""

    api: ClassVar[str] = "list_groups"
    after: str | None = None
    limit: Int31 | None = None


class ListedGroup(Message):
    """A group of kind ``classic`` or ``consumer``; ``state`` is Kafka's word for it.

    ``expires_ms`` is when its last offset expires unless a member joins; None while it has members.
    """

    group: str
    kind: str
    state: str
    protocol_type: str
    members: Int64
    partitions: Int64
    """With a committed offset."""
    expires_ms: Int64 | None = None


class ListGroupsReply(Message):
    """A page of groups at ``now_ms`` of the broker's wall clock; ``more``: ask again after the last one."""

    groups: list[ListedGroup]
    now_ms: Int64
    more: bool


class DescribeGroupRequest(Request):
    """A group with its members; ``committed_offsets`` has what it committed."""

    api: ClassVar[str] = "describe_group"
    group: str


class DescribedPartitions(Message):
    """Partitions of a topic."""

    topic: str
    partitions: list[Int64]


class DescribedMember(Message):
    """A member; ``assignment`` is None if the broker cannot read it. ``quiet_ms``: since its last heartbeat."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: Int64
    quiet_ms: Int64
    instance_id: str | None = None
    subscription: list[str] | None = None
    assignment: list[DescribedPartitions] | None = None


class DescribeGroupReply(Message):
    """``generation`` is the group epoch of a group of kind ``consumer``; ``protocol`` its assignor.

    ``empty_since_ms``: since when it has no members; None while it has some, or where none ever was.
    """

    group: str
    kind: str
    state: str
    generation: Int64
    protocol_type: str
    protocol: str
    leader: str
    members: list[DescribedMember]
    now_ms: Int64
    empty_since_ms: Int64 | None = None
    expires_ms: Int64 | None = None
