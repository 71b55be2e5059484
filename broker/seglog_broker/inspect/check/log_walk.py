"""A walk over the batches of a partition's segments, in order, and over the damaged bytes between them.

The rules are those of a start (``LogVerifier``), so that a check and a start agree on what is damaged; but nothing is
changed: no index is built, no tail is cut. This module adds the reason why bytes are damaged, in words.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import NamedTuple

from seglog_broker.inspect.dump.log_file import why_invalid
from seglog_broker.storage.io.filesystem import File, FileSystem
from seglog_broker.storage.segment.batch_scan import BatchVerifier, LocatedBatch
from seglog_broker.storage.segment.batch_verifier import LogVerifier, Tail
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_protocol import segment_files as names


class DamagedBytes(NamedTuple):
    """A range that holds no valid batch, and why, as the end of a sentence."""

    range: DamagedRange
    why: str


class _OpenedAtNeed:
    """A ``.log`` that is open only while it is read."""

    def __init__(self, fs: FileSystem, directory: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self._fs = fs
        self._path = f"{directory}/{names.segment_file_name(base_offset, names.LOG_SUFFIX)}"
        self.size = fs.stat(self._path).size

    def lease(self) -> AbstractContextManager[File]:
        """The open file."""
        return closing(self._fs.open(self._path))


class LogWalk:
    """One pass over a partition; ask for the segments in the order of their offsets, then ``finish``.

    ``damaged``: bytes with valid batches behind them. ``holes``: offsets that no batch and no damage accounts for.
    ``tails``: bytes at the end of a segment, with no valid batch behind them. After ``finish`` those that a start keeps
    as damage; those that a crash can have left, and that a start cuts off, are ``torn``.
    """

    def __init__(self, fs: FileSystem, directory: str, verifier: LogVerifier | None = None) -> None:
        """``verifier`` knows where the log ended; without one nothing is known of that."""
        self.end: int | None = None  # behind the last batch; None where there is no segment
        self.tails: list[DamagedBytes] = []
        self.torn: list[DamagedBytes] = []
        self._fs = fs
        self._directory = directory
        self._verifier = verifier or LogVerifier()
        self._why: dict[tuple[int, int], str] = {}  # by segment and position

    @property
    def next_offset(self) -> int | None:
        """The next offset of the log: after the last batch, and once ``finish`` was called after damage at the end."""
        return self._verifier.next_offset

    @property
    def damaged(self) -> list[DamagedBytes]:
        """See the class."""
        at_end = {lost for lost, _ in self.tails}
        return [
            self._with_reason(lost) for lost in self._verifier.met if lost.reason == "damaged" and lost not in at_end
        ]

    @property
    def holes(self) -> list[DamagedRange]:
        """See the class; in the order of their offsets."""
        between = [lost for lost in self._verifier.met if lost.reason == "missing"]
        return sorted([*between, *self._verifier.gaps], key=lambda lost: lost.start_offset)

    def batches(
        self, base_offset: int, following: int | None, on_bad_checksum: Callable[[LocatedBatch], None] | None = None
    ) -> Iterator[LocatedBatch]:
        """The valid batches of a segment; ``following`` is the base offset of the next, None: it is the last.

        ``on_bad_checksum`` is called, in its place between them, with each batch that is damaged but whole, so that
        only its checksum is wrong: the indexes may have entries for it. Raises OSError.
        """
        log = _OpenedAtNeed(self._fs, self._directory, base_offset)
        seen = len(self._verifier.met)
        self.end = max(self.end or 0, base_offset)
        for found in self._verifier.batches(log, following):
            for lost in self._verifier.met[seen:]:
                if lost.reason == "damaged" and lost.segment == base_offset:
                    self._judge(log, lost, following, on_bad_checksum)
            seen = len(self._verifier.met)
            self.end = found.header.next_offset
            yield found
        for tail in self._verifier.tails:
            if tail.log is log:
                self._judge(log, _lost_in(tail), following, on_bad_checksum)
        self.tails = [self._with_reason(_lost_in(tail)) for tail in self._verifier.tails]

    def finish(self) -> None:
        """Separate the tails that are damage from those that a crash can have left."""
        if self.end is None:
            return
        before = len(self._verifier.met)
        self._verifier.finish()
        self.tails = [self._with_reason(lost) for lost in self._verifier.met[before:] if lost.reason == "damaged"]
        self.torn = [self._with_reason(_lost_in(tail)) for tail in self._verifier.torn]

    def _with_reason(self, lost: DamagedRange) -> DamagedBytes:
        return DamagedBytes(lost, self._why[lost.segment, lost.position])

    def _judge(
        self,
        log: _OpenedAtNeed,
        lost: DamagedRange,
        following: int | None,
        on_bad_checksum: Callable[[LocatedBatch], None] | None,
    ) -> None:
        """Store the reason why the bytes of ``lost`` are damaged."""
        with log.lease() as file:
            found = BatchVerifier(file, log.size).batch_at(lost.position)
            if found is not None:
                said, due = f"{found.header.base_offset} to {found.header.last_offset}", lost.start_offset
                why = f"a batch with a valid checksum has offsets {said}, but {due} is expected here"
                self._why[lost.segment, lost.position] = why
                return
            why, header = why_invalid(file, lost.position, log.size)
        self._why[lost.segment, lost.position] = why
        if (
            on_bad_checksum is not None
            and header is not None
            and lost.position + header.size == lost.end_position
            and lost.start_offset <= header.base_offset <= header.last_offset
            and header.last_offset <= log.base_offset + names.RELATIVE_OFFSET_MAX
            and (following is None or header.last_offset < following)
        ):
            on_bad_checksum(LocatedBatch(lost.position, header))


def _lost_in(tail: Tail) -> DamagedRange:
    """The tail's bytes, without a range of offsets, which is not known."""
    return DamagedRange(tail.lost_offset, tail.lost_offset, tail.log.base_offset, tail.position, tail.log.size)
