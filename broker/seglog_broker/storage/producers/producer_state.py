"""The state of a partition's idempotent producers, which tells whether a batch is new, a duplicate, or out of order.

For every producer id: its epoch, the epoch of its transaction coordinator, the last timestamp, the last sequence, its
last five batches, and where its open transaction began. A batch is judged by ``check`` before it is written and counted
by ``apply`` once its bytes are in the log; nothing changes in between. Both take a few microseconds, however many
producers there are.

A transaction begins here with its first batch and ends with a marker. Open ones hold back the last stable offset, and
their producers may not write outside of them. The transaction coordinator runs in the same process: ``expect`` tells
that it has recorded the partition as part of a producer's ongoing transaction, and only then is the first batch taken.
Expectations are not stored; after a start the coordinator calls ``expect`` again.

``producer_snapshots`` keeps the state across restarts. Source: Kafka's ProducerAppendInfo, ProducerStateEntry,
ProducerStateManager.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from seglog_protocol import errors, record_batch
from seglog_protocol.transaction_files import TXN_INDEX_VERSION, AbortedTransaction, EndMarker, ProducerEntry

BATCHES_KEPT: Final = 5
"""Batches of a producer that are recognised when they come again: as many as Kafka's clients have in flight at most."""

PRODUCERS_MAX: Final = 10_000
"""Producers that one partition remembers: 230 bytes for one that appended once, 350 for one in use, 3.5 MB in all.

Beyond it those are forgotten first that appended once, the longest ago; so a flood of producers that come once forgets
none that is in use. One that is forgotten and still lives is then taken for a new one: its next batch is accepted, a
repetition of its last one too. Producers with an open transaction do not count and stay, for without them the last
stable offset would be wrong; their number is bounded by the transactions that the coordinator lets be ongoing.
"""

_HEARD_ONCE_PART: Final = 4
"""One part in so many of the limit is for producers that have appended once: only what is beyond it is forgotten
before others, or a new producer could not be remembered where all others are in use."""

_FORGOTTEN_AT_ONCE: Final = 64
"""One part in so many of the limit goes at a time: to find the oldest of a dict means to step over what left it."""

_NO_COORDINATOR_EPOCH: Final = -1
_NO_OFFSET: Final = -1

_BATCH: Final = Struct("=iqiq")  # last sequence, last offset, offset delta, timestamp: a sixth of the memory of a tuple
_BATCHES_SIZE: Final = BATCHES_KEPT * _BATCH.size


class Duplicate(NamedTuple):
    """A batch that is in the log already: the offsets it was given, and its timestamp there."""

    base_offset: int
    last_offset: int
    timestamp: int


class TransactionEnd(NamedTuple):
    """What a marker ends: the transaction of a producer in this partition.

    By ``transaction_version`` 2 the epoch is that of the producer's next transaction, by 1 that of the one that ends,
    or a higher one that fences the producer.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int

    @property
    def marker(self) -> EndMarker:
        """The marker's record."""
        return EndMarker("COMMIT" if self.is_commit else "ABORT", self.coordinator_epoch)


class _Expected(NamedTuple):
    """The ongoing transaction of a producer that this partition is part of."""

    epoch: int
    begins_at_zero: bool


class _Producer:
    """One producer; ``batches`` are up to five packed ones, newest last."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_seen_ms", "last_sequence", "last_timestamp")

    def __init__(self) -> None:
        self.epoch = record_batch.NO_PRODUCER_EPOCH
        self.coordinator_epoch = _NO_COORDINATOR_EPOCH
        self.last_timestamp = 0
        self.last_seen_ms = 0  # wall time, as far as it is known
        self.last_sequence = record_batch.NO_SEQUENCE
        self.batches = b""

    def set_epoch(self, epoch: int) -> None:
        """Another epoch counts from 0 again, so the batches of the one before are no repetitions in it."""
        if epoch != self.epoch:
            self.epoch, self.last_sequence, self.batches = epoch, record_batch.NO_SEQUENCE, b""

    def add_batch(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        batch = _BATCH.pack(last_sequence, last_offset, offset_delta, timestamp)
        self.batches = (self.batches + batch)[-_BATCHES_SIZE:]
        self.last_sequence = last_sequence
        self.last_timestamp = timestamp

    def find(self, header: record_batch.BatchHeader) -> Duplicate | None:
        """The kept batch of the same epoch with exactly these sequences."""
        if header.producer_epoch == self.epoch:
            first, last = header.base_sequence, header.last_sequence
            for last_sequence, last_offset, offset_delta, timestamp in _BATCH.iter_unpack(self.batches):
                if last_sequence == last and record_batch.subtract_sequence(last_sequence, offset_delta) == first:
                    return Duplicate(last_offset - offset_delta, last_offset, timestamp)
        return None

    @property
    def is_heard_again(self) -> bool:
        """Whether its last batch is not the first of its epoch, which begins at sequence 0."""
        last_sequence, _, offset_delta = self.last_batch()
        return record_batch.subtract_sequence(last_sequence, offset_delta) > 0

    def last_batch(self) -> tuple[int, int, int]:
        """(last sequence, last offset, offset delta), as a snapshot has them."""
        if not self.batches:
            return (record_batch.NO_SEQUENCE, _NO_OFFSET, 0)
        last_sequence, last_offset, offset_delta, _ = _BATCH.unpack_from(self.batches, len(self.batches) - _BATCH.size)
        return (last_sequence, last_offset, offset_delta)


class OpenTransaction(NamedTuple):
    """A producer's open transaction in a partition; ``last_timestamp`` (ms) is that of its last batch."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_timestamp: int

    @property
    def abort(self) -> TransactionEnd:
        """What ends it without its coordinator."""
        return TransactionEnd(self.producer_id, self.producer_epoch, max(0, self.coordinator_epoch), False, 1)


class ProducerState:
    """The producers of one partition. Synchronous, no I/O, one owner; times are epoch milliseconds and come in."""

    def __init__(self, *, expiration_ms: int, producers_max: int = PRODUCERS_MAX) -> None:
        """``expiration_ms`` is ``producer.id.expiration.ms``."""
        self.expiration_ms = expiration_ms
        self._producers_max = producers_max
        self._producers: dict[int, _Producer] = {}  # the one that appended last stands last
        self._heard_once: dict[int, None] = {}  # those whose last batch is their first, in the same order
        self._open: dict[int, int] = {}  # producer id -> first offset of its transaction; offsets rise
        self.open: Final[Mapping[int, int]] = self._open
        """By producer id where its open transaction begins, the oldest first, for those who look at many partitions."""
        self._expected: dict[int, _Expected] = {}  # by producer id, until the marker
        self.end_offset = 0
        """Everything below is accounted for."""
        self.highest_id = record_batch.NO_PRODUCER_ID
        """Of all producers ever seen here, forgotten ones too."""

    def __len__(self) -> int:
        return len(self._producers)

    # --- Transactions -------------------------------------------------------------------------------------------------

    def expect(self, producer_id: int, epoch: int, *, begins_at_zero: bool = False) -> None:
        """Take batches of the producer's transaction from now on, of this epoch, until its marker.

        The coordinator has durably recorded that the partition is part of the transaction. With ``begins_at_zero``, as
        each transaction of version 2 does, a producer that is not known here has to begin at sequence 0.
        """
        self._expected[producer_id] = _Expected(epoch, begins_at_zero)

    def check_end(self, end: TransactionEnd) -> None:
        """Check a marker before it is written. One that is sent again, because the answer to it was lost, is accepted.

        Raises InvalidProducerEpochError where the producer has a newer epoch, and TransactionCoordinatorFencedError
        where a newer coordinator has written markers of this producer.
        """
        producer_id = end.producer_id
        producer, expected = self._producers.get(producer_id), self._expected.get(producer_id)
        epoch = record_batch.NO_PRODUCER_EPOCH if producer is None else producer.epoch
        is_ongoing = producer_id in self._open
        if expected is not None and expected.epoch >= epoch:
            epoch, is_ongoing = expected.epoch, True
        if end.producer_epoch < epoch or (end.transaction_version >= 2 and is_ongoing and end.producer_epoch == epoch):
            raise errors.InvalidProducerEpochError(
                f"producer {producer_id} has epoch {epoch} here, the marker has {end.producer_epoch}: its transaction "
                "was ended before",
                producer_id=producer_id,
                producer_epoch=end.producer_epoch,
                current_epoch=epoch,
            )
        if producer is not None and end.coordinator_epoch < producer.coordinator_epoch:
            raise errors.TransactionCoordinatorFencedError(
                f"the marker for producer {producer_id} is of coordinator epoch {end.coordinator_epoch}, one of epoch "
                f"{producer.coordinator_epoch} has written here: a newer coordinator has taken over",
                producer_id=producer_id,
                coordinator_epoch=end.coordinator_epoch,
                current_epoch=producer.coordinator_epoch,
            )

    def aborted_by(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        """The entry for the transaction index if an ABORT marker of the producer stands at ``offset``.

        None where it ends nothing, for then it is not entered.
        """
        first_offset = self._open.get(producer_id)
        if first_offset is None:
            return None
        others = (first for other, first in self._open.items() if other != producer_id)
        return AbortedTransaction(TXN_INDEX_VERSION, producer_id, first_offset, offset, next(others, offset + 1))

    # --- Appending ----------------------------------------------------------------------------------------------------

    def check(self, header: record_batch.BatchHeader) -> Duplicate | None:
        """Check a data batch, as the client sent it; None when it is to be written.

        A batch that repeats only some records is out of order. Batches of a producer that is unknown, or no longer
        known, are accepted with any sequence.

        Raises OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTransactionStateError, and
        InvalidRecordError for a producer id without a sequence. Batches without a producer id pass; epoch -1 is older
        than all others.
        """
        producer_id = header.producer_id
        if producer_id <= record_batch.NO_PRODUCER_ID:
            return None
        if header.base_sequence < 0:
            raise errors.InvalidRecordError(
                f"the batch of producer {producer_id} has base sequence {header.base_sequence}: an idempotent "
                "producer's are 0 or more"
            )
        producer = self._producers.get(producer_id)
        if producer is not None and (duplicate := producer.find(header)) is not None:
            return duplicate
        self._check_batch(header, producer)
        self._check_sequence(header, producer)
        return None

    def check_of_coordinator(self, header: record_batch.BatchHeader) -> None:
        """As ``check`` of one batch that a coordinator writes for a producer: sequences do not count, none repeats."""
        if header.producer_id > record_batch.NO_PRODUCER_ID:
            self._check_batch(header, self._producers.get(header.producer_id))

    def _check_batch(self, header: record_batch.BatchHeader, producer: _Producer | None) -> None:
        """Raise an error unless ``header`` may follow, by its epoch and its transaction."""
        producer_id, producer_epoch = header.producer_id, header.producer_epoch
        epoch = record_batch.NO_PRODUCER_EPOCH if producer is None else producer.epoch
        first_offset, expected = self._open.get(producer_id), self._expected.get(producer_id)
        newest = epoch if expected is None or expected.epoch < epoch else expected.epoch
        if producer_epoch < newest:
            raise errors.InvalidProducerEpochError(
                f"producer {producer_id} has epoch {newest} now, the batch has {producer_epoch}: a newer instance "
                "of the producer has taken over",
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                current_epoch=newest,
            )
        if not header.attributes & record_batch.TRANSACTIONAL_BIT:
            if first_offset is not None:
                raise errors.InvalidTransactionStateError(
                    f"producer {producer_id} has a transaction open since offset {first_offset}, the batch is not part "
                    "of it",
                    producer_id=producer_id,
                    first_offset=first_offset,
                )
        elif (expected is None or producer_epoch != expected.epoch) and (
            first_offset is None or producer_epoch != epoch
        ):
            raise errors.InvalidTransactionStateError(
                f"the batch belongs to a transaction of producer {producer_id} at epoch {producer_epoch}, which has "
                "none ongoing in this partition: it was ended, or the partition was not added to it",
                producer_id=producer_id,
                producer_epoch=producer_epoch,
            )

    def _check_sequence(self, header: record_batch.BatchHeader, producer: _Producer | None) -> None:
        """Raise an error unless ``header`` may follow by its sequence."""
        expected = 0
        if producer is None or producer.epoch == record_batch.NO_PRODUCER_EPOCH:
            transaction = self._expected.get(header.producer_id)
            if transaction is None or not transaction.begins_at_zero or not header.is_transactional:
                return
        elif header.producer_epoch == producer.epoch:
            expected = record_batch.add_sequence(producer.last_sequence, 1)
        if header.base_sequence != expected:
            raise errors.OutOfOrderSequenceError(
                f"the batch of producer {header.producer_id} begins at sequence {header.base_sequence}, {expected} "
                f"would follow, and it is none of the producer's last {BATCHES_KEPT} batches",
                producer_id=header.producer_id,
                sequence=header.base_sequence,
                expected=expected,
            )

    def count_new(self, headers: list[record_batch.BatchHeader], first: int) -> int:
        """How many headers, from number ``first`` on, ``check`` would accept as new ones.

        Each is checked as if those before it had been applied already. ``check`` tells about the one that follows them.
        """
        ahead: dict[int, tuple[int, int, int]] = {}  # producer id -> transaction bit, epoch, sequence of the next batch
        for number in range(first, len(headers)):
            header = headers[number]
            producer_id = header.producer_id
            if producer_id <= record_batch.NO_PRODUCER_ID:
                continue
            in_transaction = header.attributes & record_batch.TRANSACTIONAL_BIT
            due = ahead.get(producer_id)
            if due is None:
                if not self._follows(header, in_transaction):
                    try:
                        if self.check(header) is not None:
                            return number - first
                    except errors.SeglogError:
                        return number - first
            elif due != (in_transaction, header.producer_epoch, header.base_sequence):
                return number - first
            if number + 1 < len(headers):
                next_sequence = record_batch.add_sequence(header.base_sequence, header.last_offset_delta + 1)
                ahead[producer_id] = in_transaction, header.producer_epoch, next_sequence
        return len(headers) - first

    def _follows(self, header: record_batch.BatchHeader, in_transaction: int) -> bool:
        """Whether a batch is what ``check`` accepts most often: the next one of a producer that is known."""
        producer_id = header.producer_id
        producer = self._producers.get(producer_id)
        if (
            producer is None
            or header.producer_epoch != producer.epoch
            or header.base_sequence != record_batch.add_sequence(producer.last_sequence, 1)
        ):
            return False
        expected = self._expected.get(producer_id)
        if expected is None:
            return (producer_id in self._open) == bool(in_transaction)
        return expected.epoch == producer.epoch and in_transaction != 0

    def apply(self, header: record_batch.BatchHeader, base_offset: int, seen_ms: int = 0) -> None:
        """Count a data batch whose bytes are now in the log at ``base_offset``, wherever its header says it begins.

        ``header`` is that of the log: on a LogAppendTime topic with the broker's time. ``seen_ms`` is the wall time of
        the append, 0 if it is not known.
        """
        offset_delta = header.last_offset_delta
        last_offset = base_offset + offset_delta
        self.end_offset = last_offset + 1
        producer_id = header.producer_id
        if producer_id <= record_batch.NO_PRODUCER_ID:
            return
        producer = self._taken(producer_id)
        producer.set_epoch(header.producer_epoch)
        producer.add_batch(header.last_sequence, last_offset, offset_delta, header.max_timestamp)
        producer.last_seen_ms = seen_ms
        if header.is_transactional and producer_id not in self._open:
            self._open[producer_id] = base_offset
        self._put_back(producer_id, producer)

    def apply_many(self, headers: list[record_batch.BatchHeader], base_offsets: list[int], seen_ms: int) -> None:
        """As ``apply`` of each, in their order."""
        for header, base_offset in zip(headers, base_offsets):
            if header.producer_id > record_batch.NO_PRODUCER_ID:
                self.apply(header, base_offset, seen_ms)
        self.end_offset = base_offsets[-1] + headers[-1].last_offset_delta + 1

    # --- Replaying ----------------------------------------------------------------------------------------------------

    def apply_replayed(
        self, header: record_batch.BatchHeader, marker: EndMarker | None, seen_ms: int = 0
    ) -> AbortedTransaction | None:
        """Count a batch that a load or a recovery finds in the log, in order of offsets; the log is trusted.

        Sequences may have gaps, epochs may go back. ``marker`` is what the record of a control batch says, None for
        data, for a control batch that compaction emptied and for one of another kind; the last two change nothing.
        Returns the entry for the transaction index where a transaction was aborted.
        """
        if not header.is_control:
            self.apply(header, header.base_offset, seen_ms)
            return None
        producer_id = header.producer_id
        if marker is None or producer_id <= record_batch.NO_PRODUCER_ID:
            self.end_offset = header.next_offset
            return None
        aborted = self.aborted_by(producer_id, header.base_offset) if marker.type == "ABORT" else None
        self.apply_marker(header, header.base_offset, marker, seen_ms)
        return aborted

    def apply_marker(self, header: record_batch.BatchHeader, base_offset: int, marker: EndMarker, seen_ms: int) -> None:
        """Count a marker whose bytes are now in the log at ``base_offset``: the producer's transaction has ended."""
        self.end_offset = base_offset + 1
        producer_id = header.producer_id
        producer = self._taken(producer_id)
        producer.set_epoch(header.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp = header.max_timestamp
        producer.last_seen_ms = seen_ms
        self._open.pop(producer_id, None)
        self._expected.pop(producer_id, None)
        self._put_back(producer_id, producer)

    # --- Forgetting ---------------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> int:
        """Forget producers that were quiet for ``producer.id.expiration.ms``; returns how many.

        Quiet is counted from the last timestamp, which on a CreateTime topic is the client's, or from the wall time at
        which the producer was last seen, whichever is later: one that sends old data is not forgotten at once. An open
        transaction keeps its producer.
        """
        latest = now_ms - self.expiration_ms
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if max(producer.last_timestamp, producer.last_seen_ms) <= latest and producer_id not in self._open
        ]
        self._forget(expired)
        return len(expired)

    def restart(self, end_offset: int, entries: Iterable[ProducerEntry] = (), *, seen_ms: int = 0) -> None:
        """Replace the state by that of a snapshot at ``end_offset``, written at ``seen_ms``."""
        self._producers.clear()
        self._heard_once.clear()
        self._open.clear()
        self.end_offset = end_offset
        opened: list[tuple[int, int]] = []
        for entry in entries:
            producer = _Producer()
            producer.epoch = entry.producer_epoch
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.last_timestamp = entry.timestamp
            producer.last_seen_ms = seen_ms
            if entry.last_offset >= 0:
                producer.add_batch(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
            self._add(entry.producer_id, producer)
            if entry.current_txn_first_offset >= 0:
                opened.append((entry.current_txn_first_offset, entry.producer_id))
        self._open.update((producer_id, first_offset) for first_offset, producer_id in sorted(opened))
        excess = len(self._producers) - len(self._open) - self._producers_max
        if excess > 0:
            self._forget_oldest(excess)

    # --- Asking -------------------------------------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins, None when none is open.

        What ended is stable at once: one node's high watermark is its log end.
        """
        return next(iter(self._open.values()), None)

    @property
    def oldest_open(self) -> OpenTransaction | None:
        """The open transaction that ``first_unstable_offset`` is of, None when none is open."""
        for producer_id in self._open:
            return self._open_transaction(producer_id)
        return None

    def open_at(self, first_offset: int) -> OpenTransaction | None:
        """The open transaction that begins at an offset."""
        found = [producer_id for producer_id, first in self._open.items() if first == first_offset]
        return self._open_transaction(found[0]) if found else None

    def _open_transaction(self, producer_id: int) -> OpenTransaction:
        producer = self._producers[producer_id]
        return OpenTransaction(
            producer_id, producer.epoch, producer.coordinator_epoch, self._open[producer_id], producer.last_timestamp
        )

    def entries(self) -> list[ProducerEntry]:
        """All producers, as a snapshot has them, the one that appended last at the end."""
        return [
            ProducerEntry(
                producer_id,
                producer.epoch,
                *producer.last_batch(),
                producer.last_timestamp,
                producer.coordinator_epoch,
                self._open.get(producer_id, _NO_OFFSET),
            )
            for producer_id, producer in self._producers.items()
        ]

    def _taken(self, producer_id: int) -> _Producer:
        self._heard_once.pop(producer_id, None)
        return self._producers.pop(producer_id, None) or _Producer()

    def _add(self, producer_id: int, producer: _Producer) -> None:
        self._producers[producer_id] = producer
        if not producer.is_heard_again:
            self._heard_once[producer_id] = None
        self.highest_id = max(self.highest_id, producer_id)

    def _put_back(self, producer_id: int, producer: _Producer) -> None:
        self._add(producer_id, producer)
        if len(self._producers) - len(self._open) > self._producers_max:
            self._forget_oldest(max(1, self._producers_max // _FORGOTTEN_AT_ONCE))

    def _forget_oldest(self, count: int) -> None:
        excess = max(0, len(self._heard_once) - self._producers_max // _HEARD_ONCE_PART)
        once = list(islice(self._closed(self._heard_once), min(count, excess)))
        self._forget(once)
        self._forget(list(islice(self._closed(self._producers), count - len(once))))

    def _closed(self, producer_ids: Iterable[int]) -> Iterator[int]:
        return (producer_id for producer_id in producer_ids if producer_id not in self._open)

    def _forget(self, producer_ids: Iterable[int]) -> None:
        for producer_id in producer_ids:
            del self._producers[producer_id]
            self._heard_once.pop(producer_id, None)
