"""The rebuild of both indexes of a segment from its log, in steps: it stops where others are to have their turn.

These are generators, so this module is never compiled: see docs/decisions/0018. They hold no file open.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from seglog_broker.storage.io.pauses import HEADERS_A_TURN, ColdReadError, TurnWantedError
from seglog_broker.storage.segment.index_writer import IndexWriter
from seglog_broker.storage.segment.segment_log import SegmentLog
from seglog_broker.storage.segment.time_index import TimestampOffset
from seglog_protocol import segment_files as names
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import NO_TIMESTAMP
from seglog_protocol.steps import finished

Stop = TurnWantedError | ColdReadError
"""Why an operation stopped half way; it continues when it is called again."""

ResultT = TypeVar("ResultT")

InTurns = Generator[Stop, None, ResultT]
"""An operation in steps, which may be left alone between two of them."""


def rebuilt_beside(log: SegmentLog, writer: IndexWriter) -> InTurns[tuple[IndexWriter, int | None]]:
    """Build both indexes in new files; returns their writer, and the offset after the last batch, None without one.

    The caller replaces the old ones, once the new ones are complete: a half-built index after a kill would not be
    noticed, because a later start trusts those of closed segments. Where it ends otherwise, the new files are removed.
    Raises CorruptRecordError where headers show unknown damage.
    """
    yield from _refuse_unknown_damage(log)
    made = writer.beside()
    is_made = False
    try:
        next_offset = yield from _fill(made, log, pieces(log))
        is_made = True
    finally:
        if not is_made:
            made.remove()
    return made, next_offset


def rebuilt_from(log: SegmentLog, writer: IndexWriter, batches: Iterable[LocatedBatch]) -> int | None:
    """Fill both empty indexes with ``batches``, without a stop; returns the offset after the last, None without one."""
    return finished(_fill(writer, log, batches))


def _fill(writer: IndexWriter, log: SegmentLog, batches: Iterable[LocatedBatch | Stop]) -> InTurns[int | None]:
    """Fill both empty indexes; returns the offset after the last batch, None without one.

    It stops where ``batches`` do. The result equals, byte for byte, what appends would have left; an index that is full
    stays full, which makes a seek slow but never wrong.
    """
    writer.largest = TimestampOffset(NO_TIMESTAMP, log.base_offset)
    indexed, next_offset = 0, None
    highest = log.base_offset + names.RELATIVE_OFFSET_MAX
    for found in batches:
        if not isinstance(found, LocatedBatch):
            yield found
            continue
        position, header = found
        if not (next_offset or log.base_offset) <= header.base_offset <= header.last_offset <= highest:
            continue  # an offset that its checksum does not cover is wrong: no entry can name it
        writer.bytes_since_entry = position - indexed
        if writer.add(position, ((header.size, header.last_offset, header.max_timestamp),)) is not None:
            indexed = position
        next_offset = header.next_offset
    writer.bytes_since_entry = log.size - indexed
    if log.size and not log.is_active:
        writer.close(writer.largest)
    return next_offset


def pieces(log: SegmentLog, *, strict: bool = True) -> Iterator[LocatedBatch | Stop]:
    """Every batch by its header, also those that are appended meanwhile, and places to stop at.

    If ``strict``, raises CorruptRecordError where bytes are no batch; else waits for the disk.
    """
    position, expected = 0, -1
    stop: Stop | None = TurnWantedError()
    while stop is not None:
        stop = None
        batches = log.batches(position, strict=strict, expected=expected)
        try:
            for walked, found in enumerate(batches, start=1):
                yield found
                position, expected = found.end, found.header.next_offset
                if walked == HEADERS_A_TURN:
                    stop = TurnWantedError()
                    break
        except ColdReadError as cold:
            stop = cold
        if stop is not None:
            yield stop


def _refuse_unknown_damage(log: SegmentLog) -> Generator[Stop, None, None]:
    """Raise CorruptRecordError where no batch begins, or an offset does not fit between its neighbours.

    Indexes built from the rest would lead look-ups past the batches after such a place.
    """
    expected, highest = log.base_offset, log.base_offset + names.RELATIVE_OFFSET_MAX
    odd: LocatedBatch | None = None  # the batch before, if it left a gap
    for found in pieces(log):
        if not isinstance(found, LocatedBatch):
            yield found
            continue
        header = found.header
        misfit: LocatedBatch | None = None
        if header.last_offset > highest:
            misfit = found
        elif header.base_offset < expected:
            misfit = odd or found
        if misfit is not None:
            start_offset = -1 if misfit.position else log.base_offset
            raise log.corrupt(misfit.position, "has an offset that does not fit", start_offset)
        odd = found if header.base_offset > expected else None
        expected = header.next_offset
