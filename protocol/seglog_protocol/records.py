"""The records inside a batch: one loop reads them, one function writes them.

    length          varint, bytes after this field
    attributes      int8, 0, ignored by readers
    timestampDelta  varlong, to the batch's baseTimestamp
    offsetDelta     varint, to the batch's baseOffset
    key             varint length, -1 for none, then its bytes
    value           varint length, -1 for none (a tombstone), then its bytes
    headerCount     varint, then for each: key as varint length and UTF-8, value as varint length (-1 none) and bytes

varint and varlong are zigzag numbers in little-endian groups of seven bits, at most 5 and 10 bytes long; the high bit
means that another byte follows. Source: Kafka's DefaultRecord and ByteUtils.

The reading loop is written for speed: varints of one and two bytes are read inline, longer ones by a call.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from seglog_protocol.checksum import Buffer
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX, Codec, decompress
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import HEADER_SIZE, INT64_MAX, INT64_MIN, BatchHeader, why_implausible

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
ReadHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]

RECORDS_AT_ONCE: Final = 128
"""Records of a batch that are read in a row."""
BYTES_AT_ONCE: Final = 1024 * 1024
"""About the bytes of them, where records are large."""
RECORD_SIZE_MIN: Final = 7  # one byte for each of its fields
_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10


class Record(NamedTuple):
    """One record as it was read; ``timestamp`` is epoch ms or -1, ``value`` None is a tombstone."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: ReadHeaders


class _InvalidRecordError(Exception):
    """What is wrong with the current record; never leaves this module."""


# --- Reading ----------------------------------------------------------------------------------------------------------

RecordT = TypeVar("RecordT", bound=tuple[Any, ...])


class RecordReader(Generic[RecordT]):
    """Reads the records of one batch, some at a time, so that memory stays bounded.

    A batch of 64 MiB may hold millions of tiny records, which as objects are many times larger. ``kind`` is the named
    tuple that is made of each record: the fields of ``Record``, after those of ``prefix``.
    """

    def __init__(
        self,
        header: BatchHeader,
        batch: Buffer,
        kind: type[RecordT],
        prefix: tuple[object, ...] = (),
        *,
        at_once: int = RECORDS_AT_ONCE,
        size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX,
    ) -> None:
        """Decompress ``batch`` (the whole batch, header included) to at most ``size_limit`` bytes.

        Raises what ``read`` raises.
        """
        data = record_bytes(header, batch, size_limit)
        if header.record_count * RECORD_SIZE_MIN > len(data):
            raise _corrupt(header, f"announces {header.record_count} records in {len(data)} bytes")
        self.is_finished = not header.record_count and not data
        """Whether all records have been read; a damaged one is left to the next ``read``."""
        self._header = header
        self._data = data
        self._kind = kind
        self._prefix = prefix
        self._at_once = at_once
        if len(data) > BYTES_AT_ONCE:
            self._at_once = min(at_once, max(1, BYTES_AT_ONCE * header.record_count // len(data)))
        self._index = 0  # of the next record
        self._position = 0  # of the next record in the data
        self._previous_delta = -1

    def read(self) -> list[RecordT]:
        """The next records, at most ``at_once`` and fewer where they are large; none when all have been read.

        Offsets rise strictly within [``base_offset``, ``last_offset``]; with LogAppendTime every timestamp is
        ``max_timestamp``. The batch's checksum is not verified.

        Raises CorruptRecordError (DecompressionError and, beyond ``size_limit`` bytes, DecompressedTooLargeError are
        subclasses) with the batch's range [``start_offset``, ``next_offset``), once the records before the damaged one
        have been returned. Stricter than Kafka's reader in three points: header keys must be UTF-8, offsets must rise,
        and timestamps must fit int64.
        """
        header, data, kind, prefix = self._header, self._data, self._kind, self._prefix
        base_offset, base_timestamp, last_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
        append_time = header.max_timestamp if header.is_log_append_time else None
        new = tuple.__new__  # half the price of kind(...), and prefix + (...) two thirds of that of (*prefix, ...)
        size, previous_delta = len(data), self._previous_delta
        begin = position = self._position
        records: list[RecordT] = []
        append = records.append
        problem = ""
        try:
            for _ in range(min(self._at_once, header.record_count - self._index)):
                # A field may run past the record, even past the data: `position` only grows, so the comparison with
                # `end` below (or an IndexError) always finds it. Every varint is read in three steps: one byte, two,
                # more.
                length = data[position]
                position += 1
                if length > 0x7F:
                    second = data[position]
                    if second <= 0x7F:
                        length += (second << 7) - 0x80
                        position += 1
                    else:
                        length, position = _long_varint(data, position - 1)
                end = position + (length >> 1)
                if length & 1 or end > size:
                    raise _InvalidRecordError("has a length beyond the batch")  # noqa: TRY301 - no call in this loop

                delta = data[position + 1]  # after the attributes
                position += 2
                if delta > 0x7F:
                    second = data[position]
                    if second <= 0x7F:
                        delta += (second << 7) - 0x80
                        position += 1
                    else:
                        delta, position = _long_varint(data, position - 1, _VARLONG_BYTES_MAX)
                timestamp = base_timestamp + ((delta >> 1) ^ -(delta & 1)) if append_time is None else append_time
                if not INT64_MIN <= timestamp <= INT64_MAX:
                    raise _InvalidRecordError("has a timestamp beyond int64")  # noqa: TRY301

                delta = data[position]
                position += 1
                if delta > 0x7F:
                    second = data[position]
                    if second <= 0x7F:
                        delta += (second << 7) - 0x80
                        position += 1
                    else:
                        delta, position = _long_varint(data, position - 1)
                if delta & 1 or not previous_delta < delta >> 1 <= last_delta:
                    raise _InvalidRecordError("has an offset out of order or outside its batch")  # noqa: TRY301
                offset_delta = delta >> 1

                length = data[position]
                position += 1
                if length > 0x7F:
                    second = data[position]
                    if second <= 0x7F:
                        length += (second << 7) - 0x80
                        position += 1
                    else:
                        length, position = _long_varint(data, position - 1)
                # Any negative length is no key and no value, as in Kafka.
                key = None
                if not length & 1:
                    after = position + (length >> 1)
                    key = data[position:after]
                    position = after

                length = data[position]
                position += 1
                if length > 0x7F:
                    second = data[position]
                    if second <= 0x7F:
                        length += (second << 7) - 0x80
                        position += 1
                    else:
                        length, position = _long_varint(data, position - 1)
                value = None
                if not length & 1:
                    after = position + (length >> 1)
                    value = data[position:after]
                    position = after

                headers: ReadHeaders = ()
                if data[position]:
                    headers, position = _read_headers(data, position, end)
                else:
                    position += 1
                if position != end:
                    raise _InvalidRecordError("does not fill its length")  # noqa: TRY301
                fields = (base_offset + offset_delta, timestamp, key, value, headers)
                append(new(kind, prefix + fields))
                begin, previous_delta = end, offset_delta
        except IndexError:
            problem = "ends within record {}"
        except _InvalidRecordError as error:
            problem = f"is damaged: record {{}} {error}"
        self._index += len(records)
        self._position, self._previous_delta = begin, previous_delta
        self.is_finished = self._index == header.record_count and begin == size
        if problem and not records:
            raise _corrupt(header, problem.format(self._index))
        if self._index == header.record_count and not records and begin != size:
            raise _corrupt(header, f"has {size - begin} bytes after its last record")
        return records


def iter_records(
    header: BatchHeader, batch: Buffer, *, size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> Iterator[Record]:
    """The records of ``batch`` (the whole batch, header included), one at a time; raises as ``RecordReader``.

    Records are checked as they are read, so some may be yielded before an error.
    """
    reader = RecordReader(header, batch, Record, size_limit=size_limit)
    while not reader.is_finished:
        yield from reader.read()


def first_record_at(
    header: BatchHeader,
    batch: Buffer,
    timestamp: int,
    offset_min: int,
    *,
    size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX,
) -> tuple[int, int] | None:
    """Timestamp (ms) and offset of the first record from ``timestamp`` and ``offset_min`` on; None if there is none.

    Of other records only the length, the timestamp and the offset are read, which takes a fifth of the time. Raises as
    ``RecordReader``, for damage of these.
    """
    data = record_bytes(header, batch, size_limit)
    base_offset, base_timestamp, last_delta = header.base_offset, header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if header.is_log_append_time else None
    size, position, previous_delta = len(data), 0, -1
    for index in range(header.record_count):
        try:
            length = data[position]
            position += 1
            if length > 0x7F:
                length, position = _long_varint(data, position - 1)
            end = position + (length >> 1)
            delta = data[position + 1]  # after the attributes
            position += 2
            if delta > 0x7F:
                delta, position = _long_varint(data, position - 1, _VARLONG_BYTES_MAX)
            found = base_timestamp + ((delta >> 1) ^ -(delta & 1)) if append_time is None else append_time
            delta = data[position]
            position += 1
            if delta > 0x7F:
                delta, position = _long_varint(data, position - 1)
        except IndexError:
            raise _corrupt(header, f"ends within record {index}") from None
        except _InvalidRecordError as error:
            raise _corrupt(header, f"is damaged: record {index} {error}") from None
        if length & 1 or not position <= end <= size:
            raise _corrupt(header, f"is damaged: record {index} has a length beyond the batch")
        if delta & 1 or not previous_delta < delta >> 1 <= last_delta or not INT64_MIN <= found <= INT64_MAX:
            raise _corrupt(header, f"is damaged: record {index} has an offset or a timestamp that cannot be")
        previous_delta = delta >> 1
        if found >= timestamp and base_offset + previous_delta >= offset_min:
            return found, base_offset + previous_delta
        position = end
    return None


def longest_record(header: BatchHeader, batch: Buffer, *, size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX) -> int:
    """The bytes of the longest record, without its length. Raises as ``RecordReader``, for damage of lengths."""
    data = record_bytes(header, batch, size_limit)
    size, position, longest = len(data), 0, 0
    for index in range(header.record_count):
        try:
            length, position = _long_varint(data, position)
        except (IndexError, _InvalidRecordError):
            raise _corrupt(header, f"ends within the length of record {index}, or has none") from None
        longest = max(longest, length >> 1)
        position += length >> 1
        if length & 1 or position > size:
            raise _corrupt(header, f"is damaged: record {index} has a length beyond the batch")
    return longest


def decode_records(
    header: BatchHeader, batch: Buffer, *, size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX
) -> list[Record]:
    """All records of a batch; raises as ``RecordReader``."""
    return list(iter_records(header, batch, size_limit=size_limit))


def record_bytes(header: BatchHeader, batch: Buffer, size_limit: int) -> bytes:
    """The bytes of all records of a batch, uncompressed, after a check of its header. Raises as ``RecordReader``."""
    reason = why_implausible(header)
    if reason is not None:
        raise _corrupt(header, f"is not a valid batch: {reason}")
    if header.size > len(batch):
        raise _corrupt(header, f"is cut short: {len(batch)} of {header.size} bytes")
    codec = header.codec
    stored = memoryview(batch)[HEADER_SIZE : header.size]
    if codec is Codec.NONE:
        return bytes(stored)
    if header.record_count == 0 and not stored:
        return b""  # a compacted batch without records may keep its codec and have no stream
    try:
        return decompress(codec, stored, size_limit)
    except CorruptRecordError as error:
        facts = error.facts | {"start_offset": header.base_offset, "next_offset": header.next_offset}
        raise type(error)(f"The batch at offset {header.base_offset}: {error.message}", **facts) from error


def _corrupt(header: BatchHeader, what: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"The batch at offset {header.base_offset} {what}.",
        start_offset=header.base_offset,
        next_offset=header.next_offset,
    )


def _long_varint(data: bytes, position: int, bytes_max: int = _VARINT_BYTES_MAX) -> tuple[int, int]:
    """The number at ``position``, still zigzag, and the position after it.

    The last byte may carry bits beyond the type; they are dropped, as in Java. Raises IndexError at the end of data.
    """
    number = 0
    for index in range(bytes_max):
        byte = data[position + index]
        number |= (byte & 0x7F) << 7 * index
        if byte <= 0x7F:
            mask = 0xFFFFFFFF if bytes_max == _VARINT_BYTES_MAX else 0xFFFFFFFFFFFFFFFF
            return number & mask, position + index + 1
    raise _InvalidRecordError(f"has a varint of more than {bytes_max} bytes")


def _read_headers(data: bytes, position: int, end: int) -> tuple[ReadHeaders, int]:
    """The headers whose count is at ``position``, and the position after them; ``end`` is the record's."""
    count, position = _long_varint(data, position)
    if count & 1 or count >> 1 > end - position:
        raise _InvalidRecordError("has an impossible number of headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count >> 1):
        length, position = _long_varint(data, position)
        key_end = position + (length >> 1)
        if length & 1 or key_end > end:
            raise _InvalidRecordError("has a header key with an impossible length")
        try:
            key = str(data[position:key_end], "utf-8")
        except UnicodeDecodeError:
            raise _InvalidRecordError("has a header key that is not UTF-8") from None
        length, position = _long_varint(data, key_end)
        value = None
        if not length & 1:
            after = position + (length >> 1)
            value = data[position:after]
            position = after
        headers.append((key, value))
    return tuple(headers), position


def headers_end(data: Buffer, position: int, end: int) -> int | None:
    """Position after the headers whose count is at ``position``, in a record ending at ``end``; None if malformed."""
    try:
        return position + _read_headers(bytes(data[position:end]), 0, end - position)[1]
    except (IndexError, _InvalidRecordError):
        return None


# --- Writing ----------------------------------------------------------------------------------------------------------

_VARINT_TABLE_SIZE: Final = 4096
_varint_table: list[
    bytes
] = []  # number -> its bytes; filled at the first record written, because that takes most of a millisecond


def _fill_varint_table() -> list[bytes]:
    if not _varint_table:
        # In one step, so that another thread never sees half a table.
        _varint_table[:] = [unsigned_varint(number) for number in range(_VARINT_TABLE_SIZE)]
    return _varint_table


def unsigned_varint(number: int) -> bytes:
    """A number of 0 or more, seven bits a byte, the lowest first."""
    if 0x7F < number <= 0x3FFF:  # as most of those that are not in the table
        return bytes((number & 0x7F | 0x80, number >> 7))
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> bytes:
    """One record, its length first. ``timestamp_delta`` fits int64, ``offset_delta`` is in 0..INT32_MAX."""
    table = _varint_table or _fill_varint_table()
    number = (timestamp_delta << 1) ^ (timestamp_delta >> 63)
    timestamp_bytes = table[number] if number < _VARINT_TABLE_SIZE else unsigned_varint(number)
    number = offset_delta << 1
    offset_bytes = table[number] if number < _VARINT_TABLE_SIZE else unsigned_varint(number)
    if key is None:
        key, key_length = b"", b"\x01"
    else:
        number = len(key) << 1
        key_length = table[number] if number < _VARINT_TABLE_SIZE else unsigned_varint(number)
    if value is None:
        value, value_length = b"", b"\x01"
    else:
        number = len(value) << 1
        value_length = table[number] if number < _VARINT_TABLE_SIZE else unsigned_varint(number)
    header_bytes = _encode_headers(headers) if headers else b"\x00"
    body = b"".join((b"\x00", timestamp_bytes, offset_bytes, key_length, key, value_length, value, header_bytes))
    number = len(body) << 1
    return (table[number] if number < _VARINT_TABLE_SIZE else unsigned_varint(number)) + body


def _encode_headers(headers: Headers) -> bytes:
    parts = [unsigned_varint(len(headers) << 1)]
    for name, value in headers:
        name_bytes = name.encode()
        parts += (unsigned_varint(len(name_bytes) << 1), name_bytes)
        parts += (b"\x01",) if value is None else (unsigned_varint(len(value) << 1), value)
    return b"".join(parts)
