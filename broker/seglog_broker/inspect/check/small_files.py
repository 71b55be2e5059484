"""The check of a partition's small files: whether they are well formed, and whether they agree with the log."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from seglog_broker.inspect.check.plan import CheckResult, PartitionContext
from seglog_broker.inspect.dump.small_files import Reader, read_epochs, read_partition_metadata, read_snapshot
from seglog_broker.inspect.facts import Damage
from seglog_broker.inspect.findings import Code, Severity
from seglog_broker.inspect.log_walk import DamagedBytes
from seglog_broker.storage.directory.kafka_signs import KafkaOffsets, state_after_kafka
from seglog_broker.storage.io.filenames import (
    PARTITION_METADATA_FILE,
    decode_partition_metadata,
    encode_partition_metadata,
)
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.io.small_files import UNREADABLE_MARK
from seglog_broker.storage.log.end_marks import bases_without_log
from seglog_broker.storage.log.leader_epochs import EpochEntry, LeaderEpochs
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, MalformedStateError, PartitionState
from seglog_broker.storage.log.recovery import SET_ASIDE_SUFFIX
from seglog_broker.storage.log.truncation import records_gone
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT, encode_checkpoint
from seglog_protocol.header_scan import LocatedBatch

LEFT_OVER_SUFFIXES: Final = {
    names.DELETED_SUFFIX: "is deleted, a start removes it",
    names.CLEANED_SUFFIX: "is output of an unfinished compaction, a start removes it",
    names.SWAP_SUFFIX: "is output of a compaction, a start puts it in the place of its sources",
    names.TEMPORARY_SUFFIX: "is an unfinished replacement of a file, a start removes it",
}
"""Files that ``tidy_directory`` removes or renames, and what a start does with each."""

_OWN_FILES: Final = frozenset({LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA_FILE, PARTITION_STATE_FILE})


class EpochRun(NamedTuple):
    """Consecutive batches of one epoch; the first of them is at ``position`` of ``segment``."""

    epoch: int
    start_offset: int
    last_offset: int
    segment: int
    position: int
    end_position: int


class EpochsSeen:
    """Collects the changes of the epoch from the batches in order."""

    def __init__(self) -> None:
        self.runs: list[EpochRun] = []

    def add(self, segment: int, found: LocatedBatch) -> None:
        """Add the next batch."""
        header = found.header
        last = self.runs[-1] if self.runs else None
        if last is not None and last.epoch == header.leader_epoch:
            self.runs[-1] = last._replace(last_offset=header.last_offset)
        else:
            place = (segment, found.position, found.end)
            self.runs.append(EpochRun(header.leader_epoch, header.base_offset, header.last_offset, *place))

    def entries(self) -> list[EpochEntry] | None:
        """The checkpoint entries of these batches; None when the batches contradict each other."""
        found: list[EpochEntry] = []
        for run in self.runs:
            if run.epoch < 0 or (found and run.epoch <= found[-1].epoch):
                return None
            found.append(EpochEntry(run.epoch, run.start_offset))
        return found

    def contradicting(self, known: LeaderEpochs, log_start: int) -> list[EpochRun]:
        """The runs whose epoch differs from that of ``known`` for their offsets, from ``log_start`` on.

        ``known`` has every epoch: the checkpoint is written and synced before the first batch of an epoch.
        """
        first = max(log_start, known.entries[0].start_offset) if known.entries else log_start
        return [
            run
            for run in self.runs
            if run.last_offset >= first
            and {run.epoch} != {known.epoch_for(max(run.start_offset, first)), known.epoch_for(run.last_offset)}
        ]


@dataclass(slots=True)
class SmallFiles:
    """Checks the small files of one partition. Adds findings and repairs to ``_out``. Call ``check_state`` first."""

    _fs: FileSystem
    _path: str
    _names: Sequence[str]
    _bases: Sequence[int]
    _context: PartitionContext
    _out: CheckResult
    recorded: list[DamagedRange] = field(default_factory=list)  # damaged ranges in the partition's state
    _read_only: str | None = None
    _is_first_gone_reported: bool = False
    _state: PartitionState = field(default_factory=PartitionState)

    # --- The partition's state ----------------------------------------------------------------------------------------

    def check_state(self) -> None:
        """Check ``seglog-partition.json``. The plan gets a copy of its content, to which damage can be added."""
        try:
            state = PartitionState.read(self._fs, self._path)
        except MalformedStateError as error:
            what = f"cannot be understood ({error}), and a start takes it for absent"
            self._out.add(Code.STATE_MALFORMED, self._path_of(PARTITION_STATE_FILE), what)
            state = PartitionState()
            self._out.plan.saves_state = True
        if self._context.is_from_kafka:  # as a start does
            context = self._context
            offsets = KafkaOffsets(context.recovery_point, context.log_start, context.compacted_before)
            state = state_after_kafka(self._fs, self._path, state, offsets)
        self._state = state
        self.recorded = list(state.damaged)
        self._read_only = state.read_only
        self._out.plan.state = replace(state, damaged=list(state.damaged))

    def check_log_start(self, log_start: int) -> None:
        """Set the log start offset, and check that no records after it are missing at the start of the log."""
        self._context = replace(self._context, log_start=log_start)
        first = self._bases[0]
        stored = self._state
        if self._context.is_own_stop and stored.stopped is not None:
            stored = replace(stored, log_start=stored.stopped.log_start)
        gone = records_gone(log_start, stored, (), first)
        if gone is None:
            return
        what = f"the log begins at offset {first}, by {gone.source} it began at {gone.start}"
        offsets = (gone.start, first)
        self._out.add(Code.FIRST_SEGMENT_GONE, self._path, what, offsets=offsets)
        state = self._out.state
        state.log_start, state.log_start_reason = first, "missing"
        state.damaged = [damage for damage in state.damaged if damage.end_offset > first]
        if state.stopped is not None:
            state.stopped = state.stopped._replace(log_start=first)
        self._out.plan.saves_state = True
        self._is_first_gone_reported = True

    def check_read_only_mark(self) -> None:
        """Report the read-only mark that a failed write or fsync left."""
        if self._read_only is not None:
            what = f"the partition is marked read-only: {self._read_only}"
            self._out.add(Code.READ_ONLY, self._path_of(PARTITION_STATE_FILE), what)

    def check_damaged_ranges(self, ranges: Iterable[DamagedBytes], holes: Sequence[DamagedRange], end: int) -> None:
        """Check that each recorded range is still unreadable."""
        bad = [lost for lost, _ in ranges]
        for recorded in self.recorded:
            if self._bases and recorded.end_offset <= self._bases[0]:
                continue  # its segment has been deleted since
            if recorded.reason == "missing":
                is_true = recorded.start_offset >= end or any(hole.covers_offsets_of(recorded) for hole in holes)
            else:
                is_true = any(_is_bytes_within(recorded, lost) for lost in bad)
            if not is_true:
                self._out.add(
                    Code.RANGE_UNTRUE,
                    self._path_of(PARTITION_STATE_FILE),
                    f"says that offsets {recorded.start_offset} to {recorded.end_offset - 1} are {recorded.reason}, at "
                    f"{recorded.position} of segment {recorded.segment}, but there are batches",
                    offsets=(recorded.start_offset, recorded.end_offset),
                )
                self._out.state.damaged.remove(recorded)
                self._out.plan.saves_state = True

    # --- Epochs -------------------------------------------------------------------------------------------------------

    def check_epochs(self, seen: EpochsSeen) -> None:
        """Compare ``leader-epoch-checkpoint`` with the epochs of the batches."""
        path = self._path_of(LEADER_EPOCH_CHECKPOINT)
        checkpoint = LeaderEpochs(self._fs, self._path)
        checkpoint.load()
        problem = self._problem(LEADER_EPOCH_CHECKPOINT, read_epochs)
        if problem is None and read_file(self._fs, path) not in (b"", encode_checkpoint(checkpoint.entries)):
            problem = "is not written as Kafka writes it"
        first_base = self._bases[0] if self._bases else 0
        if problem is not None:
            self._out.add(Code.EPOCHS_MALFORMED, path, problem)
            entries = self._epochs_of_state() or seen.entries()
            content = encode_checkpoint(checkpoint.entries if entries is None else entries)
            self._out.replace(path, content, "rewritten from the batches")
            return
        if (stored := self._epochs_that_contradict(checkpoint)) is not None:
            what = f"says {_epochs(checkpoint.entries)}, and seglog had written {_epochs(stored)}"
            self._out.add(Code.EPOCHS_WRONG, path, what)
            self._out.replace(path, encode_checkpoint(stored), "written as seglog had left it")
            checkpoint.entries = stored
        if not checkpoint.entries:
            if seen.runs:
                self._out.add(Code.EPOCHS_EMPTY, path, "is empty, and there are batches")
        else:
            for run in seen.contradicting(checkpoint, self._context.log_start):
                wanted = checkpoint.epoch_for(run.start_offset)
                self._out.add(
                    Code.EPOCH_WRONG,
                    self._path_of(names.segment_file_name(run.segment, names.LOG_SUFFIX)),
                    f"the batch with offset {run.start_offset} has leader epoch {run.epoch}, "
                    f"the checkpoint has {wanted} there",
                    (run.position, run.end_position),
                    (run.start_offset, run.last_offset + 1),
                )
            if checkpoint.entries[0].start_offset < first_base:
                self._report_first_segment_gone(path, checkpoint, first_base)

    def _epochs_that_contradict(self, checkpoint: LeaderEpochs) -> list[EpochEntry] | None:
        """The epochs in the partition's state if they contradict the checkpoint, which has no checksum; else None.

        A running broker writes the checkpoint first, so after a kill it may have more epochs. An epoch never falls.
        """
        stored = self._epochs_of_state()
        if not stored or not checkpoint.entries or checkpoint.entries == stored:
            return None
        if self._context.is_own_stop:
            return stored
        epochs, latest = {entry.epoch for entry in stored}, stored[-1].epoch
        is_possible = checkpoint.latest >= latest and all(
            e.epoch > latest or e.epoch in epochs for e in checkpoint.entries
        )
        return None if is_possible else stored

    def _epochs_of_state(self) -> list[EpochEntry]:
        """The epochs in the partition's state; none if Kafka used the directory since."""
        if self._context.is_from_kafka:
            return []
        return [EpochEntry(*entry) for entry in self._state.epochs]

    def _report_first_segment_gone(self, path: str, checkpoint: LeaderEpochs, first_base: int) -> None:
        """Report a first epoch that begins below the first segment: deleting segments would have raised it."""
        start = checkpoint.entries[0].start_offset
        what = f"the log begins at offset {first_base}, by {LEADER_EPOCH_CHECKPOINT} it began at {start}"
        severity = Severity.DAMAGE if self._context.is_clean else Severity.NOTE
        if not self._is_first_gone_reported:
            self._out.add(Code.FIRST_SEGMENT_GONE, self._path, what, None, (start, first_base), severity)
        checkpoint.truncate_from_start(first_base)
        self._out.state.epochs = [(entry.epoch, entry.start_offset) for entry in checkpoint.entries]
        self._out.plan.saves_state = True
        self._out.replace(path, encode_checkpoint(checkpoint.entries), f"begins at {first_base}")

    # --- Identity, transactions, names --------------------------------------------------------------------------------

    def check_topic_id(self) -> None:
        """Compare ``partition.metadata`` with the registry."""
        path = self._path_of(PARTITION_METADATA_FILE)
        wanted = self._context.topic_id
        problem = self._problem(PARTITION_METADATA_FILE, read_partition_metadata)
        if problem is not None:
            self._out.add(Code.TOPIC_ID_MISSING, path, problem)
            if wanted is not None:
                self._out.replace(path, encode_partition_metadata(wanted), f"has topic id {wanted}, as the registry")
            return
        content = read_file(self._fs, path)
        found = decode_partition_metadata(content)
        whole = encode_partition_metadata(found)  # the whole text follows from the id: every flipped bit is found
        if content != whole:
            self._out.add(Code.METADATA_WRONG, path, "is not written as Kafka writes it")
            self._out.replace(path, whole, "written as Kafka writes it")
        if wanted not in {None, found} and not self._context.is_from_kafka:
            self._out.add(Code.TOPIC_ID_WRONG, path, f"names topic id {found}, the registry has {wanted}")

    def check_snapshots(self) -> None:
        """Check the producer snapshots."""
        for name in self._names:
            parsed = names.parse_segment_file_name(name)
            if parsed is None or parsed[1] != names.SNAPSHOT_SUFFIX:
                continue
            problem = self._problem(name, read_snapshot)
            if problem is not None:
                self._out.add(Code.SNAPSHOT_WRONG, self._path_of(name), problem)
                self._out.plan.remove.append(self._path_of(name))

    def check_names(self) -> None:
        """Report files that do not belong to a segment, and segments that are gone but for their index files."""
        gone = [] if self._context.is_clean else bases_without_log(self._names)
        for base in gone:
            what = "is gone, but its index files are there: some of its records may have been on the disk"
            path = self._path_of(names.segment_file_name(base, names.LOG_SUFFIX))
            self._out.add(Code.SEGMENTS_GONE, path, what)
        without_log: dict[int, list[str]] = {}  # base offset -> suffixes
        for name in self._names:
            path = self._path_of(name)
            left_over = next((what for suffix, what in LEFT_OVER_SUFFIXES.items() if name.endswith(suffix)), None)
            parsed = names.parse_segment_file_name(name)
            if left_over is not None:
                self._out.add(Code.LEFT_OVER, path, left_over)
            elif parsed is not None and parsed[1].startswith(SET_ASIDE_SUFFIX):
                self._out.add(Code.SET_ASIDE, path, "is a copy of damaged bytes")
            elif parsed is not None and parsed[1] in names.SEGMENT_SUFFIXES:
                if parsed[0] in gone:
                    self._out.plan.remove.append(path)
                elif parsed[0] not in self._bases:
                    without_log.setdefault(parsed[0], []).append(parsed[1])
            elif (
                name not in _OWN_FILES
                and UNREADABLE_MARK not in name
                and (parsed is None or parsed[1] != names.SNAPSHOT_SUFFIX)
            ):
                self._out.add(Code.UNKNOWN_FILE, path, "is not a file of seglog or Kafka")
        for base, suffixes in without_log.items():
            path = self._path_of(names.segment_file_name(base, names.LOG_SUFFIX))
            self._out.add(Code.LEFT_OVER, path, f"is gone, and left {', '.join(suffixes)}, which a start removes")

    def _problem(self, name: str, reader: Reader) -> str | None:
        """The first problem of a file by itself, as a dump reports it; None if there is none."""
        if name not in self._names:
            return "is not there"
        facts = reader(self._fs, self._path_of(name))
        return next((fact.reason for fact in facts if isinstance(fact, Damage)), None)

    def _path_of(self, name: str) -> str:
        return f"{self._path}/{name}"


def _epochs(entries: Iterable[EpochEntry]) -> str:
    return ", ".join(f"epoch {entry.epoch} from {entry.start_offset}" for entry in entries)


def _is_bytes_within(known: DamagedRange, lost: DamagedRange) -> bool:
    """Whether ``lost`` includes all of ``known``; a ``lost`` with an empty range of offsets is at the log's end."""
    if lost.start_offset == lost.end_offset:
        return lost.covers_bytes_of(known) and lost.start_offset <= known.start_offset
    return lost.covers_bytes_of(known) and lost.covers_offsets_of(known)
