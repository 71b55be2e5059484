"""The ends of partitions: looked up, moved, and how far readers are from them."""

from typing import ClassVar

from seglog_protocol.errors import SeglogError
from seglog_protocol.isolation import Isolation
from seglog_protocol.messages.base import Int31, Int63, Int64, Items, Message, Request, RequestPart


class OffsetsPartition(RequestPart):
    """A partition (None: all of the topic) to look up; ``timestamp`` also looks up the first record from then on."""

    topic: str
    partition: Int31 | None = None
    timestamp: Int63 | None = None


class OffsetsRequest(Request):
    """Look up the ends of partitions, and offsets by timestamp.

    ``isolation`` None is "read_uncommitted"; at "read_committed" a partition ends at its last stable offset.
    """

    api: ClassVar[str] = "offsets"
    version: ClassVar[int] = 2
    added: ClassVar[str | None] = "isolation"
    partitions: Items[OffsetsPartition]
    isolation: Isolation | None = None


class OffsetsResult(Message):
    """The ends of one partition; ``offset`` and ``timestamp`` of the record found by timestamp, None without one.

    The first open transaction begins at ``last_stable_offset``; without one it is the log end. ``latest`` is the log
    end, at "read_committed" the last stable offset.
    """

    topic: str
    partition: Int64 | None = None
    earliest: Int64 | None = None
    latest: Int64 | None = None
    durable: Int64 | None = None
    leader_epoch: Int64 | None = None
    offset: Int64 | None = None
    timestamp: Int64 | None = None
    last_stable_offset: Int64 | None = None
    error: SeglogError | None = None


class OffsetsReply(Message):
    """One result per partition; ``topic_ids`` maps the names of existing topics to their ids."""

    partitions: list[OffsetsResult]
    topic_ids: dict[str, str] | None = None


class TruncatePartition(RequestPart):
    """Delete the records below ``offset`` (None: all records). Kafka calls this DeleteRecords."""

    topic: str
    partition: Int31
    offset: Int63 | None = None


class TruncateRequest(Request):
    """Advance log start offsets; answered when the new ones survive power loss."""

    api: ClassVar[str] = "truncate"
    partitions: Items[TruncatePartition]


class TruncateResult(Message):
    """The log start offset now; an offset below the old start changes nothing."""

    topic: str
    partition: Int64
    earliest: Int64 | None = None
    error: SeglogError | None = None


class TruncateReply(Message):
    """One result per partition, in request order."""

    partitions: list[TruncateResult]


class LagPartition(RequestPart):
    """A reader's position in a partition: ``offset`` is that of the next record to read."""

    topic: str
    partition: Int31
    offset: Int63


class LagRequest(Request):
    """How far positions are behind, and when retention reaches them; at most 1,000 per request."""

    api: ClassVar[str] = "lag"
    partitions: Items[LagPartition]


class LagResult(Message):
    """Lag of a position, and when its records are deleted; times are ms of the broker's wall clock.

    ``timestamp`` is that of the first record in the batch to be read next. The segment with base offset ``segment``
    contains the position. It leaves the log between ``lost_from_ms`` and ``lost_by_ms``, or sooner, once
    ``bytes_to_come`` more are appended; None: it is kept as things stand. For an offset below ``earliest`` the records
    between are lost, and the fields describe the first record of the log.
    ``last_stable_offset`` is as in OffsetsResult.
    """

    topic: str
    partition: Int64
    earliest: Int64 | None = None
    latest: Int64 | None = None
    durable: Int64 | None = None
    timestamp: Int64 | None = None
    newest_timestamp: Int64 | None = None
    earliest_reason: str | None = None
    segment: Int64 | None = None
    lost_from_ms: Int64 | None = None
    lost_by_ms: Int64 | None = None
    bytes_to_come: Int64 | None = None
    why: str | None = None
    last_stable_offset: Int64 | None = None
    error: SeglogError | None = None


class LagReply(Message):
    """One result per position, in request order, at ``now_ms`` of the broker's wall clock."""

    partitions: list[LagResult]
    now_ms: Int64
