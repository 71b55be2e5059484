"""The two walks over ``.log`` files of dump, check and scrub: batches, and the bytes that are in no batch.

Both yield ``LocatedBatch`` and ``InvalidBytes`` in the order of the file, and change nothing. For both a batch is valid
if its header is plausible, it lies within the file, and its checksum is right (``BatchScan``). After invalid bytes both
continue at the next valid batch, and both give the same reasons why bytes are invalid. They differ in what they do with
offsets, which no checksum covers:

- ``walk_file`` (dump) reads one file by itself and yields every valid batch, also one with an impossible offset,
  because a dump shows what the file contains. A lower offset than before does not end the walk. The overview of a
  directory uses it without checksums.
- ``LogWalk`` (check, scrub) reads the segments of a log by the rules of recovery (``LogVerifier``), which are about
  offsets too: a batch that does not fit between its neighbours is damage, and whether the end of a segment is damage
  depends on what the next segment has. So a check and a start agree on what is damaged.

Other readers have the ways to the next batch in common with these, by headers (``HeaderScan``) and by checksums
(``BatchScan``), and rules of their own for bytes that are in no batch:

- Seeks trust headers, and skip known damage (``SegmentLog.batches``). Other invalid bytes are an error, and a seek
  continues after their extent is measured.
- Compaction (``SourceFile``) keeps damage as it is. It skips known damage as a seek does, and measures other damage.
  What it rewrites it reads in large pieces as arrays, below a rate: batch by batch would be far slower.
- The client's reader of a directory (``SegmentFile``) reads files that a broker is writing. Where headers end it
  continues at a confirmed index entry, and it searches by checksums only where it returns a batch.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from seglog_broker.storage.io.filesystem import File, FileSystem
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.log_verifier import LogVerifier, UnverifiedTail, is_zero
from seglog_protocol import segment_files as names
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.header_scan import HeaderScan, LocatedBatch, Readable
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header, why_implausible


class InvalidBytes(NamedTuple):
    """Bytes [position, end_position) without a valid batch; ``reason`` is the end of a sentence.

    ``header`` is set when they look like exactly one batch with a wrong checksum. ``is_tail``: no valid batch follows.
    """

    position: int
    end_position: int
    reason: str
    header: BatchHeader | None
    is_tail: bool


def walk_file(file: Readable, size: int, base_offset: int, *, checksums: bool) -> Iterator[LocatedBatch | InvalidBytes]:
    """Batches and invalid bytes of the first ``size`` bytes of one segment, without regard to its neighbours.

    Without ``checksums`` only headers are read and checked. Raises OSError.
    """
    scan = BatchScan(file, size)
    lowest, highest = base_offset, min(base_offset + names.RELATIVE_OFFSET_MAX, names.OFFSET_MAX - 1)
    position = 0
    while position < size:
        for located in _good_batches(file, scan, position, size, checksums=checksums):
            yield located
            position = located.end
            if located.header.base_offset >= base_offset and located.header.last_offset <= highest:
                lowest = located.header.next_offset  # may fall: one wrong offset must not hide later batches
        if position >= size:
            return
        following = scan.next_batch(position, lowest, highest)
        end = size if following is None else following.position
        yield _invalid_bytes(file, position, end, size, is_tail=following is None)
        position = end


def _good_batches(
    file: Readable, scan: BatchScan, position: int, size: int, *, checksums: bool
) -> Iterator[LocatedBatch]:
    if not checksums:
        yield from HeaderScan(file, position, size)
        return
    while (found := scan.batch_at(position)) is not None:
        yield found
        position = found.end


class DamagedBytes(NamedTuple):
    """A range that holds no valid batch, and why, as the end of a sentence."""

    range: DamagedRange
    why: str


class _LazyLog:
    """A ``.log`` that is open only while it is read."""

    def __init__(self, fs: FileSystem, directory: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self._fs = fs
        self._path = f"{directory}/{names.segment_file_name(base_offset, names.LOG_SUFFIX)}"
        self.size = fs.stat(self._path).size

    def lease(self) -> AbstractContextManager[File]:
        """The open file."""
        return self._fs.open(self._path)


class LogWalk:
    """One pass over a log: call ``segment`` for each segment in the order of their offsets, then ``finish``.

    ``damaged``: invalid bytes with a valid batch after them. ``holes``: offsets without a batch, and without damage.
    ``tails``: invalid bytes at the end of a segment, with no valid batch after them. ``finish`` moves those that a
    crash can have left to ``torn``, which a start cuts off; the ``tails`` that remain are damage, which a start keeps.
    """

    def __init__(self, fs: FileSystem, directory: str, verifier: LogVerifier | None = None) -> None:
        """``verifier`` knows at which offset the log ended before; by default that is unknown."""
        self.end: int | None = None  # the offset after the last batch; None if there is no segment
        self.tails: list[DamagedBytes] = []
        self.torn: list[DamagedBytes] = []
        self._fs = fs
        self._directory = directory
        self._verifier = verifier or LogVerifier()
        self._reasons: dict[tuple[int, int], str] = {}  # by segment and position

    @property
    def next_offset(self) -> int | None:
        """The next offset of the log: after the last batch; after ``finish`` also after damage at the end."""
        return self._verifier.next_offset

    @property
    def damaged(self) -> list[DamagedBytes]:
        """Invalid bytes with a valid batch after them, so far."""
        at_end = {lost for lost, _ in self.tails}
        return [
            self._with_reason(lost) for lost in self._verifier.losses if lost.reason == "damaged" and lost not in at_end
        ]

    @property
    def holes(self) -> list[DamagedRange]:
        """Offsets without a batch that no damage explains, so far and in their order."""
        between = [lost for lost in self._verifier.losses if lost.reason == "missing"]
        return sorted([*between, *self._verifier.gaps], key=lambda lost: lost.start_offset)

    def segment(self, base_offset: int, following: int | None) -> Iterator[LocatedBatch | InvalidBytes]:
        """The batches and the invalid bytes of the next segment, in order. Raises OSError.

        ``following`` is the base offset of the segment after it, None for the last one. ``InvalidBytes.header`` is set
        only if its offsets fit between their neighbours: then the indexes may have entries for that batch.
        """
        log = _LazyLog(self._fs, self._directory, base_offset)
        seen = len(self._verifier.losses)
        self.end = max(self.end or 0, base_offset)
        for found in self._verifier.batches(log, following):
            for lost in self._verifier.losses[seen:]:
                if lost.reason == "damaged" and lost.segment == base_offset:
                    yield self._invalid_bytes_of(log, lost, following, is_tail=False)
            seen = len(self._verifier.losses)
            self.end = found.header.next_offset
            yield found
        for tail in self._verifier.tails:
            if tail.log is log:
                yield self._invalid_bytes_of(log, _lost_in(tail), following, is_tail=True)
        self.tails = [self._with_reason(_lost_in(tail)) for tail in self._verifier.tails]

    def finish(self) -> None:
        """Divide ``tails`` into damage, which stays there, and torn tails of a crash, which go to ``torn``."""
        if self.end is None:
            return
        before = len(self._verifier.losses)
        self._verifier.finish()
        self.tails = [self._with_reason(lost) for lost in self._verifier.losses[before:] if lost.reason == "damaged"]
        self.torn = [self._with_reason(_lost_in(tail)) for tail in self._verifier.torn]

    def _with_reason(self, lost: DamagedRange) -> DamagedBytes:
        return DamagedBytes(lost, self._reasons[lost.segment, lost.position])

    def _invalid_bytes_of(
        self, log: _LazyLog, lost: DamagedRange, following: int | None, *, is_tail: bool
    ) -> InvalidBytes:
        """The invalid bytes of ``lost``. Also saves their reason for ``damaged``, ``tails`` and ``torn``."""
        with log.lease() as file:
            misplaced = BatchScan(file, log.size).batch_at(lost.position)
            if misplaced is None:
                found = _invalid_bytes(file, lost.position, lost.end_position, log.size, is_tail=is_tail)
            else:
                offsets = f"{misplaced.header.base_offset} to {misplaced.header.last_offset}"
                expected = lost.start_offset
                reason = f"a batch with a valid checksum has offsets {offsets}, but {expected} is expected here"
                found = InvalidBytes(lost.position, lost.end_position, reason, None, is_tail)
        self._reasons[lost.segment, lost.position] = found.reason
        header = found.header
        fits = (
            header is not None
            and lost.start_offset <= header.base_offset <= header.last_offset
            and header.last_offset <= log.base_offset + names.RELATIVE_OFFSET_MAX
            and (following is None or header.last_offset < following)
        )
        return found if fits else found._replace(header=None)


def _lost_in(tail: UnverifiedTail) -> DamagedRange:
    """The bytes of the tail, with an empty range of offsets, because theirs are unknown."""
    return DamagedRange(tail.lost_offset, tail.lost_offset, tail.log.base_offset, tail.position, tail.log.size)


def _invalid_bytes(file: Readable, position: int, end: int, size: int, *, is_tail: bool) -> InvalidBytes:
    """The invalid bytes from ``position`` to ``end`` of a file of ``size`` bytes, with their reason."""
    reason, header = _why_invalid(file, position, size)
    if header is not None and position + header.size != end:
        header = None
    return InvalidBytes(position, end, reason, header, is_tail)


def _why_invalid(file: Readable, position: int, size: int) -> tuple[str, BatchHeader | None]:
    """The reason why no valid batch begins at ``position``, and the header if only its checksum is wrong."""
    rest = size - position
    if is_zero(file, position, size):
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
