"""The facts of an ``.index`` or ``.timeindex``: its entries, and whether each points to the right batch.

Entries of zeros at the end are padding: Kafka preallocates its indexes and trims them at a clean stop. To verify, the
log is walked once from its start, without the index, so that a wrong entry does not affect the check of others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from seglog_broker.inspect import facts as f
from seglog_broker.inspect.log_walk import InvalidBytes, walk_file
from seglog_broker.storage.io.filesystem import File, FileSystem
from seglog_protocol import segment_files
from seglog_protocol.header_scan import HeaderScan, LocatedBatch
from seglog_protocol.record_batch import NO_TIMESTAMP

EntryT = TypeVar("EntryT", segment_files.OffsetEntry, segment_files.TimeEntry)

_READ_ENTRIES: Final = 4096
"""Entries read at a time."""

_OLD_APPEND_BYTES_MAX: Final = 16 * 1024 * 1024
"""How many bytes after an entry's position are searched for its offset: more than one append of a Kafka before 4.0."""


@dataclass(slots=True)
class _Pieces:
    """Iterates over the entries of an index in pieces of many, without the zeros at its end.

    The counts are complete after the iteration.
    """

    file: File
    size: int  # taken before the log is opened, so that entries of a running broker do not point beyond the log's end
    entry_size: int
    entries: int = 0
    padding_bytes: int = 0
    rest_bytes: int = 0  # of half an entry

    def __iter__(self) -> Iterator[bytes | tuple[int, int]]:
        """Yields entries as bytes, and for zeros between entries their range of positions, the end exclusive."""
        self.rest_bytes = self.size % self.entry_size
        end, position, zeros = self.size - self.rest_bytes, 0, 0
        while position < end:
            piece = self.file.pread(min(_READ_ENTRIES * self.entry_size, end - position), position)
            piece = piece[: len(piece) // self.entry_size * self.entry_size]
            if not piece:
                break  # it shrank
            used = -(-len(piece.rstrip(b"\0")) // self.entry_size) * self.entry_size
            if used:
                if zeros:
                    yield position - zeros, position
                    zeros = 0
                self.entries += used // self.entry_size
                yield piece[:used]
            zeros += len(piece) - used
            position += len(piece)
        if end == zeros == self.entry_size:  # an only entry may be all zeros: the first offset, at 1970
            self.entries, zeros = 1, 0
            yield bytes(self.entry_size)
        self.padding_bytes = zeros


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """Counts, first and last entry of an index, for the overview of a directory."""

    entries: int
    padding_bytes: int
    ends: bytes  # the first and the last entry, and the bytes of an incomplete one after them


def summarize_index(fs: FileSystem, path: str, suffix: str) -> IndexSummary:
    """The summary of an index file with that suffix; reads the whole file only if it ends in zeros. Raises OSError."""
    entry_size = _KINDS[suffix].entry_size
    with fs.open(path) as file:
        size = file.size()
        end = size // entry_size * entry_size
        padding = 0
        if end > entry_size and not any(file.pread(entry_size, end - entry_size)):
            pieces = _Pieces(file, size, entry_size)
            for _ in pieces:
                pass
            padding = pieces.padding_bytes
            end -= padding
        numbers = sorted({0, end // entry_size - 1}) if end else []
        ends = b"".join(file.pread(entry_size, number * entry_size) for number in numbers)
        return IndexSummary(end // entry_size, padding, ends + bytes(size % entry_size))


@dataclass(frozen=True, slots=True)
class _Kind(Generic[EntryT]):
    """How the two kinds of index differ: ``compare`` gives what is wrong, and what is only unusual."""

    title: str
    entry_size: int
    decode: Callable[[bytes], Iterable[EntryT]]
    before_first: EntryT
    why_out_of_order: Callable[[EntryT, EntryT], str | None]
    compare: Callable[["_LogOfIndex", EntryT, int], tuple[str | None, str | None]]
    fact: Callable[[int, EntryT, int, str | None], f.Fact]


def dump_index(fs: FileSystem, path: str, base_offset: int, log_path: str | None, suffix: str) -> Iterator[f.Fact]:
    """The facts of an index file with that suffix; with ``log_path`` every entry is compared with the log.

    Raises OSError.
    """
    kind = _KINDS[suffix]
    with ExitStack() as files:
        file = files.enter_context(fs.open(path))
        pieces = _Pieces(file, file.size(), kind.entry_size)
        yield f.FileFound(path, kind.title, pieces.size)
        log = None
        if log_path is not None:
            log = _LogOfIndex(files.enter_context(fs.open(log_path)), base_offset)
        number, before = 0, kind.before_first
        for piece in pieces:
            if isinstance(piece, tuple):
                yield f.Damage(path, *piece, "only zeros, and entries follow")
                number += (piece[1] - piece[0]) // kind.entry_size
                continue
            for entry in kind.decode(piece):
                offset = base_offset + entry.relative_offset
                problem, remark = kind.why_out_of_order(before, entry), None
                if problem is None and log is not None:
                    problem, remark = kind.compare(log, entry, offset)
                yield kind.fact(number, entry, offset, problem or remark)
                if problem is not None:
                    start = number * kind.entry_size
                    yield f.Damage(path, start, start + kind.entry_size, f"entry {number}: {problem}")
                else:
                    before = entry
                number += 1
        yield from _ending(path, pieces, verified=log is not None)


def _offset_order(before: segment_files.OffsetEntry, entry: segment_files.OffsetEntry) -> str | None:
    if entry.relative_offset < 0 or entry.position < 0:
        return "it is negative"
    if entry.relative_offset <= before.relative_offset:
        return "its offset is not above the one before"
    if entry.position <= before.position:
        return "its position is not above the one before"
    return None


def _time_order(before: segment_files.TimeEntry, entry: segment_files.TimeEntry) -> str | None:
    if entry.relative_offset < 0 or entry.timestamp < 0:
        return "it is negative"
    if entry.timestamp <= before.timestamp:
        return "its timestamp is not above the one before"
    if entry.relative_offset < before.relative_offset:
        return "its offset is below the one before"
    return None


def _ending(path: str, pieces: _Pieces, *, verified: bool) -> Iterator[f.Fact]:
    if pieces.rest_bytes:
        start = pieces.size - pieces.rest_bytes
        yield f.Damage(path, start, pieces.size, "half an entry")
    if pieces.padding_bytes:
        yield f.Note(
            path,
            f"{pieces.padding_bytes} bytes of zeros follow the entries: space that Kafka preallocates and trims at a "
            "clean stop; a start of seglog rebuilds such an index",
        )
    yield f.IndexTotals(path, pieces.entries, pieces.padding_bytes, verified)


class _LogOfIndex:
    """The log of an index, walked once from its start, as far as the entries reach."""

    def __init__(self, file: File, base_offset: int) -> None:
        self._file = file
        self._size = file.size()
        self._batches = walk_file(self._file, self._size, base_offset, checksums=False)
        self._current: LocatedBatch | None = None
        self._max_timestamp = NO_TIMESTAMP

    def check_offset_entry(self, offset: int, position: int) -> tuple[str | None, str | None]:
        """(error or None, remark or None) about an entry. Positions must rise from call to call."""
        while self._current is None or self._current.position < position:
            if not self._step():
                where = f"{position}, the log ends at {self._size}" if position >= self._size else str(position)
                return self._unless_growing(f"no batch begins at {where}")
        if self._current.position > position:
            return f"no batch begins at {position}", None
        header = self._current.header
        if header.last_offset == offset:
            return None, None
        if header.base_offset <= offset and self._batch_ends_at(offset, position):
            return None, "it names the end of several batches, as Kafka before 4.0 wrote it"
        return f"the batch at {position} has offsets {header.base_offset} to {header.last_offset}", None

    def check_time_entry(self, timestamp: int, offset: int) -> tuple[str | None, str | None]:
        """(error or None, remark or None) about an entry. Offsets must not fall from call to call."""
        while self._current is None or self._current.header.last_offset < offset:
            if not self._step():
                return self._unless_growing(f"the log has no batch with offset {offset}")
        header = self._current.header
        if header.base_offset > offset:
            return f"the log has no batch with offset {offset}", None
        if self._max_timestamp > timestamp:
            return f"the log has the later timestamp {self._max_timestamp} up to offset {header.last_offset}", None
        if header.max_timestamp != timestamp:
            return f"the largest timestamp of the batch with offset {offset} is {header.max_timestamp}", None
        if header.last_offset != offset:
            return None, f"its batch ends at offset {header.last_offset}"
        return None, None

    def _unless_growing(self, problem: str) -> tuple[str | None, str | None]:
        """An error about an entry beyond the log's end; only a remark if the log grew after its size was read."""
        if self._file.size() > self._size:
            return None, "the log grew while it was read: not compared"
        return problem, None

    def _step(self) -> bool:
        """Go to the next batch, past invalid bytes; False at the end of the log."""
        for found in self._batches:
            if not isinstance(found, InvalidBytes):
                self._current = found
                self._max_timestamp = max(self._max_timestamp, found.header.max_timestamp)
                return True
        return False

    def _batch_ends_at(self, offset: int, position: int) -> bool:
        end = min(self._size, position + _OLD_APPEND_BYTES_MAX)
        for found in HeaderScan(self._file, position, end):
            if found.header.last_offset >= offset:
                return found.header.last_offset == offset
        return False


_KINDS: Final[Mapping[str, _Kind[Any]]] = {
    segment_files.OFFSET_INDEX_SUFFIX: _Kind(
        "offset index",
        segment_files.OFFSET_ENTRY.size,
        segment_files.offset_entries,
        segment_files.OffsetEntry(-1, -1),
        _offset_order,
        lambda log, entry, offset: log.check_offset_entry(offset, entry.position),
        lambda number, entry, offset, problem: f.OffsetEntryFound(number, offset, entry.position, problem),
    ),
    segment_files.TIME_INDEX_SUFFIX: _Kind(
        "time index",
        segment_files.TIME_ENTRY.size,
        segment_files.time_entries,
        segment_files.TimeEntry(NO_TIMESTAMP, -1),
        _time_order,
        lambda log, entry, offset: log.check_time_entry(entry.timestamp, offset),
        lambda number, entry, offset, problem: f.TimeEntryFound(number, entry.timestamp, offset, problem),
    ),
}
"""By the suffix of the file."""
