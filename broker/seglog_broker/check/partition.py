"""One partition: every byte of its logs, every index against them, and whether its small files agree.

Only ``check_partition`` is for others. It reads everything, changes nothing, and gives the findings with the plan of
what could be repaired. Segments are read one after the other; what is held in memory is their indexes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from seglog_broker.check.epochs import EpochsSeen
from seglog_broker.check.findings import Code, Finding, PartitionCounts, Severity
from seglog_broker.check.indexes import ExpectedIndexes
from seglog_broker.check.judge_indexes import IndexJudge
from seglog_broker.check.log_walk import LogWalk, Stretch
from seglog_broker.check.plan import Circumstances, Gaps, Plan, Replacement
from seglog_broker.check.small_files import SmallFiles
from seglog_broker.storage.batch_scan import LocatedBatch
from seglog_broker.storage.filesystem import FileSystem
from seglog_broker.storage.partition_state import DamagedRange
from seglog_broker.storage.segment_checksum import (
    MalformedChecksumError,
    SegmentChecksum,
    checksum_path,
    encode_segment_checksum,
    measure_segment,
    read_segment_checksum,
)
from seglog_protocol import segment_files as names
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.records import iter_records

_REPAIRABLE_BEFORE_LIFTING = {Code.BATCH_DAMAGED, Code.TAIL_DAMAGED, Code.OFFSETS_MISSING, Code.READ_ONLY}
"""Damage that a repair leaves named and served around: the batches beside it can be proven all the same."""

Progress = Callable[[str, int], None]
"""Told the path of a segment that is about to be read, and its size in bytes."""


@dataclass(slots=True)
class Checked:
    """What came of a partition."""

    counts: PartitionCounts
    findings: list[Finding] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)

    @property
    def faults(self) -> list[Finding]:
        """The findings that are more than notes."""
        return [finding for finding in self.findings if finding.severity != Severity.NOTE]


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
        check.out.plan = Plan()  # decided in ignorance
    return check.out


@dataclass(slots=True)
class _Covered:
    """A segment's checksum file, and what its log comes to; None where there is no (good) file."""

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
        self._walk = LogWalk(fs, path)
        self._epochs = EpochsSeen()
        self._covered: dict[int, _Covered] = {}
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
        for base, following in zip(self._bases, [*self._bases[1:], None], strict=True):
            self._segment(base, following)
        self._walk.finish(self._bases[-1] if self._bases else 0)
        small = SmallFiles(self._fs, self._path, self._names, self._bases, self._known, self.out)
        small.state()
        self._judge_damage(small.recorded)
        self._judge_ends(small.recorded)
        small.ranges([*self._walk.damaged, *self._walk.tails], self._walk.holes, self._end)
        self._judge_checksums()
        small.epochs(self._epochs)
        small.topic_id()
        small.transactions()
        small.names()
        small.read_only()
        self._decide_lifting()

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
        highest = base + names.RELATIVE_OFFSET_MAX
        if following is not None:
            highest = min(highest, following - 1)
        judge = IndexJudge(self._fs, self._path, base, self._known, is_live=is_last and not self._known.is_clean)
        models = [ExpectedIndexes(base, each, self._known.index_bytes_max) for each in judge.intervals()]
        with_spoilt: list[ExpectedIndexes] = []  # of the log as it was when the indexes were written

        def add_spoilt(found: LocatedBatch) -> None:
            with_spoilt.extend([model.copy() for model in models] if not with_spoilt else ())
            for model in with_spoilt:
                model.add(*found)

        for found in self._batches(base, highest, add_spoilt):
            counts.batches += 1
            counts.records += found.header.record_count
            self._epochs.add(base, found)
            for model in (*models, *with_spoilt):
                model.add(*found)
        findings, replacements = judge.judge(models, with_spoilt, size)
        self.out.findings += findings
        self.out.plan.replace += replacements

    def _batches(self, base: int, highest: int, on_spoilt: Callable[[LocatedBatch], None]) -> Iterator[LocatedBatch]:
        if not self._known.deep:
            yield from self._walk.batches(base, highest, on_spoilt)
            return
        path = self._file(base, names.LOG_SUFFIX)
        file = self._fs.open(path)
        try:
            for found in self._walk.batches(base, highest, on_spoilt):
                header = found.header
                try:
                    for _ in iter_records(header, file.pread(header.size, found.position)):
                        pass
                except CorruptRecordError as error:
                    self._add(
                        Severity.DAMAGE,
                        Code.RECORDS_UNREADABLE,
                        path,
                        f"the records of a batch with a right checksum cannot be read: {error.message}",
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
            return _Covered(read_segment_checksum(self._fs, self._path, base), is_malformed=False, measured=measured)
        except MalformedChecksumError as error:
            path = checksum_path(self._path, base)
            self._add(Severity.DERIVED, Code.CHECKSUM_FILE_WRONG, path, f"cannot be understood: {error}")
            return _Covered(None, is_malformed=True, measured=measured)

    # --- What the walk met --------------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        """The offset behind the last batch."""
        return max(self._walk.next_offset or 0, self._bases[-1] if self._bases else 0)

    def _judge_damage(self, recorded: Sequence[DamagedRange]) -> None:
        for lost, why in self._walk.damaged:
            offsets = (lost.start_offset, lost.end_offset) if lost.start_offset < lost.end_offset else None
            self._judge_stretch(Stretch(lost, why), recorded, Code.BATCH_DAMAGED, offsets)
        unknown = []
        state = self.out.plan.state
        compacted_before = max(self._known.compacted_before, state.compacted_before if state is not None else 0)
        for found in self._walk.holes:
            hole = replace(found, start_offset=max(found.start_offset, compacted_before))
            if hole.start_offset >= hole.end_offset:
                continue
            offsets = (hole.start_offset, hole.end_offset)
            path = self._file(hole.segment, names.LOG_SUFFIX)
            what = f"offsets {_span(offsets)} are in no batch"
            if any(r.reason == "missing" and _covers(r, hole) for r in recorded):
                self._add(Severity.NOTE, Code.DAMAGE_KNOWN, path, what, None, offsets)
            elif self._known.gaps == Gaps.NEVER:
                self._add(Severity.DAMAGE, Code.OFFSETS_MISSING, path, what, None, offsets)
                self._remember(hole)
            else:
                unknown.append(offsets)
        if unknown:
            count = sum(end - start for start, end in unknown)
            what = f"{count} offsets, the first {unknown[0][0]}, are in no batch: compaction leaves such gaps, loss too"
            self._add(Severity.NOTE, Code.OFFSETS_MISSING, self._path, what, None, (unknown[0][0], unknown[-1][1]))

    def _judge_ends(self, recorded: Sequence[DamagedRange]) -> None:
        known, end = self._known, self._end
        for lost, why in self._walk.tails:
            is_last = lost.segment == self._bases[-1]
            lost_to = max(lost.start_offset, known.recovery_point) if is_last else lost.end_offset
            stretch = Stretch(replace(lost, end_offset=lost_to), why)
            offsets = (lost.start_offset, lost_to) if lost_to > lost.start_offset else None
            if known.is_clean or offsets is not None:
                self._judge_stretch(stretch, recorded, Code.TAIL_DAMAGED, offsets)
            else:
                at = (lost.position, lost.end_position)
                path = self._file(lost.segment, names.LOG_SUFFIX)
                self._add(Severity.NOTE, Code.TORN_TAIL, path, f"{why}; no valid batch follows", at)
        has_tail = bool(self._walk.tails) and self._walk.tails[-1].range.segment == self._bases[-1]
        if end < known.recovery_point and not has_tail:
            what = f"the log ends at offset {end}, everything below {known.recovery_point} had been brought to the disk"
            self._add(Severity.DAMAGE, Code.LOG_TOO_SHORT, self._path, what, None, (end, known.recovery_point))
            self.out.plan.lower_recovery_point = end
        if end < known.log_start:
            what = f"the log ends at offset {end}, but is said to begin at {known.log_start}"
            self._add(Severity.DAMAGE, Code.LOG_START_BEYOND_END, self._path, what, None, (end, known.log_start))
        first = self._bases[0] if self._bases else 0
        self.out.counts.start_offset = min(max(first, known.log_start), end)
        self.out.counts.end_offset = end

    def _judge_stretch(
        self, stretch: Stretch, recorded: Sequence[DamagedRange], code: Code, offsets: tuple[int, int] | None
    ) -> None:
        lost, why = stretch
        is_known = any(
            r.segment == lost.segment and r.position <= lost.position and lost.end_position <= r.end_position
            for r in recorded
        )
        path, at = self._file(lost.segment, names.LOG_SUFFIX), (lost.position, lost.end_position)
        if is_known:
            self._add(Severity.NOTE, Code.DAMAGE_KNOWN, path, why, at, offsets)
        else:
            self._add(Severity.DAMAGE, code, path, why, at, offsets)
            self.out.plan.set_aside.append(lost)
            self._remember(lost)

    def _remember(self, lost: DamagedRange) -> None:
        state = self.out.plan.state
        assert state is not None, "the state is read before"
        state.damaged.append(lost)
        self.out.plan.saves_state = True

    def _judge_checksums(self) -> None:
        hurt = {lost.segment for lost, _ in (*self._walk.damaged, *self._walk.tails)}
        self.out.plan.cover = [base for base in self.out.plan.cover if base not in hurt]
        for base, covered in self._covered.items():
            said, measured = covered.said, covered.measured
            if said == measured or measured is None:
                continue
            path = checksum_path(self._path, base)
            if said is not None and base not in hurt:
                if base == self._bases[-1] and said.size != measured.size:
                    what = f"speaks of {said.size} bytes, the active segment has {measured.size} by now"
                    self._add(Severity.DERIVED, Code.CHECKSUM_FILE_WRONG, path, what)
                    self.out.plan.remove.append(path)
                else:
                    self._mismatch(base, said, measured)
                continue
            if said is not None and not any(lost.segment == base for lost in self.out.plan.set_aside):
                self._add(
                    Severity.DERIVED, Code.CHECKSUM_FILE_WRONG, path, "speaks of the log without its known damage"
                )
            content = encode_segment_checksum(measured)
            self.out.plan.replace.append(Replacement(path, content, "written for the log as it is now"))

    def _mismatch(self, base: int, said: SegmentChecksum, measured: SegmentChecksum) -> None:
        path = self._file(base, names.LOG_SUFFIX)
        what = (
            f"it has {measured.size} bytes and had {said.size} when it was closed"
            if said.size != measured.size
            else f"its checksum is {measured.crc:08x}, it was {said.crc:08x} when the segment was closed; every "
            "batch's own checksum is right, so an offset or a leader epoch has changed"
        )
        self._add(Severity.DAMAGE, Code.CHECKSUM_MISMATCH, path, what)

    def _decide_lifting(self) -> None:
        """A read-only mark may go when everything that can be proven is, and the rest is named."""
        plan, state = self.out.plan, self.out.plan.state
        if state is None or state.read_only is None:
            return
        damage = {finding.code for finding in self.out.findings if finding.severity == Severity.DAMAGE}
        if damage <= _REPAIRABLE_BEFORE_LIFTING:
            plan.write_anew = list(self._bases)  # all: after a failed fsync no recovery point is to be trusted

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
