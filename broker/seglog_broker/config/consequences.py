"""Warnings about valid values with consequences that are seldom wanted, such as an index that is full too early.

Kafka accepts nearly all of them silently. They are checked together with the rest of the topic's configuration, and
only where they were set: there is no warning about a default.
"""

from collections.abc import Mapping
from typing import Final

from seglog_broker.config.keys import Setting
from seglog_broker.config.topic_config import SEGMENT_BYTES_MIN_KAFKA, TopicConfig
from seglog_protocol.record_batch import HEADER_SIZE
from seglog_protocol.records import RECORD_SIZE_MIN
from seglog_protocol.segment_files import OFFSET_ENTRY, TIME_ENTRY

BATCH_BYTES_MIN: Final = HEADER_SIZE + 7
"""A batch with one record that has neither key, value nor headers."""

BATCH_BYTES_USUAL: Final = 1024
"""A limit below this is hardly intended: producers make batches of many times this size."""

RETENTION_MS_USUAL: Final = 60_000
"""A shorter retention is hardly intended: the number is mostly one of seconds, hours or days."""


def consequences(written: Mapping[str, Setting], config: TopicConfig) -> list[str]:
    """Warnings about the settings in ``written`` (by topic key); ``config`` is the topic's whole configuration."""
    deletes, limit = "delete" in config.cleanup_policy, config.max_message_bytes
    keeps_less = deletes and 0 <= config.retention_bytes < config.segment_bytes
    whole = "whole segments are deleted, and never the one being written, so a partition grows to about the sum of both"
    found: dict[str, str] = {}
    for key, is_so, what in (
        (
            "segment.bytes",
            config.segment_bytes < SEGMENT_BYTES_MIN_KAFKA,
            f"works here, but Apache Kafka 4 would refuse it: its smallest value is {SEGMENT_BYTES_MIN_KAFKA}",
        ),
        (
            "segment.bytes",
            keeps_less and "retention.bytes" not in written,
            f"is more than retention.bytes = {config.retention_bytes}: {whole}",
        ),
        ("retention.bytes", config.retention_bytes < -1, "sets no limit, as -1 does"),
        ("retention.bytes", keeps_less, f"is less than segment.bytes = {config.segment_bytes}: {whole}"),
        (
            "retention.ms",
            deletes and 0 <= config.retention_ms < RETENTION_MS_USUAL,
            (
                "counts milliseconds: every record with an older timestamp is deleted at the next check; with a unit "
                "it is written 7d, 12h, 30m"
            ),
        ),
        (
            "segment.ms",
            deletes and 0 <= config.retention_ms < config.segment_ms,
            (
                f"is more than retention.ms = {config.retention_ms}: whole segments are deleted, so records stay until "
                "their segment is closed and the newest in it is old enough, for up to the sum of both"
            ),
        ),
        (
            "max.message.bytes",
            limit < BATCH_BYTES_MIN,
            f"refuses every record: the smallest batch there is has {BATCH_BYTES_MIN} bytes",
        ),
        (
            "max.message.bytes",
            limit < BATCH_BYTES_USUAL,
            f"refuses all but the smallest records: {HEADER_SIZE} bytes of it are the header of a batch",
        ),
        (
            "max.message.bytes",
            limit > config.segment_bytes,
            f"is more than segment.bytes = {config.segment_bytes}: a batch larger than that is refused all the same",
        ),
    ):
        if is_so and key in written:
            found.setdefault(key, f"{written[key].name} = {getattr(config, key.replace('.', '_'))} {what}.")
    return list(found.values())


SMALLEST_BATCH: Final = HEADER_SIZE + RECORD_SIZE_MIN
"""Bytes of a batch with one empty record, the smallest batch."""


def why_index_fills_first(config: TopicConfig) -> str | None:
    """A sentence with the numbers if an index can be full before its segment is; None if not.

    An entry is due when more than ``index.interval.bytes`` were written since the last one. The time index is full
    first: its entries are larger, and it keeps a slot for closing.
    """
    stride = max(config.index_interval_bytes + 1, SMALLEST_BATCH)
    needed = config.segment_bytes // stride
    room = min(config.segment_index_bytes // OFFSET_ENTRY.size, config.segment_index_bytes // TIME_ENTRY.size - 1)
    if needed <= room:
        return None
    return (
        f"segment.index.bytes = {config.segment_index_bytes} holds {room} entries, and with index.interval.bytes = "
        f"{config.index_interval_bytes} a segment of segment.bytes = {config.segment_bytes} can need {needed}: with "
        f"small batches a new segment is begun after about {(room + 1) * stride} bytes, because the index is full"
    )
