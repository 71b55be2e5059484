"""Encoding of whole batches: those a producer sends, and those that compaction rewrites.

This is the reference for uncompressed batches: what it writes is, byte for byte, what Kafka's own classes write for the
same records. Source: Kafka's MemoryRecordsBuilder and MemoryRecords.filterTo.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from seglog_protocol.compression import Codec, compress
from seglog_protocol.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    INT64_MAX,
    INT64_MIN,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    seal_batch,
)
from seglog_protocol.records import Headers, Record, encode_record

NewRecord: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]
"""A record without an offset: timestamp (epoch ms, -1 none), key, value, headers."""

_UNKNOWN: Final = 0  # placeholder for the header fields that seal_batch computes


class BatchBuilder:
    """One batch under construction; its exact uncompressed ``size`` is known after every record.

    Records are encoded when they are added. The first one's timestamp becomes the batch's base. Not thread-safe.
    """

    def __init__(
        self,
        *,
        base_offset: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.max_timestamp = NO_TIMESTAMP
        self.size = HEADER_SIZE
        """Bytes that ``build(Codec.NONE)`` would return now."""
        self._flags = (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
        self._base_timestamp: int | None = None
        self._records: list[bytes] = []

    @property
    def record_count(self) -> int:
        """Records in the batch so far."""
        return len(self._records)

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
        """Add a record and return the batch's new ``size``."""
        self.try_append(timestamp, key, value, headers, size_max=INT64_MAX)
        return self.size

    def try_append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = (), *, size_max: int
    ) -> bool:
        """Add a record unless the batch would grow beyond ``size_max`` bytes; False if it was not added.

        An empty batch takes any record, so the caller recognises a record too large for every batch by ``size`` and
        does not loop.
        """
        records = self._records
        base_timestamp = self._base_timestamp
        if base_timestamp is None:
            base_timestamp = timestamp
        timestamp_delta = timestamp - base_timestamp
        if not INT64_MIN <= timestamp_delta <= INT64_MAX:
            raise _too_far_apart(timestamp, base_timestamp)
        record = encode_record(timestamp_delta, len(records), key, value, headers)
        size = self.size + len(record)
        if size > size_max and records:
            return False
        self._base_timestamp = base_timestamp  # first: an interrupt after the next line must leave a batch that builds
        records.append(record)
        self.size = size
        if timestamp > self.max_timestamp:  # noqa: PLR1730 - max() would take a tenth of the time of a record
            self.max_timestamp = timestamp
        return True

    def build(
        self, codec: Codec = Codec.NONE, level: int | None = None, *, log_append_time: int | None = None
    ) -> bytes:
        """The batch. The builder stays as it is, so the same records can be built again, with another codec.

        ``log_append_time`` (epoch ms) becomes the timestamp of all records. Raises ValueError without a record:
        producers never send an empty batch, and compaction's empty ones come from ``compacted_batch``.
        """
        if self._base_timestamp is None:
            raise ValueError("a batch needs a record")
        attributes, max_timestamp = self._flags | codec, self.max_timestamp
        if log_append_time is not None:
            attributes, max_timestamp = attributes | LOG_APPEND_TIME_BIT, log_append_time
        header = BatchHeader(
            base_offset=self.base_offset,
            batch_length=_UNKNOWN,
            leader_epoch=self.leader_epoch,
            magic=MAGIC,
            crc=_UNKNOWN,
            attributes=attributes,
            last_offset_delta=len(self._records) - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            record_count=len(self._records),
        )
        return seal_batch(header, compress(codec, b"".join(self._records), level))


def encode_batch(
    records: Iterable[NewRecord],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """A batch of ``records`` at consecutive offsets from ``base_offset``; the other arguments are BatchBuilder's."""
    builder = BatchBuilder(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
    )
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return builder.build(codec, level, log_append_time=log_append_time)


def compacted_batch(original: BatchHeader, kept: Sequence[Record], *, delete_horizon: int | None = None) -> bytes:
    """The batch that remains when compaction keeps only ``kept`` of its records (as read from it, in their order).

    Base offset, last offset, epochs, producer fields, codec and flags stay those of ``original``: later readers still
    need its range of offsets and sequences. ``delete_horizon`` (epoch ms) is used unless the batch already has one.
    With nothing kept the result is a bare header: no codec, no base timestamp, no horizon. Raises ValueError if the
    records are not records of that batch.
    """
    attributes = original.attributes & ~(DELETE_HORIZON_BIT | CODEC_MASK)
    if not kept:
        bare = original._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
        return seal_batch(bare, b"")
    codec = original.codec
    horizon = original.delete_horizon if original.has_delete_horizon else delete_horizon
    base_timestamp = kept[0].timestamp if horizon is None else horizon
    parts: list[bytes] = []
    previous_offset = original.base_offset - 1
    for offset, timestamp, key, value, headers in kept:
        if not previous_offset < offset <= original.last_offset:
            raise ValueError(
                f"offset {offset} after {previous_offset} is not of the batch ending at {original.last_offset}"
            )
        previous_offset = offset
        timestamp_delta = timestamp - base_timestamp
        if not INT64_MIN <= timestamp_delta <= INT64_MAX:
            raise _too_far_apart(timestamp, base_timestamp)
        parts.append(encode_record(timestamp_delta, offset - original.base_offset, key, value, headers))
    header = original._replace(
        attributes=attributes | codec | (0 if horizon is None else DELETE_HORIZON_BIT),
        base_timestamp=base_timestamp,
        max_timestamp=original.max_timestamp
        if original.is_log_append_time
        else max(record.timestamp for record in kept),
        record_count=len(kept),
    )
    return seal_batch(header, compress(codec, b"".join(parts)))


def _too_far_apart(timestamp: int, base_timestamp: int) -> ValueError:
    """The error where a delta does not fit its field, which an unchecked timestamp can cause."""
    return ValueError(f"timestamps {base_timestamp} and {timestamp} are too far apart for one batch")
