"""A topic's own settings: checking them, their stored form, and applying them over the broker's defaults.

Those of internal topics are corrected where the broker's own records would be lost or refused.

Warnings are about valid values with consequences that are seldom wanted, such as an index that is full too early. Kafka
accepts nearly all of them silently. They come with the checks of the rest of the topic's configuration, and only where
values were set: there is no warning about a default.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final, NoReturn

from seglog_broker.config.keys import Key, Origin, OriginKind, Setting, nearest_name
from seglog_broker.config.topic_config import (
    DECOMPRESSED_RECORD_BYTES_MAX,
    SEGMENT_BYTES_MIN_KAFKA,
    TOPIC_NAMES,
    TopicConfig,
)
from seglog_broker.config.values import Raw, Value
from seglog_protocol.errors import InvalidConfigError
from seglog_protocol.internal_topics import COMPACTED_TOPICS, is_internal
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


REMOVED_TOPIC_KEYS = frozenset(
    {"message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"}
)
"""Topic keys that Apache Kafka 4 no longer has."""

_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"
_HOUR_MS: Final = 3_600_000

KEPT_FOR_EVER: Final = {_POLICY: "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""The settings with which a topic keeps every record."""

_LEAST: Final = {
    "max.message.bytes": 1_048_588,  # Kafka's default: what the members of a large group say is one record
    "max.decompressed.message.bytes": DECOMPRESSED_RECORD_BYTES_MAX,
    "segment.bytes": 1_048_576,  # a batch that is larger than a segment is refused
    "message.timestamp.before.max.ms": _HOUR_MS,  # records wait for the disk, and clocks are set
    "message.timestamp.after.max.ms": _HOUR_MS,
}
"""The least values of settings that refuse records.

Other keys stay free: retention does nothing beside ``compact``, batches are compressed as ``compression.type`` says,
the time of a record is not looked at when it is read, and ``min.insync.replicas`` has no effect.
"""


def apply_overrides(defaults: TopicConfig, overrides: Mapping[str, Raw]) -> TopicConfig:
    """The defaults, overridden by a topic's own values.

    Raises InvalidConfigError for an unknown key or a value outside its range, but not for values that contradict each
    other: those were checked when they were set, and a topic must open even if the defaults have changed since.
    """
    chosen = _read(overrides)
    values: dict[str, Value] = {key.attribute: value for key, _, value in chosen.values()}
    origins = {name: setting.origin for name, (_, setting, _) in chosen.items()}
    return dataclasses.replace(defaults, **values, origins={**defaults.origins, **origins})  # type: ignore[arg-type] # each value is of its key's kind


def validate_topic_config(
    overrides: Mapping[str, Raw], defaults: TopicConfig | None = None
) -> tuple[dict[str, str], list[str]]:
    """Check the settings of a topic.

    Returns the overrides as they are stored (canonical names, Kafka's text form, sorted by name) and the warnings.
    ``defaults`` are the broker's, for checks of several values together.

    Raises InvalidConfigError for an unknown key, a value outside its range, or values that contradict each other.
    """
    chosen = _read(overrides)
    warnings: list[str] = []
    for key, setting, value in chosen.values():
        warnings += filter(None, [key.warning(setting, value)])
        shadowed = [name for name in (*key.aliases, key.name) if name in overrides and name != setting.name]
        warnings += [
            f"{name} has no effect beside {setting.name}, which is the stronger name for the same setting."
            for name in shadowed
            if key.parse(_setting(name, overrides[name])) != value
        ]
    config = apply_overrides(defaults or TopicConfig(), overrides)
    check_together(config)
    warnings += consequences({name: setting for name, (_, setting, _) in chosen.items()}, config)
    return {name: chosen[name][0].text(chosen[name][2]) for name in sorted(chosen)}, warnings


def usable(overrides: Mapping[str, Raw]) -> tuple[dict[str, str], dict[str, str]]:
    """Settings that others made: those that can be used, as they are stored, and why each of the others cannot."""
    problems = {}
    for name, raw in overrides.items():
        try:
            _read({name: raw})
        except InvalidConfigError as error:
            problems[name] = error.message
    chosen = _read({name: raw for name, raw in overrides.items() if name not in problems})
    return {name: chosen[name][0].text(chosen[name][2]) for name in sorted(chosen)}, problems


def check_together(config: TopicConfig) -> None:
    """Raise InvalidConfigError when values contradict each other."""
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise InvalidConfigError(
            f"min.compaction.lag.ms = {config.min_compaction_lag_ms} cannot be used: it must be at most "
            f"max.compaction.lag.ms, which is {config.max_compaction_lag_ms}.",
            key="min.compaction.lag.ms",
        )


# --- Internal topics --------------------------------------------------------------------------------------------------


def settings_in_force(topic: str, settings: Mapping[str, str]) -> dict[str, str]:
    """A topic's own settings as they are used: those of an internal one are corrected where records would be lost.

    They are as they are stored: canonical names, valid values. The topic of share groups is neither compacted nor does
    it expire: what is of no use any more is deleted before an offset.
    """
    if not is_internal(topic):
        return dict(settings)
    raised = {key: str(max(int(value), _LEAST[key])) if key in _LEAST else value for key, value in settings.items()}
    return {**raised, _POLICY: _COMPACT} if topic in COMPACTED_TOPICS else {**raised, **KEPT_FOR_EVER}


def check_internal_settings(topic: str, settings: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for own settings under which an internal topic would lose or refuse records."""
    for key, needed in settings_in_force(topic, settings).items():
        if settings.get(key) != needed:
            limit = f"is at least {needed}" if key in _LEAST else f"stays {needed}"
            raise InvalidConfigError(
                f"{key} of {topic} {limit}: the topic is the broker's own, and with another value it would lose or "
                "refuse what groups commit",
                key=key,
            )


# --- Reading ----------------------------------------------------------------------------------------------------------


def _setting(name: str, raw: Raw) -> Setting:
    return Setting(name, raw, Origin(OriginKind.TOPIC, name))


def _read(overrides: Mapping[str, Raw]) -> dict[str, tuple[Key, Setting, Value]]:
    """The strongest setting of each key, by the key's canonical name; every value is checked, strongest or not."""
    chosen: dict[str, tuple[Key, Setting, Value]] = {}
    for name, raw in overrides.items():
        key = TOPIC_NAMES.get(name)
        if key is None:
            _refuse_unknown(name)
        setting = _setting(name, raw)
        value = key.parse(setting)
        if key.name not in chosen or name in key.aliases:
            chosen[key.name] = (key, setting, value)
    return chosen


def _refuse_unknown(name: str) -> NoReturn:
    broker_names = {
        synonym.name: key.name for key in TOPIC_NAMES.values() for synonym in key.synonyms if synonym.name != key.name
    }
    nearest = nearest_name(name, TOPIC_NAMES)
    if name in REMOVED_TOPIC_KEYS:
        hint = "it was removed in Apache Kafka 4."
    elif name in broker_names:
        hint = f"it is the broker's default for the topic key {broker_names[name]}."
    elif nearest:
        hint = f"did you mean {nearest}?"
    else:
        hint = "docs/CONFIG.md lists the known keys."
    raise InvalidConfigError(f"{name} is not a topic configuration key: {hint}", key=name)
