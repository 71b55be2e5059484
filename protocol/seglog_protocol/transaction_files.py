"""File formats of producers and transactions: ``.txnindex``, ``.snapshot`` and the end markers in the log.

Pure functions over bytes, so that each format is defined once. Integers are big-endian; an offset or id of -1 is none.

    <stem>.txnindex     34 bytes an entry, in the order of lastOffset
        0   int16   version           0
        2   int64   producerId
        10  int64   firstOffset       of the aborted transaction; may lie in an older segment
        18  int64   lastOffset        of its ABORT marker, which lies in this segment
        26  int64   lastStableOffset  when it was aborted

    <offset>.snapshot   state of every producer, from the records below <offset>
        0   int16   version           1
        2   uint32  crc               CRC-32C of everything from byte 6 on
        6   int32   number of entries
        10  46 bytes an entry: int64 producerId, int16 producerEpoch, int32 lastSequence, int64 lastOffset,
            int32 offsetDelta, int64 timestamp, int32 coordinatorEpoch, int64 currentTxnFirstOffset

    end marker          the one record of a control batch
        key    int16 version, int16 type: 0 ABORT, 1 COMMIT
        value  int16 version, int32 coordinatorEpoch

Source: Kafka's AbortedTxn, ProducerStateManager, EndTransactionMarker.
"""

from collections.abc import Iterable
from mmap import mmap
from struct import Struct
from typing import Final, NamedTuple

from seglog_protocol.checksum import Buffer, crc32c
from seglog_protocol.record_batch import NO_SEQUENCE, subtract_sequence

TXN_INDEX_VERSION: Final = 0
SNAPSHOT_VERSION: Final = 1
SNAPSHOT_HEADER_SIZE: Final = 10

END_MARKER_SIZE: Final = 78
"""Bytes of the batch of an end marker."""

TXN_INDEX_ENTRY: Final = Struct(">hqqqq")
SNAPSHOT_ENTRY: Final = Struct(">qhiqiqiq")
_SNAPSHOT_HEADER: Final = Struct(">hIi")
_CHECKSUM_START: Final = 6
_MARKER_KEY: Final = Struct(">hh")
_MARKER_VALUE: Final = Struct(">hi")
_MARKER_TYPES: Final = {0: "ABORT", 1: "COMMIT"}
_MARKER_NUMBERS: Final = {kind: number for number, kind in _MARKER_TYPES.items()}
_MARKER_VERSION: Final = 0


class MalformedSnapshotError(ValueError):
    """A snapshot that violates its format; the message says why, ``position`` (bytes) where."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


class UnknownSnapshotError(MalformedSnapshotError):
    """A snapshot of a version that is not known, which may be whole. Version 0, of a file of zeros, is not one."""


class AbortedTransaction(NamedTuple):
    """One entry of a transaction index."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerEntry(NamedTuple):
    """One producer of a snapshot; with ``last_offset`` -1 it has no known batch, and ``timestamp`` is its marker's."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int

    @property
    def first_sequence(self) -> int:
        """Sequence of the first record of the last batch, -1 when no batch is known."""
        return NO_SEQUENCE if self.last_offset < 0 else subtract_sequence(self.last_sequence, self.offset_delta)


class EndMarker(NamedTuple):
    """How a transaction ended: ``type`` is "COMMIT" or "ABORT"."""

    type: str
    coordinator_epoch: int


def aborted_transaction(data: Buffer | mmap, number: int) -> AbortedTransaction:
    """Entry ``number`` of a transaction index, counted from 0, unchecked."""
    return AbortedTransaction._make(TXN_INDEX_ENTRY.unpack_from(data, number * TXN_INDEX_ENTRY.size))


def encode_aborted_transaction(entry: AbortedTransaction) -> bytes:
    """The 34 bytes of a transaction index entry."""
    return TXN_INDEX_ENTRY.pack(*entry)


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """A whole snapshot, with its checksum; the entries in the order given."""
    packed = [SNAPSHOT_ENTRY.pack(*entry) for entry in entries]
    content = bytearray(b"".join((_SNAPSHOT_HEADER.pack(SNAPSHOT_VERSION, 0, len(packed)), *packed)))
    crc = crc32c(memoryview(content)[_CHECKSUM_START:])
    _SNAPSHOT_HEADER.pack_into(content, 0, SNAPSHOT_VERSION, crc, len(packed))
    return bytes(content)


def decode_snapshot(content: Buffer) -> list[ProducerEntry]:
    """The producers of a whole snapshot, in the order of the file. Raises MalformedSnapshotError."""
    size = len(content)
    if size < SNAPSHOT_HEADER_SIZE:
        raise MalformedSnapshotError(f"it has {size} bytes, fewer than the {SNAPSHOT_HEADER_SIZE} of its header", 0)
    version, crc, count = _SNAPSHOT_HEADER.unpack_from(content)
    if version != SNAPSHOT_VERSION:
        kind = UnknownSnapshotError if version else MalformedSnapshotError
        raise kind(f"its version is {version}, not {SNAPSHOT_VERSION}", 0)
    if crc32c(memoryview(content)[_CHECKSUM_START:]) != crc:
        raise MalformedSnapshotError("its checksum does not match", 2)
    if count < 0 or SNAPSHOT_HEADER_SIZE + count * SNAPSHOT_ENTRY.size != size:
        raise MalformedSnapshotError(f"it announces {count} entries in {size} bytes", _CHECKSUM_START)
    entries = memoryview(content)[SNAPSHOT_HEADER_SIZE:]
    return [ProducerEntry._make(fields) for fields in SNAPSHOT_ENTRY.iter_unpack(entries)]


def decode_end_marker(key: bytes | None, value: bytes | None) -> EndMarker | None:
    """The end marker in the record of a control batch, or None when the record is something else."""
    if key is None or value is None or len(key) < _MARKER_KEY.size or len(value) < _MARKER_VALUE.size:
        return None
    _, number = _MARKER_KEY.unpack_from(key)
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(value)
    kind = _MARKER_TYPES.get(number)
    return None if kind is None else EndMarker(kind, coordinator_epoch)


def encode_end_marker(marker: EndMarker) -> tuple[bytes, bytes]:
    """Key and value of the record of a control batch that ends a transaction."""
    key = _MARKER_KEY.pack(_MARKER_VERSION, _MARKER_NUMBERS[marker.type])
    return key, _MARKER_VALUE.pack(_MARKER_VERSION, marker.coordinator_epoch)
