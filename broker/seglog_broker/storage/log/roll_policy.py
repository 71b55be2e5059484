"""Rolling: when the active segment is closed and a new one begun, and why.

Two clocks are in play. An append rolls by the rule of Kafka: the batch's timestamp against that of the segment's first
batch. The idle timer rolls by wall time since the first append, so that the tail of a log that nobody writes to any
more is closed too, and can be compacted or expire; Kafka never does that. Source: storage-format §5.
"""

from enum import StrEnum
from random import Random

from seglog_broker.config import TopicConfig


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
