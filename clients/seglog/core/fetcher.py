"""Fetch requests, verification and positions of a consumer, without socket or clock.

Shared by the blocking and the trio consumer. ``request`` returns the next fetch, ``take`` puts a reply's batches, gaps
and errors into a queue in log order, and ``next_batch`` verifies and returns them. Each partition has two positions:
where to fetch next, and ``position``, the offset of the next record for the program. After an error, a seek or a lost
connection fetching continues from ``position``.

Every returned batch is checked: its checksum, that its offsets continue the batch before, and that they are below the
end that the broker sent. The checksum does not cover a batch's offset: an offset that does not follow from the batch
before is accepted only if the next batch follows from it, or if the batch is the first of a reply, for which the broker
has checked the batch after it.

A batch that fails a check is fetched once more, with ``verify``: the broker then checks the checksums itself and
returns where to continue if the batch is damaged on disk. No field of a failed batch is used, neither its length nor
its offsets.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from seglog.core.records import ConsumerGap, FetchedBatch, GapLog, located
from seglog.core.retries import Waiting, backoff_seconds
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    PartitionRecoveringError,
    RemoteProtocolError,
    SeglogError,
    UnknownTopicError,
)
from seglog_protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED, Aborted, AbortedFilter, Isolation
from seglog_protocol.messages import FetchPartition, FetchReply, FetchRequest, FetchResult, Gap, name_hole
from seglog_protocol.record_batch import (
    HEADER_SIZE,
    INT64_MAX,
    MAGIC_POSITION,
    BatchHeader,
    iter_batches,
    parse_header,
    verify_crc,
    why_implausible,
)

OutOfRange = Literal["error", "earliest", "latest"]

FETCH_BYTES: Final = 16 * 1024 * 1024
PARTITION_BYTES: Final = 1024 * 1024
FOLLOW_WAIT_MS: Final = 30_000
DURABLE_PAUSE_SECONDS: Final = 0.05
"""Polling interval for records that are written but not yet durable, since a fetch cannot wait for durability."""
GO_ON: Final = "; to continue after them, seek to "
"""End of the message about damage, before the offset. The command line removes it, because it continues by itself."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The options of a consumer that fetches are made by."""

    follow: bool = False
    durable_only: bool = False
    on_out_of_range: OutOfRange = "error"
    reconnect_timeout: float = 120.0
    decompressed_batch_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX
    fetch_bytes: int = FETCH_BYTES
    partition_bytes: int = PARTITION_BYTES
    isolation: Isolation = READ_UNCOMMITTED


@dataclass(slots=True, eq=False)
class PartitionPosition:
    """Position of one partition. ``end`` (exclusive) is where to stop, None for never; ``until_ms`` a time to stop at.

    ``topic_id`` is the id of the topic that the offsets belong to; "" if the broker did not send it.
    """

    partition: int
    position: int
    end: int | None = None
    until_ms: int | None = None
    earliest: int = 0
    latest: int = 0
    durable: int = 0
    last_stable: int | None = None
    leader_epoch: int = -1
    topic_id: str = ""
    fetch_offset: int = field(init=False)
    read_to: int = 0  # behind the last record that the program was given
    generation: int = 0  # rises with every seek, which makes everything fetched before it obsolete
    is_paused: bool = False
    is_failing: bool = False  # an error is queued: do not fetch
    needs_verify: bool = False  # the batch at ``fetch_offset`` failed a check: fetch it with ``verify``
    is_stopped: bool = False  # until_ms was reached
    retry_at: float = 0.0
    attempts: int = 0  # consecutive failures with a retriable error
    failing_since: float = 0.0

    def __post_init__(self) -> None:
        self.fetch_offset = self.position

    def readable_end(self, isolation: Isolation, *, durable_only: bool = False) -> int:
        """The end, as last sent, of what a reader gets."""
        return readable_end(self.latest, self.last_stable, self.durable if durable_only else None, isolation)

    @property
    def is_finished(self) -> bool:
        """Whether the program has read this partition to its end."""
        return self.is_stopped or (self.end is not None and self.position >= self.end)

    def go_to(self, offset: int) -> None:
        """Continue at ``offset``; batches fetched so far are dropped."""
        self.position = self.fetch_offset = offset
        self.generation += 1
        self.is_failing = self.is_stopped = self.needs_verify = False
        self.retry_at = 0.0
        self.attempts = 0


def readable_end(latest: int, last_stable: int | None, durable: int | None, isolation: Isolation) -> int:
    """The end of what a reader gets at ``isolation``; ``durable`` None if it does not stop there."""
    end = latest if durable is None else min(latest, durable)
    return end if last_stable is None or isolation == READ_UNCOMMITTED else min(end, last_stable)


class _Item(NamedTuple):
    """A queued item, in log order: a batch (header and data), a gap, or an error."""

    state: PartitionPosition
    generation: int
    header: BatchHeader | None = None
    data: memoryview | None = None
    gap: Gap | None = None
    error: SeglogError | None = None
    aborted: AbortedFilter = AbortedFilter()  # that of its reply
    is_verified: bool = False  # fetched with ``verify`` after it failed a check


class Fetcher:
    """Fetches and verifies partitions of one topic. Not thread-safe."""

    def __init__(self, topic: str, states: Sequence[PartitionPosition], options: FetchOptions) -> None:
        self.topic = topic
        self.states: dict[int, PartitionPosition] = {state.partition: state for state in states}
        topic_id = next((state.topic_id for state in states), "")
        self._topic_ids = {topic: topic_id} if topic_id else None
        self.partition_count: int | None = None
        """The topic's known number of partitions; None when added partitions are not to be read."""
        self.added: list[int] = []
        """New partitions of the topic that are not read yet; pass their states to ``add_partitions``."""
        self.gaps = GapLog()
        self.new_gaps: deque[ConsumerGap] = deque()
        """Gaps not yet reported to the program; the caller empties it."""
        self._options = options
        self.is_pending_stale = False
        """Whether the pending fetch is the wrong one and must be dropped; the caller resets it."""
        self._queue: deque[_Item] = deque()
        self._waiting = Waiting()
        self._turn = 0  # the partition that is first in the next request, so that none starves

    # --- Partitions ---------------------------------------------------------------------------------------------------

    def add_partitions(self, states: Sequence[PartitionPosition]) -> None:
        """Also read these partitions, unless they belong to a recreated topic of the same name."""
        meant = (self._topic_ids or {}).get(self.topic, "")
        if all(state.topic_id == meant or not meant for state in states):
            self.states |= {state.partition: state for state in states}
            self.partition_count = len(self.states)
        self.added = []

    # --- Requests -----------------------------------------------------------------------------------------------------

    def request(self, now: float) -> FetchRequest | None:
        """The next fetch, or None when there is nothing to fetch at this time."""
        wanted = [s for s in self.states.values() if self._is_wanted(s)]
        ready = [s for s in wanted if s.retry_at <= now]
        if not ready:
            return None
        wait_ms = FOLLOW_WAIT_MS if self._options.follow else 0
        if len(ready) < len(wanted):
            again = min(state.retry_at for state in wanted if state.retry_at > now)
            wait_ms = min(wait_ms, max(1, int((again - now) * 1000)))
        self._turn %= len(ready)
        ordered = ready[self._turn :] + ready[: self._turn]
        self._turn += 1
        return FetchRequest(
            [
                FetchPartition(
                    self.topic,
                    s.partition,
                    offset=s.fetch_offset,
                    max_bytes=self._options.partition_bytes,
                    verify=s.needs_verify or None,
                )
                for s in ordered
            ],
            max_bytes=self._options.fetch_bytes,
            max_wait_ms=wait_ms,
            topic_ids=self._topic_ids,
            partition_counts=None if self.partition_count is None else {self.topic: self.partition_count},
            isolation=None if self._options.isolation == READ_UNCOMMITTED else READ_COMMITTED,
        )

    def next_fetch_at(self) -> float | None:
        """The next time at which ``request`` may return a fetch; None for never."""
        return min((s.retry_at for s in self.states.values() if self._is_wanted(s)), default=None)

    def _is_wanted(self, state: PartitionPosition) -> bool:
        if state.is_paused or state.is_failing or state.is_finished:
            return False
        return state.end is None or state.fetch_offset < state.end

    @property
    def is_finished(self) -> bool:
        """Whether every partition is finished or paused."""
        return all(state.is_finished or state.is_paused for state in self.states.values())

    # --- Answers ------------------------------------------------------------------------------------------------------

    def generations(self) -> dict[int, int]:
        """The current generations, to keep with a request and pass to ``take`` with its reply."""
        return {state.partition: state.generation for state in self.states.values()}

    def take(
        self, reply: FetchReply, payload: memoryview, request: FetchRequest, asked: Mapping[int, int], now: float
    ) -> None:
        """Queue the content of a reply. Raises RemoteProtocolError when it does not match ``request``."""
        if len(reply.partitions) != len(request.partitions) or sum(r.size for r in reply.partitions) != len(payload):
            raise RemoteProtocolError("the broker's reply to a fetch does not match the request")
        position = 0
        for index, (result, wanted) in enumerate(zip(reply.partitions, request.partitions, strict=True)):
            data = payload[position : position + result.size]
            position += result.size
            state = self.states.get(wanted.partition)
            if state is None or result.partition != wanted.partition:
                raise RemoteProtocolError("the broker's reply to a fetch has another partition than the request")
            if asked.get(state.partition) == state.generation:
                self._take_result(state, result, data, now, is_first=index == 0)
        waiting = [state.failing_since for state in self.states.values() if state.attempts]
        errors = (result.error for result in reply.partitions if self.states[result.partition].attempts)
        error = next((error for error in errors if error is not None), None)
        if not waiting:
            self._waiting.ended(now)
        elif error is not None:
            self._waiting.failed(error, min(waiting), now, len(waiting) - 1)
        count = (reply.partition_counts or {}).get(self.topic)
        if request.partition_counts is not None and count is not None and self.partition_count is not None:
            self.added = [number for number in range(count) if number not in self.states]
            if not self.added:
                self.partition_count = count

    def _take_result(
        self, state: PartitionPosition, result: FetchResult, data: memoryview, now: float, *, is_first: bool
    ) -> None:
        """Move the position by one partition's result, and queue its batches behind those that wait for the program."""
        for name in ("earliest", "latest", "durable", "leader_epoch"):
            value = getattr(result, name)
            if value is not None:
                setattr(state, name, value)
        if result.last_stable_offset is not None:
            state.last_stable = result.last_stable_offset
        aborted = AbortedFilter(Aborted(*each) for each in result.aborted or ())
        before = state.fetch_offset
        gaps = sorted(result.gaps or [], key=lambda gap: gap.start)
        compacted_before = result.compacted_before or 0
        is_held_back = False
        is_verified = state.needs_verify
        state.needs_verify = is_verified and not data  # still to be verified, if limits or an error left it out
        unsure: tuple[int, int] | None = None  # queue length and fetch offset before a batch with an unconfirmed offset
        try:
            for header, batch in iter_batches(data):
                try:
                    self._check_place(state, header, result.latest, is_first=state.fetch_offset == before)
                except CorruptRecordError as error:
                    if unsure is None:
                        raise
                    self._unqueue(state, *unsure)  # the batch before it may be the one whose offset is wrong
                    raise CorruptRecordError(error.message, start_offset=state.fetch_offset) from error
                if self._options.durable_only and header.next_offset > state.durable:
                    is_held_back = True
                    break
                is_next = header.base_offset == state.fetch_offset > before
                unsure = None if is_next else (len(self._queue), state.fetch_offset)
                if header.base_offset > state.fetch_offset:
                    self._queue_hole(state, header.base_offset, gaps, compacted_before)
                self._queue.append(
                    _Item(state, state.generation, header, batch, aborted=aborted, is_verified=is_verified)
                )
                state.fetch_offset = header.next_offset
        except CorruptRecordError as error:
            if not is_verified:
                state.needs_verify = True
                return
            at = state.fetch_offset
            following = _next_intact(data, at, state.latest)
            self._queue_error(state, self._unreadable(state, at, following, error.message))
            return
        if unsure is not None and unsure[1] > before:
            # No batch confirms its offset; fetched again, as the first of a reply, it is checked by the broker.
            self._unqueue(state, *unsure)
            state.attempts = 0
            return
        if not is_held_back:
            for gap in gaps:  # those directly behind the last batch: between later ones are batches not sent yet
                if gap.start <= state.fetch_offset < gap.end:
                    self._queue_gap(state, Gap(state.fetch_offset, gap.end, gap.reason))
        if result.error is not None:
            self._failed(state, result.error, now)
            return
        state.attempts = 0
        if state.fetch_offset == before:
            readable_to = state.readable_end(self._options.isolation)
            if is_held_back or (self._options.durable_only and state.durable <= before < readable_to):
                state.retry_at = now + DURABLE_PAUSE_SECONDS
            elif not self._options.follow and state.end is not None and readable_to <= before < state.latest:
                state.end = before  # an open transaction may begin here: it is not known what of the rest will be read
            elif not self._options.follow and state.end is not None and (is_first or before >= state.latest):
                # An empty result without a limit in effect: the rest of the range has no record.
                self._queue_hole(state, state.end, gaps, compacted_before)

    @staticmethod
    def _check_place(state: PartitionPosition, header: BatchHeader, latest: int | None, *, is_first: bool) -> None:
        """Check that the first batch contains or follows the fetch offset, and every other follows the one before."""
        at = state.fetch_offset
        if header.last_offset < at or (header.base_offset < at and not is_first):
            reason = f"does not continue at offset {at}"
        elif latest is not None and header.next_offset > latest:
            reason = f"ends beyond the log's end {latest}"
        else:
            return
        raise CorruptRecordError(
            f"the batch of offsets {header.base_offset} to {header.last_offset} {reason}", start_offset=at
        )

    def _queue_hole(self, state: PartitionPosition, end: int, named: list[Gap], compacted_before: int) -> None:
        """Queue the gaps between the last batch and ``end``, with their reasons."""
        for gap in name_hole(state.fetch_offset, end, named, compacted_before):
            self._queue_gap(state, gap)

    def _unqueue(self, state: PartitionPosition, length: int, offset: int) -> None:
        while len(self._queue) > length:
            self._queue.pop()
        state.fetch_offset = offset

    def _queue_gap(self, state: PartitionPosition, gap: Gap) -> None:
        self._queue.append(_Item(state, state.generation, gap=gap))
        state.fetch_offset = gap.end

    def _failed(self, state: PartitionPosition, error: SeglogError, now: float) -> None:
        """Retry with backoff up to the retry time, or queue the error; other partitions are not affected.

        A recovery is retried without a limit, because it ends.
        """
        if state.attempts == 0:
            state.failing_since = now
        is_patient = (
            isinstance(error, PartitionRecoveringError) or now < state.failing_since + self._options.reconnect_timeout
        )
        if error.retriable and is_patient:
            state.retry_at = now + backoff_seconds(state.attempts)
            state.attempts += 1
        else:
            self._queue_error(state, error)

    def _queue_error(self, state: PartitionPosition, error: SeglogError) -> None:
        state.is_failing = True
        self._queue.append(_Item(state, state.generation, error=error))

    # --- Returning batches --------------------------------------------------------------------------------------------

    def next_batch(self) -> FetchedBatch | None:
        """The next batch with a record to return, or None when none is queued.

        It stays at the head until ``position`` has reached its end, so that a new loop continues inside it. Raises the
        error of a partition; other partitions can still be read, and this one after a seek.
        """
        index = 0
        while index < len(self._queue):
            item = self._queue[index]
            state = item.state
            if state.is_paused and item.generation == state.generation:
                index += 1
                continue
            if item.generation == state.generation and not state.is_finished:
                batch = self._open(item)
                if batch is not None:
                    return batch
            del self._queue[index]
        return None

    @property
    def has_queued(self) -> bool:
        """Whether anything is queued behind the batch returned last, which is at the head."""
        return len(self._queue) > 1

    def _open(self, item: _Item) -> FetchedBatch | None:
        """The batch of an item, None when it is read; reports a gap, raises an error."""
        state = item.state
        if item.error is not None:
            self._handle(state, item.error)
            return None
        if item.gap is not None:
            self._report_gap(state, item.gap)
            return None
        header, data = item.header, item.data
        assert header is not None
        assert data is not None
        if state.position >= header.next_offset:
            return None
        if not verify_crc(data, 0, header):
            at = state.position
            next_offset = self._next_intact_in_queue(item, at)
            state.go_to(at)
            if not item.is_verified:
                state.needs_verify = self.is_pending_stale = True
                return None
            raise self._unreadable(state, at, next_offset, "the batch there does not match its checksum")
        if item.aborted.drops(header):  # after the checksum: a flipped bit here would hide a batch
            state.position = header.next_offset
            return None
        end = header.next_offset if state.end is None else min(state.end, header.next_offset)
        size_limit = int(min(self._options.decompressed_batch_bytes_max, INT64_MAX))
        batch = FetchedBatch(self.topic, state.partition, header, data, state.position, end, size_limit)
        if state.until_ms is not None and header.max_timestamp >= state.until_ms:
            return self._stop_at_time(state, batch, state.until_ms)
        if batch.start_offset >= end or header.record_count == 0:
            self.finish(batch)
            return None
        return batch

    def _unreadable(self, state: PartitionPosition, start: int, end: int, reason: str) -> CorruptRecordError:
        """The error for offsets ``start`` to ``end`` (exclusive); reading may continue at ``end``."""
        return CorruptRecordError(
            f"offsets {start} to {end - 1} of {self.topic}-{state.partition} cannot be read: {reason}{GO_ON}{end}",
            topic=self.topic,
            partition=state.partition,
            start_offset=start,
            next_offset=end,
        )

    def _next_intact_in_queue(self, damaged: _Item, at: int) -> int:
        """Where to continue after a damaged batch: at the next intact one in the queue, else by its header."""
        for item in self._queue:
            if item.state is damaged.state and item.generation == damaged.generation and item is not damaged:
                header, data = item.header, item.data
                if header is not None and data is not None and header.base_offset > at and verify_crc(data, 0, header):
                    return header.base_offset
        assert damaged.header is not None
        # Its header has the number of its offsets twice; the smaller one skips no intact batch unless both are wrong.
        count = min(damaged.header.record_count, damaged.header.last_offset_delta + 1)
        return max(at + 1, damaged.header.base_offset + count if damaged.header.base_offset <= at else 0)

    def _stop_at_time(self, state: PartitionPosition, batch: FetchedBatch, until_ms: int) -> FetchedBatch | None:
        stop = next((record.offset for record in batch.stored() if record.timestamp >= until_ms), None)
        if stop is None:
            return batch
        if state.end is None or stop < state.end:
            state.end = stop
        if batch.start_offset >= stop:
            state.is_stopped = True
            return None
        return FetchedBatch(
            batch.topic, batch.partition, batch.header, batch.data, batch.start_offset, stop, batch.size_limit
        )

    def finish(self, batch: FetchedBatch) -> None:
        """Mark a batch as read; offsets after its last record were removed by compaction."""
        state = self.states[batch.partition]
        if state.position < batch.end_offset:
            if batch.header.record_count <= batch.header.last_offset_delta:
                self._report_gap(state, Gap(state.position, batch.end_offset, "compacted"))
            state.position = batch.end_offset

    def skipped(self, state: PartitionPosition, offset: int) -> None:
        """Report the offsets before ``offset``, inside a batch, that were removed by compaction."""
        self._report_gap(state, Gap(state.position, offset, "compacted"))

    def _report_gap(self, state: PartitionPosition, gap: Gap) -> None:
        start = max(gap.start, state.position)
        end = gap.end if state.end is None else min(gap.end, state.end)
        if end > start:
            gap_met = ConsumerGap(self.topic, state.partition, start, end, gap.reason)
            self.gaps.add(gap_met)
            self.new_gaps.append(gap_met)
            state.position = end

    def _handle(self, state: PartitionPosition, error: SeglogError) -> None:
        """Apply ``on_out_of_range``, or raise; in both cases the partition can be fetched again."""
        at = state.position
        state.go_to(at)
        if isinstance(error, OffsetOutOfRangeError) and self._options.on_out_of_range != "error":
            latest = max(error.earliest, readable_end(error.latest, state.last_stable, None, self._options.isolation))
            self.skip_to(state, error.earliest if self._options.on_out_of_range == "earliest" else latest, error)
            return
        if isinstance(error, CorruptRecordError):
            raise located(error, self.topic, state.partition, None, at)
        if isinstance(error, UnknownTopicError):
            raise UnknownTopicError(
                f"topic {self.topic} was deleted while it was read; a topic created later with its name is another "
                "one, to be read by a new consumer",
                topic=self.topic,
            ) from error
        raise error

    def skip_to(self, state: PartitionPosition, target: int, error: OffsetOutOfRangeError) -> None:
        """Continue a partition whose position is out of range at ``target``; what lay between is a gap."""
        at = state.position
        if error.earliest > at:
            reason = error.reason if error.reason in {"truncated", "missing"} else "expired"
            self._report_gap(state, Gap(at, min(error.earliest, target), reason))
        state.go_to(target)
        if state.end is not None and not self._options.follow:
            state.end = min(state.end, error.latest)


def _next_intact(data: memoryview, at: int, latest: int) -> int:
    """The base offset of the first intact batch in ``data`` above ``at`` and below ``latest``, else ``at`` + 1."""
    whole = bytes(data)
    position = whole.find(b"\x02", MAGIC_POSITION)
    while 0 <= position <= len(whole) - HEADER_SIZE + MAGIC_POSITION:
        header = parse_header(whole, position - MAGIC_POSITION)
        is_likely = at < header.base_offset < max(latest, at + 2) and why_implausible(header) is None
        if is_likely and verify_crc(whole, position - MAGIC_POSITION, header):
            return header.base_offset
        position = whole.find(b"\x02", position + 1)
    return at + 1
