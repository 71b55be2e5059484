"""Record batches read, gaps between them, and the end of a wait for them."""

from collections.abc import Iterable
from typing import ClassVar

from seglog_protocol.errors import SeglogError
from seglog_protocol.isolation import Isolation
from seglog_protocol.messages.base import Entries, Int31, Int63, Int64, Items, Message, Request, RequestPart, default


class FetchPartition(RequestPart):
    """Start of a read: an ``offset``, or the first record at or after ``timestamp`` (ms); exactly one of the two.

    With ``verify`` the broker checks the checksums of what it sends.
    """

    topic: str
    partition: Int31
    offset: Int63 | None = None
    timestamp: Int63 | None = None
    max_bytes: Int31 = default(1024 * 1024)
    verify: bool | None = None


class FetchRequest(Request):
    """Read whole batches: at least one for the first partition that has any, else up to the limits.

    Waits up to ``max_wait_ms`` until ``min_bytes`` are available. ``topic_ids`` maps topic names to the ids the client
    expects, so that a recreated topic is not read by mistake. ``partition_counts`` maps topic names to the partition
    counts the client knows; a fetch that waits is answered at once when a topic has another count. Both are per topic,
    because partitions may be many. ``isolation`` None is "read_uncommitted"; at "read_committed" nothing is read from
    the last stable offset on, and the reply names aborted transactions.
    """

    api: ClassVar[str] = "fetch"
    is_plain: ClassVar[bool] = True
    version: ClassVar[int] = 4
    partitions: Items[FetchPartition]
    max_bytes: Int31 = default(50 * 1024 * 1024)
    min_bytes: Int31 = default(1)
    max_wait_ms: Int31 = default(30_000)
    topic_ids: Entries[str] | None = None
    partition_counts: Entries[Int64] | None = None
    isolation: Isolation | None = None

    def version_needed(self) -> int:
        """``Request.version_needed``."""
        if self.isolation is not None:
            return 4
        if self.partition_counts is not None or any(item.verify is not None for item in self.partitions):
            return 3
        return 1 if self.topic_ids is None else 2


class Gap(Message):
    """Offsets ``start`` to ``end`` (exclusive) that hold no record, and why."""

    start: Int64
    end: Int64
    reason: str


def name_hole(start: int, end: int, named: Iterable[Gap], compacted_before: int) -> list[Gap]:
    """The gaps that cover offsets ``start`` to ``end`` (exclusive), in order, each with its reason.

    The one rule for broker and client, for offsets between two batches that do not follow each other. Ranges in
    ``named`` (ordered by start) keep their reason; the rest is "compacted" below ``compacted_before`` and "missing"
    from there on.
    """
    pieces: list[Gap] = []
    at = start
    for gap in named:
        first, last = max(at, gap.start), min(gap.end, end)
        if first < last:
            pieces += _unnamed(at, first, compacted_before)
            pieces.append(Gap(first, last, gap.reason))
            at = last
    return pieces + _unnamed(at, end, compacted_before)


def _unnamed(start: int, end: int, compacted_before: int) -> list[Gap]:
    middle = min(max(start, compacted_before), end)
    pieces = (Gap(start, middle, "compacted"), Gap(middle, end, "missing"))
    return [gap for gap in pieces if gap.start < gap.end]


class FetchResult(Message):
    """``size`` bytes of whole batches in the payload, the first of which contains or follows ``offset``.

    ``offset`` is the requested one, or the one found for the timestamp. [``earliest``, ``latest``) can be read; records
    below ``durable`` survive power loss. ``gaps`` lists offsets without a record; any other hole between two batches is
    from compaction if it is below ``compacted_before``, else its records are missing. The first open transaction begins
    at ``last_stable_offset``; without one it is ``latest``. At "read_committed", ``aborted`` has the producer id and
    the first offset of every aborted transaction that may have batches in the payload.
    """

    topic: str
    partition: Int64
    size: Int64 = default(0)
    offset: Int64 | None = None
    earliest: Int64 | None = None
    latest: Int64 | None = None
    durable: Int64 | None = None
    leader_epoch: Int64 | None = None
    gaps: list[Gap] | None = None
    compacted_before: Int64 | None = None
    last_stable_offset: Int64 | None = None
    aborted: list[list[Int64]] | None = None
    error: SeglogError | None = None


class FetchReply(Message):
    """One result per partition, in request order; the payload holds their bytes in the same order.

    ``partition_counts`` has the partition count of each topic whose count differs from the request's.
    """

    partitions: list[FetchResult]
    partition_counts: dict[str, Int64] | None = None


class CancelRequest(Request):
    """Cancel the waiting fetch of this connection with id ``target``; it is answered with REQUEST_CANCELLED."""

    api: ClassVar[str] = "cancel"
    target: Int63


class CancelReply(Message):
    """True if such a fetch was waiting."""

    cancelled: bool
