"""Rolling: when, and for which reason, the active segment is closed and a new one begun.

There are two clocks. An append rolls by Kafka's rule: the batch's timestamp minus that of the segment's first batch.
The idle timer rolls by the wall time since the first append, so that the tail of an idle log is closed, too, and can be
compacted or expire; Kafka has no such timer. See "Rolling" in docs/STORAGE.md.
"""

from collections.abc import Sequence
from enum import StrEnum
from random import Random

from seglog_broker.config import TopicConfig
from seglog_broker.config.values import LONG_MAX
from seglog_broker.storage.log.log_files import LogSettings
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
