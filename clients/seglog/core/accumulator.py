"""Record accumulator of a producer: batching, ordering and retries, without socket, thread or clock.

Shared by the blocking and the trio producer. Records are encoded at once into the open batch of their partition. An
open batch is closed when it is full or sent: lingering records keep filling their batch while earlier ones are in
flight. Batches of a partition are sent in order. Batches to retry go back to the front, in order, and the partition
waits until all of its batches in flight have been answered.

All times are seconds of one monotonic clock, passed in. Not thread-safe: the owner has a lock.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seglog.core.errors import seconds_of
from seglog.core.retries import backoff_seconds
from seglog_protocol.batch_builder import BatchBuilder, NewRecord, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.errors import (
    ClientTimeoutError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    SeglogError,
)
from seglog_protocol.messages import AppendResult
from seglog_protocol.record_batch import (
    HEADER_SIZE,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    add_sequence,
    parse_header,
    seal_batch,
    subtract_sequence,
)
from seglog_protocol.records import Headers, decode_records

IN_FLIGHT_MAX: Final = 5
"""Kafka's ``max.in.flight.requests.per.connection``; each request has at most one batch of a partition.

The broker recognises that many recent batches of an idempotent producer as duplicates.
"""

RECORD_OVERHEAD_MAX: Final = 36
"""Maximum size of a record without key, value and headers: six varints, a varlong, attributes."""
HEADER_OVERHEAD_MAX: Final = 10

FAILED_BATCHES_MAX: Final = 1_000
"""Failed batches kept with their causes until the next flush; older ones are only counted."""

SPLIT_BYTES_MAX: Final = 1 << 31
"""Decompression limit when a batch is split; in effect none, since the batch was at most ``batch_bytes`` before."""


_EPOCH_MAX: Final = 2**15 - 1
_SEQUENCES_PASSED_MAX: Final = 2**30
"""Sequences wrap: a larger distance ahead means behind."""
_WARN_AFTER_ATTEMPTS: Final = 4  # about a second
_WARN_EVERY_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


def record_bytes_max(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """An upper bound for the encoded size of a record."""
    size = RECORD_OVERHEAD_MAX + (len(key) if key else 0) + (len(value) if value else 0)
    if headers:
        size += sum(HEADER_OVERHEAD_MAX + 4 * len(name) + (len(content) if content else 0) for name, content in headers)
    return size


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Sizes in bytes, times in seconds. ``batch_bytes`` counts before compression."""

    batch_bytes: int
    buffer_bytes: int
    linger_seconds: float
    delivery_seconds: float
    request_bytes: int = 8 * 1024 * 1024


class ProducerEpoch(NamedTuple):
    """Producer id and epoch of a partition's batches; sequences begin at 0 in each epoch."""

    producer_id: int
    epoch: int


@dataclass(slots=True, eq=False)
class ProducerBatch:
    """One batch from its first record to its acknowledgement or failure. Its data is dropped when it is resolved."""

    topic: str
    partition: int
    order: tuple[int, ...]  # position in the queue, for retries; halves of a split batch sort where it was
    deadline: float
    builder: BatchBuilder | None = None  # None once it is built
    data: bytes | None = None
    size: int = 0  # bytes this batch counts for in the buffer
    record_count: int = 0
    attempts: int = 0
    follows_full: bool = False  # it was opened because the one before had no room
    is_in_flight: bool = False
    is_sent: bool = False  # has been handed to a connection at least once
    base_offset: int = -1
    append_time: int = -1
    expired_before: int = 0  # records with a timestamp below this (epoch ms) expired on arrival
    ack: str = ""
    error: SeglogError | None = None
    refusal: SeglogError | None = None  # the broker's last retriable error
    halves: "tuple[ProducerBatch, ProducerBatch] | None" = None
    sequence: int = NO_SEQUENCE  # of the first record, given when the batch is first taken to be sent
    seen: set[int] | None = None  # indexes of records whose failure the program has seen

    def mark_seen(self, index: int) -> None:
        """Note that the program has seen the failure of this record."""
        if self.seen is None:
            self.seen = set()
        self.seen.add(index)

    @property
    def is_resolved(self) -> bool:
        """Whether every record has been acknowledged or has failed."""
        if self.halves is not None:
            return self.halves[0].is_resolved and self.halves[1].is_resolved
        return bool(self.ack) or self.error is not None

    def is_under_way(self) -> bool:
        """Tell of a batch that has been handed to a connection, or was resolved without."""
        return self.is_sent or self.is_resolved

    def pieces(self) -> "list[ProducerBatch]":
        """The batches it was split into, in order; itself when it was not split."""
        return [self] if self.halves is None else [piece for half in self.halves for piece in half.pieces()]


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """The batches of one partition: the open one, those waiting, and the number in flight."""

    open: ProducerBatch | None = None
    # In order, and so by deadline; batches to retry come first. Thousands where batches are small.
    waiting: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: int = 0
    is_held: bool = False  # a batch must be retried: one batch at a time, in order
    retry_at: float = 0.0
    producer: ProducerEpoch | None = None  # None: batches are not idempotent
    sequence: int = 0  # first sequence of the next batch
    is_known: bool = False  # the broker has answered a batch of this epoch, so it checks the order of others
    expected: int | None = None  # the next sequence according to the broker, after it refused another

    @property
    def is_full(self) -> bool:
        """Whether an answer must come before another batch is sent.

        A broker accepts any sequence in the first batch of a producer, so that batch is sent alone.
        """
        return self.producer is not None and self.in_flight >= (IN_FLIGHT_MAX if self.is_known else 1)

    @property
    def oldest(self) -> ProducerBatch | None:
        """The batch with the earliest deadline among those not in flight."""
        return self.waiting[0] if self.waiting else self.open

    def drop_oldest(self) -> None:
        """Remove ``oldest``."""
        if self.waiting:
            del self.waiting[0]
            self.update_held()
        else:
            self.open = None

    def update_held(self) -> None:
        """Update ``is_held``: whether a batch to retry is left."""
        self.is_held = bool(self.waiting) and self.waiting[0].attempts > 0


class Accumulator:
    """The unacknowledged records of one topic, in batches by partition."""

    def __init__(
        self,
        topic: str,
        limits: BatchLimits,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        *,
        producer: ProducerEpoch | None = None,
        transactional: bool = False,
    ) -> None:
        """With ``producer`` batches are idempotent, with ``transactional`` they belong to its transactions."""
        self.topic = topic
        self.producer = producer
        self.transactional = transactional
        self.limits = limits
        self.codec = codec
        self.level = level
        self.batch_bytes = limits.batch_bytes
        self.buffered_bytes = 0
        self.unresolved = 0  # batches
        self.failed: list[ProducerBatch] = []
        self.failed_forgotten = 0  # records of failed batches that no longer fit into the list
        self.has_expired = False
        """Whether any batch has failed by the delivery timeout."""
        self.passed_ack = "os"  # ack of a batch that is known to be in the log, though its own answer was lost
        self.on_settled: Callable[[ProducerBatch], None] | None = None
        """Called when a batch has been resolved or split; must not block and must not raise."""
        self._queues: dict[int, PartitionQueue] = {}
        self._warn_at = -math.inf  # earliest time of the next warning
        self._due_at: float | None = None  # when the open batches have lingered long enough
        self._is_flushing = False
        self._batch_count = 0

    # --- Adding records -----------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether a record of ``size`` bytes fits into the buffer. An empty buffer takes any."""
        return self.unresolved == 0 or self.buffered_bytes + size <= self.limits.buffer_bytes

    def append(self, partition: int, record: NewRecord, clock: Callable[[], float]) -> ProducerBatch:
        """Add a record; returns its batch, in which it is the last. Only a first one is worth a look at the clock.

        Raises ValueError, with nothing changed, when a field cannot be encoded.
        """
        timestamp, key, value, headers = record
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._new_queue(partition)
        batch = queue.open
        if batch is not None:
            builder = batch.builder
            assert builder is not None
            before = builder.size
            if builder.try_append(timestamp, key, value, headers, size_max=self.batch_bytes):
                size = builder.size - before
                batch.size += size
                self.buffered_bytes += size
                batch.record_count = builder.record_count
                return batch
        builder, now = BatchBuilder(transactional=self.transactional), clock()
        deadline = now + self.limits.delivery_seconds
        batch = ProducerBatch(self.topic, partition, (self._batch_count,), deadline, builder)
        self._count(batch, builder.append(timestamp, key, value, headers), 1)
        if self._due_at is None:
            self._due_at = now + self.limits.linger_seconds
        if queue.open is not None:
            queue.waiting.append(queue.open)
            batch.follows_full = True
        queue.open = batch
        return batch

    def append_batch(self, partition: int, data: bytes, record_count: int, now: float) -> ProducerBatch:
        """Add a batch that is already built, without producer fields. Sent without lingering."""
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._new_queue(partition)
        batch = ProducerBatch(self.topic, partition, (self._batch_count,), now + self.limits.delivery_seconds)
        batch.data = data
        self._count(batch, len(data), record_count)
        if queue.open is not None:
            queue.waiting.append(queue.open)
            queue.open = None
        queue.waiting.append(batch)
        return batch

    def _new_queue(self, partition: int) -> PartitionQueue:
        queue = self._queues[partition] = PartitionQueue(producer=self.producer)
        return queue

    def _count(self, batch: ProducerBatch, size: int, record_count: int) -> None:
        batch.size, batch.record_count = size, record_count
        self._batch_count += 1
        self.unresolved += 1
        self.buffered_bytes += size

    def begin_epoch(self, producer: ProducerEpoch) -> None:
        """Batches from now on are of another epoch; those before are resolved."""
        assert not self.unresolved, "their sequences would be those of two epochs"
        self.producer = producer
        for queue in self._queues.values():
            queue.producer, queue.sequence, queue.is_known, queue.expected = producer, 0, False, None

    def flush(self) -> None:
        """Send without lingering until every batch has been resolved."""
        self._is_flushing = self.unresolved > 0

    def reset_counts(self) -> None:
        """Reset the counts, which an interrupt may have left wrong; only when every batch is resolved."""
        self.unresolved = self.buffered_bytes = 0
        self._is_flushing = False
        self._due_at = None

    # --- Taking batches to send ---------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether open batches have lingered long enough."""
        return self._is_flushing or (self._due_at is not None and now >= self._due_at)

    def next_event(self) -> float | None:
        """When a linger or backoff time ends, so that ``take`` may return batches; None for never."""
        times: list[float] = []
        for queue in self._queues.values():
            if queue.is_held:
                if not queue.in_flight:
                    times.append(queue.retry_at)
            elif queue.open is not None and self._due_at is not None and not queue.is_full:
                times.append(self._due_at)
        return min(times, default=None)

    def take(self, now: float, taken: list[ProducerBatch] | None = None) -> list[ProducerBatch]:
        """The batches of the next request, at most one per partition, marked as in flight; ``build`` them next.

        Each is added to ``taken``, if given, before it leaves its queue: an interrupt may leave one in both, which
        ``requeue`` corrects, but never in neither.
        """
        taken = [] if taken is None else taken
        is_due = self.is_due(now)
        size = 0
        for queue in self._queues.values():
            batch = queue.waiting[0] if queue.waiting else queue.open if is_due else None
            if batch is None or queue.is_full or (queue.is_held and (queue.in_flight or now < queue.retry_at)):
                continue
            if taken and size + batch.size > self.limits.request_bytes:
                continue
            size += batch.size
            taken.append(batch)
            if queue.waiting:
                del queue.waiting[0]
            else:
                queue.open = None
            queue.update_held()
            queue.in_flight += 1
            self._give_sequence(queue, batch)
            batch.is_in_flight = batch.is_sent = True
        if is_due and all(queue.open is None for queue in self._queues.values()):
            self._due_at = None
        return taken

    def _give_sequence(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Assign a sequence to a batch about to be sent; a retried batch keeps its sequence and bytes.

        Unless the broker expects another sequence: then records between were lost there or have expired here, and this
        batch cannot be in the log. It and all later ones are renumbered in a new epoch.
        """
        if queue.producer is None:
            return
        if batch.sequence != NO_SEQUENCE and queue.expected not in (None, batch.sequence):
            queue.producer = ProducerEpoch(queue.producer.producer_id, queue.producer.epoch + 1)
            queue.sequence, queue.is_known = 0, False
            for later in (batch, *queue.waiting):
                later.sequence = NO_SEQUENCE
        queue.expected = None
        if batch.sequence == NO_SEQUENCE:
            builder = batch.builder
            first = queue.sequence
            count = batch.record_count if builder is None else builder.record_count
            queue.sequence = add_sequence(first, count)  # before its use: an interrupt may leave a gap, no duplicate
            batch.sequence = first
            if builder is not None:
                builder.producer_id, builder.producer_epoch = queue.producer
                builder.base_sequence = first
            elif batch.data is not None:
                batch.data = _numbered(batch.data, queue.producer, first, transactional=self.transactional)

    def build(self, batch: ProducerBatch) -> None:
        """Encode and compress the batch, once. Needs no lock, because it changes only this batch, which is in flight.

        ``data`` stays None when the batch expired meanwhile.
        """
        builder = batch.builder
        if batch.data is None and builder is not None:
            data = builder.build(self.codec, self.level)
            if not batch.is_resolved:
                batch.record_count = builder.record_count
                batch.data = data
            batch.builder = None

    # --- Answers ------------------------------------------------------------------------------------------------------

    def answer(self, batch: ProducerBatch, result: AppendResult, now: float) -> None:
        """Process the broker's result for a batch in flight."""
        error = result.error
        if error is None:
            self._queues[batch.partition].is_known = True
            self.completed(batch)
            self.resolve(
                batch,
                ack=result.ack or "os",
                base_offset=-1 if result.base_offset is None else result.base_offset,
                append_time=-1 if result.timestamp is None else result.timestamp,
            )
        else:
            self.refuse(batch, error, now)

    def written(self, batch: ProducerBatch) -> None:
        """Resolve a batch written at ack "none", which gets no answer."""
        self.completed(batch)
        self.resolve(batch, ack="none")

    def refuse(self, batch: ProducerBatch, error: SeglogError, now: float) -> None:
        """The batch was not appended: split it, retry it later, or fail it."""
        self.completed(batch)
        if batch.is_resolved:
            return
        if isinstance(error, OutOfOrderSequenceError) and batch.sequence != NO_SEQUENCE:
            self._resolve_sequence(batch, error, now)
        elif isinstance(error, MessageTooLargeError | RecordListTooLargeError) and batch.record_count > 1:
            if HEADER_SIZE < error.limit < self.batch_bytes:
                self.batch_bytes = error.limit  # the topic's limit has been lowered
            self._split(batch)
        elif error.retriable and now < batch.deadline:
            batch.refusal = error
            if batch.attempts >= _WARN_AFTER_ATTEMPTS and now >= self._warn_at:
                self._warn_at = now + _WARN_EVERY_SECONDS
                _log.warning(
                    "records for %s-%d are refused and sent again, for up to %.0f s more: %s",
                    self.topic,
                    batch.partition,
                    batch.deadline - now,
                    error.message,
                )
            self._hold(batch, now + backoff_seconds(batch.attempts))
        else:
            self.resolve(batch, error=error)

    def _resolve_sequence(self, batch: ProducerBatch, error: OutOfOrderSequenceError, now: float) -> None:
        """Resolve or retry a batch after the broker expected another sequence.

        Sequences of an epoch have no gaps in a log, so a batch below the expected sequence is in the log. The broker no
        longer has it among the last five, so it has restarted since, which made the batch durable; its offsets are
        unknown. A batch at or above the expected sequence is not in the log.
        """
        queue = self._queues[batch.partition]
        ahead = subtract_sequence(error.expected, batch.sequence)
        if batch.record_count <= ahead <= _SEQUENCES_PASSED_MAX:
            if queue.is_known and batch.attempts:
                self.resolve(batch, ack=self.passed_ack)
            else:  # it was not sent before, or the content of the log is unknown
                self.resolve(batch, error=error)
        elif (
            0 < ahead < batch.record_count
            or now >= batch.deadline
            or self.transactional  # the epoch is the transaction's: it is aborted
            or (queue.producer is not None and queue.producer.epoch == _EPOCH_MAX)
        ):
            self.resolve(batch, error=error)
        else:
            self._hold(batch, now + backoff_seconds(batch.attempts) if batch.attempts else 0.0)
            queue.expected = error.expected

    def requeue(self, batches: Iterable[ProducerBatch]) -> None:
        """Requeue all batches in flight, in order, after the connection was lost; they are sent first on the next."""
        for batch in batches:
            batch.is_in_flight = False
            if not batch.is_resolved:
                self._hold(batch, 0.0)
        for queue in self._queues.values():
            queue.in_flight = 0

    def completed(self, batch: ProducerBatch) -> None:
        """The batch is no longer in flight; a no-op when it was not."""
        if batch.is_in_flight:
            batch.is_in_flight = False
            self._queues[batch.partition].in_flight -= 1

    def _hold(self, batch: ProducerBatch, retry_at: float) -> None:
        """Put a batch back at its position in the queue, to be retried at ``retry_at``."""
        queue = self._queues[batch.partition]
        batch.attempts += 1
        if batch is queue.open:
            queue.open = None
        # Near the front: only batches sent before it are older.
        not_older = (n for n, other in enumerate(queue.waiting) if other.order >= batch.order)
        number = next(not_older, len(queue.waiting))
        if number == len(queue.waiting) or queue.waiting[number] is not batch:
            queue.waiting.insert(number, batch)
        queue.is_held = True
        queue.retry_at = max(queue.retry_at, retry_at)

    def _split(self, batch: ProducerBatch) -> None:
        """Put two halves in place of a batch that the topic finds too large, in its place and with its sequences."""
        assert batch.data is not None
        header = parse_header(batch.data)
        records = decode_records(header, batch.data, size_limit=SPLIT_BYTES_MAX)
        middle = len(records) // 2
        halves: list[ProducerBatch] = []
        for number, part in enumerate((records[:middle], records[middle:])):
            half = ProducerBatch(batch.topic, batch.partition, (*batch.order, number), batch.deadline)
            if batch.sequence != NO_SEQUENCE:  # the halves share the batch's range of sequences
                half.sequence = add_sequence(batch.sequence, number * middle)
            half.data = encode_batch(
                [(r.timestamp, r.key, r.value, r.headers) for r in part],
                codec=self.codec,
                level=self.level,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=half.sequence,
                transactional=self.transactional,
            )
            half.record_count = len(part)
            half.size = batch.size * len(part) // len(records)
            half.is_sent = True
            self.unresolved += 1
            self.buffered_bytes += half.size
            halves.append(half)
        left, right = halves
        batch.halves = (left, right)
        self._forget(batch)
        self._hold(left, 0.0)
        self._hold(right, 0.0)

    def resolve(
        self,
        batch: ProducerBatch,
        *,
        ack: str = "",
        base_offset: int = -1,
        append_time: int = -1,
        error: SeglogError | None = None,
    ) -> None:
        """Record the batch's acknowledgement or error; only the first call counts."""
        if batch.is_resolved:
            return
        batch.base_offset, batch.append_time = base_offset, append_time
        if error is not None:
            if len(self.failed) == FAILED_BATCHES_MAX:
                self.failed_forgotten += self._untold(self.failed.pop(0))
            self.failed.append(batch)
            batch.error = error
        else:
            batch.ack = ack
        self._forget(batch)

    def _forget(self, batch: ProducerBatch) -> None:
        self.buffered_bytes -= batch.size
        batch.size = 0
        batch.data = batch.builder = None
        self.unresolved -= 1
        if self.unresolved == 0:
            self._is_flushing = False
            self._due_at = None
        if self.on_settled is not None:
            self.on_settled(batch)

    def take_failures(self) -> tuple[list[tuple[str, int, int, SeglogError]], int]:
        """(topic, partition, records, cause) of failures since the last call to tell of, and the total of records."""
        failures = [(b.topic, b.partition, self._untold(b), b.error) for b in self.failed if b.error is not None]
        seen = [failure for failure in failures if failure[2]]
        count = sum(failure[2] for failure in seen) + self.failed_forgotten
        self.failed, self.failed_forgotten = [], 0
        return seen, count

    def _untold(self, batch: ProducerBatch) -> int:
        """Number of failed records of which the next flush is to tell: of a transaction all, since it lacks them."""
        if self.transactional:
            return batch.record_count
        return 0 if batch.error is None else batch.record_count - len(batch.seen or ())

    # --- Failing batches ----------------------------------------------------------------------------------------------

    def expire(self, now: float, in_flight: Sequence[ProducerBatch] = (), cause: SeglogError | None = None) -> None:
        """Fail batches past the delivery timeout; ``cause`` is the reason for the delay, if known."""
        for batch in in_flight:
            if now >= batch.deadline:
                self._give_up(batch, cause)
        for queue in self._queues.values():
            while (oldest := queue.oldest) is not None and (now >= oldest.deadline or oldest.is_resolved):
                self._give_up(oldest, cause)  # before it leaves the queue, so that an interrupt does not lose it
                queue.drop_oldest()

    def _give_up(self, batch: ProducerBatch, cause: SeglogError | None) -> None:
        if batch.is_resolved:
            return
        sent = "sent, but not acknowledged" if batch.is_sent else "not sent"
        last = cause or batch.refusal
        why = f": {last}" if last is not None else ""
        error = ClientTimeoutError(f"the record was {sent} within {seconds_of(self.limits.delivery_seconds)}{why}")
        error.__cause__ = last
        self.has_expired = True
        self.resolve(batch, error=error)

    def abandon(self, error: SeglogError) -> None:
        """Fail every batch that is not in flight."""
        for queue in self._queues.values():
            while (oldest := queue.oldest) is not None:
                self.resolve(oldest, error=error)
                queue.drop_oldest()

    def next_expiry(self) -> float | None:
        """The earliest deadline of the batches not in flight; None without any."""
        oldest = (queue.oldest for queue in self._queues.values())
        return min((batch.deadline for batch in oldest if batch is not None), default=None)

    def kept(self) -> list[ProducerBatch]:
        """Every batch that is not in flight."""
        kept: list[ProducerBatch] = []
        for queue in self._queues.values():
            kept += queue.waiting
            if queue.open is not None:
                kept.append(queue.open)
        return kept


def _numbered(data: bytes, producer: ProducerEpoch, sequence: int, *, transactional: bool) -> bytes:
    """A built batch with this producer epoch and first sequence, part of the producer's transaction or not."""
    header = parse_header(data)
    header = header._replace(
        attributes=header.attributes | (TRANSACTIONAL_BIT if transactional else 0),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
    )
    return seal_batch(header, data[HEADER_SIZE:])
