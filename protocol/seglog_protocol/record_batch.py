"""RecordBatch v2: the 61-byte header of Kafka's record batches, on the wire and on disk.

A batch is this header, then its records, plain or as one compressed stream. Integers are big-endian.

    0   int64   baseOffset            offset of the first record of the original batch
    8   int32   batchLength           bytes after this field: size - 12
    12  int32   partitionLeaderEpoch  set by the broker at append, -1 from producers
    16  int8    magic                 2
    17  uint32  crc                   CRC-32C of everything from byte 21 to the end of the batch
    21  int16   attributes            bits 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    23  int32   lastOffsetDelta       last offset = baseOffset + this
    27  int64   baseTimestamp         base of the records' timestamp deltas, or the delete horizon (bit 6)
    35  int64   maxTimestamp          largest timestamp of a record, or the append time (bit 3)
    43  int64   producerId            -1 none
    51  int16   producerEpoch         -1 none
    53  int32   baseSequence          -1 none
    57  int32   recordCount
    61          records

The checksum excludes the first 21 bytes, so that a broker can assign offset and epoch without reading the batch.
See ``records`` for the records and ``batch_builder`` for writing whole batches. Source: Kafka's DefaultRecordBatch.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from seglog_protocol.checksum import Buffer, crc32c
from seglog_protocol.compression import Codec
from seglog_protocol.errors import CorruptRecordError

MAGIC: Final = 2

BASE_OFFSET_POSITION: Final = 0
BATCH_LENGTH_POSITION: Final = 8
LEADER_EPOCH_POSITION: Final = 12
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21  # the checksum covers from here on
MAX_TIMESTAMP_POSITION: Final = 35
HEADER_SIZE: Final = 61

LOG_OVERHEAD: Final = 12  # baseOffset and batchLength, which batchLength does not count
BATCH_LENGTH_MIN: Final = HEADER_SIZE - LOG_OVERHEAD
OLDEST_BATCH_LENGTH_MIN: Final = 14  # an empty message of magic 0; below it no format of Kafka's is possible

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
_OUTLINED_MAX: Final = 2**61  # sums of it are small numbers, compiled

_HEADER: Final = Struct(">qiibIhiqqqhii")
_OUTLINE: Final = Struct(">qi4xb4xhi30xi")
_ATTRIBUTES_AND_PRODUCER: Final = Struct(">21xh20xq")
_LENGTH: Final = Struct(">i")
_OFFSET: Final = Struct(">q")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">h")

_new_header: Final = tuple.__new__  # BatchHeader(*fields) takes 1.5 times as long


class BatchHeader(NamedTuple):
    """The header's fields in their order on disk; offsets count records, sizes are bytes, times are epoch ms.

    A named tuple, because one is made for every batch that passes through the broker, and it costs a third of a frozen
    dataclass.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch, this header included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record of the original batch; compaction may have removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset that follows this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec_id(self) -> int:
        """The codec's number in the header, 0 to 7; 5 to 7 are unassigned."""
        return self.attributes & CODEC_MASK

    @property
    def codec(self) -> Codec:
        """The codec. Raises CorruptRecordError for 5 to 7."""
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise CorruptRecordError(
                f"The batch at offset {self.base_offset} names codec {number}, which does not exist.",
                start_offset=self.base_offset,
                next_offset=self.next_offset,
            )
        return Codec(number)

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record's timestamp reads as ``max_timestamp``, the broker's time of append."""
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a marker for brokers, which consumers skip."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether ``base_timestamp`` is the time from which compaction may drop the batch's tombstones."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def delete_horizon(self) -> int | None:
        """The delete horizon, or None if the batch has none."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record of the original batch, -1 if the batch has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return add_sequence(self.base_sequence, self.last_offset_delta)


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at byte ``position``, unchecked.

    Raises ValueError if fewer than HEADER_SIZE bytes follow, which is a bug in the caller.
    """
    try:
        return _new_header(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct_error as error:
        raise ValueError(f"no {HEADER_SIZE} bytes at position {position} of {len(buffer)}") from error


def seal_batch(header: BatchHeader, records: bytes) -> bytes:
    """The batch of ``header`` and ``records`` (encoded, compressed if the header says so).

    ``batch_length``, ``magic`` and ``crc`` are computed; the header's own values are ignored.
    """
    plain = header._replace(batch_length=BATCH_LENGTH_MIN + len(records), magic=MAGIC, crc=0)
    packed = bytearray(_HEADER.pack(*plain))
    checksum = crc32c(records, crc32c(memoryview(packed)[ATTRIBUTES_POSITION:]))
    _CRC.pack_into(packed, CRC_POSITION, checksum)
    return b"".join((packed, records))


def why_implausible(header: BatchHeader) -> str | None:
    """Why the header cannot be a batch's, as the end of a sentence; None if it can.

    A cheap test for scans of files, which may parse a header from other bytes. It checks the header only: that the
    batch is complete and matches its checksum is the caller's to check.
    """
    if header.magic != MAGIC:
        if header.magic in {0, 1}:
            return f"it is in Kafka's old message format {header.magic}, which seglog does not read"
        return f"its magic is {header.magic}, not {MAGIC}"
    if header.batch_length < BATCH_LENGTH_MIN:
        return f"its length is {header.batch_length}, less than the {BATCH_LENGTH_MIN} of an empty batch"
    if header.base_offset < 0:
        return f"its base offset is {header.base_offset}"
    if header.last_offset_delta < 0:
        return f"its last offset delta is {header.last_offset_delta}"
    if header.base_offset > INT64_MAX - 1 - header.last_offset_delta:
        return f"its last offset, {header.last_offset}, leaves no room for a next one"
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        return f"it has {header.record_count} records in {header.last_offset_delta + 1} offsets"
    return None


def verify_crc(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the batch at byte ``position`` is complete and matches its checksum. Nothing is copied."""
    end = position + header.size
    if header.batch_length < BATCH_LENGTH_MIN or end > len(buffer):
        return False
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) == header.crc


def max_timestamp(buffer: Buffer, position: int) -> int:
    """The largest timestamp, in ms, by the header of the batch at byte ``position``."""
    timestamp: int = _OFFSET.unpack_from(buffer, position + MAX_TIMESTAMP_POSITION)[0]
    return timestamp


def iter_batches(buffer: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a network buffer, each with a view of its bytes, header included.

    An incomplete last batch ends the iteration without an error: a fetch is limited in bytes and may cut it. Checksums
    are not verified. Raises CorruptRecordError, with ``position`` in the buffer, for a header no batch can have.
    """
    view = memoryview(buffer)
    position, end = 0, len(view)
    while end - position >= LOG_OVERHEAD:
        (batch_length,) = _LENGTH.unpack_from(view, position + BATCH_LENGTH_POSITION)
        if batch_length < OLDEST_BATCH_LENGTH_MIN:
            raise CorruptRecordError(f"A batch cannot be {batch_length} bytes long.", position=position)
        if end - position <= MAGIC_POSITION:
            return
        magic = view[position + MAGIC_POSITION]
        if magic != MAGIC or batch_length < BATCH_LENGTH_MIN:
            # Raised before the batch is whole, because a reader would wait in vain for more bytes.
            raise CorruptRecordError(
                f"No batch of magic {MAGIC} begins here: magic {magic}, length {batch_length}.", position=position
            )
        next_position = position + LOG_OVERHEAD + batch_length
        if next_position > end:
            return
        header = _new_header(BatchHeader, _HEADER.unpack_from(view, position))
        reason = why_implausible(header)
        if reason is not None:
            raise CorruptRecordError(f"No batch begins here: {reason}.", position=position)
        yield header, view[position:next_position]
        position = next_position


def outline(view: memoryview, position: int) -> tuple[int, int, int, int] | None:
    """Size, first and last offset, and attributes of the batch at byte ``position``; None if fewer bytes are left.

    It is the next one of ``iter_batches``, and raises what that raises, but takes a fourth of the time.
    """
    if len(view) - position >= HEADER_SIZE:
        base, length, magic, attributes, delta, count = _OUTLINE.unpack_from(view, position)
        is_plain = magic == MAGIC and BATCH_LENGTH_MIN <= length <= len(view) - position - LOG_OVERHEAD
        if is_plain and 0 <= base <= _OUTLINED_MAX and delta >= 0 and 0 <= count <= delta + 1:
            return length + LOG_OVERHEAD, base, base + delta, attributes
    for header, batch in iter_batches(view[position:]):
        return len(batch), header.base_offset, header.last_offset, header.attributes
    return None


def is_transactional(view: memoryview, position: int = 0) -> bool:
    """True if a header at byte ``position`` is that of a batch of a transaction; False if fewer bytes are left."""
    if len(view) - position < HEADER_SIZE:
        return False
    return (view[position + ATTRIBUTES_POSITION + 1] & TRANSACTIONAL_BIT) != 0


def transactional_producer(view: memoryview, position: int) -> int | None:
    """The producer id of the batch whose header begins at byte ``position``; None if it is of no transaction."""
    attributes, producer_id = _ATTRIBUTES_AND_PRODUCER.unpack_from(view, position)
    return int(producer_id) if attributes & TRANSACTIONAL_BIT else None


def rewrite_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set base offset and leader epoch of the batch at byte ``position``, in place. The checksum covers neither."""
    _OFFSET.pack_into(buffer, position + BASE_OFFSET_POSITION, base_offset)
    _LENGTH.pack_into(buffer, position + LEADER_EPOCH_POSITION, leader_epoch)


def rewrite_log_append_time(buffer: bytearray | memoryview, position: int, append_time_ms: int) -> None:
    """Make ``append_time_ms`` the timestamp of every record of the whole batch at byte ``position``, in place.

    Sets bit 3 and maxTimestamp and recomputes the checksum; baseTimestamp and the records stay as they are.
    """
    header = parse_header(buffer, position)
    attributes = header.attributes | LOG_APPEND_TIME_BIT
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes)
    _OFFSET.pack_into(buffer, position + MAX_TIMESTAMP_POSITION, append_time_ms)
    covered = memoryview(buffer)[position + ATTRIBUTES_POSITION : position + header.size]
    _CRC.pack_into(buffer, position + CRC_POSITION, crc32c(covered))


def add_sequence(sequence: int, increment: int) -> int:
    """``sequence + increment`` as producers count: within 0..INT32_MAX, wrapping to 0."""
    return (sequence + increment) & INT32_MAX


def subtract_sequence(sequence: int, decrement: int) -> int:
    """``sequence - decrement`` as producers count: within 0..INT32_MAX, wrapping to INT32_MAX."""
    return (sequence - decrement) & INT32_MAX
