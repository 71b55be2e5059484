"""The topic keys: Kafka's names, types, defaults and ranges, with what each one does here.

Ours: ``segment.bytes`` may be as small as 1024, ``internal.segment.bytes`` is another name for it, and
``segment.index.bytes`` is at least 24. Every other range is that of Apache Kafka 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from seglog_broker.config.keys import (
    DEFAULT_ORIGIN,
    Described,
    Key,
    Origin,
    Synonym,
    hours,
    key,
    keys_of,
    without_effect,
)
from seglog_broker.config.values import LONG_MAX, Boolean, Double, Int, Long, Replicas, Text, Words

SEGMENT_BYTES_MIN_KAFKA: Final = 1_048_576
"""Apache Kafka 4 refuses a smaller ``segment.bytes``."""

DECOMPRESSED_RECORD_BYTES_MAX: Final = 2_147_483_639
"""Kafka's largest, and default: no limit."""

NO_REPLICAS: Final = "one node has no replicas"
NO_TIERS: Final = "there is no remote storage"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The complete configuration of one topic; keys that the topic does not set have the broker's defaults.

    Attributes are Kafka's names with ``_`` for ``.``, in Kafka's units. ``BrokerConfig.topic_config`` checks values;
    construction does not, because tests of the storage engine use smaller values than a user may.
    """

    cleanup_policy: tuple[str, ...] = key(
        ("delete",),
        Words(("compact", "delete")),
        "What happens to old segments: deleted when they expire, compacted to the last record of each key, or both;"
        " with compact, a record without a key is refused.",
        "Choose compact for topics that hold the latest state of each key.",
        "log.cleanup.policy",
    )
    segment_bytes: int = key(
        1_073_741_824,
        Int(1024),
        "Size in bytes at which a new segment is begun.",
        "Lower it to delete or compact in smaller steps; below 1048576 Apache Kafka 4 would refuse the value.",
        "log.segment.bytes",
        aliases=("internal.segment.bytes",),
    )
    segment_ms: int = key(
        604_800_000,
        Long(1),
        "Age in milliseconds at which a new segment is begun although the current one is not full.",
        "Lower it when a quiet topic must expire or be compacted on time; raise it to load old events in bulk.",
        "log.roll.ms",
        hours("log.roll.hours", 1),
    )
    segment_jitter_ms: int = key(
        0,
        Long(0),
        "Most milliseconds subtracted at random from segment.ms, chosen for each segment.",
        "Raise it when many partitions begin segments at the same moment.",
        "log.roll.jitter.ms",
        hours("log.roll.jitter.hours", 0),
    )
    segment_index_bytes: int = key(
        10_485_760,
        Int(24),
        "Size in bytes at which an index file is full and a new segment is begun.",
        "Seldom; raise it when segments are large and index.interval.bytes is small.",
        "log.index.size.max.bytes",
    )
    index_interval_bytes: int = key(
        4096,
        Int(0),
        "Bytes of batches between two entries of the indexes.",
        "Lower it for shorter scans per seek, at the price of larger indexes.",
        "log.index.interval.bytes",
    )
    preallocate: bool = without_effect(
        False, Boolean(), "seglog does not pre-allocate files", "log.preallocate", holds=False
    )
    flush_messages: int = key(
        LONG_MAX,
        Long(1),
        "Records after which a partition is flushed to disk, in the background.",
        "Seldom; producing with ack=disk is the better way.",
        "log.flush.interval.messages",
    )
    flush_ms: int = key(
        LONG_MAX,
        Long(0),
        "Milliseconds after which a partition is flushed to disk, in the background.",
        "To limit what a power failure can lose where producers do not use ack=disk.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
    )
    retention_ms: int = key(
        604_800_000,
        Long(-1),
        "Age of its newest record in milliseconds at which a segment is deleted; -1 keeps segments of any age.",
        "Set it to the time for which records are needed; -1 to keep history.",
        Synonym("log.retention.ms", 1, Long(), off_below_zero=True),
        Synonym("log.retention.minutes", 60_000, Int(), off_below_zero=True),
        hours("log.retention.hours", off_below_zero=True),
    )
    retention_bytes: int = key(
        -1,
        Long(),
        "Size in bytes of a partition above which its oldest segments are deleted; -1 sets no limit.",
        "Set it to limit the use of the disk, which is this number and one segment for each partition.",
        "log.retention.bytes",
    )
    file_delete_delay_ms: int = key(
        60_000,
        Long(0),
        "Milliseconds between removing a file from the log and deleting it from the disk.",
        "Seldom; raise it to have time to rescue deleted segments.",
        "log.segment.delete.delay.ms",
    )
    max_message_bytes: int = key(
        1_048_588,
        Int(0),
        "Largest record batch in bytes, as it is sent and as it is stored; a larger one is refused.",
        "Raise it for large records, and never above segment.bytes.",
        "message.max.bytes",
    )
    max_decompressed_message_bytes: int = key(
        DECOMPRESSED_RECORD_BYTES_MAX,
        Int(1, DECOMPRESSED_RECORD_BYTES_MAX),
        "Largest record in bytes without compression, in a batch that comes compressed; a larger one is refused.",
        "Lower it where small batches must not open to large records.",
        "max.decompressed.message.bytes",
    )
    message_timestamp_type: str = key(
        "CreateTime",
        Text(("CreateTime", "LogAppendTime")),
        "Whether a record keeps the producer's timestamp or gets the broker's time of appending.",
        "Choose LogAppendTime when the producers' clocks cannot be trusted.",
        "log.message.timestamp.type",
    )
    message_timestamp_before_max_ms: int = key(
        LONG_MAX,
        Long(0),
        "Most milliseconds a producer's timestamp may lie in the past; an older record is refused.",
        "Lower it to refuse records of late or broken clocks; keep the default to load history.",
        "log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = key(
        3_600_000,
        Long(0),
        "Most milliseconds a producer's timestamp may lie in the future; a later record is refused.",
        "Raise it when records carry planned times.",
        "log.message.timestamp.after.max.ms",
    )
    compression_type: str = key(
        "producer",
        Text(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
        "Codec that batches are stored in; producer keeps each batch as it was sent, and one that has the codec"
        " already stays as it is, whatever its level.",
        "To have one codec whatever the producers use; it costs the broker CPU time.",
        "compression.type",
    )
    compression_gzip_level: int = key(
        -1,
        Int(1, 9, also=-1),
        "Level for compression.type=gzip; -1 is the codec's own default.",
        "Together with compression.type.",
        "compression.gzip.level",
    )
    compression_lz4_level: int = key(
        9,
        Int(1, 17),
        "Level for compression.type=lz4.",
        "Together with compression.type.",
        "compression.lz4.level",
    )
    compression_zstd_level: int = key(
        3,
        Int(-131_072, 22),
        "Level for compression.type=zstd.",
        "Together with compression.type.",
        "compression.zstd.level",
    )
    min_cleanable_dirty_ratio: float = key(
        0.5,
        Double(0, 1),
        "Share of a compacted partition that must be new before it is compacted again.",
        "Lower it to waste less disk, raise it to compact less often.",
        "log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = key(
        0,
        Long(0),
        "Milliseconds a record stays untouched by compaction; at most max.compaction.lag.ms.",
        "Raise it when readers must see every change within that time.",
        "log.cleaner.min.compaction.lag.ms",
    )
    max_compaction_lag_ms: int = key(
        LONG_MAX,
        Long(1),
        "Milliseconds after which a replaced record should be gone from a compacted topic.",
        "Lower it where old values must disappear by a certain time.",
        "log.cleaner.max.compaction.lag.ms",
    )
    delete_retention_ms: int = key(
        86_400_000,
        Long(0),
        "Milliseconds a tombstone stays in a compacted topic for readers that are behind.",
        "Raise it when readers of the whole topic may take longer than that.",
        "log.cleaner.delete.retention.ms",
    )
    min_insync_replicas: int = without_effect(1, Int(1), NO_REPLICAS, "min.insync.replicas", holds=1)
    unclean_leader_election_enable: bool = without_effect(
        False, Boolean(), NO_REPLICAS, "unclean.leader.election.enable", holds=False
    )
    leader_replication_throttled_replicas: tuple[str, ...] = without_effect((), Replicas(), NO_REPLICAS, holds=())
    follower_replication_throttled_replicas: tuple[str, ...] = without_effect((), Replicas(), NO_REPLICAS, holds=())
    remote_storage_enable: bool = without_effect(False, Boolean(), NO_TIERS, holds=False)
    remote_log_copy_disable: bool = without_effect(False, Boolean(), NO_TIERS, holds=False)
    remote_log_delete_on_disable: bool = without_effect(False, Boolean(), NO_TIERS, holds=False)
    remote_copy_lag_ms: int = without_effect(0, Long(-1), NO_TIERS, "log.remote.copy.lag.ms", holds=0)
    remote_copy_lag_bytes: int = without_effect(-1, Long(-1), NO_TIERS, "log.remote.copy.lag.bytes", holds=-1)
    errors_deadletterqueue_group_enable: bool = key(
        False,
        Boolean(),
        "Whether share groups may write records to the topic that they could not deliver (dead letters).",
        "Set it to true for the topic that errors.deadletterqueue.topic.name of a group names.",
    )
    local_retention_ms: int = without_effect(-2, Long(-2), NO_TIERS, "log.local.retention.ms", holds=-2)
    local_retention_bytes: int = without_effect(-2, Long(-2), NO_TIERS, "log.local.retention.bytes", holds=-2)
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, compare=False, kw_only=True)
    """The origin of each value that is not a default, by topic key."""

    def origin(self, name: str) -> Origin:
        """The origin of the value of a topic key. Raises KeyError for an unknown key."""
        return self.origins.get(TOPIC_NAMES[name].name, DEFAULT_ORIGIN)

    def describe(self) -> list[Described]:
        """Every topic key with its value and origin, in the order of the tables."""
        return [each.described(getattr(self, each.attribute), self.origin(each.name)) for each in TOPIC_KEYS.values()]


TOPIC_KEYS: Final[Mapping[str, Key]] = keys_of(TopicConfig, topic=True)
"""Every topic key by its name."""

TOPIC_NAMES: Final[Mapping[str, Key]] = {name: key for key in TOPIC_KEYS.values() for name in (key.name, *key.aliases)}
"""Every name a topic may use, with its key."""
