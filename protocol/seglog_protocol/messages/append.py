"""Record batches appended, ids for the producers of them, and their way to the disk."""

from typing import ClassVar, Literal

from seglog_protocol.errors import SeglogError
from seglog_protocol.messages.base import Entries, Int31, Int64, Items, Message, Request, RequestPart, default

Ack = Literal["none", "os", "disk"]


class AppendPartition(RequestPart):
    """Destination of the next ``size`` bytes of the payload, which are one record batch."""

    topic: str
    partition: Int31
    size: Int31


class AppendRequest(Request):
    """Append batches; ``ack`` is what each must have reached before the reply. ``none`` gets no reply.

    ``create`` creates a missing topic if the broker allows that. ``topic_ids`` and ``partition_counts`` are as in
    FetchRequest.
    """

    api: ClassVar[str] = "append"
    is_plain: ClassVar[bool] = True
    version: ClassVar[int] = 2
    partitions: Items[AppendPartition]
    ack: Ack = default("disk")
    create: bool | None = None
    topic_ids: Entries[str] | None = None
    partition_counts: Entries[Int64] | None = None

    def version_needed(self) -> int:
        """``Request.version_needed``."""
        return 1 if self.topic_ids is None and self.partition_counts is None else 2


class AppendResult(Message):
    """Result of one batch: an ``error``, or its base offset and the ack it reached.

    ``timestamp`` is the append time of a LogAppendTime topic, else -1. Records with a timestamp below
    ``expired_before`` (ms) are past the topic's retention and will be deleted; 0 means none are.
    """

    topic: str
    partition: Int64
    base_offset: Int64 | None = None
    timestamp: Int64 | None = None
    ack: str | None = None
    duplicate: bool | None = None
    expired_before: Int64 | None = None
    error: SeglogError | None = None


class AppendReply(Message):
    """One result per batch, in request order; ``partition_counts`` is as in FetchReply.

    ``throttle_ms`` is how long the broker reads nothing more from this client, which is above its quota.
    """

    partitions: list[AppendResult]
    partition_counts: dict[str, Int64] | None = None
    throttle_ms: Int64 | None = None


class InitProducerRequest(Request):
    """Allocate an id for a new idempotent producer; with ``transactional_id`` begin as the one producer that has that.

    All producers that had it before are fenced, and their open transaction is aborted. ``timeout_ms`` is how long a
    transaction may be open until the broker aborts it; a minute by default.
    """

    api: ClassVar[str] = "init_producer"
    version: ClassVar[int] = 2
    added: ClassVar[str | None] = "transactional_id"
    transactional_id: str | None = None
    timeout_ms: Int31 | None = None


class InitProducerReply(Message):
    """A unique producer id, never reused, and its epoch."""

    producer_id: Int64
    producer_epoch: Int64


class FlushPartition(RequestPart):
    """A partition to flush up to its end."""

    topic: str
    partition: Int31


class FlushRequest(Request):
    """Flush logs to disk, records of all producers at any ack; answered when they are durable."""

    api: ClassVar[str] = "flush"
    partitions: Items[FlushPartition]


class FlushResult(Message):
    """Every record below ``durable`` survives power loss: at least all that existed at the time of the request."""

    topic: str
    partition: Int64
    durable: Int64 | None = None
    error: SeglogError | None = None


class FlushReply(Message):
    """One result per partition, in request order."""

    partitions: list[FlushResult]
