"""Rolling: when the active segment is closed and a new one begun, and why.

Two clocks are in play. An append rolls by the rule of Kafka: the batch's timestamp against that of the segment's first
batch. The idle timer rolls by wall time since the first append, so that the tail of a log that nobody writes to any
more is closed too, and can be compacted or expire; Kafka never does that. See "Rolling" in docs/STORAGE.md.
"""

from enum import StrEnum
from random import Random

from seglog_broker.config import TopicConfig
from seglog_broker.storage.log.log_files import LogSettings
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names


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
    """Milliseconds after which the next segment is too old: ``segment.ms``, less a random part of its jitter.

    The tail of a compacted topic must be closed before it can be compacted, hence ``max.compaction.lag.ms`` bounds it.
    """
    age = config.segment_ms
    if "compact" in config.cleanup_policy and config.max_compaction_lag_ms > 0:
        age = min(age, config.max_compaction_lag_ms)
    jitter = min(config.segment_jitter_ms, age)
    return age - (random.randrange(jitter) if jitter else 0)


class RollPolicy:
    """Decides, for one log, whether a batch goes to a new segment.

    ``segment_ms_max`` is the age (ms) at which the active segment is closed; ``unfinished`` the reason of a roll that
    was begun and could not be ended: its files are there in part, so nothing more goes before them.
    """

    __slots__ = ("_random", "_settings", "segment_ms_max", "unfinished")

    def __init__(self, settings: LogSettings, random: Random) -> None:
        self.segment_ms_max = 0
        self.unfinished: RollReason | None = None
        self._settings = settings
        self._random = random
        self.draw_age()

    def draw_age(self) -> None:
        """Draw another age: for each segment that is begun, and where the configuration has changed."""
        self.segment_ms_max = draw_segment_age(self._settings.config, self._random)

    def reason(
        self, active: Segment, size: int, last_offset: int, max_timestamp: int, now: int, first_append_ms: int | None
    ) -> RollReason | None:
        """Why a batch of ``size`` bytes goes to a new segment, None when it does not.

        ``first_append_ms`` is when the active segment was first appended to, as far as that is known. Source: Kafka's
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
