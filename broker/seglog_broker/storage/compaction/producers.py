"""State of producers and transactions for compaction, from headers, markers and transaction indexes.

A producer's last batch stays, emptied if need be, because it carries the sequence that its next batch must follow. A
transaction's marker stays as long as a batch of it does.

Source: Kafka's ProducerStateManager and CleanedTransactionMetadata.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seglog_protocol.batch_columns import BatchColumns, Int64s
from seglog_protocol.record_batch import CONTROL_BIT, NO_PRODUCER_ID, TRANSACTIONAL_BIT, BatchHeader
from seglog_protocol.records import Record, decode_records
from seglog_protocol.transaction_files import AbortedTransaction, EndMarker, decode_end_marker

_NO_OFFSET = -1


class Marker(NamedTuple):
    """A control batch, opened: no ``records`` if an earlier round emptied it, no ``end`` if it ends nothing."""

    records: Sequence[Record]
    end: EndMarker | None


def read_marker(batches: BatchColumns, number: int) -> Marker:
    """The control batch ``number``. Raises CorruptRecordError."""
    records = decode_records(batches.header(number), batches.batch(number))
    return Marker(records, decode_end_marker(records[0].key, records[0].value) if records else None)


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_data_offset: int
    last_timestamp: int
    in_transaction: bool


class ProducerScan:
    """The last batch of every producer of a log; headers are added in the order of their offsets."""

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}

    def note(self, header: BatchHeader) -> None:
        """One batch."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch:
            open_still = known is not None and known.in_transaction
            known = _Producer(header.producer_epoch, _NO_OFFSET, header.max_timestamp, open_still)
            self._producers[header.producer_id] = known
        known.last_timestamp = header.max_timestamp
        if header.is_control:
            known.in_transaction = False
        else:
            known.last_data_offset = header.last_offset
            known.in_transaction = header.is_transactional

    def note_all(self, batches: BatchColumns) -> None:
        """Many batches."""
        numbers = np.flatnonzero(batches.producer_id != NO_PRODUCER_ID)
        if not numbers.size:
            return
        if not (batches.attributes[numbers] & (CONTROL_BIT | TRANSACTIONAL_BIT)).any():
            _, from_end = np.unique(batches.producer_id[numbers][::-1], return_index=True)
            numbers = numbers[numbers.size - 1 - from_end]  # only each one's last word counts
        for number in numbers.tolist():
            self.note(batches.header(number))

    def active(self, now_ms: int, expiration_ms: int) -> "ActiveProducers":
        """The producers that have not expired."""
        active = {
            producer_id: producer
            for producer_id, producer in self._producers.items()
            if producer.in_transaction or now_ms - producer.last_timestamp < expiration_ms
        }
        offsets = [producer.last_data_offset for producer in active.values() if producer.last_data_offset >= 0]
        epochs = {
            producer_id: producer.epoch for producer_id, producer in active.items() if producer.last_data_offset < 0
        }
        return ActiveProducers(np.array(sorted(offsets), np.int64), epochs)


@dataclass(frozen=True, slots=True)
class ActiveProducers:
    """``last_data_offsets`` ascending; ``marker_epochs`` of those known by a marker only, by producer id."""

    last_data_offsets: Int64s
    marker_epochs: dict[int, int]

    def is_last_marker(self, header: BatchHeader) -> bool:
        """Whether only this control batch holds the current epoch of its producer."""
        return self.marker_epochs.get(header.producer_id) == header.producer_epoch


class TransactionTracker:
    """Follows transactions through a pass over the log, batch by batch in the order of offsets."""

    def __init__(self, aborted: Iterable[AbortedTransaction], start_offset: int) -> None:
        """``aborted`` are the entries of all transaction indexes; the pass begins at ``start_offset``."""
        relevant = [entry for entry in aborted if entry.last_offset >= start_offset]
        self._pending = deque(sorted(relevant, key=lambda entry: entry.first_offset))
        self._ongoing: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()  # producers whose running transaction has left a batch in this pass
        self._index: list[AbortedTransaction] = []

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Note a transactional data batch; whether its transaction was aborted."""
        self._seen.add(producer_id)
        return self._entry_for(producer_id, last_offset) is not None

    def end(self, producer_id: int, offset: int, *, is_abort: bool, stays: bool = False) -> bool:
        """Note an end marker; whether it can be discarded because no batch of its transaction was there.

        ``stays``: it remains as it is all the same, and what the index says of it too.
        """
        entry = self._entry_for(producer_id, offset)
        can_go = producer_id not in self._seen and not stays
        self._seen.discard(producer_id)
        if entry is not None:
            del self._ongoing[producer_id]
            if is_abort and not can_go:
                self._index.append(entry)
        return can_go

    def take_index(self, next_base: int) -> list[AbortedTransaction]:
        """The entries of the transaction index of a new segment that ends before ``next_base``.

        A transaction whose marker must have been passed and was not is one whose marker is damaged: it stays too.
        """
        self._admit(next_base - 1)
        for producer_id, entry in list(self._ongoing.items()):
            if entry.last_offset < next_base:
                del self._ongoing[producer_id]
                self._index.append(entry)
        index, self._index = sorted(self._index, key=lambda entry: entry.last_offset), []
        return index

    def _entry_for(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        self._admit(offset)
        return self._ongoing.get(producer_id)

    def _admit(self, offset: int) -> None:
        """Begin the transactions that begin up to ``offset``."""
        pending = self._pending
        while pending and pending[0].first_offset <= offset:
            entry = pending.popleft()
            passed = self._ongoing.get(entry.producer_id)
            if passed is not None:  # and its marker never came
                self._index.append(passed)
            self._ongoing[entry.producer_id] = entry
