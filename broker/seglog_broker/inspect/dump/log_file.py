"""The facts of a ``.log``: its batches and records, and the invalid bytes between them."""

from collections.abc import Iterator
from contextlib import suppress

from seglog_broker.inspect import facts as f
from seglog_broker.inspect.log_walk import InvalidBytes, walk_file
from seglog_broker.storage.io.filesystem import File, FileSystem
from seglog_protocol.compression import Codec
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import BatchHeader
from seglog_protocol.records import iter_records
from seglog_protocol.segment_files import RELATIVE_OFFSET_MAX
from seglog_protocol.transaction_files import decode_end_marker


def changed_meanwhile(file: File, size: int, path: str) -> f.Note | None:
    """A note when the file is no longer ``size`` bytes long, because a broker writes to it; else None."""
    now = file.size()
    if now == size:
        return None
    change = "grew" if now > size else "shrank"
    return f.Note(path, f"it {change} from {size} to {now} bytes while it was read: a broker is writing to it")


def dump_log(fs: FileSystem, path: str, base_offset: int, *, records: bool = False) -> Iterator[f.Fact]:
    """The facts of one ``.log``: batches, each followed by its records if ``records``, and damage between them.

    Invalid bytes at the end of a file that grew meanwhile are a batch being written, not damage. Raises OSError.
    """
    with fs.open(path) as file:
        size = file.size()
        yield f.FileFound(path, "segment log", size)
        totals = f.LogTotals(path)
        for found in walk_file(file, size, base_offset, checksums=True):
            if isinstance(found, InvalidBytes):
                if found.is_tail and changed_meanwhile(file, size, path) is not None:
                    break
                totals.damaged_bytes += found.end_position - found.position
                if found.header is not None:
                    yield _batch(LocatedBatch(found.position, found.header), found.reason, crc_ok=False)
                yield f.Damage(path, found.position, found.end_position, full_reason(found))
                continue
            problem = _count(totals, found.header, base_offset)
            yield _batch(found, problem, crc_ok=True)
            if problem is not None:
                yield f.Damage(path, found.position, found.end, problem)
            if records:
                yield from _records(file, path, found)
        yield totals
        if (note := changed_meanwhile(file, size, path)) is not None:
            yield note


def full_reason(found: InvalidBytes) -> str:
    """The reason, and whether a valid batch follows."""
    return f"{found.reason}; no valid batch follows" if found.is_tail else found.reason


def _count(totals: f.LogTotals, header: BatchHeader, base: int) -> str | None:
    """Count a batch of the segment with that base offset.

    Returns what is wrong with its offsets, which no checksum covers, or None.
    """
    totals.batches += 1
    totals.records += header.record_count
    totals.max_timestamp = max(totals.max_timestamp, header.max_timestamp)
    if header.base_offset < base:
        return f"its base offset {header.base_offset} lies below the segment's, {base}"
    if header.last_offset - base > RELATIVE_OFFSET_MAX:
        return f"its last offset {header.last_offset} lies too far above the segment's base offset {base}"
    expected, totals.next_offset = totals.next_offset, header.next_offset
    if expected is not None and header.base_offset < expected:
        return f"its base offset {header.base_offset} lies below {expected}, where the batch before it ends"
    return None


def codec_name(header: BatchHeader) -> str:
    """The codec's name as Kafka writes it, or the number of an unknown codec."""
    with suppress(ValueError):
        return Codec(header.codec_id).name.lower()
    return str(header.codec_id)


def _batch(located: LocatedBatch, problem: str | None, *, crc_ok: bool) -> f.Batch:
    header = located.header
    return f.Batch.of(
        header,
        position=located.position,
        codec=codec_name(header),
        timestamp_type="LogAppendTime" if header.is_log_append_time else "CreateTime",
        crc_ok=crc_ok,
        problem=problem,
    )


def _records(file: File, path: str, found: LocatedBatch) -> Iterator[f.Fact]:
    """The records of one batch. Decompression is bounded; records that cannot be read are a ``Damage``."""
    header = found.header
    batch = file.pread(header.size, found.position)
    try:
        for record in iter_records(header, batch):
            marker = decode_end_marker(record.key, record.value) if header.is_control else None
            yield f.RecordFound(*record, *(marker or ()))
    except CorruptRecordError as error:
        yield f.Damage(path, found.position, found.end, f"its records cannot be read: {error.message}")
