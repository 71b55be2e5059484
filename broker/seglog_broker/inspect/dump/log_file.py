"""``.log`` files: their batches, and the invalid bytes between them.

The same walk serves the overview, which reads headers only, and the dump of a file, which checks every checksum. Both
continue with the next valid batch after invalid bytes.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from seglog_broker.inspect.dump.facts import Batch, Damage, Fact, FileFound, LogTotals, Note, RecordFound
from seglog_broker.storage.io.filesystem import File, FileSystem
from seglog_broker.storage.segment.batch_scan import BatchVerifier, LocatedBatch, scan_headers
from seglog_protocol.compression import Codec
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, parse_header, why_implausible
from seglog_protocol.records import iter_records
from seglog_protocol.segment_files import OFFSET_MAX, RELATIVE_OFFSET_MAX
from seglog_protocol.transaction_files import decode_end_marker

_ZERO_CHECK_BYTES: Final = 1024 * 1024


class InvalidBytes(NamedTuple):
    """Bytes [position, end_position) without a valid batch.

    ``header`` is set when they look like exactly one batch with a wrong checksum. ``is_tail``: no valid batch follows.
    """

    position: int
    end_position: int
    reason: str
    header: BatchHeader | None
    is_tail: bool


def walk(file: File, size: int, base_offset: int, *, checksums: bool) -> Iterator[LocatedBatch | InvalidBytes]:
    """The batches and the invalid bytes that make up the first ``size`` bytes of a segment, in order.

    Without ``checksums`` only headers are read and checked.
    """
    verifier = BatchVerifier(file, size)
    lowest, highest = base_offset, min(base_offset + RELATIVE_OFFSET_MAX, OFFSET_MAX - 1)
    position = 0
    while position < size:
        for located in _good_batches(file, verifier, position, size, checksums=checksums):
            yield located
            position = located.end
            if located.header.base_offset >= base_offset and located.header.last_offset <= highest:
                lowest = located.header.next_offset  # also downwards: one wrong offset must not hide what follows it
        if position >= size:
            return
        following = verifier.next_batch(position, lowest, highest)
        end = size if following is None else following.position
        reason, header = why_invalid(file, position, size)
        if header is not None and position + header.size != end:
            header = None
        yield InvalidBytes(position, end, reason, header, following is None)
        position = end


def _good_batches(
    file: File, verifier: BatchVerifier, position: int, size: int, *, checksums: bool
) -> Iterator[LocatedBatch]:
    if not checksums:
        yield from scan_headers(file, position, size)
        return
    while (found := verifier.batch_at(position)) is not None:
        yield found
        position = found.end


def why_invalid(file: File, position: int, size: int) -> tuple[str, BatchHeader | None]:
    """The reason why no valid batch begins at ``position``, and the header if only its checksum is wrong."""
    rest = size - position
    if _is_zero(file, position, size):
        return "only zeros, as in preallocated space", None
    if rest < HEADER_SIZE:
        return f"{rest} bytes, fewer than the {HEADER_SIZE} of a batch header", None
    head = file.pread(HEADER_SIZE, position)
    if len(head) < HEADER_SIZE:
        return "the file ended before them", None
    header = parse_header(head)
    reason = why_implausible(header)
    if reason is not None:
        return f"no batch begins here: {reason}", None
    if header.size > rest:
        return f"the header announces a batch of {header.size} bytes, only {rest} are there", None
    return "its checksum does not match", header


def _is_zero(file: File, position: int, size: int) -> bool:
    while position < size:
        piece = file.pread(min(_ZERO_CHECK_BYTES, size - position), position)
        if not piece or piece.count(0) != len(piece):
            return False
        position += len(piece)
    return True


def changed_meanwhile(file: File, size: int, path: str) -> Note | None:
    """A note when the file is no longer ``size`` bytes long, because a broker writes to it; else None."""
    now = file.size()
    if now == size:
        return None
    change = "grew" if now > size else "shrank"
    return Note(path, f"it {change} from {size} to {now} bytes while it was read: a broker is writing to it")


def dump_log(fs: FileSystem, path: str, base_offset: int, *, records: bool = False) -> Iterator[Fact]:
    """The facts of one ``.log``: its batches, with ``records`` each followed by its records, and damage in its place.

    A torn tail of a file that grew meanwhile is a batch being written, not damage. Raises OSError.
    """
    file = fs.open(path)
    try:
        size = file.size()
        yield FileFound(path, "segment log", size)
        totals = _Totals(base_offset)
        for found in walk(file, size, base_offset, checksums=True):
            if isinstance(found, InvalidBytes):
                if found.is_tail and changed_meanwhile(file, size, path) is not None:
                    break
                totals.damaged_bytes += found.end_position - found.position
                if found.header is not None:
                    yield _batch(LocatedBatch(found.position, found.header), found.reason, crc_ok=False)
                yield Damage(path, found.position, found.end_position, full_reason(found))
                continue
            problem = totals.add(found.header)
            yield _batch(found, problem, crc_ok=True)
            if problem is not None:
                yield Damage(path, found.position, found.end, problem)
            if records:
                yield from _records(file, path, found)
        yield LogTotals(
            path,
            totals.batches,
            totals.records,
            totals.next_offset,
            totals.max_timestamp,
            totals.damaged_bytes,
        )
        note = changed_meanwhile(file, size, path)
        if note is not None:
            yield note
    finally:
        file.close()


def full_reason(found: InvalidBytes) -> str:
    """The reason, and whether a valid batch follows."""
    return f"{found.reason}; no valid batch follows" if found.is_tail else found.reason


class _Totals:
    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self.batches = 0
        self.records = 0
        self.next_offset: int | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.damaged_bytes = 0

    def add(self, header: BatchHeader) -> str | None:
        """Count a batch. Returns a problem of its offsets, which no checksum covers, or None."""
        self.batches += 1
        self.records += header.record_count
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        base = self._base_offset
        if header.base_offset < base:
            return f"its base offset {header.base_offset} lies below the segment's, {base}"
        if header.last_offset - base > RELATIVE_OFFSET_MAX:
            return f"its last offset {header.last_offset} lies too far above the segment's base offset {base}"
        expected, self.next_offset = self.next_offset, header.next_offset
        if expected is not None and header.base_offset < expected:
            return f"its base offset {header.base_offset} lies below {expected}, where the batch before it ends"
        return None


def codec_name(header: BatchHeader) -> str:
    """The codec's name as Kafka writes it, or the number of an unknown codec."""
    with suppress(ValueError):
        return Codec(header.codec_id).name.lower()
    return str(header.codec_id)


def _batch(located: LocatedBatch, problem: str | None, *, crc_ok: bool) -> Batch:
    header = located.header
    return Batch(
        position=located.position,
        size=header.size,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        leader_epoch=header.leader_epoch,
        codec=codec_name(header),
        timestamp_type="LogAppendTime" if header.is_log_append_time else "CreateTime",
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        delete_horizon=header.delete_horizon,
        crc=header.crc,
        crc_ok=crc_ok,
        problem=problem,
    )


def _records(file: File, path: str, found: LocatedBatch) -> Iterator[Fact]:
    """The records of one batch; decompression is bounded, and unreadable records are damage."""
    header = found.header
    batch = file.pread(header.size, found.position)
    try:
        for record in iter_records(header, batch):
            marker = decode_end_marker(record.key, record.value) if header.is_control else None
            yield RecordFound(*record, *(marker or ()))
    except CorruptRecordError as error:
        yield Damage(path, found.position, found.end, f"its records cannot be read: {error.message}")
