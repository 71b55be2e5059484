"""A partition's producer snapshots: ``<offset>.snapshot`` is the state of every producer below ``<offset>``.

One is taken at each roll, at each load and when the log is closed; a start reads the newest and replays the batches
after it. A snapshot does not say when its producers were last seen, so after a start they count as seen when it was
written, by its file's modification time, and those of replayed batches as seen now.

A snapshot is a cache with a checksum: where one is torn or lost, an older one and a longer replay replace it. A
snapshot must not outlive the batches it covers, because a lost batch that is sent again would pass for a duplicate;
so such a snapshot is removed, and the removal is synced, before the call returns.
Source: Kafka's ProducerStateManager and UnifiedLog.rebuildProducerState.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_files_atomically
from seglog_broker.storage.io.os_errors import suppress_no_room
from seglog_broker.storage.io.small_files import keep_copy
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import errors, transaction_files
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import BatchHeader
from seglog_protocol.records import decode_records
from seglog_protocol.segment_files import SNAPSHOT_SUFFIX, parse_segment_file_name, segment_file_name


class ReplayedBatch(NamedTuple):
    """A batch of the log; ``marker`` as ``ProducerState.apply_replayed`` wants it."""

    header: BatchHeader
    marker: transaction_files.EndMarker | None = None


Replay = Callable[[int, int], Iterable[ReplayedBatch]]
"""Called with (start, end): the valid batches of the log that hold offsets of [start, end), in order.

Damaged ranges are passed over. It reads headers only, and the one record of control batches.
"""


@dataclass(slots=True)
class ProducerLoadReport:
    """How the state came about: for the log, and for the transaction index."""

    snapshot: int | None = None  # offset of the one that was read, or None
    corrupt: list[int] = field(default_factory=list)  # offsets of those that could not be
    problems: list[str] = field(default_factory=list)  # those of another version, a sentence each
    replayed: int = 0  # batches
    aborted: list[transaction_files.AbortedTransaction] = field(default_factory=list)  # transactions that ended in them


class ProducerSnapshots:
    """The snapshot files of one partition directory, and ``state``, which they bring back.

    Every method may raise OSError. ``state`` is then whole, but after ``load`` it may lack batches.
    """

    def __init__(self, fs: FileSystem, directory: str, state: ProducerState) -> None:
        self._fs = fs
        self._directory = directory
        self.state = state
        self.offsets: list[int] = []
        """Of the snapshots there are, rising."""
        self._first_base = 0  # of the first segment, when the state was last restored
        self._names_changed = False  # a removal that a power cut could still undo
        self._unsynced: dict[int, None] = {}  # snapshots that no fsync has covered

    def load(
        self,
        names: Iterable[str],
        segment_bases: Sequence[int],
        *,
        log_start: int,
        log_end: int,
        recovered_from: int | None,
        now_ms: int,
        replay: Replay,
    ) -> ProducerLoadReport:
        """Restore the state when a log is loaded, and take a snapshot at ``log_end``.

        ``names`` are those in the directory, ``segment_bases`` rise. ``recovered_from`` is None after a clean stop,
        otherwise the offset below which the log is unchanged: batches that a snapshot above it covers may be lost.
        After a clean stop without any snapshot, as in a directory older than snapshots, the state is empty and nothing
        is read. A log of one segment is read all the same: its last stop may have had no room for its only snapshot.
        """
        self._find(names, segment_bases, log_start)
        if recovered_from is None and not self.offsets and len(segment_bases) > 1:
            for offset in (*segment_bases[-2:], log_end):
                self.state.restart(offset)
                self.take(offset)
            self._sync_names()
            return ProducerLoadReport()
        believed_end = log_end if recovered_from is None else min(log_end, recovered_from)
        replaying = self._restore(segment_bases, believed_end, now_ms)
        start = self.state.end_offset
        if start < log_end:
            for batch in replay(start, log_end):
                replaying.note(batch)
        return self.finish(replaying, log_end)

    def take(self, end_offset: int, *, sync: bool = True) -> None:
        """Write what is known below ``end_offset``, the end of the log, unless there is a snapshot of it already.

        Temporary file, fsync, rename, fsync of the directory. Without ``sync`` (at a roll: nothing waits for the disk
        there) neither fsync; a power cut may then leave a torn file, which its checksum gives away.
        """
        file = self.file_at(end_offset)
        if file is None:
            return
        write_files_atomically(self._fs, [file], sync=sync)
        self.note_taken(end_offset)
        if sync:
            self._names_changed = False
        else:
            self._unsynced[end_offset] = None

    def file_at(self, end_offset: int) -> tuple[str, bytes] | None:
        """The path and content of a snapshot below ``end_offset``, the end of the log; None if there is one already."""
        if end_offset < self.state.end_offset:
            raise ValueError(f"a snapshot at {end_offset}, but batches up to {self.state.end_offset} are counted")
        self.state.end_offset = end_offset
        if end_offset <= (self.offsets[-1] if self.offsets else self._first_base):
            return None
        return self._path(end_offset), transaction_files.encode_snapshot(self.state.entries())

    def note_taken(self, end_offset: int) -> None:
        """The file of ``file_at`` has been written."""
        self.offsets.append(end_offset)

    def take_if_there_is_room(self, end_offset: int, *, sync: bool = True) -> None:
        """As ``take``; on a full disk there is none, and a later start reads more batches."""
        with suppress_no_room():
            self.take(end_offset, sync=sync)

    @property
    def unsynced(self) -> list[int]:
        """Offsets of the snapshots that were taken without ``sync``, ascending."""
        return sorted(self._unsynced)

    def paths(self, offsets: Iterable[int]) -> list[str]:
        """Of the snapshots at these offsets."""
        return [self._path(offset) for offset in offsets]

    def note_synced(self, offsets: Iterable[int]) -> None:
        """The caller sees to it that these are synced from now on."""
        for offset in offsets:
            self._unsynced.pop(offset, None)

    def below(self, offset: int) -> tuple[int, list[transaction_files.ProducerEntry]]:
        """The newest readable snapshot at or below ``offset``: its offset and producers; without one where to begin."""
        for taken in reversed(self.offsets):
            if taken <= offset:
                with contextlib.suppress(transaction_files.MalformedSnapshotError):
                    return taken, transaction_files.decode_snapshot(read_file(self._fs, self._path(taken)))
        return self._first_base, []

    def remove_strays(self, segment_bases: Sequence[int]) -> None:
        """Remove the snapshots that were of an earlier stop and that appends have passed."""
        self._remove(*stray_snapshots(self.offsets, segment_bases))

    def drop(self, segment_bases: Collection[int]) -> None:
        """Remove the snapshots at the bases of segments that compaction merged into others.

        The directory is not synced: a name that comes back is out of place, and the next load removes it.
        """
        going = set(segment_bases)
        self._remove(*(offset for offset in self.offsets if offset in going))

    def forget(self, segment_bases: Collection[int]) -> None:
        """Count no more on the snapshots at the bases of segments that leave the log: their files go with those."""
        going = set(segment_bases)
        self.offsets = [offset for offset in self.offsets if offset not in going]
        for offset in going:
            self._unsynced.pop(offset, None)

    def begin(
        self, names: Iterable[str], segment_bases: Sequence[int], *, log_start: int, recovered_from: int, now_ms: int
    ) -> "Replaying":
        """Find out what is known of producers below ``recovered_from``, where a recovery is about to begin reading.

        The other arguments are those of ``load``. Give the result every batch from ``state.end_offset`` on, then call
        ``finish`` with the log's end: so the recovery's own pass over the batches serves for the producers as well.
        """
        self._find(names, segment_bases, log_start)
        return self._restore(segment_bases, recovered_from, now_ms)

    def finish(self, replaying: "Replaying", log_end: int) -> ProducerLoadReport:
        """Every batch below ``log_end`` has been replayed."""
        replaying.end(log_end)
        self.take_if_there_is_room(log_end)
        self._sync_names()
        return replaying.report

    def _find(self, names: Iterable[str], segment_bases: Sequence[int], log_start: int) -> None:
        self.offsets = sorted(
            parsed[0]
            for name in names
            if name.endswith(SNAPSHOT_SUFFIX)
            and (parsed := parse_segment_file_name(name))
            and parsed[1] == SNAPSHOT_SUFFIX
        )
        self._first_base = segment_bases[0] if segment_bases else log_start
        self._remove(*stray_snapshots(self.offsets, segment_bases))

    def _restore(self, segment_bases: Sequence[int], believed_end: int, now_ms: int) -> "Replaying":
        """Restore the state from the newest valid snapshot at or below ``believed_end``.

        Those above it, and those before the first segment, are removed. The one where the log begins stays, unlike in
        Kafka: it alone has a producer whose batches have all expired, and which may still retry the last of them.
        """
        report = ProducerLoadReport()
        self._first_base = segment_bases[0] if segment_bases else believed_end
        self._remove(*(offset for offset in self.offsets if not self._first_base <= offset <= believed_end))
        self.state.restart(self._first_base)  # a transaction may begin there, and go on behind the log start
        while self.offsets:
            offset = self.offsets[-1]
            try:
                entries = transaction_files.decode_snapshot(read_file(self._fs, self._path(offset)))
                written_ms = self._fs.stat(self._path(offset)).mtime_ms
            except transaction_files.MalformedSnapshotError as error:
                report.corrupt.append(offset)
                if isinstance(error, transaction_files.UnknownSnapshotError):
                    name = segment_file_name(offset, SNAPSHOT_SUFFIX)
                    report.problems.append(f"{name} is ignored: {error}; {keep_copy(self._fs, self._path(offset))}")
                self._remove(offset)
                continue
            report.snapshot = offset
            self.state.restart(offset, entries, seen_ms=written_ms)
            break
        return Replaying(self, segment_bases, now_ms, report)

    def _remove(self, *offsets: int) -> None:
        removed: set[int] = set()
        try:
            for offset in offsets:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.unlink(self._path(offset))
                removed.add(offset)
                self._unsynced.pop(offset, None)
        finally:
            if removed:
                self.offsets = [offset for offset in self.offsets if offset not in removed]
                self._names_changed = True

    def _sync_names(self) -> None:
        if self._names_changed:
            self._fs.sync_directory(self._directory)
            self._names_changed = False

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{segment_file_name(offset, SNAPSHOT_SUFFIX)}"


class Replaying:
    """Replays the batches after a snapshot, and takes new snapshots where the last two segments begin.

    So a recovery after the next crash need not read more than these two.
    """

    def __init__(
        self, snapshots: ProducerSnapshots, segment_bases: Sequence[int], now_ms: int, report: ProducerLoadReport
    ) -> None:
        self.report = report
        self._snapshots = snapshots
        self._now_ms = now_ms
        self._due = [base for base in segment_bases[-2:] if snapshots.state.end_offset < base]

    def note(self, batch: ReplayedBatch) -> None:
        """Apply the next batch of the log; one that the snapshot already covers changes nothing."""
        header, marker = batch
        state = self._snapshots.state
        if header.base_offset < state.end_offset:
            return
        while self._due and header.base_offset >= self._due[0]:
            self._snapshots.take_if_there_is_room(self._due.pop(0), sync=False)
        self.report.replayed += 1
        aborted = state.apply_replayed(header, marker, self._now_ms)
        if aborted is not None:
            self.report.aborted.append(aborted)

    def end(self, log_end: int) -> None:
        """No batch follows."""
        for base in self._due:
            if base < log_end:
                self._snapshots.take_if_there_is_room(base, sync=False)


def stray_snapshots(offsets: Sequence[int], segment_bases: Sequence[int]) -> list[int]:
    """Which of these rising snapshot offsets are of no use: no segment begins there, and they are not the log's end.

    Taken where the log ended at a stop, they were passed by later appends; the newest may still be its end.
    """
    bases = set(segment_bases)
    strays = [offset for offset in offsets if offset not in bases]
    if strays and strays[-1] >= max(bases, default=0):
        strays.pop()
    return strays


def replay(segments: Sequence[Segment], start: int, end: int) -> Iterator[ReplayedBatch]:
    """As ``producer_snapshots.Replay``, over segments that follow each other."""
    next_offset = start
    first = max(0, bisect_right(segments, start, key=attrgetter("base_offset")) - 1)
    for number in range(first, len(segments)):
        segment = segments[number]
        if segment.base_offset >= end:
            return
        for found in segment.log.batches():
            header = found.header
            if next_offset <= header.base_offset and header.last_offset < end:
                next_offset = header.next_offset
                yield replayed(segment, found)


def replayed(segment: Segment, found: LocatedBatch) -> ReplayedBatch:
    """A batch that was found in ``segment``."""
    return ReplayedBatch(found.header, _end_marker(segment, found) if found.header.is_control else None)


def _end_marker(segment: Segment, found: LocatedBatch) -> transaction_files.EndMarker | None:
    """What a control batch says; None when it ends no transaction, or cannot be read."""
    try:
        records = decode_records(found.header, segment.log.read_batch(found))
    except errors.CorruptRecordError:
        return None
    return transaction_files.decode_end_marker(records[0].key, records[0].value) if records else None
