"""The parts of one log, which know each other, and the report about loading it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.log.damage_map import DamageFinder, DamageMap
from seglog_broker.storage.log.flusher import LogFlusher
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.log.log_files import LogFiles, LogOffsets, LogSettings
from seglog_broker.storage.log.partition_state import PartitionState, StateFile
from seglog_broker.storage.log.recovery import RecoveryReport
from seglog_broker.storage.log.roller import RollPolicy, SegmentRoller
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.log.transaction_indexes import TransactionIndexes
from seglog_broker.storage.producers.producer_snapshots import ProducerLoadReport, ProducerSnapshots
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_broker.storage.segment.segment import Segment


@dataclass(frozen=True, slots=True)
class OpenReport:
    """The result of loading a partition, for the log of the broker."""

    recovery: RecoveryReport | None
    rebuilt_indexes: int
    problems: Sequence[str]  # small files that were ignored or contradicted, a sentence each
    producers: ProducerLoadReport


class LoadedLog:
    """The parts of one log, for ``PartitionLog`` and the parts that it makes; ``loader.load`` fills them.

    ``leader_epoch`` and ``report`` are set when it is loaded.
    """

    def __init__(
        self,
        files: LogFiles,
        clock: Clock,
        settings: LogSettings,
        state: PartitionState,
        *,
        first_dirty_offset: int | None,
        producer_expiration_ms: int,
        random: Random,
    ) -> None:
        self.files = files
        self.clock = clock
        self.settings = settings
        self.first_dirty_offset = first_dirty_offset
        self.leader_epoch = 0
        self.report: OpenReport
        self.offsets = LogOffsets()
        self.damage = DamageMap(state.damaged)
        self.epochs = LeaderEpochs(files.fs, files.directory)
        # Not a method of an object, which the list would keep in memory for as long as the log is open.
        self.segments = SegmentList(files.fs, files.directory, partial(_make_segment, files, settings, self.damage))
        self.state_file = StateFile(files, state, self.offsets, self.epochs, self.segments)
        self.finder = DamageFinder(self.damage, self.state_file, files.handles.only_warm)
        self.producers = ProducerState(expiration_ms=producer_expiration_ms)
        self.snapshots = ProducerSnapshots(files.fs, files.directory, self.producers)
        self.transactions = TransactionIndexes(files, state, self.segments, self.snapshots)
        self.flusher = LogFlusher(
            files, self.offsets, self.segments, self.state_file, self.snapshots, self.transactions
        )
        self.roller = SegmentRoller(
            files.directory,
            clock,
            self.offsets,
            self.segments,
            RollPolicy(settings, random),
            self.state_file,
            self.snapshots,
            self.flusher,
        )

    def release(self) -> None:
        """Close every file without writing anything."""
        self.release_writers()
        self.files.handles.forget_in(self.files.directory)

    def release_writers(self) -> None:
        """Close the files outside of the handle pool: the caller calls ``HandlePool.forget_in``."""
        for segment in self.segments.known():
            segment.release()


def _make_segment(
    files: LogFiles, settings: LogSettings, damage: DamageMap, base_offset: int, existing: Sequence[str]
) -> Segment:
    """The segment at ``base_offset``, as the configuration in force wants it; ``existing`` are the files it has."""
    return Segment(
        files.fs,
        files.handles,
        files.directory,
        base_offset,
        index_bytes_max=settings.config.segment_index_bytes,
        index_interval=settings.config.index_interval_bytes,
        existing=existing,
        damaged=damage.list_for(base_offset),
    )
