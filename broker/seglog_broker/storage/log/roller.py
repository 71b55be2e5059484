"""Rolling: when, and why, the active segment is closed and another begun; and the active segment after a start.

There are two clocks. An append rolls by Kafka's rule: the batch's timestamp minus that of the segment's first batch.
The idle timer rolls by the wall time since the first append, so that the tail of an idle log is closed, too, and can be
compacted or expire; Kafka has no such timer. See "Rolling" in docs/STORAGE.md.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from seglog_broker.config import TopicConfig
from seglog_broker.config.values import LONG_MAX
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE
from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_broker.storage.log.flusher import LogFlusher
from seglog_broker.storage.log.log_files import LogFiles, LogOffsets, LogSettings
from seglog_broker.storage.log.partition_state import StateFile
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.producers.producer_snapshots import ProducerSnapshots
from seglog_broker.storage.segment.checksum import NO_BYTES, SegmentChecksum
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names
from seglog_protocol.record_batch import LOG_OVERHEAD, BatchHeader


class RollReason(StrEnum):
    """Why a segment was closed and a new one begun."""

    SIZE = "size"
    TIME = "time"
    OFFSET_INDEX_FULL = "offset index full"
    TIME_INDEX_FULL = "time index full"
    OFFSET_RANGE = "offset range"
    IDLE = "idle timer"
    RETENTION = "retention"


def draw_segment_age(config: TopicConfig, random: Random) -> int:
    """The age (ms) at which the next segment is rolled: ``segment.ms``, less a random part of its jitter.

    A compacted topic's tail can be compacted only when it is closed, hence ``max.compaction.lag.ms`` bounds the age.
    """
    age = config.segment_ms
    if "compact" in config.cleanup_policy and config.max_compaction_lag_ms > 0:
        age = min(age, config.max_compaction_lag_ms)
    jitter = min(config.segment_jitter_ms, age)
    return age - (random.randrange(jitter) if jitter else 0)


class RollPolicy:
    """Decides, for one log, whether a batch goes to a new segment, and when the idle timer begins one.

    ``segment_ms_max`` is the age (ms) at which the active segment is closed; ``unfinished`` the reason of a roll that
    failed halfway: some of its files exist, so nothing more is appended before them.
    """

    def __init__(self, settings: LogSettings, random: Random) -> None:
        self.segment_ms_max = 0
        self.unfinished: RollReason | None = None
        self._settings = settings
        self._random = random
        self.draw_age()

    def draw_age(self) -> None:
        """Draw another age: for each new segment, and after a change of the configuration."""
        self.segment_ms_max = draw_segment_age(self._settings.config, self._random)

    def reason(
        self, active: Segment, size: int, last_offset: int, max_timestamp: int, now: int, first_append_ms: int | None
    ) -> RollReason | None:
        """The reason for appending a batch of ``size`` bytes to a new segment, None if there is none.

        ``first_append_ms`` is the time of the active segment's first append, None if unknown. Source: Kafka's
        LogSegment.shouldRoll.
        """
        if self.unfinished is not None:
            return self.unfinished
        if active.size > self._settings.config.segment_bytes - size:
            return RollReason.SIZE
        if active.size > 0:
            first = active.first_timestamp
            waited = max_timestamp - first if first >= 0 else now - (first_append_ms or now)
            if waited > self.segment_ms_max:
                return RollReason.TIME
        if active.offset_index.is_full:
            return RollReason.OFFSET_INDEX_FULL
        if active.time_index.is_full:
            return RollReason.TIME_INDEX_FULL
        if last_offset - active.base_offset > names.RELATIVE_OFFSET_MAX:
            return RollReason.OFFSET_RANGE
        return None

    def count_without_roll(self, active: Segment, batches: Sequence[BatchHeader], base_offset: int) -> int:
        """How many of ``batches`` fit the active segment, one behind the other from ``base_offset`` on, by ``reason``.

        The first of them is known to fit; in an empty segment it is the only one.
        """
        if active.size == 0:
            return 1
        batches = batches[: min(active.offset_index.room, active.time_index.room)]  # each may add an entry to both
        bytes_max = self._settings.config.segment_bytes - active.size
        first = active.first_timestamp
        timestamp_max = first + self.segment_ms_max if first >= 0 else LONG_MAX
        offset_max = min(active.base_offset + names.RELATIVE_OFFSET_MAX, names.OFFSET_MAX - 1)
        last_offset = base_offset - 1
        for count, header in enumerate(batches):
            bytes_max -= header.batch_length + LOG_OVERHEAD
            last_offset += header.last_offset_delta + 1
            if count and (bytes_max < 0 or header.max_timestamp > timestamp_max or last_offset > offset_max):
                return count
        return len(batches)


@dataclass(slots=True, eq=False)
class SegmentRoller:
    """Begins new segments of one log; ``policy`` decides when a batch needs one."""

    _directory: str
    _clock: Clock
    _offsets: LogOffsets
    _segments: SegmentList
    policy: RollPolicy
    _state_file: StateFile
    _snapshots: ProducerSnapshots
    _flusher: LogFlusher

    def begin(self, base_offset: int) -> None:
        """Add a new active segment; the former one is not changed. OSError: nothing was added."""
        self._segments.append(self._created(base_offset))
        self._flusher.mark_directory_dirty()
        self.policy.draw_age()

    def _created(self, base_offset: int) -> Segment:
        new = self._segments.make(base_offset, ())
        try:
            new.create()
        except OSError:
            new.release()
            raise
        return new

    def roll(self, base_offset: int, reason: RollReason) -> bool:
        """Close the active segment and begin one at ``base_offset``; False when there is nothing to close.

        OSError leaves the old segment active and the log as it was.
        """
        old = self._segments.active
        if old.size == 0 and old.base_offset == base_offset:
            return False  # its index is too small for a single entry: another segment would not help
        new = self._created(base_offset)  # first: if there is no room, the old segment stays active
        try:
            old.close()
        except OSError:
            self._flusher.mark_indexes_unsaved()  # derived data: those in memory are used until they are saved
        try:
            old.checksum.save()
        except OSError:
            self._flusher.mark_indexes_unsaved()
        self._segments.append(new)
        self._flusher.mark_directory_dirty()
        self.policy.draw_age()
        with suppress(OSError):  # without it a start has more to read
            self._snapshots.take(base_offset, sync=False)
        self.policy.unfinished = None
        state = self._state_file.state
        state.note_roll(old.base_offset, reason, self._clock.now_ms())
        state.first_append_ms = None
        self._state_file.mark_dirty()
        return True

    def roll_or_note(self, base_offset: int, reason: RollReason) -> bool:
        """As ``roll``; StorageError when the new segment could not be begun. The next append tries again.

        The new segment's file may exist already, and a start would append to it, so the roll must be completed.
        """
        try:
            return self.roll(base_offset, reason)
        except OSError as error:
            self.policy.unfinished = reason
            raise storage_error(
                f"a new segment could not be begun in {self._directory}: {why(error)}", error
            ) from error

    def roll_if_idle(self) -> bool:
        """Close the active segment if the wall time since its first append exceeds its age; return whether it did.

        Raises StorageError when the new segment could not be begun; the next append tries again.
        """
        active, state = self._segments.active, self._state_file.state
        if not active.size:
            return False
        now = self._clock.now_ms()
        first = state.first_append_ms
        if first is None or first > now:  # unknown, or the clock was set back: count from now
            state.first_append_ms, state.active_segment = now, active.base_offset
            self._state_file.mark_dirty()
            return False
        due = self.idle_roll_ms
        if state.read_only is not None or due is None or now <= due:
            return False
        return self.roll_or_note(self._offsets.end, RollReason.IDLE)

    @property
    def idle_roll_ms(self) -> int | None:
        """The wall time (ms) at which the idle timer closes the active segment; None if it is empty, or for never."""
        first, age = self._state_file.state.first_append_ms, self.policy.segment_ms_max
        if not self._segments.active.size or first is None or first + age > LONG_MAX:
            return None
        return first + age


CHECKSUM_CATCH_UP_BYTES: Final = 16 * 1024 * 1024
"""At most so many bytes are read at a clean start for an unknown checksum; the scrub covers a larger segment."""


def restore_checksum(
    files: LogFiles,
    segments: SegmentList,
    state_file: StateFile,
    *,
    bytes_max: int = CHECKSUM_CATCH_UP_BYTES,
    is_sound: bool = True,
) -> None:
    """Continue the active segment's checksum from its last known size, if at most ``bytes_max`` must be read.

    Unless ``is_sound``, which says that the bytes are those that were counted, it starts at zero. A checksum of bytes
    that were cut off or have changed is removed from the disk before anything is appended.
    """
    active, known = segments.active, state_file.state.checksum
    if active.checksum.running is not None:
        return  # the segment is new
    if known is not None and known.segment != active.base_offset:
        known = None
    so_far = NO_BYTES
    for found in (active.checksum.read(), known and SegmentChecksum(known.size, known.crc)):
        if found is not None and is_sound and so_far.size < found.size <= active.size:
            so_far = found
    if active.checksum.drop():
        files.fs.sync_directory(files.directory)
    if active.size - so_far.size <= bytes_max:
        active.checksum.begin(active.log.measure(so_far))
    if known is not None and so_far.size < known.size:
        state_file.state.checksum = None
        state_file.save()


def restore_append_times(files: LogFiles, segments: SegmentList, state_file: StateFile, *, clean: bool) -> None:
    """Restore the times of the active segment's first and last append; after a crash the first is an estimate.

    The estimate is its first timestamp, limited to the time between the segment's creation and its last write.
    """
    state, active = state_file.state, segments.active
    closed = set(segments.bases[:-1])
    state.rolls = {base: roll for base, roll in state.rolls.items() if base in closed}
    if not clean:
        state.last_append_ms = None  # the file's modification time is more recent
    if not active.size:
        state.first_append_ms = None  # what was appended is gone
    elif state.active_segment != active.base_offset or state.first_append_ms is None:
        begun = f"{files.directory}/{PARTITION_METADATA_FILE}"
        not_before = segments[-2].log.modified_ms if len(segments) > 1 else files.fs.stat(begun).mtime_ms
        state.first_append_ms = min(max(not_before, active.first_timestamp), active.log.modified_ms)
        state.active_segment = active.base_offset
        state_file.mark_dirty()
