"""Native requests and replies as dataclasses, and their encoding to msgpack maps and back.

A request travels as ``{"id", "api", "v", ...fields}``, its reply as ``{"id", ...fields}`` or
``{"id", "error": {...}}``; record batches and long listings travel in the frame's payload. The broker refuses unknown
request fields (a new field means ``v`` + 1 of that api); clients ignore unknown reply fields. Results and errors are
per partition: one bad partition never fails the others. A field that is None is left out.

docs/PROTOCOL.md describes each message; a test compares the two.
"""

import dataclasses
import functools
import operator
import reprlib
import types
from collections.abc import Callable, Generator, Mapping, Sized
from dataclasses import dataclass, field
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from seglog_protocol.errors import (
    InvalidRequestError,
    RemoteProtocolError,
    SeglogError,
    UnsupportedApiError,
    UnsupportedVersionError,
    error_from_wire,
    error_to_wire,
)
from seglog_protocol.frames import Buffer, decode_value, encode_value

PROTOCOL_NAME: Final = "seglog"
NATIVE_PORT: Final = 9192

Ack = Literal["none", "os", "disk"]
ConfigValue = str | int | float | bool

ITEMS_MAX: Final = 10_000
"""Items allowed in a list or map of a request, so that many tiny items cannot make a request expensive."""

INT64_MAX: Final = 2**63 - 1
_INT32_MAX: Final = 2147483647


def _integer(minimum: int = 0, maximum: int = INT64_MAX, **options: Any) -> Any:
    return field(metadata={"range": (minimum, maximum)}, **options)


ClassT = TypeVar("ClassT")


@dataclass_transform(frozen_default=True, field_specifiers=(field, _integer))
def message(cls: type[ClassT]) -> type[ClassT]:
    """A dataclass with slots; only the type checker enforces that its fields are read-only.

    Instances of frozen dataclasses take two and a half times as long to make, and each append needs several. Generating
    all their methods for some fifty classes took an eighth of the broker's start.
    """
    return dataclass(slots=True, eq=False, repr=False)(cls)


@message
class Message:
    """Fields that travel as a msgpack map."""

    def __eq__(self, other: object) -> bool:
        """Whether both have the same type and equal fields."""
        if type(self) is not type(other):
            return NotImplemented
        get_values = _encoding(type(self)).get_values
        return get_values(self) == get_values(other)

    __hash__ = None  # type: ignore[assignment]  # most hold lists

    def __repr__(self) -> str:
        """The repr of a dataclass."""
        shown = (f"{name}={getattr(self, name)!r}" for name in _encoding(type(self)).names)
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_wire(self) -> dict[str, Any]:
        """The msgpack map; fields that are None are left out, errors become nested maps."""
        names, get_values, nested = _encoding(type(self))
        wire = {name: value for name, value in zip(names, get_values(self), strict=True) if value is not None}
        for name in nested:
            if name in wire:
                wire[name] = _value_to_wire(wire[name])
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], *, strict: bool = True, beside: frozenset[str] = frozenset()) -> Self:
        """The message for a map.

        Raises InvalidRequestError, naming the field that is missing, of a wrong type, out of range or, with ``strict``,
        unknown. Names in ``beside`` are allowed and ignored.
        """
        decoders = _decoders(cls)
        values = {}
        for name, value in wire.items():
            decoder = decoders.get(name)
            if decoder is not None:
                values[name] = decoder(value, name, strict)
            elif strict and name not in beside:
                raise InvalidRequestError(
                    f"unknown field {_shown(name)}; {cls.__name__} has {', '.join(decoders)}", field=_cut(name)
                )
        try:
            return cls(**values)
        except TypeError:
            missing = next(n for n in decoders if n not in values and _is_required(cls, n))
            raise InvalidRequestError(f"{cls.__name__} needs the field {missing!r}", field=missing) from None


@message
class Request(Message):
    """A request of ``api``; ``version`` is the newest of that api."""

    api: ClassVar[str]
    version: ClassVar[int] = 1

    def version_needed(self) -> int:
        """The lowest version that has every field in use; it is sent as that, so that older brokers accept it."""
        return 1


# --- hello ------------------------------------------------------------------------------------------------------------


@message
class HelloRequest(Request):
    """The first message of every connection."""

    api: ClassVar[str] = "hello"
    protocol: str
    client: str = ""


@message
class HelloReply(Message):
    """The broker: its software, api versions as ``{api: [lowest, highest]}``, and limits in bytes and counts.

    ``auto_create_topics``: an append to an unknown topic creates it. ``problems`` are sentences for an operator.
    ``log_dir`` is the absolute path of the log directory on the broker's machine. Of the ``partitions``, ``offline``
    cannot be served, and ``read_only_until_room`` (None: 0) take no records until their disk has room. ``recovery``
    counts the partitions still in recovery after an unclean shutdown; ``read_bytes`` of ``bytes`` have been read,
    including partitions already recovered. None when there is no recovery.
    """

    protocol: str
    broker: str
    apis: dict[str, list[int]]
    limits: dict[str, int]
    cluster_id: str = ""
    uptime_ms: int = 0
    partitions: int = 0
    auto_create_topics: bool = False
    problems: list[str] = field(default_factory=list)
    recovery: dict[str, int] | None = None
    log_dir: str = ""
    offline: int = 0
    read_only_until_room: int | None = None


# --- append -----------------------------------------------------------------------------------------------------------


@message
class AppendPartition(Message):
    """Destination of the next ``size`` bytes of the payload, which are one record batch."""

    topic: str
    partition: int = _integer(maximum=_INT32_MAX)
    size: int = _integer(maximum=_INT32_MAX)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], *, strict: bool = True, beside: frozenset[str] = frozenset()) -> Self:
        """``Message.from_wire``, with a fast path for well-formed maps, because every append is decoded here."""
        topic, partition, size = wire.get("topic"), wire.get("partition"), wire.get("size")
        if (
            len(wire) == 3
            and type(topic) is str
            and type(partition) is int
            and type(size) is int
            and 0 <= partition <= _INT32_MAX
            and 0 <= size <= _INT32_MAX
        ):
            return cls(topic, partition, size)
        return Message.from_wire.__func__(cls, wire, strict=strict, beside=beside)  # type: ignore[attr-defined, no-any-return]


@message
class AppendRequest(Request):
    """Append batches; ``ack`` is what each must have reached before the reply. ``none`` gets no reply.

    ``create`` creates a missing topic if the broker allows that. ``topic_ids`` and ``partition_counts`` are as in
    FetchRequest.
    """

    api: ClassVar[str] = "append"
    version: ClassVar[int] = 2
    partitions: list[AppendPartition]
    ack: Ack = "disk"
    create: bool | None = None
    topic_ids: dict[str, str] | None = None
    partition_counts: dict[str, int] | None = None

    def version_needed(self) -> int:
        """``Request.version_needed``."""
        return 1 if self.topic_ids is None and self.partition_counts is None else 2

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], *, strict: bool = True, beside: frozenset[str] = frozenset()) -> Self:
        """``Message.from_wire``, with a fast path as in AppendPartition for the usual request of a producer."""
        partitions: Any = wire.get("partitions")
        ack: Any = wire.get("ack")
        ids: Any = wire.get("topic_ids")
        counts: Any = wire.get("partition_counts")
        if (
            len(wire) == 5 + (ids is not None) + (counts is not None)
            and type(partitions) is list
            and len(partitions) == 1
            and type(partitions[0]) is dict
            and type(ack) is str
            and ack in {"disk", "os"}
            and (ids is None or _is_map(ids, str))
            and (counts is None or _is_map(counts, int))
            and beside is _ENVELOPE
            and beside <= wire.keys()
        ):
            known: Ack = "disk" if ack == "disk" else "os"
            return cls([AppendPartition.from_wire(partitions[0])], known, None, ids, counts)
        return Message.from_wire.__func__(cls, wire, strict=strict, beside=beside)  # type: ignore[attr-defined, no-any-return]


@message
class AppendResult(Message):
    """Result of one batch: an ``error``, or its base offset and the ack it reached.

    ``timestamp`` is the append time of a LogAppendTime topic, else -1. Records with a timestamp below
    ``expired_before`` (ms) are past the topic's retention and will be deleted; 0 means none are.
    """

    topic: str
    partition: int
    base_offset: int | None = None
    timestamp: int | None = None
    ack: str | None = None
    duplicate: bool | None = None
    expired_before: int | None = None
    error: SeglogError | None = None

    def to_wire(self) -> dict[str, Any]:
        """``Message.to_wire``, with a fast path for successful appends."""
        wire = {
            "topic": self.topic,
            "partition": self.partition,
            "base_offset": self.base_offset,
            "timestamp": self.timestamp,
            "ack": self.ack,
            "duplicate": self.duplicate,
            "expired_before": self.expired_before,
        }
        return wire if self.error is None and None not in wire.values() else Message.to_wire(self)


@message
class AppendReply(Message):
    """One result per batch, in request order; ``partition_counts`` is as in FetchReply."""

    partitions: list[AppendResult]
    partition_counts: dict[str, int] | None = None

    def to_wire(self) -> dict[str, Any]:
        """``Message.to_wire``, faster."""
        wire: dict[str, Any] = {"partitions": [result.to_wire() for result in self.partitions]}
        if self.partition_counts is not None:
            wire["partition_counts"] = self.partition_counts
        return wire


# --- fetch ------------------------------------------------------------------------------------------------------------


@message
class FetchPartition(Message):
    """Start of a read: an ``offset``, or the first record at or after ``timestamp`` (ms); exactly one of the two.

    With ``verify`` the broker checks the checksums of what it sends.
    """

    topic: str
    partition: int = _integer(maximum=_INT32_MAX)
    offset: int | None = _integer(default=None)
    timestamp: int | None = _integer(default=None)
    max_bytes: int = _integer(default=1024 * 1024, maximum=_INT32_MAX)
    verify: bool | None = None


@message
class FetchRequest(Request):
    """Read whole batches: at least one for the first partition that has any, else up to the limits.

    Waits up to ``max_wait_ms`` until ``min_bytes`` are available. ``topic_ids`` maps topic names to the ids the client
    expects, so that a recreated topic is not read by mistake. ``partition_counts`` maps topic names to the partition
    counts the client knows; a fetch that waits is answered at once when a topic has another count. Both are per topic,
    because partitions may be many.
    """

    api: ClassVar[str] = "fetch"
    version: ClassVar[int] = 3
    partitions: list[FetchPartition]
    max_bytes: int = _integer(default=50 * 1024 * 1024, maximum=_INT32_MAX)
    min_bytes: int = _integer(default=1, maximum=_INT32_MAX)
    max_wait_ms: int = _integer(default=30_000, maximum=_INT32_MAX)
    topic_ids: dict[str, str] | None = None
    partition_counts: dict[str, int] | None = None

    def version_needed(self) -> int:
        """``Request.version_needed``."""
        if self.partition_counts is not None or any(item.verify is not None for item in self.partitions):
            return 3
        return 1 if self.topic_ids is None else 2


@message
class Gap(Message):
    """Offsets ``start`` to ``end`` (exclusive) that hold no record, and why."""

    start: int
    end: int
    reason: str


@message
class FetchResult(Message):
    """``size`` bytes of whole batches in the payload, the first of which contains or follows ``offset``.

    ``offset`` is the requested one, or the one found for the timestamp. [``earliest``, ``latest``) can be read; records
    below ``durable`` survive power loss. ``gaps`` lists offsets without a record; any other hole between two batches is
    from compaction if it is below ``compacted_before``, else its records are missing.
    """

    topic: str
    partition: int
    size: int = 0
    offset: int | None = None
    earliest: int | None = None
    latest: int | None = None
    durable: int | None = None
    leader_epoch: int | None = None
    gaps: list[Gap] | None = None
    compacted_before: int | None = None
    error: SeglogError | None = None


@message
class FetchReply(Message):
    """One result per partition, in request order; the payload holds their bytes in the same order.

    ``partition_counts`` has the partition count of each topic whose count differs from the request's.
    """

    partitions: list[FetchResult]
    partition_counts: dict[str, int] | None = None


# --- offsets ----------------------------------------------------------------------------------------------------------


@message
class OffsetsPartition(Message):
    """A partition (None: all of the topic) to look up; ``timestamp`` also looks up the first record from then on."""

    topic: str
    partition: int | None = _integer(default=None, maximum=_INT32_MAX)
    timestamp: int | None = _integer(default=None)


@message
class OffsetsRequest(Request):
    """Look up the ends of partitions, and offsets by timestamp."""

    api: ClassVar[str] = "offsets"
    partitions: list[OffsetsPartition]


@message
class OffsetsResult(Message):
    """The ends of one partition; ``offset`` and ``timestamp`` of the record found by timestamp, None without one."""

    topic: str
    partition: int | None = None
    earliest: int | None = None
    latest: int | None = None
    durable: int | None = None
    leader_epoch: int | None = None
    offset: int | None = None
    timestamp: int | None = None
    error: SeglogError | None = None


@message
class OffsetsReply(Message):
    """One result per partition; ``topic_ids`` maps the names of existing topics to their ids."""

    partitions: list[OffsetsResult]
    topic_ids: dict[str, str] | None = None


# --- topics -----------------------------------------------------------------------------------------------------------


@message
class TopicsRequest(Request):
    """List topics by name, a page of ``limit`` after name ``after``, or only ``names``; ``config`` adds all values."""

    api: ClassVar[str] = "topics"
    names: list[str] | None = None
    after: str = ""
    limit: int = _integer(1, default=1_000, maximum=10_000)
    config: bool = False


@message
class ConfigEntry(Message):
    """One effective value and its origin: default, file, environment, flag or topic, and ``where`` in it.

    ``shortfall`` says why the value has no effect or only part of it; None otherwise.
    """

    value: str
    origin: str
    where: str = ""
    shortfall: str | None = None


@message
class TopicDescription(Message):
    """One topic. ``id`` is Kafka's 22-character topic id; ``size`` is in bytes, of all segments."""

    name: str
    id: str
    partitions: int
    max_message_bytes: int
    segment_bytes: int
    segments: int = 0
    size: int = 0
    config: dict[str, ConfigEntry] | None = None
    notes: list[str] = field(default_factory=list)


@message
class TopicsReply(Message):
    """A page of topics, as a msgpack list of TopicDescription in the payload; ``more`` says whether others follow.

    ``unknown`` has an error for each of ``names`` that does not exist.
    """

    more: bool = False
    unknown: list[SeglogError] = field(default_factory=list)


@message
class CreateTopicRequest(Request):
    """Create a topic; ``partitions`` defaults to the broker's ``num.partitions``."""

    api: ClassVar[str] = "create_topic"
    topic: str
    partitions: int | None = _integer(-(2**31), default=None, maximum=_INT32_MAX)
    config: dict[str, ConfigValue] = field(default_factory=dict)


@message
class CreateTopicReply(Message):
    """The created topic, with warnings about its configuration."""

    topic: str
    topic_id: str
    partitions: int
    warnings: list[str] = field(default_factory=list)


@message
class DeleteTopicRequest(Request):
    """Delete a topic and its data."""

    api: ClassVar[str] = "delete_topic"
    topic: str


@message
class DeleteTopicReply(Message):
    """The deleted topic."""

    topic: str


@message
class AlterTopicRequest(Request):
    """Change a topic: set values in ``config``, reset the keys in ``reset`` to their defaults, add partitions.

    ``partitions`` is the new count, never lower than the old one. Takes effect at once and survives a restart.
    """

    api: ClassVar[str] = "alter_topic"
    topic: str
    config: dict[str, ConfigValue] = field(default_factory=dict)
    reset: list[str] = field(default_factory=list)
    partitions: int | None = _integer(1, default=None, maximum=_INT32_MAX)


@message
class AlterTopicReply(Message):
    """The topic after the change: its partition count and its own settings."""

    topic: str
    partitions: int
    config: dict[str, ConfigValue]
    warnings: list[str] = field(default_factory=list)


# --- truncate ---------------------------------------------------------------------------------------------------------


@message
class TruncatePartition(Message):
    """Delete the records below ``offset`` (None: all records). Kafka calls this DeleteRecords."""

    topic: str
    partition: int = _integer(maximum=_INT32_MAX)
    offset: int | None = _integer(default=None)


@message
class TruncateRequest(Request):
    """Advance log start offsets; answered when the new ones survive power loss."""

    api: ClassVar[str] = "truncate"
    partitions: list[TruncatePartition]


@message
class TruncateResult(Message):
    """The log start offset now; an offset below the old start changes nothing."""

    topic: str
    partition: int
    earliest: int | None = None
    error: SeglogError | None = None


@message
class TruncateReply(Message):
    """One result per partition, in request order."""

    partitions: list[TruncateResult]


# --- cancel -----------------------------------------------------------------------------------------------------------


@message
class CancelRequest(Request):
    """Cancel the waiting fetch of this connection with id ``target``; it is answered with REQUEST_CANCELLED."""

    api: ClassVar[str] = "cancel"
    target: int = _integer()


@message
class CancelReply(Message):
    """Whether such a fetch was waiting."""

    cancelled: bool


# --- explain ----------------------------------------------------------------------------------------------------------


@message
class ExplainRequest(Request):
    """Trace how a fetch at ``offset`` or ``timestamp`` finds its position; the seek is made for this request."""

    api: ClassVar[str] = "explain"
    topic: str
    partition: int = _integer(maximum=_INT32_MAX)
    offset: int | None = _integer(default=None)
    timestamp: int | None = _integer(default=None)


@message
class ExplainedLookup(Message):
    """One search of one index ("offset" or "time"): its entries, the entries read (``probes``), and the one found.

    ``key`` is the found entry's offset or timestamp, ``value`` its position (bytes) or offset; None when all entries
    are above ``wanted``.
    """

    index: str
    file: str
    entries: int
    wanted: int
    probes: int
    key: int | None = None
    value: int | None = None


@message
class ExplainReply(Message):
    """The steps of the seek. Sizes and positions are bytes; files are relative to the log directory.

    ``segment`` is the base offset of the one chosen among ``segments``. ``scanned_bytes`` are those between the
    position given by the index and the found batch; ``read_bytes`` were read from the ``.log`` by system calls.
    """

    topic: str
    partition: int
    segments: int
    why: str
    segment: int | None = None
    passed_over: int = 0
    lookups: list[ExplainedLookup] = field(default_factory=list)
    scan_start: int = 0
    scanned_bytes: int = 0
    scanned_batches: int = 0
    read_bytes: int = 0
    position: int | None = None
    base_offset: int | None = None
    last_offset: int | None = None
    record_offset: int | None = None
    record_timestamp: int | None = None
    rebuilt_indexes: bool = False
    files: list[str] = field(default_factory=list)


# --- explain_segments -------------------------------------------------------------------------------------------------


@message
class ExplainSegmentsRequest(Request):
    """Why segments of a partition are kept and when they go: a page of ``limit`` after base offset ``after``.

    What compaction would drop is included where computing it is cheap, and always if ``drops`` is true.
    """

    api: ClassVar[str] = "explain_segments"
    topic: str
    partition: int = _integer(maximum=_INT32_MAX)
    after: int | None = _integer(default=None)
    limit: int = _integer(1, default=200, maximum=10_000)
    drops: bool | None = None


@message
class PartitionCompaction(Message):
    """The next and the last compaction of a partition, in bytes, offsets and times (ms).

    ``why_not_now`` is a sentence; None: compaction is due or running. ``drops_untold`` is a sentence, why the segments
    have no ``compaction``; None: they have it.
    """

    dirty_ratio: float | None = None
    first_dirty_offset: int | None = None
    cleanable_until: int | None = None
    last_run_ms: int | None = None
    last_bytes_before: int | None = None
    last_bytes_after: int | None = None
    last_error: str | None = None
    why_not_now: str | None = None
    drops_untold: str | None = None


@message
class SegmentCompaction(Message):
    """Records and bytes that compaction would drop from a segment now."""

    records: int
    size: int


@message
class ExplainedSegment(Message):
    """One segment, offsets [``base_offset``, ``next_offset``); times are ms of the broker's wall clock, ``now_ms``.

    ``deletable_ms`` is the time from which a retention rule deletes it, if nothing else changes; None if unknown. It
    leaves the log between ``leaves_from_ms`` and ``leaves_by_ms``, and the disk between ``gone_from_ms`` and
    ``gone_by_ms``. If ``bytes_to_come`` is set, ``retention.bytes`` deletes it sooner, once so many are appended.
    """

    base_offset: int
    next_offset: int
    size: int
    state: str
    why: str
    first_timestamp: int | None = None
    largest_timestamp: int | None = None
    rolled: str | None = None
    rolled_ms: int | None = None
    rule: str | None = None
    kept: str | None = None
    behind: int | None = None
    age_since_ms: int | None = None
    age_source: str | None = None
    deletable_ms: int | None = None
    leaves_from_ms: int | None = None
    leaves_by_ms: int | None = None
    gone_from_ms: int | None = None
    gone_by_ms: int | None = None
    bytes_to_come: int | None = None
    idle_roll_ms: int | None = None
    warnings: list[str] = field(default_factory=list)
    compaction: SegmentCompaction | None = None


@message
class ExplainSegmentsReply(Message):
    """The partition at ``now_ms`` of the broker's wall clock; its segments are a msgpack list in the payload.

    ``more`` says whether others follow. ``doubts`` (about the clock) and ``problems`` (what stops the broker's work on
    this partition) are sentences; empty when all is well.
    """

    topic: str
    partition: int
    now_ms: int
    earliest: int
    latest: int
    segments: int
    size: int
    waiting: int
    waiting_size: int
    check_interval_ms: int
    next_check_ms: int
    earliest_reason: str | None = None
    more: bool = False
    config: dict[str, ConfigEntry] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    compaction: PartitionCompaction | None = None


# --- lag --------------------------------------------------------------------------------------------------------------


@message
class LagPartition(Message):
    """A reader's position in a partition: ``offset`` is that of the next record to read."""

    topic: str
    partition: int = _integer(maximum=_INT32_MAX)
    offset: int = _integer()


@message
class LagRequest(Request):
    """How far positions are behind, and when retention reaches them; at most 1,000 per request."""

    api: ClassVar[str] = "lag"
    partitions: list[LagPartition]


@message
class LagResult(Message):
    """Lag of a position, and when its records are deleted; times are ms of the broker's wall clock.

    ``timestamp`` is that of the first record in the batch to be read next. The segment with base offset ``segment``
    contains the position. It leaves the log between ``lost_from_ms`` and ``lost_by_ms``, or sooner, once
    ``bytes_to_come`` more are appended; None: it is kept as things stand. For an offset below ``earliest`` the records
    between are lost, and the fields describe the first record of the log.
    """

    topic: str
    partition: int
    earliest: int | None = None
    latest: int | None = None
    durable: int | None = None
    timestamp: int | None = None
    newest_timestamp: int | None = None
    earliest_reason: str | None = None
    segment: int | None = None
    lost_from_ms: int | None = None
    lost_by_ms: int | None = None
    bytes_to_come: int | None = None
    why: str | None = None
    error: SeglogError | None = None


@message
class LagReply(Message):
    """One result per position, in request order, at ``now_ms`` of the broker's wall clock."""

    partitions: list[LagResult]
    now_ms: int


# --- metrics ----------------------------------------------------------------------------------------------------------


@message
class MetricsRequest(Request):
    """Read the broker's counters since its start."""

    api: ClassVar[str] = "metrics"


@message
class MetricsReply(Message):
    """Numbers by name; docs/OPERATIONS.md says what each counts."""

    metrics: dict[str, int | float]


@message
class InitProducerRequest(Request):
    """Allocate an id for a new idempotent producer."""

    api: ClassVar[str] = "init_producer"


@message
class InitProducerReply(Message):
    """A unique producer id, never reused, and its first epoch."""

    producer_id: int
    producer_epoch: int


# --- flush ------------------------------------------------------------------------------------------------------------


@message
class FlushPartition(Message):
    """A partition to flush up to its end."""

    topic: str
    partition: int = _integer(maximum=_INT32_MAX)


@message
class FlushRequest(Request):
    """Flush logs to disk, records of all producers at any ack; answered when they are durable."""

    api: ClassVar[str] = "flush"
    partitions: list[FlushPartition]


@message
class FlushResult(Message):
    """Every record below ``durable`` survives power loss: at least all that existed at the time of the request."""

    topic: str
    partition: int
    durable: int | None = None
    error: SeglogError | None = None


@message
class FlushReply(Message):
    """One result per partition, in request order."""

    partitions: list[FlushResult]


REQUESTS: Final[Mapping[str, type[Request]]] = {
    request.api: request
    for request in (
        HelloRequest,
        AppendRequest,
        FetchRequest,
        OffsetsRequest,
        TopicsRequest,
        CreateTopicRequest,
        AlterTopicRequest,
        DeleteTopicRequest,
        TruncateRequest,
        CancelRequest,
        ExplainRequest,
        ExplainSegmentsRequest,
        LagRequest,
        MetricsRequest,
        InitProducerRequest,
        FlushRequest,
    )
}

API_VERSIONS: Final = {api: [1, request.version] for api, request in REQUESTS.items()}


MessageT = TypeVar("MessageT", bound=Message)


# --- Envelopes --------------------------------------------------------------------------------------------------------


def request_header(request_id: int, request: Request) -> dict[str, Any]:
    """The header of a request's frame."""
    return {"id": request_id, "api": request.api, "v": request.version_needed()} | request.to_wire()


def request_id_of(header: Mapping[str, Any]) -> int:
    """The request's id. Raises RemoteProtocolError without a valid one, since a reply could not be matched."""
    request_id = header.get("id")
    if not isinstance(request_id, int) or isinstance(request_id, bool) or not 0 <= request_id <= INT64_MAX:
        raise RemoteProtocolError("a request needs an id: a whole number, 0 or more")
    return request_id


_ENVELOPE: Final = frozenset({"id", "api", "v"})


def _is_map(value: object, kind: type) -> bool:
    """Whether ``value`` is a map from text to values of exactly type ``kind``."""
    return type(value) is dict and all(type(k) is str and type(v) is kind for k, v in value.items())


def decode_request(header: Mapping[str, Any]) -> Request:
    """The request in a frame's header.

    Raises UnsupportedApiError, UnsupportedVersionError or InvalidRequestError. All can be sent as replies: the frame
    was whole, so the connection stays usable.
    """
    api, version = header.get("api"), header.get("v")
    cls = REQUESTS.get(api) if isinstance(api, str) else None
    if cls is None:
        raise UnsupportedApiError(f"no api {_shown(api)}; there are {', '.join(REQUESTS)}", api=_cut(api))
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= cls.version:
        raise UnsupportedVersionError(
            f"{api} is spoken in versions 1 to {cls.version}, not {_shown(version)}",
            api=api,
            minimum=1,
            maximum=cls.version,
        )
    request = cls.from_wire(header, beside=_ENVELOPE)
    if version < cls.version and request.version_needed() > version:
        raise InvalidRequestError(
            f"a field of {api} in version {request.version_needed()} is unknown in version {version}, which was asked"
        )
    return request


def reply_header(request_id: int, reply: Message | SeglogError) -> dict[str, Any]:
    """The header of a reply's frame."""
    if isinstance(reply, SeglogError):
        return {"id": request_id, "error": error_to_wire(reply)}
    fields = reply.to_wire()
    assert "id" not in fields, "a reply's field must not hide the id it is matched by"
    return {"id": request_id} | fields


def pack_fields(reply: Message) -> bytes:
    """The packed fields of a reply (at most 14), without an id, for replies that go to many requests."""
    return encode_value(reply.to_wire())


def pack_long_fields(reply: Message, a_turn: int) -> Generator[None, None, bytes]:
    """``pack_fields`` of a reply with a list of ``partitions``; yields after every ``a_turn`` of them."""
    partitions: list[Message] = getattr(reply, "partitions")  # noqa: B009 - of any such reply
    wires = []
    for number, result in enumerate(partitions, 1):
        wires.append(result.to_wire())
        if number % a_turn == 0:
            yield
    rest = dataclasses.replace(reply, partitions=[])  # type: ignore[call-arg]
    return encode_value(rest.to_wire() | {"partitions": wires})


def pack_reply_header(request_id: int, fields: bytes) -> bytes:
    """The packed ``reply_header``, from fields packed by ``pack_fields``."""
    first = fields[0]  # a map with up to 15 entries begins with 0x80 and their number, in one byte
    assert _MAP_FIRST <= first < _MAP_FIRST + 15, "too many fields to add the id"
    return b"".join((bytes((first + 1,)), _PACKED_ID, encode_value(request_id), fields[1:]))


_MAP_FIRST: Final = 0x80
_PACKED_ID: Final = encode_value("id")


def decode_reply(header: Mapping[str, Any], cls: type[MessageT]) -> MessageT:
    """The reply of type ``cls`` in a frame's header. Raises the error that the header holds instead.

    Raises RemoteProtocolError when it holds neither.
    """
    error = header.get("error")
    if error is not None:
        raise error_from_wire(error if isinstance(error, Mapping) else {})
    try:
        return cls.from_wire(header, strict=False)
    except InvalidRequestError as bad:
        raise RemoteProtocolError(f"the broker's answer is not understood: {bad.message}") from bad


def decode_descriptions(payload: Buffer) -> list[TopicDescription]:
    """The page of topics in the payload of a TopicsReply. Raises RemoteProtocolError for an invalid payload."""
    return _decode_page(payload, TopicDescription, "topics")


def decode_segments(payload: Buffer) -> list[ExplainedSegment]:
    """The page of segments in the payload of an ExplainSegmentsReply. Raises RemoteProtocolError if it is invalid."""
    return _decode_page(payload, ExplainedSegment, "segments")


def _decode_page(payload: Buffer, cls: type[MessageT], of: str) -> list[MessageT]:
    page = decode_value(payload, f"list of {of}")
    try:
        found: list[MessageT] = _list(_nested(cls))(page, of, False)
    except InvalidRequestError as bad:
        raise RemoteProtocolError(f"the broker's list of {of} is not understood: {bad.message}") from bad
    return found


# --- From types to decoders -------------------------------------------------------------------------------------------


class _Encoding(NamedTuple):
    """Field names, a function that gets their values, and the names whose values hold messages or errors."""

    names: tuple[str, ...]
    get_values: Callable[[Any], tuple[Any, ...]]
    nested: list[str]


_Decoder = Callable[[Any, str, bool], Any]


# Caches by class: plain dictionaries, because mypy does not accept these classes as Hashable.
_encoding_of: dict[Any, _Encoding] = {}
_decoders_of: dict[Any, dict[str, _Decoder]] = {}


def _encoding(cls: type[Message]) -> _Encoding:
    encoding = _encoding_of.get(cls)
    if encoding is None:
        hints = get_type_hints(cls)
        names = tuple(f.name for f in dataclasses.fields(cls))
        get_values = operator.attrgetter(*names) if len(names) > 1 else lambda self: (getattr(self, names[0]),)
        nested = [name for name in names if _is_nested(hints[name])]
        encoding = _Encoding(names, get_values if names else lambda _self: (), nested)
        _encoding_of[cls] = encoding
    return encoding


def _is_nested(hint: Any) -> bool:
    """Whether values of this type hold, or are, messages or errors."""
    if isinstance(hint, type) and issubclass(hint, (Message, SeglogError)):
        return True
    return any(_is_nested(argument) for argument in get_args(hint))


def _decoders(cls: type[Message]) -> dict[str, _Decoder]:
    decoders = _decoders_of.get(cls)
    if decoders is None:
        hints = get_type_hints(cls)
        decoders = {f.name: _decoder(hints[f.name], f.metadata.get("range")) for f in dataclasses.fields(cls)}
        _decoders_of[cls] = decoders
    return decoders


def _is_required(cls: type[Message], name: str) -> bool:
    found = next(f for f in dataclasses.fields(cls) if f.name == name)
    return found.default is dataclasses.MISSING and found.default_factory is dataclasses.MISSING


def _value_to_wire(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_wire()
    if isinstance(value, list):
        return [_value_to_wire(item) for item in value]
    if isinstance(value, dict):
        return {key: _value_to_wire(item) for key, item in value.items()}
    if isinstance(value, SeglogError):
        return error_to_wire(value)
    return value


def _decoder(hint: Any, limits: tuple[int, int] | None) -> _Decoder:
    """A function (value, field name, strict) -> value that raises for values not of type ``hint``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
        if type(None) in arguments:
            rest = functools.reduce(operator.or_, (a for a in arguments if a is not type(None)))
            return _optional(_decoder(rest, limits))
        return _plain(arguments, " or ".join(a.__name__ for a in arguments))
    if origin is Literal:
        return _choice(arguments)
    if origin is list:
        return _list(_decoder(arguments[0], None))
    if origin is dict:
        return _map(_decoder(arguments[1], None))
    if hint is int:
        return _ranged(limits)
    if hint is SeglogError:
        return _error
    if isinstance(hint, type) and issubclass(hint, Message):
        return _nested(hint)
    return _plain((hint,), {str: "text", bool: "true or false"}.get(hint, hint.__name__))


def _wrong(name: str, expected: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(f"field {_shown(name)} must be {expected}, not {_shown(value)}", field=_cut(name))


def _check_count(name: str, items: Sized) -> None:
    """Refuse more than ITEMS_MAX items in a request; a reply is limited by its frame only."""
    if len(items) > ITEMS_MAX:
        raise InvalidRequestError(
            f"field {_shown(name)} has {len(items)} items, one request takes {ITEMS_MAX}: send several requests",
            field=_cut(name),
        )


def _shown(value: Any) -> str:
    """The repr of a peer's value for an error message: short, and limited in depth."""
    return _cut(_SHORT.repr(value))


def _cut(value: Any) -> str:
    """A peer's name as a fact of an error, cut to 60 characters; the repr if it is not text."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 60


def _plain(kinds: tuple[type, ...], expected: str) -> _Decoder:
    def decode(value: Any, name: str, _strict: bool) -> Any:
        if type(value) not in kinds:  # exact: True is no int here
            raise _wrong(name, expected, value)
        return value

    return decode


def _ranged(limits: tuple[int, int] | None) -> _Decoder:
    low, high = limits or (-INT64_MAX - 1, INT64_MAX)

    def decode(value: Any, name: str, _strict: bool) -> int:
        if type(value) is not int or not low <= value <= high:
            raise _wrong(name, f"a whole number from {low} to {high}", value)
        return value

    return decode


def _choice(choices: tuple[Any, ...]) -> _Decoder:
    def decode(value: Any, name: str, _strict: bool) -> Any:
        if value not in choices:
            raise _wrong(name, f"one of {', '.join(map(str, choices))}", value)
        return value

    return decode


def _optional(inner: _Decoder) -> _Decoder:
    return lambda value, name, strict: None if value is None else inner(value, name, strict)


def _list(inner: _Decoder) -> _Decoder:
    def decode(value: Any, name: str, strict: bool) -> list[Any]:
        if type(value) is not list:
            raise _wrong(name, "a list", value)
        if strict:
            _check_count(name, value)
        return [inner(item, name, strict) for item in value]

    return decode


def _map(inner: _Decoder) -> _Decoder:
    def decode(value: Any, name: str, strict: bool) -> dict[str, Any]:
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise _wrong(name, "a map with text keys", value)
        if strict:
            _check_count(name, value)
        return {key: inner(item, f"{name}.{key}", strict) for key, item in value.items()}

    return decode


def _nested(cls: type[Message]) -> _Decoder:
    def decode(value: Any, name: str, strict: bool) -> Message:
        if type(value) is not dict:
            raise _wrong(name, "a map", value)
        return cls.from_wire(value, strict=strict)

    return decode


def _error(value: Any, name: str, _strict: bool) -> SeglogError:
    if not isinstance(value, Mapping):
        raise _wrong(name, "an error map", value)
    return error_from_wire(value)
