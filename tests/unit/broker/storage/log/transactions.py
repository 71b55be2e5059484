"""Transactions as Kafka and seglog write them into a log, and a plain model of what readers are to get of them."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.record_batch import BatchHeader, iter_batches
from seglog_protocol.records import Record, decode_records
from tests.logs import append_one


class Batch(NamedTuple):
    """A batch of a log, of a producer, -1 for none; ``marker`` is "ABORT" or "COMMIT" where it ends a transaction."""

    offset: int
    records: int
    producer_id: int = -1
    marker: str | None = None

    @property
    def next_offset(self) -> int:
        return self.offset + self.records

    def encoded(self, sequence: int = 0, leader_epoch: int = 0, epoch: int = 0) -> bytes:
        """Its bytes in a log."""
        records = [(1_000 + self.offset, b"k%d" % number, b"v", ()) for number in range(self.records)]
        if self.marker is not None:
            key, value = struct.pack(">hh", 0, self.marker == "COMMIT"), struct.pack(">hi", 0, 0)
            records = [(1_000 + self.offset, key, value, ())]
        is_of_transaction = self.producer_id >= 0
        return encode_batch(
            records,
            base_offset=self.offset,
            leader_epoch=leader_epoch,
            producer_id=self.producer_id,
            producer_epoch=epoch if is_of_transaction else -1,
            base_sequence=sequence if is_of_transaction and self.marker is None else -1,
            transactional=is_of_transaction,
            control=self.marker is not None,
        )


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int


@dataclass
class Model:
    """The batches of a log, in order; those before the log start are kept, because transactions begin there."""

    batches: list[Batch] = field(default_factory=list)

    def cut_to(self, end: int) -> None:
        """The log ends there now."""
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]

    def transactions(self) -> tuple[dict[int, int], list[Aborted]]:
        """First offsets of the open ones by producer, and those that were aborted, by their markers."""
        opened: dict[int, int] = {}
        aborted: list[Aborted] = []
        for batch in self.batches:
            if batch.marker is None and batch.producer_id >= 0:
                opened.setdefault(batch.producer_id, batch.offset)
            elif batch.marker is not None:
                first = opened.pop(batch.producer_id, None)
                if first is not None and batch.marker == "ABORT":
                    aborted.append(Aborted(batch.producer_id, first, batch.offset))
        return opened, aborted

    def last_stable_offset(self, log_start: int, log_end: int) -> int:
        return min(max(log_start, min(self.transactions()[0].values(), default=log_end)), log_end)

    def committed_offsets(self, log_start: int, log_end: int) -> list[int]:
        """The offsets of the records that a reader of committed ones gets."""
        stable, aborted = self.last_stable_offset(log_start, log_end), self.transactions()[1]
        return [
            offset
            for batch in self.batches
            if batch.marker is None and batch.next_offset <= stable
            if not any(
                one.producer_id == batch.producer_id and one.first_offset <= batch.offset < one.last_offset
                for one in aborted
            )
            for offset in range(batch.offset, batch.next_offset)
            if offset >= log_start
        ]


def due_of(log: PartitionLog, producer_id: int) -> tuple[int, int]:
    """Epoch and sequence of a producer's next batch, by what its partition knows of it."""
    for entry in log.producers.entries():
        if entry.producer_id == producer_id:
            return max(0, entry.producer_epoch), entry.last_sequence + 1
    return 0, 0


def append_in_transaction(log: PartitionLog, producer_id: int, records: int = 1) -> Batch:
    """A batch of a producer's transaction, as a client sends it; the coordinator has added the partition to it."""
    epoch, sequence = due_of(log, producer_id)
    log.producers.expect(producer_id, epoch)
    batch = Batch(0, records, producer_id).encoded(sequence, epoch=epoch)
    appended = append_one(log, memoryview(bytearray(batch)))
    return Batch(appended.base_offset, records, producer_id)


def end_transaction(log: PartitionLog, producer_id: int, marker: str, *, version: int = 1) -> Batch:
    """The marker of the coordinator."""
    epoch, _ = due_of(log, producer_id)
    end = TransactionEnd(producer_id, epoch + (version == 2), 0, marker == "COMMIT", version)
    return Batch(log.append_marker(end).base_offset, 1, producer_id, marker)


def without_aborted(
    batches: Iterable[tuple[BatchHeader, memoryview]], aborted: Iterable[Sequence[int]]
) -> list[tuple[BatchHeader, memoryview]]:
    """What a Kafka consumer delivers of a fetch; ``aborted`` are producer ids and first offsets, in any order."""
    begun = sorted(((first, producer_id) for producer_id, first in aborted), reverse=True)
    aborting: set[int] = set()
    kept: list[tuple[BatchHeader, memoryview]] = []
    for header, view in batches:
        while begun and begun[-1][0] <= header.last_offset:
            aborting.add(begun.pop()[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            kept.append((header, view))
    return kept


class Fetched(NamedTuple):
    data: bytes
    aborted: list[list[int]]


def fetch_committed(log: PartitionLog, offset: int, bytes_max: int) -> Fetched:
    """One fetch at read_committed, as the broker answers it."""
    found = log.read(offset, bytes_max, before=log.last_stable_offset)
    if found is None:
        return Fetched(b"", [])
    aborted = [[entry.producer_id, entry.first_offset] for entry in log.aborted_in(found)]
    data = found.file.pread(found.size, found.position)
    found.release()
    return Fetched(data, aborted)


def read_committed(log: PartitionLog, bytes_max: int) -> list[tuple[Record, BatchHeader]]:
    """Every record that a reader of committed ones gets, with a fetch for each ``bytes_max``."""
    records: list[tuple[Record, BatchHeader]] = []
    offset = log.log_start_offset
    while (fetched := fetch_committed(log, offset, bytes_max)).data:
        batches = list(iter_batches(fetched.data))
        for header, view in without_aborted(batches, fetched.aborted):
            records += [(record, header) for record in decode_records(header, view) if record.offset >= offset]
        offset = max(offset, *(header.next_offset for header, _ in batches))
    return records
