"""Columns -> record batches and their partitions, many records at a time and without a Python object per record.

The output is byte for byte that of ``batch_builder``. The numbers of all records are written as varints by a few array
operations, and one join interleaves them with keys, values and headers: its buffer holds the records of all batches.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seglog.arrow.columns import NewRecords
from seglog.arrow.schema import constant
from seglog.arrow.varints import joined, varint_columns
from seglog.core.partitioner import Partitioner, murmur2
from seglog_protocol import errors, record_batch
from seglog_protocol.batch_columns import Int64s
from seglog_protocol.compression import Codec, compress
from seglog_protocol.record_columns import VARLONG_BYTES_MAX, varint_sizes, zigzag
from seglog_protocol.records import RECORD_SIZE_MIN

BATCH_BYTES: Final = 256 * 1024

PIECE_BYTES: Final = 16 * 1024 * 1024
"""Content bytes of the rows assigned to partitions at a time: enough to fill batches."""

BLOCK_ROWS: Final = 32 * 1024
"""Rows encoded at a time, if batches are that small: their arrays stay in the processor's cache."""

_UNKNOWN: Final = 0  # placeholder for the header fields that seal_batch computes
_NO_HEADERS: Final = constant(pa.binary(), b"\x00")


class EncodedBatch(NamedTuple):
    """A whole record batch with base offset 0, as ``raw.append`` takes it, and its ``records``."""

    partition: int
    data: bytes
    records: NewRecords

    @property
    def record_count(self) -> int:
        """Number of records."""
        return len(self.records)


@dataclass(eq=False, repr=False)
class ArrowEncoder:
    """Encodes the rows for one topic into batches, each for one partition and in row order.

    A row goes to the partition in its column ``partition``, else to the one of its key by murmur2, as with
    ``Producer``; without a key it goes to a sticky partition until a batch of it is full. Batches have up to
    ``batch_bytes``, both before and after compression, unless a single record is larger.
    """

    topic: str
    partitions: int
    _: KW_ONLY
    batch_bytes: int = BATCH_BYTES
    codec: Codec = Codec.NONE
    level: int | None = None
    choose: InitVar[Callable[[int], int]] = random.randrange

    def __post_init__(self, choose: Callable[[int], int]) -> None:
        self._sticky = StickyPartitions(self.partitions, self.batch_bytes, choose)

    def encode(self, records: NewRecords) -> Iterator[EncodedBatch]:
        """The batches of ``records``. Raises UnknownPartitionError for a partition that the topic does not have."""
        total = np.cumsum(records.content_bytes)
        first = 0
        while first < len(records):
            last = _end_within(total, first, PIECE_BYTES)
            piece = records.part(first, last)
            first = last
            partition = self._place(piece)
            if (partition[1:] < partition[:-1]).any():
                order = np.argsort(partition, kind="stable")
                piece, partition = piece.take(order), partition[order]
            bounds = self._bounds(piece, partition)
            begin = 0
            while begin < len(bounds) - 1:
                end = max(begin + 1, bisect_right(bounds, bounds[begin] + BLOCK_ROWS) - 1)
                rows = slice(bounds[begin], bounds[end])
                block = [bound - rows.start for bound in bounds[begin : end + 1]]
                yield from self._build(piece.part(rows.start, rows.stop), block, partition[rows])
                begin = end

    def _place(self, records: NewRecords) -> Int64s:
        """The partition of each record."""
        partition = records.partition.copy()
        wrong = partition[partition >= self.partitions]
        if wrong.size:
            raise errors.UnknownPartitionError(
                f"{self.topic} has no partition {wrong[0]}; it has {self.partitions}, numbered from 0",
                topic=self.topic,
                partition=int(wrong[0]),
                partitions=self.partitions,
            )
        if self.partitions == 1:
            return np.zeros(len(records), np.int64)
        open_to_choice = partition < 0
        keyed = np.flatnonzero(open_to_choice & (records.key_length >= 0))
        if keyed.size:
            data, starts = records.key_bytes()
            partition[keyed] = partitions_for_keys(data, starts[keyed], records.key_length[keyed], self.partitions)
        keyless = np.flatnonzero(open_to_choice & (records.key_length < 0))
        if keyless.size:
            partition[keyless] = self._sticky.place(records.content_bytes[keyless])
        return partition

    def _bounds(self, records: NewRecords, partition: Int64s) -> list[int]:
        """Row numbers where batches begin, and the end; each batch has one partition and an upper bound that fits."""
        count = len(records)
        spread = int(records.timestamp.max()) - int(records.timestamp.min())
        size = records.content_bytes + varint_sizes(zigzag(records.key_length))
        size += varint_sizes(zigzag(records.value_length)) + 1
        size += _varint_size(2 * spread + 1) + _varint_size(2 * min(count, self.batch_bytes // RECORD_SIZE_MIN))
        size += varint_sizes(zigzag(size))
        total = np.cumsum(size)
        ends = [*(np.flatnonzero(partition[1:] != partition[:-1]) + 1).tolist(), count]
        bounds, room = [0], self.batch_bytes - record_batch.HEADER_SIZE
        for end in ends:
            first = bounds[-1]
            while first < end:
                first = min(end, _end_within(total, first, room))
                bounds.append(first)
        return bounds

    def _build(self, records: NewRecords, bounds: list[int], partition: Int64s) -> Iterator[EncodedBatch]:
        """The batches between ``bounds``, encoded together."""
        starts = np.array(bounds[:-1], np.int64)
        position, body = _encode_records(records, np.diff(bounds))
        base_timestamps = records.timestamp[starts].tolist()
        max_timestamps = np.maximum(np.maximum.reduceat(records.timestamp, starts), record_batch.NO_TIMESTAMP).tolist()
        edges = position[bounds].tolist()
        for number, (first, last) in enumerate(pairwise(bounds)):
            count = last - first
            header = record_batch.BatchHeader(
                base_offset=0,
                batch_length=_UNKNOWN,
                leader_epoch=record_batch.NO_LEADER_EPOCH,
                magic=record_batch.MAGIC,
                crc=_UNKNOWN,
                attributes=self.codec,
                last_offset_delta=count - 1,
                base_timestamp=base_timestamps[number],
                max_timestamp=max_timestamps[number],
                producer_id=record_batch.NO_PRODUCER_ID,
                producer_epoch=record_batch.NO_PRODUCER_EPOCH,
                base_sequence=record_batch.NO_SEQUENCE,
                record_count=count,
            )
            plain = body.slice(edges[number], edges[number + 1] - edges[number]).to_pybytes()
            data = record_batch.seal_batch(header, compress(self.codec, plain, self.level))
            if len(data) > self.batch_bytes and count > 1:  # incompressible data grows a little
                yield from self._build(records.part(first, last), [0, count // 2, count], partition[first:last])
            else:
                yield EncodedBatch(int(partition[first]), data, records.part(first, last))


# --- Records ----------------------------------------------------------------------------------------------------------


def _encode_records(records: NewRecords, counts: Int64s) -> tuple[Int64s, pa.Buffer]:
    """The encoded records of batches with ``counts`` records each, contiguous; and the start of each, and the end."""
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    offset_delta = np.arange(len(records)) - starts
    timestamp, base = records.timestamp, records.timestamp[starts]
    timestamp_delta = timestamp - base
    if (((timestamp ^ base) & (timestamp ^ timestamp_delta)) < 0).any():
        raise ValueError("timestamps are too far apart for one batch")
    timestamps, offsets = zigzag(timestamp_delta), zigzag(offset_delta)
    key_lengths, value_lengths = zigzag(records.key_length), zigzag(records.value_length)
    size = 1 + records.content_bytes  # the attributes
    for numbers in (timestamps, offsets, key_lengths, value_lengths):
        size += varint_sizes(numbers)
    attributes = np.zeros(len(records), np.uint64)
    prefix = varint_columns(zigzag(size), attributes, timestamps, offsets, key_lengths)
    headers = _NO_HEADERS if records.headers is None else records.headers
    parts = (prefix, records.key, varint_columns(value_lengths), records.value, headers)
    return joined(*(part for part in parts if part is not None))


def _end_within(total: Int64s, first: int, room: int) -> int:
    """The end of the rows from ``first`` on that fit into ``room``, at least one, by the running ``total`` of sizes."""
    before = int(total[first - 1]) if first else 0
    return max(first + 1, int(np.searchsorted(total, before + room, side="right")))


def _varint_size(number: int) -> int:
    return min(VARLONG_BYTES_MAX, max(1, -(-number.bit_length() // 7)))


LOCKSTEP_MIN: Final = 16
"""Number of keys from which hashing four bytes of each at a time is cheaper than plain Python."""

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_BLOCK_BYTES: Final = 4
_BLOCK_KEYS: Final = 32 * 1024  # whose arrays stay in the processor's cache
_POSITIVE: Final = np.uint32(0x7FFFFFFF)

Hashes = npt.NDArray[np.uint32]


def murmur2_of(data: bytes | memoryview, starts: Int64s, lengths: Int64s) -> Hashes:
    """``partitioner.murmur2`` of each key ``data[start : start + length]``; lengths must not be negative."""
    octets = np.frombuffer(data, np.uint8)
    blocks = np.ndarray((max(0, len(octets) - 3),), np.dtype("<u4"), data, strides=(1,))
    hashes: Hashes = _SEED ^ lengths.astype(np.uint32)
    whole = lengths // _BLOCK_BYTES
    active, position, step = np.flatnonzero(whole), starts[whole > 0], 0
    while active.size >= LOCKSTEP_MIN:
        block = blocks[position] * _MULTIPLIER
        block = (block ^ (block >> np.uint32(24))) * _MULTIPLIER
        hashes[active] = hashes[active] * _MULTIPLIER ^ block
        step += 1
        left = whole[active] > step
        active, position = active[left], position[left] + _BLOCK_BYTES
    tails = lengths & (_BLOCK_BYTES - 1)
    for count in range(1, _BLOCK_BYTES):
        which = np.flatnonzero(tails == count)
        at = starts[which] + lengths[which] - count
        tail = np.zeros(len(which), np.uint32)
        for place in range(count):
            tail |= octets[at + place].astype(np.uint32) << np.uint32(8 * place)
        hashes[which] = (hashes[which] ^ tail) * _MULTIPLIER
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _MULTIPLIER
    hashes ^= hashes >> np.uint32(15)
    for number in active.tolist():  # few, and longer than all others
        start = int(starts[number])
        hashes[number] = murmur2(bytes(octets[start : start + int(lengths[number])]))
    return hashes


def partitions_for_keys(data: bytes | memoryview, starts: Int64s, lengths: Int64s, partitions: int) -> Int64s:
    """``partitioner.partition_for_key`` of each key."""
    found = np.empty(len(starts), np.int64)
    for first in range(0, len(starts), _BLOCK_KEYS):
        block = slice(first, first + _BLOCK_KEYS)
        found[block] = (murmur2_of(data, starts[block], lengths[block]) & _POSITIVE) % np.uint32(partitions)
    return found


class StickyPartitions:
    """Partitions of records without a key: one until a batch of it is full, then another.

    ``choose`` is ``random.randrange`` or a replacement in tests.
    """

    def __init__(self, partitions: int, batch_bytes: int, choose: Callable[[int], int] = random.randrange) -> None:
        self._partitioner = Partitioner(partitions, choose)
        self._batch_bytes = batch_bytes
        self._filled = 0

    def place(self, sizes: Int64s) -> Int64s:
        """The partitions of records with these sizes in bytes, in order."""
        filled = self._filled + np.cumsum(sizes)
        which = filled // self._batch_bytes
        batches = [self._partitioner.place(None)]
        for _ in range(int(which[-1]) if len(which) else 0):
            self._partitioner.batch_closed(batches[-1])
            batches.append(self._partitioner.place(None))
        if len(which):
            self._filled = int(filled[-1]) % self._batch_bytes
        return np.array(batches, np.int64)[which]
