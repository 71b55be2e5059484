"""Checks of a batch before it is appended, by its header and checksum; its records only where the topic needs it.

Nothing is decompressed and no record is read, with three exceptions: a compacted topic needs a key in every record,
``message.timestamp.before.max.ms`` needs every timestamp, and ``max.decompressed.message.bytes``, where it is set, the
size of each compressed record. The first two walk the records lazily, with bounded decompression, and name every bad
one by its index. That runs on the loop for a batch that is small, also when decompressed, else in a
worker process (``record_checker``). Source: Kafka's LogValidator.
"""

from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

from seglog_broker.config import TopicConfig
from seglog_broker.config.topic_config import DECOMPRESSED_RECORD_BYTES_MAX
from seglog_broker.storage.segment.segment import RECORDS_IN_LINE_BYTES
from seglog_protocol import errors, record_batch
from seglog_protocol.checksum import crc32c
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX, Codec
from seglog_protocol.records import iter_records, longest_record

RECORDS_NAMED_MAX: Final = 10_000
"""Bad records of a batch that its error names: as many as librdkafka has in a batch by default."""

_RECORD_SIZE_MIN: Final = 7
"""The smallest record, in bytes. No more are named than fit into the batch uncompressed: else a small request of many
batches that open to much would have an answer of gigabytes."""

_LONG_MAX: Final = 2**63 - 1
_CODEC_MAX: Final = int(max(Codec))
_ALL_BUT_TRANSACTIONAL: Final = ~record_batch.TRANSACTIONAL_BIT


class RecordRules(NamedTuple):
    """What a topic requires of each record: a key, a timestamp (ms) from ``earliest`` on, at most ``size_max`` bytes.

    ``before_max_ms`` is the setting that ``earliest`` comes from; None where old timestamps have no limit. Timestamps
    behind ``latest`` are bad, too: only a batch whose header has one is looked at for them (``early_rules``).
    """

    needs_key: bool
    earliest: int | None
    before_max_ms: int
    latest: int = _LONG_MAX
    size_max: int = DECOMPRESSED_RECORD_BYTES_MAX
    """Of a record that comes compressed, without compression and without its length."""

    @property
    def walks_records(self) -> bool:
        """Whether more than the size is looked at."""
        return self.needs_key or self.earliest is not None or self.latest != _LONG_MAX


def record_rules(config: TopicConfig, now_ms: int) -> RecordRules | None:
    """What a topic requires of each record of a batch that arrives now; None if the header is enough."""
    needs_key = "compact" in config.cleanup_policy
    before_max_ms = config.message_timestamp_before_max_ms
    checks_time = before_max_ms != _LONG_MAX and config.message_timestamp_type != "LogAppendTime"
    size_max = config.max_decompressed_message_bytes
    if not needs_key and not checks_time and size_max == DECOMPRESSED_RECORD_BYTES_MAX:
        return None
    return RecordRules(needs_key, now_ms - before_max_ms if checks_time else None, before_max_ms, size_max=size_max)


def early_rules(config: TopicConfig, now_ms: int) -> RecordRules:
    """The rules by which the bad records of a batch are named that arrives now with a time in the future."""
    rules = record_rules(config, now_ms) or RecordRules(needs_key=False, earliest=None, before_max_ms=_LONG_MAX)
    return rules._replace(latest=now_ms + config.message_timestamp_after_max_ms)


def check_batch(batch: memoryview, config: TopicConfig, now_ms: int) -> record_batch.BatchHeader:
    """Check that ``batch`` is exactly one valid batch; return its header. ``check_records`` is for its records.

    Raises CorruptBatchError for bytes damaged in transit, and InvalidRecordError, UnsupportedMagicError,
    MessageTooLargeError or InvalidTimestampError for a batch that the topic does not accept.
    """
    size = len(batch)
    if record_batch.HEADER_SIZE <= size <= config.max_message_bytes:
        header = record_batch.parse_header(batch)
        if (
            header.batch_length == size - record_batch.LOG_OVERHEAD
            and header.magic == record_batch.MAGIC
            and crc32c(batch[record_batch.ATTRIBUTES_POSITION :]) == header.crc
            and 0 <= header.attributes & _ALL_BUT_TRANSACTIONAL <= _CODEC_MAX
            and header.base_offset == 0
            and header.record_count == header.last_offset_delta + 1
            and header.record_count > 0
            and header.producer_id >= (record_batch.NO_PRODUCER_ID if header.attributes <= _CODEC_MAX else 0)
            and (
                header.base_timestamp <= header.max_timestamp <= now_ms + config.message_timestamp_after_max_ms
                or header.max_timestamp == record_batch.NO_TIMESTAMP
                or config.message_timestamp_type == "LogAppendTime"
            )
        ):
            return header
    return _refuse(batch, config, now_ms)


def expired_before(config: TopicConfig, now_ms: int) -> int:
    """The timestamp (ms) below which retention by time would delete a record as soon as it is appended; 0 for none.

    A record without a timestamp (-1) is not meant: its segment ages from the last write.
    """
    if config.message_timestamp_type == "LogAppendTime" or "delete" not in config.cleanup_policy:
        return 0
    return 0 if config.retention_ms < 0 else max(0, now_ms - config.retention_ms)


def may_be_early(payload: memoryview, position: int, config: TopicConfig, now_ms: int) -> bool:
    """Whether ``check_batch`` may refuse the batch at ``position`` for a time in the future, naming its records."""
    return (
        len(payload) - position >= record_batch.HEADER_SIZE
        and record_batch.max_timestamp(payload, position) > now_ms + config.message_timestamp_after_max_ms
        and config.message_timestamp_type != "LogAppendTime"
    )


def _refuse(batch: memoryview, config: TopicConfig, now_ms: int) -> NoReturn:
    """Raise the error of a batch that does not pass ``check_batch``; what its first bytes say comes first."""
    size = len(batch)
    if size > config.max_message_bytes:
        raise errors.MessageTooLargeError(
            f"the batch has {size} bytes, more than max.message.bytes = {config.max_message_bytes}: send less at once",
            size=size,
            limit=config.max_message_bytes,
        )
    if size > record_batch.MAGIC_POSITION and batch[record_batch.MAGIC_POSITION] != record_batch.MAGIC:
        magic = batch[record_batch.MAGIC_POSITION]
        raise errors.UnsupportedMagicError(
            f"the batch has magic {magic}, only Kafka's format {record_batch.MAGIC} is accepted"
            + (": the producer is older than Kafka 0.11, update it" if magic < record_batch.MAGIC else ""),
            magic=magic,
        )
    if size < record_batch.HEADER_SIZE:
        raise errors.CorruptBatchError(
            f"{size} bytes are not a record batch: its header alone has {record_batch.HEADER_SIZE}"
        )
    header = record_batch.parse_header(batch)
    if header.batch_length < record_batch.BATCH_LENGTH_MIN or header.size > size:
        raise errors.CorruptBatchError(
            f"the batch says it has {header.batch_length + record_batch.LOG_OVERHEAD} bytes, {size} were sent for it"
        )
    if header.size < size:
        raise errors.InvalidRecordError(
            f"{size - header.size} bytes follow the batch: send exactly one batch for a partition"
        )
    if not record_batch.verify_crc(batch, 0, header):
        raise errors.CorruptBatchError("the batch does not match its CRC-32C: it was damaged in transit, send it again")
    if not 0 <= header.attributes & _ALL_BUT_TRANSACTIONAL <= _CODEC_MAX:
        _refuse_attributes(header)
    if header.base_offset != 0:
        raise errors.InvalidRecordError(
            f"the batch has base offset {header.base_offset}: the broker gives offsets, send 0"
        )
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise errors.InvalidRecordError(
            f"the batch counts {header.record_count} records and a last offset delta of {header.last_offset_delta}: "
            "the delta must be one less than a count above 0"
        )
    if header.producer_id < record_batch.NO_PRODUCER_ID:
        raise errors.InvalidRecordError(
            f"the batch has producer id {header.producer_id}: ids are 0 or more, -1 means none"
        )
    if header.producer_id == record_batch.NO_PRODUCER_ID and header.is_transactional:
        raise errors.InvalidRecordError("the batch belongs to a transaction, and has no producer id: it needs one")
    _refuse_timestamps(header, batch, config, now_ms)


def stamp(batch: memoryview, now_ms: int) -> record_batch.BatchHeader:
    """Give the batch the broker's time, in place, as a LogAppendTime topic does; the header that it has then."""
    record_batch.rewrite_log_append_time(batch, 0, now_ms)
    return record_batch.parse_header(batch)


def _refuse_attributes(header: record_batch.BatchHeader) -> NoReturn:
    attributes = header.attributes
    if attributes & record_batch.CODEC_MASK > _CODEC_MAX:
        raise errors.InvalidRecordError(
            f"the batch names codec {attributes & record_batch.CODEC_MASK}, there are 0 to {_CODEC_MAX}"
        )
    if attributes & record_batch.LOG_APPEND_TIME_BIT:
        raise errors.InvalidTimestampError("the batch is marked as LogAppendTime, which only the broker may set")
    if attributes & record_batch.CONTROL_BIT:
        raise errors.InvalidRecordError("control batches are written by the broker only")
    raise errors.InvalidRecordError(f"the batch has attribute bits {attributes & 0xFFFF:#06x} that no producer may set")


def _refuse_timestamps(
    header: record_batch.BatchHeader, batch: memoryview, config: TopicConfig, now_ms: int
) -> NoReturn:
    if header.max_timestamp < header.base_timestamp:
        raise errors.InvalidTimestampError(
            f"the batch's largest timestamp {header.max_timestamp} lies before its base timestamp "
            f"{header.base_timestamp}",
            timestamp=header.max_timestamp,
        )
    bad = _BadRecords()
    if header.size <= RECORDS_IN_LINE_BYTES:  # those of a larger one take long
        with suppress(errors.CorruptRecordError):
            bad = _bad_records(header, batch, early_rules(config, now_ms), RECORDS_IN_LINE_BYTES)
    raise errors.InvalidTimestampError(
        f"timestamp {header.max_timestamp} lies {header.max_timestamp - now_ms} ms in the future, the topic allows "
        f"message.timestamp.after.max.ms = {config.message_timestamp_after_max_ms}: are they milliseconds?",
        timestamp=header.max_timestamp,
        **bad.facts(),
    )


def check_small_records(header: record_batch.BatchHeader, batch: memoryview, rules: RecordRules) -> bool:
    """As ``check_records`` if that is quick, and return True; False, without a verdict, if it would take long."""
    if not header.codec_id and not rules.walks_records:
        return True
    if header.size > RECORDS_IN_LINE_BYTES:
        return False
    try:
        bad = _bad_records(header, batch, rules, RECORDS_IN_LINE_BYTES)
    except errors.DecompressedTooLargeError:
        return False
    except errors.CorruptRecordError as error:
        raise _unreadable(error) from error
    _refuse_records(bad, rules)
    return True


def check_records(header: record_batch.BatchHeader, batch: memoryview, rules: RecordRules) -> None:
    """Raise InvalidRecordError or InvalidTimestampError with the indexes of the records that break ``rules``.

    As in Kafka it is InvalidTimestampError where there is one bad timestamp. InvalidRecordError also when the records
    cannot be read or decompress to more than ``DECOMPRESSED_BATCH_BYTES_MAX`` bytes.
    """
    try:
        bad = _bad_records(header, batch, rules, DECOMPRESSED_BATCH_BYTES_MAX)
    except errors.CorruptRecordError as error:
        raise _unreadable(error) from error
    _refuse_records(bad, rules)


def _unreadable(error: errors.CorruptRecordError) -> errors.InvalidRecordError:
    return errors.InvalidRecordError(f"the batch's records cannot be read: {error.message}")


def _refuse_records(bad: "_BadRecords", rules: RecordRules) -> None:
    """Raise the error that ``check_records`` promises, if there are bad records."""
    keyless = bad.sentence(bad.keyless, "has no key, which a compacted topic needs")
    if bad.timestamp is not None:
        limit = f"message.timestamp.before.max.ms = {rules.before_max_ms} before now"
        ill_timed = bad.sentence(bad.ill_timed, f"has timestamp {bad.timestamp}, the topic allows at most {limit}")
        raise errors.InvalidTimestampError(
            "; ".join(filter(None, (ill_timed, keyless))), timestamp=bad.timestamp, **bad.facts()
        )
    if keyless:
        raise errors.InvalidRecordError(keyless, **bad.facts())


class _BadRecords:
    """The records of a batch that break its topic's rules, each by its index and for one reason."""

    def __init__(self, named_max: int = 0) -> None:
        self._named_max = named_max
        self.named: list[int] = []
        self.keyless = (0, -1)
        """How many, and the first."""
        self.ill_timed = (0, -1)
        self.timestamp: int | None = None
        """Of the first of these (ms)."""

    def add(self, index: int) -> None:
        """Name a record, if there is room for its name."""
        if len(self.named) < self._named_max:
            self.named.append(index)

    def facts(self) -> dict[str, Any]:
        """What the error has beside its sentence."""
        return {"record": self.named[0], "records": self.named} if self.named else {}

    @staticmethod
    def sentence(found: tuple[int, int], what: str) -> str:
        """What is wrong with the first of the records, and with how many more; empty if there is none."""
        count, first = found
        others = f" (and {count - 1} more of the batch)" if count > 1 else ""
        return f"record {first} {what}{others}" if count else ""


def _bad_records(
    header: record_batch.BatchHeader, batch: memoryview, rules: RecordRules, size_limit: int
) -> _BadRecords:
    """The records that break ``rules``. Raises CorruptRecordError, and InvalidRecordError for one that is too long."""
    if header.codec_id and rules.size_max < DECOMPRESSED_RECORD_BYTES_MAX:
        size = longest_record(header, batch, size_limit=size_limit)
        if size > rules.size_max:
            raise errors.InvalidRecordError(
                f"a record has {size} bytes without compression, more than max.decompressed.message.bytes = "
                f"{rules.size_max}: send smaller ones"
            )
        if not rules.walks_records:
            return _BadRecords()
    needs_key, latest = rules.needs_key, rules.latest
    earliest = -_LONG_MAX if rules.earliest is None else rules.earliest
    bad = _BadRecords(min(RECORDS_NAMED_MAX, header.size // _RECORD_SIZE_MIN))
    for index, record in enumerate(iter_records(header, batch, size_limit=size_limit)):
        if needs_key and record.key is None:
            count, first = bad.keyless
            bad.keyless = count + 1, first if count else index
            bad.add(index)
        elif not earliest <= record.timestamp <= latest and record.timestamp != record_batch.NO_TIMESTAMP:
            count, first = bad.ill_timed
            bad.ill_timed = count + 1, first if count else index
            if bad.timestamp is None:
                bad.timestamp = record.timestamp
            bad.add(index)
    return bad
