"""Opening a partition directory: tidy what a crash left, then read what was not known to be safe.

Nothing good is ever thrown away. Only a provably torn *tail*, one with no valid batch behind it, is cut; bytes that are
damaged while valid batches follow are kept, and the offsets they stood for are reported. A later segment is never
deleted because an earlier one is damaged. This is where we differ from Kafka on purpose, see docs/STORAGE.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seglog_broker.storage.batch_scan import BatchVerifier, LocatedBatch
from seglog_broker.storage.filesystem import FileSystem, outcome_of
from seglog_broker.storage.leader_epochs import LeaderEpochs
from seglog_broker.storage.partition_state import DamagedRange
from seglog_broker.storage.segment import Segment
from seglog_protocol import segment_files as names

PROGRESS_BYTES: Final = 4 * 1024 * 1024
"""How much is read between two words of progress."""

Progress = Callable[[int], None]
"""Told now and then how many bytes of the log have been read since it was last told."""


class TailUnreadError(Exception):
    """A log cannot be opened before what follows its recovery point has been read."""


@dataclass(slots=True)
class RecoveryReport:
    """What reading a log after an unclean stop found."""

    next_offset: int | None = None  # behind the last good batch, None when there is none
    first_base: int = 0  # of the first segment that was read
    scanned_bytes: int = 0
    cut_bytes: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    sync_error: OSError | None = None  # what was kept could not be synced: nobody knows what the disk holds


def tidy_directory(fs: FileSystem, directory: str, *, clean: bool = False) -> list[str]:
    """Finish or undo what a crash interrupted; return the names that are left.

    ``.deleted`` files go. ``.cleaned`` files are unfinished compactions and go, with every ``.swap`` file from the
    smallest of their bases on, for their set is not complete. Other ``.swap`` files replace the originals they were
    made from. Half-written ``.tmp`` files go, and so do index files whose log is gone. A ``clean`` stop has lost
    no name.
    """
    found = fs.list_directory(directory)
    parsed = {name: segment for name in found if (segment := names.parse_segment_file_name(name)) is not None}
    first_cleaned = min(
        (base for base, suffix in parsed.values() if suffix.endswith(names.CLEANED_SUFFIX)), default=names.OFFSET_MAX
    )
    swaps = [name for name in found if name.endswith(names.SWAP_SUFFIX) and name in parsed]
    undone = [name for name in swaps if parsed[name][0] >= first_cleaned]
    for name in undone:
        fs.unlink(f"{directory}/{name}")
    if undone:
        fs.sync_directory(directory)  # before the .cleaned files go: without them these would pass for complete
    if not clean:
        _finish_renames(fs, directory, parsed)
    for name in found:
        if name.endswith((names.DELETED_SUFFIX, names.CLEANED_SUFFIX, names.TEMPORARY_SUFFIX)):
            fs.unlink(f"{directory}/{name}")
    swaps = [name for name in swaps if name not in undone]
    if swaps:
        _finish_swaps(fs, directory, swaps)
    left = fs.list_directory(directory)
    logs = {name for name in left if name.endswith(names.LOG_SUFFIX)}
    for name in list(left):
        segment = names.parse_segment_file_name(name)
        if (
            segment is not None
            and segment[1] in names.SEGMENT_SUFFIXES
            and names.segment_file_name(segment[0], names.LOG_SUFFIX) not in logs
        ):
            fs.unlink(f"{directory}/{name}")
            left.remove(name)
    return left


def _finish_swaps(fs: FileSystem, directory: str, swaps: Sequence[str]) -> None:
    """Let complete compaction output take the place of its sources, whichever step the crash was at."""
    suffix = f"{names.LOG_SUFFIX}{names.SWAP_SUFFIX}"
    logs = [name for name in swaps if name.endswith(suffix)]
    if logs:
        low = min(int(name.removesuffix(suffix)) for name in logs)
        high = max(_next_offset_of_file(fs, f"{directory}/{name}", int(name.removesuffix(suffix))) for name in logs)
        for name in fs.list_directory(directory):
            segment = names.parse_segment_file_name(name)
            if segment is not None and low <= segment[0] < high and not name.endswith(names.SWAP_SUFFIX):
                fs.unlink(f"{directory}/{name}")
    for name in swaps:
        fs.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(names.SWAP_SUFFIX)}")
    fs.sync_directory(directory)


def _finish_renames(fs: FileSystem, directory: str, parsed: Mapping[str, tuple[int, str]]) -> None:
    """Remove what a compacted segment replaced, where a power cut kept its new name and lost the end of an old one.

    The names of a swap change between two syncs of the directory, and no file system promises in which order they
    arrive. Only a segment that took the place of another has its base twice, plain and ``.deleted``; what begins within
    its offsets was one of its sources.
    """
    logs = {base for base, suffix in parsed.values() if suffix == names.LOG_SUFFIX}
    aside = {base for base, suffix in parsed.values() if suffix == f"{names.LOG_SUFFIX}{names.DELETED_SUFFIX}"}
    removed = False
    for low in sorted(logs & aside):
        high = _next_offset_of_file(fs, f"{directory}/{names.segment_file_name(low, names.LOG_SUFFIX)}", low)
        for name, (base, suffix) in parsed.items():
            if low < base < high and suffix in names.SEGMENT_SUFFIXES and fs.exists(f"{directory}/{name}"):
                fs.unlink(f"{directory}/{name}")
                removed = True
    if removed:
        fs.sync_directory(directory)  # before the .deleted files go, which tell that there was a swap


def _next_offset_of_file(fs: FileSystem, path: str, base_offset: int) -> int:
    """The offset behind the last good batch; compaction keeps damaged bytes, so there may be some before it."""
    highest = base_offset + names.RELATIVE_OFFSET_MAX
    file = fs.open(path)
    try:
        verifier = BatchVerifier(file, file.size())
        position, next_offset = 0, base_offset
        while position < verifier.size:
            found = verifier.at_or_behind(position, next_offset, highest)
            if found is None:
                break
            position, next_offset = found.end, found.header.next_offset
        return next_offset
    finally:
        file.close()


class LogRecovery:
    """Reads segments in order, checks every batch, rebuilds their indexes, and tells torn tails from damage."""

    def __init__(
        self,
        epochs: LeaderEpochs,
        *,
        compacted_before: int = 0,
        known: Sequence[DamagedRange] = (),
        on_batch: Callable[[Segment, LocatedBatch], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Below ``compacted_before`` compaction leaves gaps between segments, so one is no sign of loss.

        ``known`` damage keeps its offsets where the same bytes are found: beside it compaction leaves gaps too.
        ``on_batch`` is told of every valid batch, in order.
        """
        self._epochs = epochs
        self._on_batch = on_batch
        self._progress = progress
        self._compacted_before = compacted_before
        self._known = {(d.segment, d.position, d.end_position): d for d in known if d.position < d.end_position}
        self._tails: list[_Tail] = []  # torn or damaged? The next valid batch, or the end of the log, tells
        self._told = 0  # position in the segment that is being read, up to which ``progress`` knows
        self.report = RecoveryReport()

    def run(self, segments: Sequence[Segment]) -> RecoveryReport:
        """Recover ``segments``, which follow each other and end with the last of the log; sync what was kept."""
        report = self.report
        report.first_base = segments[0].base_offset
        for number, segment in enumerate(segments):
            segment.release()
            segment.damaged = []
            if number and not self._tails:
                self._note_hole(report.next_offset or segments[0].base_offset, segment.base_offset)
            highest = segment.base_offset + names.RELATIVE_OFFSET_MAX
            if number + 1 < len(segments):
                highest = min(highest, segments[number + 1].base_offset - 1)
            segment.rebuild_indexes(self._verified_batches(segment, highest))
            report.scanned_bytes += segment.size
            self._tell_progress(segment.size)
        for tail in self._tails:
            if _holds_a_batch(tail):  # then an offset before it is wrong, and nobody can say which: keep the bytes
                self._note_damage(tail.segment, tail.lost_offset, tail.lost_offset, tail.position, tail.segment.size)
                continue
            report.cut_bytes += tail.segment.cut(tail.position)
            tail.segment.rebuild_indexes()
        last = segments[-1]
        if report.next_offset is None or report.next_offset < last.base_offset:
            if report.next_offset is not None and self._tails:
                self._note_hole(report.next_offset, last.base_offset)
            report.next_offset = last.base_offset
        for segment in segments:
            with segment.lease() as file:
                report.sync_error = outcome_of(file.fdatasync) or report.sync_error
            segment.is_dirty = False
        return report

    def _verified_batches(self, segment: Segment, highest: int) -> Iterator[LocatedBatch]:
        """Every valid batch of the segment, whose offsets end at ``highest`` at the latest.

        Damaged stretches between them are reported, what is left at the end is a tail.
        """
        with segment.lease() as file:
            verifier = BatchVerifier(file, segment.size)
            position = 0
            self._told = 0
            while position < segment.size:
                lowest = max(segment.base_offset, self.report.next_offset or 0)
                found = verifier.going_on(position, lowest, highest)
                if found is None:
                    self._tails.append(_Tail(segment, position, lowest))
                    return
                if found.position > position:
                    self._note_damage(segment, lowest, found.header.base_offset, position, found.position)
                self._settle_tails(found.header.base_offset)
                header = found.header
                if header.leader_epoch > self._epochs.latest:
                    self._epochs.assign(header.leader_epoch, header.base_offset)
                self.report.next_offset = header.next_offset
                if self._on_batch is not None:
                    self._on_batch(segment, found)
                yield found
                position = found.end
                if position - self._told >= PROGRESS_BYTES:
                    self._tell_progress(position)

    def _tell_progress(self, position: int) -> None:
        """The segment has been read up to ``position``."""
        if self._progress is not None and position > self._told:
            self._progress(position - self._told)
        self._told = position

    def _settle_tails(self, next_good: int) -> None:
        """A valid batch follows what looked like torn tails of earlier segments: that is damage, and stays."""
        for tail in self._tails:
            self._note_damage(tail.segment, tail.lost_offset, next_good, tail.position, tail.segment.size)
        self._tails.clear()

    def _note_damage(self, segment: Segment, start: int, end: int, position: int, end_position: int) -> None:
        damage = DamagedRange(start, end, segment.base_offset, position, end_position)
        known = self._known.get((segment.base_offset, position, end_position))
        if known is not None and start <= known.start_offset <= known.end_offset <= end:
            damage = known
        segment.damaged.append(damage)
        self.report.damaged.append(damage)

    def _note_hole(self, start: int, end: int) -> None:
        """Offsets that were handed out and whose bytes never reached the disk; they are not handed out again."""
        start = max(start, self._compacted_before)
        if start < end:
            self.report.damaged.append(DamagedRange(start, end, end, 0, 0, reason="missing"))


class _Tail(NamedTuple):
    """Bytes at the end of a segment that are no batch; ``lost_offset`` is the first they could have held."""

    segment: Segment
    position: int
    lost_offset: int


def _holds_a_batch(tail: _Tail) -> bool:
    """Whether a valid batch of lower offsets lies in it."""
    segment = tail.segment
    with segment.lease() as file:
        verifier = BatchVerifier(file, segment.size)
        return verifier.next_batch(tail.position, segment.base_offset, tail.lost_offset - 1) is not None


def settle_checksum(segment: Segment) -> None:
    """Have the checksum of a closed segment that was just read speak of what is there, and not of what was.

    One that fits in size is believed: if it does not fit the bytes, that is for a check to tell.
    """
    said = segment.checksum.read()
    if said is None or said.size != segment.size or segment.damaged:
        segment.checksum.begin(segment.measure())
        segment.checksum.save()
    segment.checksum.is_dirty = True  # whoever wrote it may not have lived to sync it
