"""What a producer does between ``send`` and the socket, without socket, thread or clock.

The blocking face and the trio face stand on it.
Records are encoded at once into the open batch of their partition. An open batch is closed when it is full, or when it
is sent: lingering records keep filling their batch while earlier ones are on the way. Batches of a partition go out in
order; those that must be sent again go back to the front, in order, and the partition waits until everything of it that
was in flight has been answered.

All times are seconds of one monotonic clock, handed in. Not thread-safe: the owner has a lock.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from seglog.dialing import backoff_seconds
from seglog.words import seconds_of
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
    add_sequence,
    parse_header,
    seal_batch,
    subtract_sequence,
)
from seglog_protocol.records import Headers, decode_records

IN_FLIGHT_MAX: Final = 5
"""Requests on the way at once, Kafka's ``max.in.flight.requests.per.connection``, each with one batch of a partition.

So many batches of an idempotent producer the broker recognises when they come again.
"""

RECORD_OVERHEAD_MAX: Final = 36
"""The most that a record's own fields take beside key, value and headers: six varints, a varlong, attributes."""
HEADER_OVERHEAD_MAX: Final = 10

FAILED_BATCHES_MAX: Final = 1_000
"""Kept with their causes until the next flush; older ones are only counted."""

SPLIT_BYTES_MAX: Final = 1 << 31
"""Our own batches are opened again without a bound of their own: they were no larger than ``batch_bytes`` before."""


_EPOCH_MAX: Final = 2**15 - 1
_SEQUENCES_PASSED_MAX: Final = 2**30
_TOLD_AFTER_ATTEMPTS: Final = 4  # about a second
_TELL_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)
"""Sequences wrap: what lies further ahead lies behind."""


def record_bytes_max(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """An upper bound for the encoded size of a record."""
    size = RECORD_OVERHEAD_MAX + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += HEADER_OVERHEAD_MAX + 4 * len(name) + (len(content) if content else 0)
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
    """Under what a partition's batches are sent: sequences begin at 0 in each epoch."""

    producer_id: int
    epoch: int


class ProducerBatch:
    """One batch from its first record to its answer. Resolved once; what it carried is dropped then."""

    __slots__ = (
        "ack",
        "append_time",
        "attempts",
        "base_offset",
        "builder",
        "data",
        "deadline",
        "error",
        "expired_before",
        "halves",
        "is_in_flight",
        "is_sent",
        "looked",
        "order",
        "partition",
        "record_count",
        "refusal",
        "sequence",
        "size",
        "topic",
    )

    def __init__(self, topic: str, partition: int, order: tuple[int, ...], deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.order = order  # what is sent again goes back to its place; halves of a batch sort where it was
        self.deadline = deadline
        self.builder: BatchBuilder | None = BatchBuilder()
        self.data: bytes | None = None
        self.size = 0  # bytes this batch counts for in the buffer
        self.record_count = 0
        self.attempts = 0
        self.is_in_flight = False
        self.is_sent = False  # has been handed to a connection at least once
        self.base_offset = -1
        self.append_time = -1
        self.expired_before = 0  # records with a timestamp below this (epoch ms) expired on arrival
        self.ack = ""
        self.error: SeglogError | None = None
        self.refusal: SeglogError | None = None  # why the broker last refused it, for the time being
        self.halves: tuple[ProducerBatch, ProducerBatch] | None = None
        self.sequence = NO_SEQUENCE  # of the first record, given when the batch is first taken to be sent
        self.looked: set[int] | None = None

    @property
    def is_resolved(self) -> bool:
        """Whether it is known what became of every record."""
        if self.halves is not None:
            return self.halves[0].is_resolved and self.halves[1].is_resolved
        return bool(self.ack) or self.error is not None

    def pieces(self) -> "list[ProducerBatch]":
        """What it was split into, in order; itself when it was not."""
        return [self] if self.halves is None else [piece for half in self.halves for piece in half.pieces()]

    def looked_at(self, index: int) -> None:
        """The program has seen that this record failed."""
        if self.looked is None:
            self.looked = set()
        self.looked.add(index)

    @property
    def unseen_failures(self) -> int:
        """Records that failed without the program having looked."""
        return 0 if self.error is None else self.record_count - len(self.looked or ())


class _Lane:
    """The batches of one partition: the open one, those that wait, and how many are on the way."""

    __slots__ = ("expected", "in_flight", "is_held", "is_known", "open", "producer", "retry_at", "sequence", "waiting")

    def __init__(self) -> None:
        self.open: ProducerBatch | None = None
        # In order, and so by deadline; what has been sent before comes first. Thousands where batches are small.
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight = 0
        self.is_held = False  # something has to be sent again: one batch at a time, and nothing may overtake
        self.retry_at = 0.0
        self.producer: ProducerEpoch | None = None  # None: batches are not idempotent
        self.sequence = 0  # that the next batch begins with
        self.is_known = False  # the broker has answered for a batch of this epoch, so it keeps others in order
        self.expected: int | None = None  # the sequence that the broker said would follow, if it refused another

    @property
    def is_full(self) -> bool:
        """Whether an answer must come before another batch goes out.

        A broker takes the first batch that it sees of a producer, whichever it is: so that goes alone.
        """
        return self.producer is not None and self.in_flight >= (IN_FLIGHT_MAX if self.is_known else 1)

    @property
    def oldest(self) -> ProducerBatch | None:
        """Of those that are not on the way the one with the first deadline."""
        return self.waiting[0] if self.waiting else self.open

    def put_back(self, batch: ProducerBatch) -> None:
        """To its place in the order, which is near the front: only what was sent before it is older."""
        not_older = (n for n, other in enumerate(self.waiting) if other.order >= batch.order)
        number = next(not_older, len(self.waiting))
        if number == len(self.waiting) or self.waiting[number] is not batch:
            self.waiting.insert(number, batch)

    def forget_oldest(self) -> None:
        """``oldest`` is not needed any more."""
        if self.waiting:
            del self.waiting[0]
            self.note_held()
        else:
            self.open = None

    def note_held(self) -> None:
        """Whether something that has to be sent again is left."""
        self.is_held = bool(self.waiting) and self.waiting[0].attempts > 0


class Accumulator:
    """The records of one topic on their way to being acknowledged."""

    def __init__(
        self,
        topic: str,
        limits: BatchLimits,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        *,
        producer: ProducerEpoch | None = None,
    ) -> None:
        """With ``producer`` batches are idempotent."""
        self.topic = topic
        self.producer = producer
        self.limits = limits
        self.codec = codec
        self.level = level
        self.batch_bytes = limits.batch_bytes
        self.buffered_bytes = 0
        self.unresolved = 0  # batches
        self.failed: list[ProducerBatch] = []
        self.failed_forgotten = 0  # records of failed batches that no longer fit into the list
        self.has_expired = False
        """Whether anything was given up because it was here for longer than the delivery timeout."""
        self.passed_ack = "os"  # what a batch has reached that is known to be in the log, and no more of it
        self.on_settled: Callable[[ProducerBatch], None] | None = None
        """Called when a batch has been resolved or split; must not wait and must not raise."""
        self._lanes: dict[int, _Lane] = {}
        self._tell_at = -math.inf  # when the log may have a word again
        self._due_at: float | None = None  # when the open batches have lingered long enough
        self._is_flushing = False
        self._batch_count = 0

    # --- Taking in ----------------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether a record of that size may come in. An empty buffer takes any."""
        return self.unresolved == 0 or self.buffered_bytes + size <= self.limits.buffer_bytes

    def append(self, partition: int, record: NewRecord, now: float) -> tuple[ProducerBatch, int, bool]:
        """Add a record: its batch, its index there, and whether a full batch was closed to make room.

        ValueError when a field cannot be encoded; nothing has changed then.
        """
        timestamp, key, value, headers = record
        lane = self._lane(partition)
        batch, was_closed = lane.open, False
        if batch is not None:
            builder = batch.builder
            assert builder is not None
            before = builder.size
            if builder.try_append(timestamp, key, value, headers, size_max=self.batch_bytes):
                size = builder.size - before
                batch.size += size
                self.buffered_bytes += size
                batch.record_count = count = builder.record_count
                return batch, count - 1, False
            was_closed = True
        batch = ProducerBatch(self.topic, partition, (self._batch_count,), now + self.limits.delivery_seconds)
        assert batch.builder is not None
        self._count(batch, batch.builder.append(timestamp, key, value, headers), 1)
        if self._due_at is None:
            self._due_at = now + self.limits.linger_seconds
        if lane.open is not None:
            lane.waiting.append(lane.open)
        lane.open = batch
        return batch, 0, was_closed

    def append_batch(self, partition: int, data: bytes, record_count: int, now: float) -> ProducerBatch:
        """Add a batch that is built already, without a producer; it lingers for nobody."""
        lane = self._lane(partition)
        batch = ProducerBatch(self.topic, partition, (self._batch_count,), now + self.limits.delivery_seconds)
        batch.builder, batch.data = None, data
        self._count(batch, len(data), record_count)
        if lane.open is not None:
            lane.waiting.append(lane.open)
            lane.open = None
        lane.waiting.append(batch)
        return batch

    def _lane(self, partition: int) -> _Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = _Lane()
            lane.producer = self.producer
        return lane

    def _count(self, batch: ProducerBatch, size: int, record_count: int) -> None:
        batch.size, batch.record_count = size, record_count
        self._batch_count += 1
        self.unresolved += 1
        self.buffered_bytes += size

    def flush(self) -> None:
        """Let nothing linger until everything here has been resolved."""
        self._is_flushing = self.unresolved > 0

    def nothing_left(self) -> None:
        """Every batch is known to be resolved: counts that an interrupt left wrong are right again."""
        self.unresolved = self.buffered_bytes = 0
        self._is_flushing = False
        self._due_at = None

    # --- Giving out ---------------------------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether open batches have lingered long enough."""
        return self._is_flushing or (self._due_at is not None and now >= self._due_at)

    @staticmethod
    def _has_ready(lane: _Lane, is_due: bool, now: float) -> bool:
        if lane.is_held and (lane.in_flight or now < lane.retry_at):
            return False
        if lane.is_full:
            return False
        return bool(lane.waiting) or (is_due and lane.open is not None)

    def next_event(self) -> float | None:
        """When ``take`` may have something to give, though nothing arrives: a linger or a backoff ends. None: never."""
        times: list[float] = []
        for lane in self._lanes.values():
            if lane.is_held:
                if not lane.in_flight:
                    times.append(lane.retry_at)
            elif lane.open is not None and self._due_at is not None and not lane.is_full:
                times.append(self._due_at)
        return min(times, default=None)

    def take(self, now: float, taken: list[ProducerBatch] | None = None) -> list[ProducerBatch]:
        """The batches of the next request, one or none of each partition, marked as on the way; ``build`` them next.

        They are added to ``taken``, if given, one by one and before they leave their place: an interrupt may leave one
        in both, which ``unsent`` puts right, but never in neither.
        """
        taken = [] if taken is None else taken
        is_due = self.is_due(now)
        size = 0
        for lane in self._lanes.values():
            if not self._has_ready(lane, is_due, now):
                continue
            batch = lane.waiting[0] if lane.waiting else lane.open
            assert batch is not None
            if taken and size + batch.size > self.limits.request_bytes:
                continue
            size += batch.size
            taken.append(batch)
            if lane.waiting:
                del lane.waiting[0]
            else:
                lane.open = None
            lane.note_held()
            lane.in_flight += 1
            self._give_sequence(lane, batch)
            batch.is_in_flight = batch.is_sent = True
        if is_due and all(lane.open is None for lane in self._lanes.values()):
            self._due_at = None
        return taken

    def _give_sequence(self, lane: _Lane, batch: ProducerBatch) -> None:
        """Number a batch on its way out; what is sent again keeps its number, and its bytes.

        Unless the broker waits for another: what lies between was lost there, or given up here, and this batch cannot
        be in the log. Then it and all behind it go out anew, in an epoch of their own.
        """
        if lane.producer is None:
            return
        if batch.sequence != NO_SEQUENCE and lane.expected not in (None, batch.sequence):
            self._next_epoch(lane, batch)
        lane.expected = None
        if batch.sequence == NO_SEQUENCE:
            builder = batch.builder
            first = lane.sequence
            count = batch.record_count if builder is None else builder.record_count
            lane.sequence = add_sequence(first, count)  # before it is used: an interrupt may leave a gap, never a twin
            batch.sequence = first
            if builder is not None:
                builder.producer_id, builder.producer_epoch = lane.producer
                builder.base_sequence = first
            elif batch.data is not None:
                batch.data = _numbered(batch.data, lane.producer, first)

    @staticmethod
    def _next_epoch(lane: _Lane, batch: ProducerBatch) -> None:
        assert lane.producer is not None
        lane.producer = ProducerEpoch(lane.producer.producer_id, lane.producer.epoch + 1)
        lane.sequence, lane.is_known = 0, False
        for later in (batch, *lane.waiting):
            later.sequence = NO_SEQUENCE

    def build(self, batch: ProducerBatch) -> None:
        """Make the bytes to send, compressed once. Touches only this batch, so it needs no lock while that is taken.

        ``data`` stays None when the batch was given up meanwhile.
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
        """What the broker says about a batch that is on the way."""
        error = result.error
        if error is None:
            self._lanes[batch.partition].is_known = True
            self.landed(batch)
            self.resolve(
                batch,
                ack=result.ack or "os",
                base_offset=-1 if result.base_offset is None else result.base_offset,
                append_time=-1 if result.timestamp is None else result.timestamp,
            )
        else:
            self.refuse(batch, error, now)

    def written(self, batch: ProducerBatch) -> None:
        """The batch went out at ack "none", and that is all that will be known."""
        self.landed(batch)
        self.resolve(batch, ack="none")

    def refuse(self, batch: ProducerBatch, error: SeglogError, now: float) -> None:
        """The batch was not appended: split it, send it again later, or give it up."""
        self.landed(batch)
        if batch.is_resolved:
            return
        if isinstance(error, OutOfOrderSequenceError) and batch.sequence != NO_SEQUENCE:
            self._settle_order(batch, error, now)
        elif isinstance(error, MessageTooLargeError | RecordListTooLargeError) and batch.record_count > 1:
            if HEADER_SIZE < error.limit < self.batch_bytes:
                self.batch_bytes = error.limit  # the topic has changed since we asked
            self._split(batch)
        elif error.retriable and now < batch.deadline:
            batch.refusal = error
            self._tell(batch, error, now)
            self._hold(batch, now + backoff_seconds(batch.attempts))
        else:
            self.resolve(batch, error=error)

    def _tell(self, batch: ProducerBatch, error: SeglogError, now: float) -> None:
        """Log what keeps records waiting, when it is more than a hiccup: who waits a minute wants to know for what."""
        if batch.attempts >= _TOLD_AFTER_ATTEMPTS and now >= self._tell_at:
            self._tell_at = now + _TELL_SECONDS
            _log.warning(
                "records for %s-%d are refused and sent again, for up to %.0f s more: %s",
                self.topic,
                batch.partition,
                batch.deadline - now,
                error.message,
            )

    def _settle_order(self, batch: ProducerBatch, error: OutOfOrderSequenceError, now: float) -> None:
        """The broker waits for another sequence than this batch's: is the batch in the log, or something before it not?

        Sequences of an epoch have no gaps in a log. So what lies below the expected one is there, and as the broker
        knew it no more as one of the last five, it was restarted since, which made it durable; its offsets are not
        known. What lies at or above it is not there.
        """
        lane = self._lanes[batch.partition]
        ahead = subtract_sequence(error.expected, batch.sequence)
        if batch.record_count <= ahead <= _SEQUENCES_PASSED_MAX:
            if lane.is_known and batch.attempts:
                self.resolve(batch, ack=self.passed_ack)
            else:  # it was not sent before, or nobody knows what else is in the log
                self.resolve(batch, error=error)
        elif (
            0 < ahead < batch.record_count
            or now >= batch.deadline
            or (lane.producer is not None and lane.producer.epoch == _EPOCH_MAX)
        ):
            self.resolve(batch, error=error)
        else:
            self._hold(batch, now + backoff_seconds(batch.attempts) if batch.attempts else 0.0)
            lane.expected = error.expected

    def unsent(self, batches: Iterable[ProducerBatch]) -> None:
        """The connection is gone with these on the way, and nothing else: they go first on the next one, in order."""
        for batch in batches:
            batch.is_in_flight = False
            if not batch.is_resolved:
                self._hold(batch, 0.0)
        for lane in self._lanes.values():
            lane.in_flight = 0

    def landed(self, batch: ProducerBatch) -> None:
        """The batch is not on the way any more; a no-op when it was not."""
        if batch.is_in_flight:
            batch.is_in_flight = False
            self._lanes[batch.partition].in_flight -= 1

    def _hold(self, batch: ProducerBatch, retry_at: float) -> None:
        """Put a batch back to its place, before everything that is younger."""
        lane = self._lanes[batch.partition]
        batch.attempts += 1
        if batch is lane.open:
            lane.open = None
        lane.put_back(batch)
        lane.is_held = True
        lane.retry_at = max(lane.retry_at, retry_at)

    def _split(self, batch: ProducerBatch) -> None:
        assert batch.data is not None
        header = parse_header(batch.data)
        records = decode_records(header, batch.data, size_limit=SPLIT_BYTES_MAX)
        middle = len(records) // 2
        halves: list[ProducerBatch] = []
        for number, part in enumerate((records[:middle], records[middle:])):
            half = ProducerBatch(batch.topic, batch.partition, (*batch.order, number), batch.deadline)
            half.builder = None
            if batch.sequence != NO_SEQUENCE:  # both halves together have those of the whole
                half.sequence = add_sequence(batch.sequence, number * middle)
            half.data = encode_batch(
                [(r.timestamp, r.key, r.value, r.headers) for r in part],
                codec=self.codec,
                level=self.level,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=half.sequence,
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
        """It is known what became of the batch; a second answer changes nothing."""
        if batch.is_resolved:
            return
        batch.base_offset, batch.append_time = base_offset, append_time
        if error is not None:
            if len(self.failed) == FAILED_BATCHES_MAX:
                self.failed_forgotten += self.failed.pop(0).unseen_failures
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
        """(topic, partition, records, cause) of what failed unseen since the last call, and how many records in all."""
        failures = [(b.topic, b.partition, b.unseen_failures, b.error) for b in self.failed if b.error is not None]
        seen = [failure for failure in failures if failure[2]]
        count = sum(failure[2] for failure in seen) + self.failed_forgotten
        self.failed, self.failed_forgotten = [], 0
        return seen, count

    # --- Giving up ----------------------------------------------------------------------------------------------------

    def expire(self, now: float, in_flight: Sequence[ProducerBatch] = (), cause: SeglogError | None = None) -> None:
        """Fail what has been here for longer than the delivery timeout; ``cause`` is what kept it, if known."""
        for batch in in_flight:
            if now >= batch.deadline:
                self._give_up(batch, cause)
        for lane in self._lanes.values():
            while (oldest := lane.oldest) is not None and (now >= oldest.deadline or oldest.is_resolved):
                self._give_up(oldest, cause)  # before it leaves its place, where an interrupt would lose it
                lane.forget_oldest()

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
        """Fail everything that is not on the way."""
        for lane in self._lanes.values():
            while (oldest := lane.oldest) is not None:
                self.resolve(oldest, error=error)
                lane.forget_oldest()

    def next_expiry(self) -> float | None:
        """When the first batch that is not on the way has been here too long."""
        oldest = (lane.oldest for lane in self._lanes.values())
        return min((batch.deadline for batch in oldest if batch is not None), default=None)

    def kept(self) -> list[ProducerBatch]:
        """Every batch that is not on the way."""
        kept: list[ProducerBatch] = []
        for lane in self._lanes.values():
            kept += lane.waiting
            if lane.open is not None:
                kept.append(lane.open)
        return kept


def _numbered(data: bytes, producer: ProducerEpoch, sequence: int) -> bytes:
    """A batch that is built already, under another epoch."""
    header = parse_header(data)._replace(
        producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=sequence
    )
    return seal_batch(header, data[HEADER_SIZE:])
