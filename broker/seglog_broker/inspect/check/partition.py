"""The check of one partition: every byte of its log, and whether its indexes and small files agree with the log.

``check_partition`` reads all files, changes none, and returns the findings with a plan of repairs. It reads one segment
after the other, and holds only the indexes of one segment in memory. Transaction indexes are compared with the
transactions that were aborted in the log.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from seglog_broker.inspect.check.indexes import IndexCheck
from seglog_broker.inspect.check.plan import CheckResult, PartitionContext, RepairPlan
from seglog_broker.inspect.check.small_files import EpochsSeen, SmallFiles
from seglog_broker.inspect.findings import Code, PartitionCounts, Severity
from seglog_broker.inspect.log_walk import DamagedBytes, InvalidBytes, LogWalk
from seglog_broker.storage.directory.kafka_signs import is_checksum_stale
from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE
from seglog_broker.storage.io.filesystem import File, FileSystem, read_file
from seglog_broker.storage.log.end_marks import LogMarks
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.log.partition_files import log_base
from seglog_broker.storage.log.truncation import believed_start
from seglog_broker.storage.segment import checksum
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.log_verifier import LogVerifier
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import CLEANER_CHECKPOINT, LOG_START_CHECKPOINT
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.header_scan import HeaderScan, LocatedBatch
from seglog_protocol.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT
from seglog_protocol.records import decode_records, iter_records
from seglog_protocol.transaction_files import (
    TXN_INDEX_ENTRY,
    TXN_INDEX_VERSION,
    AbortedTransaction,
    aborted_transaction,
    decode_end_marker,
    encode_aborted_transaction,
)

_OF_TRANSACTIONS = CONTROL_BIT | TRANSACTIONAL_BIT


class TransactionCheck:
    """Follows the transactions of one log. ``add`` every valid batch in order, then ``judge``."""

    def __init__(self, fs: FileSystem, directory: str, bases: Sequence[int]) -> None:
        """``bases`` are the base offsets of the segments, ascending."""
        self._fs = fs
        self._directory = directory
        self._bases = bases
        self._opened: dict[int, int] = {}  # producer id -> first offset
        self._aborted: dict[int, list[AbortedTransaction]] = {base: [] for base in bases}

    def add(self, base: int, found: LocatedBatch) -> None:
        """Note a batch of the segment ``base``. Only end markers are read. Raises OSError."""
        header = found.header
        if not header.attributes & _OF_TRANSACTIONS:
            return
        if not header.is_control:
            self._opened.setdefault(header.producer_id, header.base_offset)
            return
        with self._fs.open(self._path(base, names.LOG_SUFFIX)) as file:
            batch = file.pread(header.size, found.position)
        try:
            records = decode_records(header, batch)
        except CorruptRecordError:
            return
        marker = decode_end_marker(records[0].key, records[0].value) if records else None
        first = None if marker is None else self._opened.pop(header.producer_id, None)
        if marker is not None and first is not None and marker.type == "ABORT":
            stable = min(self._opened.values(), default=header.next_offset)
            entry = AbortedTransaction(TXN_INDEX_VERSION, header.producer_id, first, header.base_offset, stable)
            self._aborted[base].append(entry)

    def judge(
        self,
        found_names: Collection[str],
        out: CheckResult,
        *,
        compacted_before: int,
        is_clean: bool,
        is_checked: Callable[[int], bool],
    ) -> None:
        """Add a finding for each index that is wrong, and its content by the log; ``found_names`` are in the directory.

        ``is_checked(base)`` is true if the index of that segment should be complete. Batches of aborted transactions
        may be gone below ``compacted_before``, and before the first segment: there only the state of a stop that
        ``is_clean`` tells what an index had.
        """
        lower = max([compacted_before, *self._bases[:1]])
        for base in filter(is_checked, self._bases):
            path = self._path(base, names.TXN_INDEX_SUFFIX)
            content = read_file(self._fs, path) if path.rpartition("/")[2] in found_names else b""
            there = [aborted_transaction(content, number) for number in range(len(content) // TXN_INDEX_ENTRY.size)]
            wanted = self._aborted[base]
            rebuilt = b"".join(map(encode_aborted_transaction, wanted))
            said = (out.state.transaction_indexes or {}).get(base) if is_clean else None
            is_as_written = said in {None, (len(content), crc32c(content))} or content == rebuilt
            if is_as_written and _agree(there, wanted, lower) and not len(content) % TXN_INDEX_ENTRY.size:
                continue
            what = f"does not have the {len(wanted)} transactions that were aborted in its segment"
            out.add(Code.TXN_INDEX_WRONG, path, what)
            out.replace(path, rebuilt, "rebuilt from the log")
            if out.state.transaction_indexes is not None:
                out.state.transaction_indexes[base] = len(rebuilt), crc32c(rebuilt)
                out.plan.saves_state = True

    def _path(self, base: int, suffix: str) -> str:
        return f"{self._directory}/{names.segment_file_name(base, suffix)}"


def _agree(there: Sequence[AbortedTransaction], wanted: Sequence[AbortedTransaction], lower: int) -> bool:
    """Compare the entries of an index with those ``wanted`` by the log, which may lack batches below ``lower``."""
    early = {(entry.producer_id, entry.last_offset) for entry in there if entry.first_offset < lower}
    known = [entry for entry in there if entry.first_offset >= lower]
    exact = [entry for entry in wanted if (entry.producer_id, entry.last_offset) not in early]
    return len(known) == len(exact) and all(
        # the oldest open transaction may have begun below, too
        told == (one if told.last_stable_offset >= lower else one._replace(last_stable_offset=told.last_stable_offset))
        for told, one in zip(known, exact, strict=True)
    )


_REPAIRABLE_BEFORE_LIFTING = {Code.BATCH_DAMAGED, Code.TAIL_DAMAGED, Code.OFFSETS_MISSING, Code.READ_ONLY}
"""Damage that does not keep a repair from lifting a read-only mark: once it is recorded, the broker skips it."""

Progress = Callable[[str, int], None]
"""Called with the path and the size in bytes of each segment before it is read."""


def check_partition(
    fs: FileSystem, path: str, context: PartitionContext, progress: Progress = lambda _path, _size: None
) -> CheckResult:
    """Check the partition directory ``path``. A file that cannot be read is a finding, not an error."""
    check = _PartitionCheck(fs, path, context, progress)
    try:
        check.run()
    except OSError as error:
        what = f"cannot be read: {error.strerror or error}"
        check.out.add(Code.UNREADABLE, error.filename or path, what)
        check.out.plan = RepairPlan()  # the check is incomplete, so nothing may be repaired
    return check.out


@dataclass(slots=True)
class _Checksums:
    """The checksum ``stored`` in the file of a segment, and the one ``measured`` from its bytes.

    ``stored`` is None if the file is malformed or outdated.
    """

    stored: checksum.SegmentChecksum | None
    measured: checksum.SegmentChecksum
    is_malformed: bool = False


class _PartitionCheck:
    def __init__(self, fs: FileSystem, path: str, context: PartitionContext, progress: Progress) -> None:
        self.out = CheckResult(PartitionCounts(path))
        self._fs = fs
        self._path = path
        self._context = context
        self._progress = progress
        self._walk = LogWalk(fs, path)  # replaced in ``run``, where the log's former end is known
        self._epochs = EpochsSeen()
        self._checksums: dict[int, _Checksums] = {}
        self._held_end = 0  # everything below this offset was once on the disk
        self._transactions = TransactionCheck(fs, path, ())  # replaced in ``run``
        self._has_whole_indexes: dict[int, bool] = {}  # by base offset: no start will build them again
        self._names: list[str] = []
        self._bases: list[int] = []

    def run(self) -> None:
        """Check everything; the result is in ``out``. Raises OSError."""
        self._names = self._fs.list_directory(self._path)
        self._bases = [base for name in self._names if (base := log_base(name)) is not None]
        small = SmallFiles(self._fs, self._path, self._names, self._bases, self._context, self.out)
        small.check_state()
        if self._bases:
            small.check_log_start(self._believed_start())
            self._walk = LogWalk(self._fs, self._path, self._verifier(small.recorded))
        elif PARTITION_METADATA_FILE in self._names or not self._context.is_being_made:
            self.out.add(Code.SEGMENTS_GONE, self._path, "has no .log file, and every partition has one")
        if self._report_awaited():
            return
        self._transactions = TransactionCheck(self._fs, self._path, self._bases)
        for number, base in enumerate(self._bases):
            self._check_segment(base, self._bases[number + 1] if number + 1 < len(self._bases) else None)
        self._walk.finish()
        self._judge_damage(small.recorded)
        self._judge_ends(small.recorded)
        small.check_damaged_ranges([*self._walk.damaged, *self._damaged_ends()], self._walk.holes, self._end)
        self._judge_checksums()
        small.check_epochs(self._epochs)
        small.check_topic_id()
        small.check_snapshots()
        self._judge_transactions()
        small.check_names()
        small.check_read_only_mark()
        self._plan_lifting()

    def _report_awaited(self) -> bool:
        """Add a finding for each segment that is still to come; with one of them nothing else can be judged."""
        parsed = filter(None, map(names.parse_segment_file_name, self._names))
        awaited = sorted(base for base, suffix in parsed if suffix == names.AWAITED_SUFFIX)
        for base in awaited:
            path = self._path_of(base, names.LOG_SUFFIX)
            size = self._fs.stat(path).size
            self.out.counts.segments += 1
            self.out.counts.bytes += size
            what = f"is not there yet: its {size:,} bytes are to come from the backup that the directory was begun from"
            self.out.add(Code.SEGMENT_AWAITED, path, what)
        return bool(awaited)

    def _believed_start(self) -> int:
        """The log start offset by the rules of a start. Adds a finding if the checkpoint has another one."""
        state, epochs = self.out.state, LeaderEpochs(self._fs, self._path)
        epochs.load()
        is_empty = len(self._bases) == 1 and not self._fs.stat(self._path_of(self._bases[0], names.LOG_SUFFIX)).size
        claimed = self._context.log_start
        believed = believed_start(claimed, state, epochs.entries, self._bases[0], is_empty=is_empty)
        if believed.problem is not None:
            partition = self._path.rpartition("/")[2]
            path = f"{self._path.rpartition('/')[0]}/{LOG_START_CHECKPOINT}"
            begins = max(believed.offset, self._bases[0])
            what = (
                f"has offset {claimed} for {partition}, but nothing says that the records from {begins} on were deleted"
            )
            self.out.add(Code.LOG_START_WRONG, path, what)
            self.out.plan.lower_log_start = believed.offset
        self._context = replace(self._context, log_start=believed.offset)
        return believed.offset

    def _verifier(self, recorded: Sequence[DamagedRange]) -> LogVerifier:
        """A verifier that follows the rules of a start and knows the same marks of the log's end."""
        context, state = self._context, self.out.state
        high_watermark = context.high_watermark if context.is_clean else None
        marks = LogMarks.find(self._names, self._bases, context.recovery_point, high_watermark, state.held_end)
        if context.is_clean:
            marks = marks._replace(without_log=())  # a start removes these files first
        expected = marks.end_beside(self._stated_end()) if context.is_clean else None
        self._held_end = marks.held_end() if expected is None else expected
        return LogVerifier(
            compacted_before=max(context.compacted_before, state.compacted_before),
            held_end=self._held_end,
            is_exact=expected is not None and expected >= self._bases[-1],
            known=recorded,
        )

    def _stated_end(self) -> int | None:
        """The log end by the headers of the last segment; None if they do not lead to the end of the file."""
        base = self._bases[-1]
        with self._fs.open(self._path_of(base, names.LOG_SUFFIX)) as file:
            size, end, position = file.size(), base, 0
            for found in HeaderScan(file, 0, size):
                end, position = found.header.next_offset, found.end
        return end if position == size else None

    # --- Segments -----------------------------------------------------------------------------------------------------

    def _check_segment(self, base: int, following: int | None) -> None:
        log_path = self._path_of(base, names.LOG_SUFFIX)
        size = self._fs.stat(log_path).size
        self._progress(log_path, size)
        counts = self.out.counts
        counts.segments += 1
        counts.bytes += size
        is_last = following is None
        checksums = self._checksum_of(base)
        if checksums is not None:
            self._checksums[base] = checksums
            counts.covered += not is_last and not checksums.is_malformed
        elif not is_last:
            self.out.plan.cover.append(base)
        # Above the recovery point a start rebuilds the indexes, and a killed Kafka leaves them untrimmed.
        is_below_recovery_point = following is not None and following <= self._context.recovery_point
        self._has_whole_indexes[base] = self._context.is_clean or is_below_recovery_point
        is_live = not self._context.is_clean and (is_last or (self._context.is_adopted and not is_below_recovery_point))
        indexes = IndexCheck(self._fs, self._path, base, self._context, is_live=is_live)
        for found in indexes.batches(self._walk_segment(base, following)):
            counts.batches += 1
            counts.records += found.header.record_count
            self._epochs.add(base, found)
            self._transactions.add(base, found)
        findings, replacements = indexes.judge(size)
        self.out.findings += findings
        self.out.plan.replace += replacements

    def _walk_segment(self, base: int, following: int | None) -> Iterator[LocatedBatch | InvalidBytes]:
        if not self._context.deep:
            yield from self._walk.segment(base, following)
            return
        path = self._path_of(base, names.LOG_SUFFIX)
        with self._fs.open(path) as file:
            for found in self._walk.segment(base, following):
                if isinstance(found, LocatedBatch):
                    self._read_records(file, path, found)
                yield found

    def _read_records(self, file: File, path: str, found: LocatedBatch) -> None:
        header = found.header
        try:
            for _ in iter_records(header, file.pread(header.size, found.position)):
                pass
        except CorruptRecordError as error:
            what = f"the records of a batch with a valid checksum cannot be read: {error.message}"
            offsets = (header.base_offset, header.next_offset)
            self.out.add(Code.RECORDS_UNREADABLE, path, what, (found.position, found.end), offsets)

    def _checksum_of(self, base: int) -> _Checksums | None:
        if names.segment_file_name(base, names.CHECKSUM_SUFFIX) not in self._names:
            return None
        measured = checksum.measure_segment(self._fs, self._path, base)
        try:
            stored = checksum.read_segment_checksum(self._fs, self._path, base)
        except checksum.MalformedChecksumError as error:
            path = checksum.checksum_path(self._path, base)
            self.out.add(Code.CHECKSUM_FILE_WRONG, path, f"cannot be understood: {error}")
            return _Checksums(None, measured, is_malformed=True)
        is_outdated = stored not in {None, measured} and self._is_outdated(base, stored, measured.size)
        return _Checksums(None if is_outdated else stored, measured)

    def _is_outdated(self, base: int, stored: checksum.SegmentChecksum, size: int) -> bool:
        """Whether Kafka has replaced the segment since its checksum was stored. Adds a note if so."""
        context = self._context
        if not context.is_from_kafka or not is_checksum_stale(stored, base, size, context.compacted_before):
            return False
        what = "is older than its segment, which Kafka has replaced or shortened"
        self.out.add(Code.CHECKSUM_OUTDATED, checksum.checksum_path(self._path, base), what)
        return True

    # --- Damage and holes ---------------------------------------------------------------------------------------------

    @property
    def _end(self) -> int:
        """The offset after the last batch."""
        return self._walk.end or 0

    def _judge_damage(self, recorded: Sequence[DamagedRange]) -> None:
        """Report damage with valid batches after it, and holes; ``recorded`` ones are notes."""
        for lost, why in self._walk.damaged:
            self._judge_bytes(DamagedBytes(lost, why), recorded, Code.BATCH_DAMAGED)
        compacted_before = max(self._context.compacted_before, self.out.state.compacted_before)
        first = max(compacted_before, self._context.log_start)  # what lies below the log start has been deleted
        for found in self._walk.holes:
            if found.segment not in self._bases:
                continue  # at the end of the log, where ``_judge_ends`` reports it
            hole = replace(found, start_offset=max(found.start_offset, first))
            if hole.start_offset >= hole.end_offset:
                continue
            offsets = (hole.start_offset, hole.end_offset)
            path = self._path_of(hole.segment, names.LOG_SUFFIX)
            last = hole.end_offset - 1
            span = str(last) if last == hole.start_offset else f"{hole.start_offset} to {last}"
            what = f"offsets {span} are in no batch"
            if any(r.reason == "missing" and r.covers_offsets_of(hole) for r in recorded):
                self.out.add(Code.DAMAGE_KNOWN, path, what, None, offsets)
            else:
                if self._context.is_adopted:
                    what += f"; if Kafka compacted them away, {CLEANER_CHECKPOINT} does not say so"
                self.out.add(Code.OFFSETS_MISSING, path, what, None, offsets)
                self._record_damage(hole)

    def _damaged_ends(self) -> list[DamagedBytes]:
        """Damaged bytes at the end of the log, with an empty range of offsets, because theirs are only a guess."""
        return [
            DamagedBytes(replace(lost, end_offset=lost.start_offset), why)
            for lost, why in (*self._walk.tails, *self._walk.torn)
        ]

    def _judge_ends(self, recorded: Sequence[DamagedRange]) -> None:
        """Report damage and torn tails at the end, and an end that is too low; then set both ends in the counts."""
        context, end = self._context, self._end
        for damaged in self._walk.tails:
            self._judge_bytes(damaged, recorded, Code.TAIL_DAMAGED)
        for damaged in self._walk.torn:
            lost = damaged.range
            if context.is_clean:
                self._judge_bytes(damaged, recorded, Code.TAIL_DAMAGED)
            else:
                at = (lost.position, lost.end_position)
                path = self._path_of(lost.segment, names.LOG_SUFFIX)
                self.out.add(Code.TORN_TAIL, path, f"{damaged.why}; no valid batch follows", at)
        has_tail = any(lost.segment == self._bases[-1] for lost, _ in self._damaged_ends())
        held_end = max(context.recovery_point, self._held_end)
        if end < held_end and not has_tail:
            what = f"the log ends at offset {end}, but everything below {held_end} had been flushed to the disk"
            self.out.add(Code.LOG_TOO_SHORT, self._path, what, None, (end, held_end))
            self.out.plan.lower_recovery_point = end
            if self.out.state.held_end > end:
                self.out.state.held_end, self.out.plan.saves_state = end, True
        if end < context.log_start:
            what = f"the log ends at offset {end}, below its log start offset {context.log_start}: all of it is deleted"
            self.out.add(Code.LOG_START_BEYOND_END, self._path, what, None, (end, context.log_start))
        first = self._bases[0] if self._bases else 0
        self.out.counts.start_offset = min(max(first, context.log_start), end)
        self.out.counts.end_offset = end

    def _judge_bytes(self, damaged: DamagedBytes, recorded: Sequence[DamagedRange], code: Code) -> None:
        lost, why = damaged
        offsets = (lost.start_offset, lost.end_offset) if lost.start_offset < lost.end_offset else None
        is_known = any(known.covers_bytes_of(lost) for known in recorded)
        path, at = self._path_of(lost.segment, names.LOG_SUFFIX), (lost.position, lost.end_position)
        if is_known or self._has_left_the_log(lost.segment):
            self.out.add(Code.DAMAGE_KNOWN, path, why, at, offsets)
        else:
            self.out.add(code, path, why, at, offsets)
            self.out.plan.set_aside.append(lost)
            self._record_damage(lost)

    def _has_left_the_log(self, base_offset: int) -> bool:
        """Whether all offsets of a segment are below the log start, so that its files only wait to be removed."""
        following = bisect_right(self._bases, base_offset)
        return following < len(self._bases) and self._bases[following] <= self._context.log_start

    def _record_damage(self, lost: DamagedRange) -> None:
        self.out.state.damaged.append(lost)
        self.out.plan.saves_state = True

    def _judge_transactions(self) -> None:
        """Compare the transaction indexes, unless batches are damaged: then the markers that are gone are there."""
        if self._walk.damaged or self._walk.tails or self._walk.torn or self._walk.holes:
            return
        compacted_before = max(self._context.compacted_before, self.out.state.compacted_before)
        self._transactions.judge(
            self._names,
            self.out,
            compacted_before=compacted_before,
            is_clean=self._context.is_clean,
            is_checked=self._has_whole_indexes.__getitem__,
        )

    def _judge_checksums(self) -> None:
        damaged = {lost.segment for lost, _ in (*self._walk.damaged, *self._walk.tails, *self._walk.torn)}
        self.out.plan.cover = [base for base in self.out.plan.cover if base not in damaged]
        for base, checksums in self._checksums.items():
            stored, measured = checksums.stored, checksums.measured
            if stored == measured:
                continue
            path = checksum.checksum_path(self._path, base)
            if stored is not None and base not in damaged:
                if base == self._bases[-1] and stored.size != measured.size:
                    what = f"is for {stored.size} bytes, the active segment now has {measured.size}"
                    self.out.add(Code.CHECKSUM_FILE_WRONG, path, what)
                    self.out.plan.remove.append(path)
                else:
                    what = (
                        f"it has {measured.size} bytes and had {stored.size} when it was closed"
                        if stored.size != measured.size
                        else f"its checksum is {measured.crc:08x}, it was {stored.crc:08x} when the segment was closed;"
                        " every batch's own checksum is valid, so an offset or a leader epoch has changed"
                    )
                    self.out.add(Code.CHECKSUM_MISMATCH, self._path_of(base, names.LOG_SUFFIX), what)
                continue
            if stored is not None and not any(lost.segment == base for lost in self.out.plan.set_aside):
                self.out.add(Code.CHECKSUM_FILE_WRONG, path, "is for the log before its known damage")
            self.out.replace(path, checksum.encode_segment_checksum(measured), "written for the log as it is now")

    def _plan_lifting(self) -> None:
        """Plan to lift the read-only mark, if there is one and all other damage can be recorded."""
        if self.out.state.read_only is None:
            return
        damage = {finding.code for finding in self.out.findings if finding.severity == Severity.DAMAGE}
        if damage <= _REPAIRABLE_BEFORE_LIFTING:
            self.out.plan.rewrite = list(self._bases)  # all: after a failed fsync a recovery point proves nothing

    def _path_of(self, base: int, suffix: str) -> str:
        return f"{self._path}/{names.segment_file_name(base, suffix)}"
