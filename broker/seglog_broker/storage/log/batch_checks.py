"""Checks of a batch before it is appended, by its header and checksum; its records only where the topic needs it.

Nothing is decompressed and no record is read, with two exceptions: a compacted topic needs a key in every record, and
``message.timestamp.before.max.ms`` needs every timestamp. Both walk the records lazily, with bounded decompression, and
name the first bad one by its index. That runs on the loop for a batch that is small, also when decompressed, else in a
worker process (``record_checker``). Source: Kafka's LogValidator.
"""

from typing import Final, NamedTuple, NoReturn

from seglog_broker.config import TopicConfig
from seglog_broker.storage.segment.segment import RECORDS_IN_LINE_BYTES
from seglog_protocol.checksum import crc32c
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX, Codec
from seglog_protocol.errors import (
    CorruptBatchError,
    CorruptRecordError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    UnsupportedMagicError,
)
from seglog_protocol.record_batch import (
    ATTRIBUTES_POSITION,
    BATCH_LENGTH_MIN,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
    rewrite_log_append_time,
    verify_crc,
)
from seglog_protocol.records import iter_records

_LONG_MAX: Final = 2**63 - 1
_CODEC_MAX: Final = int(max(Codec))


class RecordRules(NamedTuple):
    """What a topic requires of each record: a key, a timestamp (ms) from ``earliest`` on.

    ``before_max_ms`` is the setting that ``earliest`` comes from; None where old timestamps have no limit.
    """

    needs_key: bool
    earliest: int | None
    before_max_ms: int


def record_rules(config: TopicConfig, now_ms: int) -> RecordRules | None:
    """What a topic requires of each record of a batch that arrives now; None if the header is enough."""
    needs_key = "compact" in config.cleanup_policy
    before_max_ms = config.message_timestamp_before_max_ms
    checks_time = before_max_ms != _LONG_MAX and config.message_timestamp_type != "LogAppendTime"
    if not needs_key and not checks_time:
        return None
    return RecordRules(needs_key, now_ms - before_max_ms if checks_time else None, before_max_ms)


def check_batch(batch: memoryview, config: TopicConfig, now_ms: int) -> BatchHeader:
    """Check that ``batch`` is exactly one valid batch; return its header. ``check_records`` is for its records.

    Raises CorruptBatchError for bytes damaged in transit, and InvalidRecordError, UnsupportedMagicError,
    MessageTooLargeError or InvalidTimestampError for a batch that the topic does not accept.
    """
    size = len(batch)
    if HEADER_SIZE <= size <= config.max_message_bytes:
        header = parse_header(batch)
        if (
            header.batch_length == size - LOG_OVERHEAD
            and header.magic == MAGIC
            and crc32c(batch[ATTRIBUTES_POSITION:]) == header.crc
            and 0 <= header.attributes <= _CODEC_MAX
            and header.base_offset == 0
            and header.record_count == header.last_offset_delta + 1
            and header.record_count > 0
            and header.producer_id >= NO_PRODUCER_ID
            and (
                header.base_timestamp <= header.max_timestamp <= now_ms + config.message_timestamp_after_max_ms
                or header.max_timestamp == NO_TIMESTAMP
                or config.message_timestamp_type == "LogAppendTime"
            )
        ):
            return header
    return _refuse(batch, config, now_ms)


def _refuse(batch: memoryview, config: TopicConfig, now_ms: int) -> NoReturn:
    """Raise the error of a batch that does not pass ``check_batch``; what its first bytes say comes first."""
    size = len(batch)
    if size > config.max_message_bytes:
        raise MessageTooLargeError(
            f"the batch has {size} bytes, more than max.message.bytes = {config.max_message_bytes}: send less at once",
            size=size,
            limit=config.max_message_bytes,
        )
    if size > MAGIC_POSITION and batch[MAGIC_POSITION] != MAGIC:
        magic = batch[MAGIC_POSITION]
        raise UnsupportedMagicError(
            f"the batch has magic {magic}, only Kafka's format {MAGIC} is accepted"
            + (": the producer is older than Kafka 0.11, update it" if magic < MAGIC else ""),
            magic=magic,
        )
    if size < HEADER_SIZE:
        raise CorruptBatchError(f"{size} bytes are not a record batch: its header alone has {HEADER_SIZE}")
    header = parse_header(batch)
    if header.batch_length < BATCH_LENGTH_MIN or header.size > size:
        raise CorruptBatchError(
            f"the batch says it has {header.batch_length + LOG_OVERHEAD} bytes, {size} were sent for it"
        )
    if header.size < size:
        raise InvalidRecordError(f"{size - header.size} bytes follow the batch: send exactly one batch for a partition")
    if not verify_crc(batch, 0, header):
        raise CorruptBatchError("the batch does not match its CRC-32C: it was damaged in transit, send it again")
    if not 0 <= header.attributes <= _CODEC_MAX:
        _refuse_attributes(header)
    if header.base_offset != 0:
        raise InvalidRecordError(f"the batch has base offset {header.base_offset}: the broker gives offsets, send 0")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"the batch counts {header.record_count} records and a last offset delta of {header.last_offset_delta}: "
            "the delta must be one less than a count above 0"
        )
    if header.producer_id < NO_PRODUCER_ID:
        raise InvalidRecordError(f"the batch has producer id {header.producer_id}: ids are 0 or more, -1 means none")
    _refuse_timestamps(header, config, now_ms)


def stamp(batch: memoryview, now_ms: int) -> BatchHeader:
    """Give the batch the broker's time, in place, as a LogAppendTime topic does; the header that it has then."""
    rewrite_log_append_time(batch, 0, now_ms)
    return parse_header(batch)


def _refuse_attributes(header: BatchHeader) -> NoReturn:
    attributes = header.attributes
    if attributes & CODEC_MASK > _CODEC_MAX:
        raise InvalidRecordError(f"the batch names codec {attributes & CODEC_MASK}, there are 0 to {_CODEC_MAX}")
    if attributes & LOG_APPEND_TIME_BIT:
        raise InvalidTimestampError("the batch is marked as LogAppendTime, which only the broker may set")
    if attributes & CONTROL_BIT:
        raise InvalidRecordError("control batches are written by the broker only")
    if attributes & TRANSACTIONAL_BIT:
        raise InvalidRecordError("the batch belongs to a transaction; there are none yet, send it without")
    raise InvalidRecordError(f"the batch has attribute bits {attributes & 0xFFFF:#06x} that no producer may set")


def _refuse_timestamps(header: BatchHeader, config: TopicConfig, now_ms: int) -> NoReturn:
    if header.max_timestamp < header.base_timestamp:
        raise InvalidTimestampError(
            f"the batch's largest timestamp {header.max_timestamp} lies before its base timestamp "
            f"{header.base_timestamp}",
            timestamp=header.max_timestamp,
        )
    raise InvalidTimestampError(
        f"timestamp {header.max_timestamp} lies {header.max_timestamp - now_ms} ms in the future, the topic allows "
        f"message.timestamp.after.max.ms = {config.message_timestamp_after_max_ms}: are they milliseconds?",
        timestamp=header.max_timestamp,
    )


def check_small_records(header: BatchHeader, batch: memoryview, rules: RecordRules) -> bool:
    """As ``check_records`` if that is quick, and return True; False, without a verdict, if it would take long."""
    if header.size > RECORDS_IN_LINE_BYTES:
        return False
    try:
        check_records(header, batch, rules, RECORDS_IN_LINE_BYTES)
    except InvalidRecordError as error:
        if isinstance(error.__cause__, DecompressedTooLargeError):
            return False
        raise
    return True


def check_records(
    header: BatchHeader, batch: memoryview, rules: RecordRules, size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> None:
    """Raise InvalidRecordError or InvalidTimestampError with the index of the first record that breaks ``rules``.

    InvalidRecordError also when the records cannot be read or decompress to more than ``size_limit`` bytes.
    """
    earliest = rules.earliest
    try:
        for index, record in enumerate(iter_records(header, batch, size_limit=size_limit)):
            if rules.needs_key and record.key is None:
                raise InvalidRecordError(f"record {index} has no key, which a compacted topic needs", record=index)
            if earliest is not None and record.timestamp != NO_TIMESTAMP and record.timestamp < earliest:
                raise InvalidTimestampError(
                    f"record {index} has timestamp {record.timestamp}, the topic allows at most "
                    f"message.timestamp.before.max.ms = {rules.before_max_ms} before now",
                    record=index,
                    timestamp=record.timestamp,
                )
    except CorruptRecordError as error:
        raise InvalidRecordError(f"the batch's records cannot be read: {error.message}") from error
