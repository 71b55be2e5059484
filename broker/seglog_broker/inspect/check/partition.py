"""The check of one partition: every byte of its logs, and whether its indexes and small files agree with them.

``check_partition`` is the entry. It reads everything, changes nothing, and returns the findings with a plan of repairs.
Segments are read one after the other; only the indexes of one are held in memory.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from seglog_broker.inspect.check.checked import Checked
from seglog_broker.inspect.check.epochs import EpochsSeen
from seglog_broker.inspect.check.findings import Code, Finding, PartitionCounts, Severity
from seglog_broker.inspect.check.plan import Circumstances, RepairPlan, Replacement
from seglog_broker.inspect.check.segment_walk import SegmentWalk
from seglog_broker.inspect.check.small_files import SmallFiles
from seglog_broker.inspect.log_walk import DamagedBytes, InvalidBytes, LogWalk
from seglog_broker.storage.directory.kafka_signs import is_checksum_stale
from seglog_broker.storage.io.checkpoints import CLEANER_CHECKPOINT, LOG_START_CHECKPOINT
from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.end_marks import LogMarks
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.log.log_start import believed_start
from seglog_broker.storage.segment.checksum import (
    MalformedChecksumError,
    SegmentChecksum,
    checksum_path,
    encode_segment_checksum,
    measure_segment,
    read_segment_checksum,
)
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_broker.storage.segment.log_verifier import LogVerifier
from seglog_protocol import segment_files as names
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import LocatedBatch, scan_headers
from seglog_protocol.records import iter_records

_REPAIRABLE_BEFORE_LIFTING = {Code.BATCH_DAMAGED, Code.TAIL_DAMAGED, Code.OFFSETS_MISSING, Code.READ_ONLY}
"""Damage that a repair records, so that the broker skips it; all other batches can still be verified."""

Progress = Callable[[str, int], None]
"""Called with the path and the size in bytes of each segment before it is read."""


def check_partition(
    fs: FileSystem, path: str, circumstances: Circumstances, progress: Progress = lambda _path, _size: None
) -> Checked:
    """Read everything in the partition directory ``path``. A file that cannot be read is a finding."""
    check = _PartitionCheck(fs, path, circumstances, progress)
    try:
        check.run()
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        check.out.findings.append(Finding(Severity.DAMAGE, Code.UNREADABLE, error.filename or path, what))
        check.out.plan = RepairPlan()  # it was decided without knowing all
    return check.out


@dataclass(slots=True)
class _Covered:
    """The contents of a segment's checksum file (None where it is missing or malformed), and the log's own checksum."""

    said: SegmentChecksum | None
    is_malformed: bool
    measured: SegmentChecksum | None


class _PartitionCheck:
    def __init__(self, fs: FileSystem, path: str, circumstances: Circumstances, progress: Progress) -> None:
        self.out = Checked(PartitionCounts(path))
        self._fs = fs
        self._path = path
        self._known = circumstances
        self._progress = progress
        self._walk = LogWalk(fs, path)  # replaced in ``run``, once the log's former end is known
        self._epochs = EpochsSeen()
        self._covered: dict[int, _Covered] = {}
        self._held_end = 0  # everything below this offset was on the disk before
        self._names: list[str] = []
        self._bases: list[int] = []

    def run(self) -> None:
        self._names = self._fs.list_directory(self._path)
        self._bases = [
            base
            for name in self._names
            if (parsed := names.parse_segment_file_name(name)) is not None and parsed[1] == names.LOG_SUFFIX
            for base in [parsed[0]]
        ]
        small = SmallFiles(self._fs, self._path, self._names, self._bases, self._known, self.out)
        small.state()
        if self._bases:
            small.start(self._believed_start())
            self._walk = LogWalk(self._fs, self._path, self._verifier(small.recorded))
        elif PARTITION_METADATA_FILE in self._names or not self._known.is_being_made:
            self._add(Severity.DAMAGE, Code.SEGMENTS_GONE, self._path, "has no .log file, and every partition has one")
        for number, base in enumerate(self._bases):
            self._segment(base, self._bases[number + 1] if number + 1 < len(self._bases) else None)
        self._walk.finish()
        self._judge_damage(small.recorded)
        self._judge_ends(small.recorded)
        small.ranges([*self._walk.damaged, *self._ends()], self._walk.holes, self._end)
        self._judge_checksums()
        small.epochs(self._epochs)
        small.topic_id()
        small.transactions()
        small.names()
        small.read_only()
        self._decide_lifting()

    def _believed_start(self) -> int:
        """The log start offset by the rules of a start; a finding where the checkpoint has another."""
        state, epochs = self.out.plan.state, LeaderEpochs(self._fs, self._path)
        assert state is not None, "the state is read before"
        epochs.load()
        is_empty = len(self._bases) == 1 and not self._fs.stat(self._file(self._bases[0], names.LOG_SUFFIX)).size
        claimed = self._known.log_start
        believed = believed_start(claimed, state, epochs.entries, self._bases[0], is_empty=is_empty)
        if believed.problem is not None:
            partition = self._path.rpartition("/")[2]
            path = f"{self._path.rpartition('/')[0]}/{LOG_START_CHECKPOINT}"
            begins = max(believed.offset, self._bases[0])
            what = (
                f"has offset {claimed} for {partition}, but nothing says that the records from {begins} on were deleted"
            )
            self._add(Severity.DERIVED, Code.LOG_START_WRONG, path, what)
            self.out.plan.lower_log_start = believed.offset
        self._known = replace(self._known, log_start=believed.offset)
        return believed.offset

    def _verifier(self, recorded: Sequence[DamagedRange]) -> LogVerifier:
        """A verifier with the rules of a start, which uses the same marks (``PartitionLog.open``)."""
        known, state = self._known, self.out.plan.state
        assert state is not None, "the state is read before"
        high_watermark = known.high_watermark if known.is_clean else None
        marks = LogMarks.find(self._names, self._bases, known.recovery_point, high_watermark, state.held_end)
        if known.is_clean:
            marks = marks._replace(without_log=())  # what a start removes before it looks
        expected = marks.end_beside(self._stated_end()) if known.is_clean else None
        self._held_end = marks.held_end() if expected is None else expected
        return LogVerifier(
            compacted_before=max(known.compacted_before, state.compacted_before),
            held_end=self._held_end,
            is_exact=expected is not None and expected >= self._bases[-1],
            known=recorded,
        )

    def _stated_end(self) -> int | None:
        """The log end by the headers of the last segment; None where they do not lead to its end."""
        base = self._bases[-1]
        with closing(self._fs.open(self._file(base, names.LOG_SUFFIX))) as file:
            size, end, position = file.size(), base, 0
            for found in scan_headers(file, 0, size):
                end, position = found.header.next_offset, found.end
        return end if position == size else None

    # --- Segments -----------------------------------------------------------------------------------------------------

    def _segment(self, base: int, following: int | None) -> None:
        log_path = self._file(base, names.LOG_SUFFIX)
        size = self._fs.stat(log_path).size
        self._progress(log_path, size)
        counts = self.out.counts
        counts.segments += 1
        counts.bytes += size
        is_last = following is None
        covered = self._checksum(base)
        if covered is not None:
            self._covered[base] = covered
            counts.covered += not is_last and not covered.is_malformed
        elif not is_last:
            self.out.plan.cover.append(base)
        # Above the recovery point a start rebuilds the indexes, and a killed Kafka leaves them as it had them in use.
        is_unread = following is not None and following <= self._known.recovery_point
        is_live = not self._known.is_clean and (is_last or (self._known.is_adopted and not is_unread))
        walk = SegmentWalk(self._fs, self._path, base, self._known, is_live=is_live)
        for found in walk.follow(self._found(base, following)):
            counts.batches += 1
            counts.records += found.header.record_count
            self._epochs.add(base, found)
        findings, replacements = walk.judge_indexes(size)
        self.out.findings += findings
        self.out.plan.replace += replacements

    def _found(self, base: int, following: int | None) -> Iterator[LocatedBatch | InvalidBytes]:
        if not self._known.deep:
            yield from self._walk.segment(base, following)
            return
        path = self._file(base, names.LOG_SUFFIX)
        file = self._fs.open(path)
        try:
            for found in self._walk.segment(base, following):
                if isinstance(found, InvalidBytes):
                    yield found
                    continue
                header = found.header
                try:
                    for _ in iter_records(header, file.pread(header.size, found.position)):
                        pass
                except CorruptRecordError as error:
                    self._add(
                        Severity.DAMAGE,
                        Code.RECORDS_UNREADABLE,
                        path,
                        f"the records of a batch with a valid checksum cannot be read: {error.message}",
                        (found.position, found.end),
                        (header.base_offset, header.next_offset),
                    )
                yield found
        finally:
            file.close()

    def _checksum(self, base: int) -> _Covered | None:
        if names.segment_file_name(base, names.CHECKSUM_SUFFIX) not in self._names:
            return None
        measured = measure_segment(self._fs, self._path, base)
        try:
            said = read_segment_checksum(self._fs, self._path, base)
            if said is not None and said != measured and self._is_outdated(base, said, measured.size):
                return _Covered(None, is_malformed=False, measured=measured)
            return _Covered(said, is_malformed=False, measured=measured)
        except MalformedChecksumError as error:
            path = checksum_path(self._path, base)
            self._add(Severity.DERIVED, Code.CHECKSUM_FILE_WRONG, path, f"cannot be understood: {error}")
            return _Covered(None, is_malformed=True, measured=measured)

    def _is_outdated(self, base: int, said: SegmentChecksum, size: int) -> bool:
        """Whether Kafka has replaced the segment since; adds a note then."""
        known = self._known
        if not known.is_from_kafka or not is_checksum_stale(said, base, size, known.compacted_before):
            return False
        what = "is older than its segment, which Kafka has replaced or shortened"
        self._add(Severity.NOTE, Code.CHECKSUM_OUTDATED, checksum_path(self._path, base), what)
        return True

    # --- What the walk met --------------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        """The offset behind the last batch."""
        return self._walk.end or 0

    def _judge_damage(self, recorded: Sequence[DamagedRange]) -> None:
        for lost, why in self._walk.damaged:
            offsets = (lost.start_offset, lost.end_offset) if lost.start_offset < lost.end_offset else None
            self._judge_bytes(DamagedBytes(lost, why), recorded, Code.BATCH_DAMAGED, offsets)
        state = self.out.plan.state
        compacted_before = max(self._known.compacted_before, state.compacted_before if state is not None else 0)
        first = max(compacted_before, self._known.log_start)  # what lies below the log start has been deleted
        for found in self._walk.holes:
            if found.segment not in self._bases:
                continue  # at the end of the log, where ``_judge_ends`` reports it
            hole = replace(found, start_offset=max(found.start_offset, first))
            if hole.start_offset >= hole.end_offset:
                continue
            offsets = (hole.start_offset, hole.end_offset)
            path = self._file(hole.segment, names.LOG_SUFFIX)
            what = f"offsets {_span(offsets)} are in no batch"
            if any(r.reason == "missing" and _covers(r, hole) for r in recorded):
                self._add(Severity.NOTE, Code.DAMAGE_KNOWN, path, what, None, offsets)
            else:
                if self._known.is_adopted:
                    what += f"; if Kafka compacted them away, {CLEANER_CHECKPOINT} does not say so"
                self._add(Severity.DAMAGE, Code.OFFSETS_MISSING, path, what, None, offsets)
                self._remember(hole)

    def _ends(self) -> list[DamagedBytes]:
        """Damaged bytes at the end of the log, without their offsets, which are only guessed."""
        return [
            DamagedBytes(replace(lost, end_offset=lost.start_offset), why)
            for lost, why in (*self._walk.tails, *self._walk.torn)
        ]

    def _judge_ends(self, recorded: Sequence[DamagedRange]) -> None:
        known, end = self._known, self._end
        for damaged in self._walk.tails:
            lost = damaged.range
            offsets = (lost.start_offset, lost.end_offset) if lost.start_offset < lost.end_offset else None
            self._judge_bytes(damaged, recorded, Code.TAIL_DAMAGED, offsets)
        for damaged in self._walk.torn:
            lost = damaged.range
            if known.is_clean:
                self._judge_bytes(damaged, recorded, Code.TAIL_DAMAGED, None)
            else:
                at = (lost.position, lost.end_position)
                path = self._file(lost.segment, names.LOG_SUFFIX)
                self._add(Severity.NOTE, Code.TORN_TAIL, path, f"{damaged.why}; no valid batch follows", at)
        has_tail = any(lost.segment == self._bases[-1] for lost, _ in self._ends())
        held_end = max(known.recovery_point, self._held_end)
        if end < held_end and not has_tail:
            what = f"the log ends at offset {end}, but everything below {held_end} had been flushed to the disk"
            self._add(Severity.DAMAGE, Code.LOG_TOO_SHORT, self._path, what, None, (end, held_end))
            self.out.plan.lower_recovery_point = end
            state = self.out.plan.state
            if state is not None and state.held_end > end:
                state.held_end, self.out.plan.saves_state = end, True
        if end < known.log_start:
            what = f"the log ends at offset {end}, below its log start offset {known.log_start}: all of it is deleted"
            self._add(Severity.NOTE, Code.LOG_START_BEYOND_END, self._path, what, None, (end, known.log_start))
        first = self._bases[0] if self._bases else 0
        self.out.counts.start_offset = min(max(first, known.log_start), end)
        self.out.counts.end_offset = end

    def _judge_bytes(
        self, damaged: DamagedBytes, recorded: Sequence[DamagedRange], code: Code, offsets: tuple[int, int] | None
    ) -> None:
        lost, why = damaged
        is_known = any(
            r.segment == lost.segment and r.position <= lost.position and lost.end_position <= r.end_position
            for r in recorded
        )
        path, at = self._file(lost.segment, names.LOG_SUFFIX), (lost.position, lost.end_position)
        if is_known or self._has_left_the_log(lost.segment):
            self._add(Severity.NOTE, Code.DAMAGE_KNOWN, path, why, at, offsets)
        else:
            self._add(Severity.DAMAGE, code, path, why, at, offsets)
            self.out.plan.set_aside.append(lost)
            self._remember(lost)

    def _has_left_the_log(self, base_offset: int) -> bool:
        """Whether all offsets of a segment lie below the log start, so that its files only wait to be removed."""
        following = bisect_right(self._bases, base_offset)
        return following < len(self._bases) and self._bases[following] <= self._known.log_start

    def _remember(self, lost: DamagedRange) -> None:
        state = self.out.plan.state
        assert state is not None, "the state is read before"
        state.damaged.append(lost)
        self.out.plan.saves_state = True

    def _judge_checksums(self) -> None:
        hurt = {lost.segment for lost, _ in (*self._walk.damaged, *self._walk.tails, *self._walk.torn)}
        self.out.plan.cover = [base for base in self.out.plan.cover if base not in hurt]
        for base, covered in self._covered.items():
            said, measured = covered.said, covered.measured
            if said == measured or measured is None:
                continue
            path = checksum_path(self._path, base)
            if said is not None and base not in hurt:
                if base == self._bases[-1] and said.size != measured.size:
                    what = f"is for {said.size} bytes, the active segment now has {measured.size}"
                    self._add(Severity.DERIVED, Code.CHECKSUM_FILE_WRONG, path, what)
                    self.out.plan.remove.append(path)
                else:
                    self._mismatch(base, said, measured)
                continue
            if said is not None and not any(lost.segment == base for lost in self.out.plan.set_aside):
                self._add(Severity.DERIVED, Code.CHECKSUM_FILE_WRONG, path, "is for the log before its known damage")
            content = encode_segment_checksum(measured)
            self.out.plan.replace.append(Replacement(path, content, "written for the log as it is now"))

    def _mismatch(self, base: int, said: SegmentChecksum, measured: SegmentChecksum) -> None:
        path = self._file(base, names.LOG_SUFFIX)
        what = (
            f"it has {measured.size} bytes and had {said.size} when it was closed"
            if said.size != measured.size
            else f"its checksum is {measured.crc:08x}, it was {said.crc:08x} when the segment was closed; every "
            "batch's own checksum is valid, so an offset or a leader epoch has changed"
        )
        self._add(Severity.DAMAGE, Code.CHECKSUM_MISMATCH, path, what)

    def _decide_lifting(self) -> None:
        """Plan to lift a read-only mark where all damage besides it can be repaired or recorded."""
        plan, state = self.out.plan, self.out.plan.state
        if state is None or state.read_only is None:
            return
        damage = {finding.code for finding in self.out.findings if finding.severity == Severity.DAMAGE}
        if damage <= _REPAIRABLE_BEFORE_LIFTING:
            plan.rewrite = list(self._bases)  # all: after a failed fsync no recovery point is to be trusted

    def _add(
        self,
        severity: Severity,
        code: Code,
        path: str,
        what: str,
        at: tuple[int, int] | None = None,
        offsets: tuple[int, int] | None = None,
    ) -> None:
        self.out.findings.append(Finding(severity, code, path, what, *(at or (None, None)), *(offsets or (None, None))))

    def _file(self, base: int, suffix: str) -> str:
        return f"{self._path}/{names.segment_file_name(base, suffix)}"


def _covers(known: DamagedRange, lost: DamagedRange) -> bool:
    return known.start_offset <= lost.start_offset and lost.end_offset <= known.end_offset


def _span(offsets: tuple[int, int]) -> str:
    start, end = offsets
    return str(start) if end == start + 1 else f"{start} to {end - 1}"
