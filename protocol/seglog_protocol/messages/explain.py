"""How a fetch finds its way, and why segments are still there."""

from typing import Annotated, ClassVar

from msgspec import Meta

from seglog_protocol.messages.base import Int31, Int63, Int64, Message, Request, default
from seglog_protocol.messages.topics import ConfigEntry


class ExplainRequest(Request):
    """Trace how a fetch at ``offset`` or ``timestamp`` finds its position; the seek is made for this request.

    With ``group``, a share group, tell what that has of the partition, and of the record at ``offset`` if one is given.
    """

    api: ClassVar[str] = "explain"
    version: ClassVar[int] = 2
    added: ClassVar[str | None] = "group"
    topic: str
    partition: Int31
    offset: Int63 | None = None
    timestamp: Int63 | None = None
    group: str | None = None


class ExplainedProbe(Message):
    """An entry of an index that a search read: its number, from 0, and its offset or timestamp."""

    entry: Int64
    key: Int64


class ExplainedLookup(Message):
    """One search of one index ("offset" or "time"): its entries, how many were read (``probes``), and the one found.

    ``key`` is the found entry's offset or timestamp, ``value`` its position (bytes) or offset; None when all entries
    are above ``wanted``. ``trail`` has the entries read, in this order.
    """

    index: str
    file: str
    entries: Int64
    wanted: Int64
    probes: Int64
    key: Int64 | None = None
    value: Int64 | None = None
    trail: list[ExplainedProbe] = default([])


class RecordHolder(Message):
    """A member of a share group that has ``records``, from ``first_offset`` on; the first lock ends at ``until_ms``."""

    member_id: str
    records: Int64
    first_offset: Int64
    until_ms: Int64


class Advice(Message):
    """A sentence about what is wrong, and one about what to do."""

    found: str
    remedy: str


class ExplainedDelivery(Message):
    """A partition as a share group has it at ``now_ms`` of the broker's wall clock, and a record of it.

    Records from ``start_offset`` (None: not chosen yet) are ``acquired`` by members, ``archiving`` (their dead letters
    are not written yet), ``waiting`` or done with. ``holders`` are the members that have the most. ``state`` and what
    follows is of the record asked for.
    """

    now_ms: Int64
    acquired: Int64
    archiving: Int64
    waiting: Int64
    start_offset: Int64 | None = None
    holders: list[RecordHolder] = default([])
    warnings: list[Advice] = default([])
    state: str | None = None
    delivery_count: Int64 | None = None
    member_id: str | None = None
    until_ms: Int64 | None = None


class ExplainReply(Message):
    """The steps of the seek. Sizes and positions are bytes; files are relative to the log directory.

    ``segment`` is the base offset of the one chosen among ``segments``. ``scanned_bytes`` are those between the
    position given by the index and the found batch, ``positions`` those of the first 256 headers in them;
    ``read_bytes`` were read from the ``.log`` by system calls. ``log_size`` and ``batch_size`` are of the segment and
    of the batch found; 0 if nothing was. Of a share group there is ``delivery`` and no seek.
    """

    topic: str
    partition: Int64
    segments: Int64
    why: str
    segment: Int64 | None = None
    passed_over: Int64 = default(0)
    lookups: list[ExplainedLookup] = default([])
    scan_start: Int64 = default(0)
    scanned_bytes: Int64 = default(0)
    scanned_batches: Int64 = default(0)
    read_bytes: Int64 = default(0)
    positions: list[Int64] = default([])
    log_size: Int64 = default(0)
    position: Int64 | None = None
    batch_size: Int64 = default(0)
    base_offset: Int64 | None = None
    last_offset: Int64 | None = None
    record_offset: Int64 | None = None
    record_timestamp: Int64 | None = None
    rebuilt_indexes: bool = default(False)
    files: list[str] = default([])
    delivery: ExplainedDelivery | None = None


class ExplainSegmentsRequest(Request):
    """Why segments of a partition are kept and when they go: a page of ``limit`` after base offset ``after``.

    What compaction would drop is included where computing it is cheap, and always if ``drops`` is true.
    """

    api: ClassVar[str] = "explain_segments"
    topic: str
    partition: Int31
    after: Int63 | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = default(200)
    drops: bool | None = None


class PartitionCompaction(Message):
    """The next and the last compaction of a partition, in bytes, offsets and times (ms).

    ``why_not_now`` is a sentence; None: compaction is due or running. ``drops_untold`` is a sentence, why the segments
    have no ``compaction``; None: they have it.
    """

    dirty_ratio: int | float | None = None
    first_dirty_offset: Int64 | None = None
    cleanable_until: Int64 | None = None
    last_run_ms: Int64 | None = None
    last_bytes_before: Int64 | None = None
    last_bytes_after: Int64 | None = None
    last_error: str | None = None
    why_not_now: str | None = None
    drops_untold: str | None = None


class SegmentCompaction(Message):
    """Records and bytes that compaction would drop from a segment now."""

    records: Int64
    size: Int64


class ExplainedSegment(Message):
    """One segment, offsets [``base_offset``, ``next_offset``); times are ms of the broker's wall clock, ``now_ms``.

    ``deletable_ms`` is the time from which a retention rule deletes it, if nothing else changes; None if unknown. It
    leaves the log between ``leaves_from_ms`` and ``leaves_by_ms``, and the disk between ``gone_from_ms`` and
    ``gone_by_ms``. If ``bytes_to_come`` is set, ``retention.bytes`` deletes it sooner, once so many are appended.
    """

    base_offset: Int64
    next_offset: Int64
    size: Int64
    state: str
    why: str
    first_timestamp: Int64 | None = None
    largest_timestamp: Int64 | None = None
    rolled: str | None = None
    rolled_ms: Int64 | None = None
    rule: str | None = None
    kept: str | None = None
    behind: Int64 | None = None
    age_since_ms: Int64 | None = None
    age_source: str | None = None
    deletable_ms: Int64 | None = None
    leaves_from_ms: Int64 | None = None
    leaves_by_ms: Int64 | None = None
    gone_from_ms: Int64 | None = None
    gone_by_ms: Int64 | None = None
    bytes_to_come: Int64 | None = None
    idle_roll_ms: Int64 | None = None
    warnings: list[str] = default([])
    compaction: SegmentCompaction | None = None


class ExplainSegmentsReply(Message):
    """The partition at ``now_ms`` of the broker's wall clock; its segments are a msgpack list in the payload.

    ``more`` says whether others follow. ``doubts`` (about the clock) and ``problems`` (what stops the broker's work on
    this partition) are sentences; empty when all is well.
    """

    topic: str
    partition: Int64
    now_ms: Int64
    earliest: Int64
    latest: Int64
    segments: Int64
    size: Int64
    waiting: Int64
    waiting_size: Int64
    check_interval_ms: Int64
    next_check_ms: Int64
    earliest_reason: str | None = None
    more: bool = default(False)
    config: dict[str, ConfigEntry] = default({})
    doubts: list[str] = default([])
    problems: list[str] = default([])
    compaction: PartitionCompaction | None = None
