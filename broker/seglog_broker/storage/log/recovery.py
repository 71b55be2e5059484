"""Crash recovery of a partition: tidies its directory, then reads and checks the log from the recovery point on.

No valid batch is ever dropped. Only a provably torn *tail* is cut: no valid batch follows it, and none of its offsets
was known to be on the disk. Unless it is plainly an append that was not finished, a copy of it is kept: it may be of
another format, or an acked batch in which a bit flipped. Other bytes that are not a batch are damage: they are kept,
and their offsets are reported and never used again. A later segment is never deleted because an earlier one is damaged.
This differs from Kafka on purpose, see docs/STORAGE.md.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from seglog_broker.storage.io.copying import copy_range, read_chunks
from seglog_broker.storage.io.filesystem import FileSystem, outcome_of
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.log_verifier import LogVerifier, UnverifiedTail, is_unfinished_append
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.checksum import crc32c
from seglog_protocol.header_scan import LocatedBatch

PROGRESS_BYTES: Final = 4 * 1024 * 1024
"""Bytes read between two reports of progress."""

SET_ASIDE_SUFFIX: Final = f"{names.LOG_SUFFIX}.damaged-"
"""``<stem>.log.damaged-<position>``: a copy of the bytes at that position of the segment, made by a repair.

A start adds ``-<CRC-32C of them>``: at a place where it has cut off bytes others may be torn later.
"""

Progress = Callable[[int], None]
"""Called now and then with the number of bytes read since the last call."""


class TailUnreadError(Exception):
    """A log must be recovered, from its recovery point on, before it can be opened."""


@dataclass(slots=True)
class RecoveryReport:
    """The result of a recovery."""

    next_offset: int | None = None  # after the last valid batch and damage at the end; None without either
    fresh_base: int | None = None  # if the last segment's end is damaged or missing: the base of a new one to append to
    first_base: int = 0  # of the first segment that was read
    scanned_bytes: int = 0
    cut_bytes: int = 0
    set_aside: list[str] = field(default_factory=list)  # names of the files with a copy of what was cut off
    damaged: list[DamagedRange] = field(default_factory=list)
    sync_error: OSError | None = None  # the log could not be synced, so the disk's content is not known


def tidy_directory(fs: FileSystem, directory: str, *, clean: bool = False) -> list[str]:
    """Finish or undo what a crash interrupted; return the remaining file names.

    ``.deleted`` files are removed. So are ``.cleaned`` files, which are of unfinished compactions, with every ``.swap``
    file from the smallest of their bases on, because that set is incomplete. Other ``.swap`` files replace their
    originals. ``.tmp`` files are removed, and index files without a ``.log``; those after the last segment show that
    there was one more, and stay for ``remove_without_log``. After a ``clean`` stop no name is lost, and the log end is
    known.
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
        fs.sync_directory(directory)  # before the .cleaned files: without them these would look complete
    replaced = set() if clean else _finish_renames(fs, directory, parsed)
    passing = [n for n in found if n.endswith((names.DELETED_SUFFIX, names.CLEANED_SUFFIX, names.TEMPORARY_SUFFIX))]
    passing = [name for name in _with_remains(parsed, passing) if name not in replaced]
    for name in passing:
        fs.unlink(f"{directory}/{name}")
    undone_names = set(undone)
    swaps = [name for name in swaps if name not in undone_names]
    if swaps:
        _finish_swaps(fs, directory, swaps)
    if passing or swaps or undone or not clean:  # else the first list is right: a directory may have very many names
        found = fs.list_directory(directory)
        parsed = {name: segment for name in found if (segment := names.parse_segment_file_name(name)) is not None}
    with_log = {base for base, suffix in parsed.values() if suffix == names.LOG_SUFFIX}
    last = names.OFFSET_MAX if clean else max(with_log, default=names.OFFSET_MAX)
    alone = {
        name
        for name, (base, suffix) in parsed.items()
        if base not in with_log and base < last and suffix in names.SEGMENT_SUFFIXES
    }
    for name in sorted(alone):
        fs.unlink(f"{directory}/{name}")
    return [name for name in found if name not in alone] if alone else found


def remove_without_log(fs: FileSystem, directory: str, found: Iterable[str], bases: Collection[int]) -> None:
    """Remove files of segments without a ``.log``; ``found`` are file names, ``bases`` those of the log's segments."""
    for name in found:
        parsed = names.parse_segment_file_name(name)
        if parsed is not None and parsed[1] in names.SEGMENT_SUFFIXES and parsed[0] not in bases:
            fs.unlink(f"{directory}/{name}")


def _with_remains(parsed: Mapping[str, tuple[int, str]], passing: Sequence[str]) -> list[str]:
    """Remaining files of segments whose ``.log`` is already ``.deleted``, then ``passing``, which has that ``.log``."""
    logs = {base for base, suffix in parsed.values() if suffix == names.LOG_SUFFIX}
    aside = {base for base, suffix in parsed.values() if suffix == f"{names.LOG_SUFFIX}{names.DELETED_SUFFIX}"} - logs
    return [n for n, (base, suffix) in parsed.items() if base in aside and suffix in names.SEGMENT_SUFFIXES] + [
        *passing
    ]


def _finish_swaps(fs: FileSystem, directory: str, swaps: Sequence[str]) -> None:
    """Replace the sources of complete compaction output with it, whichever step the crash interrupted."""
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


def _finish_renames(fs: FileSystem, directory: str, parsed: Mapping[str, tuple[int, str]]) -> set[str]:
    """Remove the sources of a compacted segment whose renames a power cut lost, while its own rename was kept.

    Returns the names that were removed.

    The renames of a swap happen between two syncs of the directory, and file systems may store them in any order. Only
    a segment that has replaced another has its base twice, plain and ``.deleted``. Other segments that begin within its
    offsets were its sources.
    """
    logs = {base for base, suffix in parsed.values() if suffix == names.LOG_SUFFIX}
    aside = {base for base, suffix in parsed.values() if suffix == f"{names.LOG_SUFFIX}{names.DELETED_SUFFIX}"}
    removed: set[str] = set()
    for low in sorted(logs & aside):
        high = _next_offset_of_file(fs, f"{directory}/{names.segment_file_name(low, names.LOG_SUFFIX)}", low)
        for name, (base, suffix) in parsed.items():
            if low < base < high and suffix in names.SEGMENT_SUFFIXES and fs.exists(f"{directory}/{name}"):
                fs.unlink(f"{directory}/{name}")
                removed.add(name)
    if removed:
        fs.sync_directory(directory)  # before the .deleted files, which show that there was a swap
    return removed


def _next_offset_of_file(fs: FileSystem, path: str, base_offset: int) -> int:
    """The offset after the last valid batch. Compaction keeps damaged bytes, so there may be some before it."""
    highest = base_offset + names.RELATIVE_OFFSET_MAX
    with fs.open(path) as file:
        scan = BatchScan(file, file.size())
        position, next_offset = 0, base_offset
        while position < scan.size:
            found = scan.at_or_after(position, next_offset, highest)
            if found is None:
                break
            position, next_offset = found.end, found.header.next_offset
        return next_offset


@dataclass(eq=False, repr=False)
class LogRecovery:
    """Reads segments in order, rebuilds their indexes from valid batches, and cuts torn tails."""

    _fs: FileSystem
    _epochs: LeaderEpochs
    _verifier: LogVerifier
    _compacted_before: int
    _on_batch: Callable[[Segment, LocatedBatch], None]
    """Gets every valid batch, in order."""
    _progress: Progress | None
    report: RecoveryReport = field(default_factory=RecoveryReport, init=False)
    _reported: int = field(default=0, init=False)  # position in the current segment up to which progress was reported

    def run(self, segments: Sequence[Segment]) -> RecoveryReport:
        """Recover consecutive ``segments`` up to the last of the log, and sync them."""
        report, verifier = self.report, self._verifier
        report.first_base = segments[0].base_offset
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            segment.release()
            segment.damaged.clear()
            segment.indexes.rebuild(self._batches(segment, None if following is None else following.base_offset))
            report.scanned_bytes += segment.size
            self._report_progress(segment.size)
        verifier.finish()
        report.next_offset, report.fresh_base = verifier.next_offset, verifier.fresh_base
        self._note_losses(segments)
        for segment in segments:
            for torn in verifier.torn:
                if torn.log is segment.log:
                    if not (self._fs.is_view or is_unfinished_append(torn)):
                        report.set_aside.append(_set_aside(self._fs, segment.log.path, torn))
                    report.cut_bytes += segment.cut(torn.position)
                    segment.indexes.rebuild()
        for segment in segments:
            with segment.log.lease() as file:
                report.sync_error = outcome_of(file.fdatasync) or report.sync_error
            segment.log.is_dirty = False
        return report

    def _batches(self, segment: Segment, following: int | None) -> Iterator[LocatedBatch]:
        """The valid batches of the segment; each is passed to ``on_batch`` before it is yielded."""
        self._reported = 0
        for found in self._verifier.batches(segment.log, following):
            header = found.header
            if header.leader_epoch > self._epochs.latest:
                self._epochs.assign(header.leader_epoch, header.base_offset)
            self._on_batch(segment, found)
            yield found
            if found.end - self._reported >= PROGRESS_BYTES:
                self._report_progress(found.end)

    def _report_progress(self, position: int) -> None:
        """Report that the segment has been read up to ``position``."""
        if self._progress is not None and position > self._reported:
            self._progress(position - self._reported)
        self._reported = position

    def _note_losses(self, segments: Sequence[Segment]) -> None:
        """Record damage and missing offsets, except in the compacted part, where gaps are expected."""
        by_base = {segment.base_offset: segment for segment in segments}
        for lost in self._verifier.losses:
            if lost.reason == "damaged":
                by_base[lost.segment].damaged.append(lost)
                self.report.damaged.append(lost)
            elif lost.end_offset > self._compacted_before:
                start = max(lost.start_offset, self._compacted_before)
                self.report.damaged.append(replace(lost, start_offset=start))


def _set_aside(fs: FileSystem, path: str, torn: UnverifiedTail) -> str:
    """Copy the bytes that are about to be cut off the ``.log`` at ``path``; return the name of the copy.

    Raises OSError, also for a full disk: then nothing is cut.
    """
    crc = 0
    for data in read_chunks(fs, path, torn.log.size, start=torn.position):
        crc = crc32c(data, crc)
    target = f"{path.removesuffix(names.LOG_SUFFIX)}{SET_ASIDE_SUFFIX}{torn.position}-{crc:08x}"
    if not fs.exists(target):
        copy_range(fs, path, target, torn.position, torn.log.size)
    return target.rpartition("/")[2]


def settle_checksum(segment: Segment) -> None:
    """Write the checksum of a closed segment that was just read, unless its file has the right size already.

    If such a checksum does not match the bytes, a check reports it.
    """
    said = segment.checksum.read()
    if said is None or said.size != segment.size or segment.damaged:
        segment.checksum.begin(segment.log.measure())
        segment.checksum.save()
    segment.checksum.is_dirty = True  # its writer may have been killed before it synced the file
