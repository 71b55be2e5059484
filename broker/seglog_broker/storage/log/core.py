"""What every part of a partition's log shares: its segments, its offsets, and what of it is not on the disk yet."""

from collections.abc import Sequence
from random import Random
from typing import Final

from seglog_broker.config import TopicConfig
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.deleted_segments import DoomedSegments
from seglog_broker.storage.log.leader_epochs import EpochEntry, LeaderEpochs
from seglog_broker.storage.log.partition_state import PartitionState, StateWrite, StoppedAt
from seglog_broker.storage.log.roll_policy import RollReason
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.producers.producer_snapshots import ProducerSnapshots
from seglog_broker.storage.producers.producer_state import ProducerState
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import StorageError

PRODUCER_EXPIRATION_MS: Final = 86_400_000
"""The default of ``producer.id.expiration.ms``."""


class LogCore:
    """Segments in offset order, the last one active. The parts build on this; ``PartitionLog`` is the whole."""

    def __init__(
        self,
        fs: FileSystem,
        handles: HandlePool,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        *,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        random: Random | None = None,
    ) -> None:
        self.directory = directory
        self.config = config
        self.epochs = LeaderEpochs(fs, directory)
        self.leader_epoch = 0
        self.log_start_offset = 0
        self.proven_start_offset = 0  # the log start that the disk proves, for the checkpoint
        self.log_end_offset = 0
        self.durable_end_offset = 0
        self.first_dirty_offset: int | None = None  # where the last round of compaction ended, None before the first
        self.state = PartitionState()
        self.state_problem: str | None = None  # why its file was not taken, or None
        self.producers = ProducerState(expiration_ms=producer_expiration_ms)
        self._epochs_of_stop: list[EpochEntry] = []  # Kafka's file as a start finds it, where a clean stop wrote it
        self._stopped: StoppedAt | None = None  # what a start found of the last stop in order
        self._snapshots = ProducerSnapshots(fs, directory, self.producers)
        self._fs = fs
        self._handles = handles
        self._looked_into: set[tuple[int, str]] = set()  # what find_cleanable has done, when it goes in turns
        self._clock = clock
        self._random = random or Random()  # noqa: S311 - spreads rolls, protects nothing
        self._segments = SegmentList(fs, directory, self._segment)
        self._segment_ms_max = 0
        self._directory_is_dirty = False
        self._is_flushing = False
        self._unfinished_roll: RollReason | None = None  # its files are there in part; nothing more goes before them
        self._state_unsaved = False  # something in ``state`` is newer than its file; the next checkpoint writes it
        self._state_is_urgent = False  # and is not to wait that long
        self._start_being_saved = 0  # and what that write says of the log start
        self._state_being_saved: StateWrite | None = None
        self._proven: dict[int, int] = {}  # by offset asked for: where a batch begins that looked odd and is sound
        self._leaving: list[DoomedSegments] = []  # out of the log; some may still be found by a start
        self._indexes_unsaved = False  # of a closed segment: a write failed, the next checkpoint tries again

    @property
    def segments(self) -> SegmentList:
        """In offset order; the last one is active. Only the log itself changes the list."""
        return self._segments

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self._segments.last

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.total_size

    @property
    def _bases(self) -> list[int]:
        """Base offsets of the segments."""
        return self._segments.bases

    def _segment(self, base_offset: int, existing: Sequence[str]) -> Segment:
        return Segment(
            self._fs,
            self._handles,
            self.directory,
            base_offset,
            index_bytes_max=self.config.segment_index_bytes,
            index_interval=self.config.index_interval_bytes,
            existing=existing,
        )

    @staticmethod
    def _unreadable(segment: Segment, error: OSError) -> StorageError:
        return storage_error(f"{segment.log_path} could not be read: {why(error)}", error)
