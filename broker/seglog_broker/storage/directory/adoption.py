"""Topics adopted from their directories: of a log directory that Kafka wrote, or that Kafka used after seglog.

These functions only decide, by names and ids. The caller reads those first and writes the registry afterwards.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from seglog_broker.config.topic_overrides import KEPT_FOR_EVER, usable
from seglog_broker.storage.directory.kafka_metadata import KafkaMetadata
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io.filenames import DELETE_MARKER, PartitionDirectory, partition_directory_name
from seglog_protocol.internal_topics import COMPACTED_TOPICS

INTERNAL_CONFIG: Final = {"cleanup.policy": "compact", "compression.type": "producer"}
INTERNAL_NOTE: Final = (
    "made from its directories, with the configuration that Apache Kafka gives this topic of its own: it is compacted"
)

ADOPTED_NOTE: Final = (
    "adopted from a directory that Apache Kafka wrote, without its metadata log, which has the configuration: so this "
    "topic keeps everything (cleanup.policy=delete, retention.ms=-1, retention.bytes=-1)"
)
CONFIGURED_NOTE: Final = (
    "adopted from a directory that Apache Kafka wrote, with the topic's own configuration; Kafka's defaults for other "
    "topics are not in there, so of cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1 it has what it did "
    "not set itself"
)
REMADE_NOTE: Final = (
    "seglog-topics.json was missing, and with it this topic's configuration: made from its directories, it keeps "
    "everything (cleanup.policy=delete, retention.ms=-1, retention.bytes=-1)"
)
SHARED_NOTE: Final = (
    "Apache Kafka had the log directory for a while, and may have written, compacted or expired records"
)

_UNUSED: Final = "kept from Apache Kafka, without effect:"
_VALUE_MAX: Final = 100
"""Characters of a value in a note."""

_NAMED_MAX: Final = 10
"""Partitions that a message lists."""

TopicIds = Mapping[str, Mapping[int, str | None]]
"""By topic and partition, the topic id in ``partition.metadata``, None if it is missing or malformed."""


def topic_ids(directories: Mapping[str, PartitionDirectory], read_id: Callable[[str], str | None]) -> TopicIds:
    """The ids in the partition directories without a marker; ``read_id`` is called with a directory's name."""
    found: dict[str, dict[int, str | None]] = {}
    for name, (topic, partition, marker) in directories.items():
        if not marker:
            found.setdefault(topic, {})[partition] = read_id(name)
    return found


def adopted_topic(
    name: str,
    partitions: Mapping[int, str | None],
    new_id: Callable[[], str],
    note: str = ADOPTED_NOTE,
    metadata: KafkaMetadata | None = None,
) -> Topic:
    """A topic made from its directories; its partition count includes numbers without a directory.

    Its configuration is that of Kafka's ``metadata``, if it is there, and its id, if no directory has one.
    """
    metadata = metadata or KafkaMetadata()
    found = next((partitions[number] for number in sorted(partitions) if partitions[number]), None)
    topic_id = found or metadata.topic_ids.get(name) or new_id()
    config = dict(INTERNAL_CONFIG if name in COMPACTED_TOPICS else KEPT_FOR_EVER)
    topic = Topic(name, topic_id, max(partitions) + 1, config, [INTERNAL_NOTE if name in COMPACTED_TOPICS else note])
    settings = metadata.configs_of(name, topic_id)
    if settings is None:
        return topic
    notes = topic.notes if name in COMPACTED_TOPICS else [CONFIGURED_NOTE]
    return _with_kafka_config(replace(topic, notes=notes), settings)[0]


def _with_kafka_config(topic: Topic, settings: Mapping[str, str]) -> tuple[Topic, list[str]]:
    """The topic with what Kafka changed of its settings since seglog last looked, and each change as a phrase.

    What was altered in seglog, and not in Kafka, stays. Where Kafka removed a setting of KEPT_FOR_EVER, its default is
    not known, and the topic keeps everything.
    """
    defaults = INTERNAL_CONFIG if topic.name in COMPACTED_TOPICS else KEPT_FOR_EVER
    before, _ = usable(topic.kafka_config)
    now, problems = usable(settings)
    config = dict(topic.config)
    changes = []
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) == now.get(key):
            continue
        value = now.get(key, defaults.get(key))
        if value is None:
            config.pop(key, None)
        else:
            config[key] = value
        changes.append(f"{key} is {'not set' if value is None else value}, it was {topic.config.get(key, 'not set')}")
    unused = [f"{_UNUSED} {key}={settings[key][:_VALUE_MAX]}: {why}" for key, why in sorted(problems.items())]
    notes = [*(note for note in topic.notes if not note.startswith(_UNUSED)), *unused]
    return replace(topic, config=config, notes=notes, kafka_config=dict(settings)), changes


def missing_partitions(
    ids: TopicIds, named: Collection[tuple[str, int]], directories: Iterable[PartitionDirectory]
) -> list[tuple[str, int]]:
    """Partitions that a Kafka directory names and does not contain.

    They have numbers below those of existing partitions, or are ``named`` in Kafka's files. Partitions that Kafka was
    about to delete are not among them.
    """
    deleted = {(found.topic, found.partition) for found in directories if found.marker == DELETE_MARKER}
    expected = {(topic, number) for topic, there in ids.items() for number in there} | (set(named) - deleted)
    counts: dict[str, int] = {}
    for topic, number in expected:
        counts[topic] = max(counts.get(topic, 0), number + 1)
    wanted = {(topic, number) for topic, count in counts.items() for number in range(count)}
    return sorted(key for key in wanted - deleted if key[1] not in ids.get(key[0], ()))


def with_missing(topic: Topic, partition: int) -> Topic:
    """The topic with one more partition, which has no directory and begins without records."""
    note = f"partition {partition} was not in the adopted directory, and began without records"
    return replace(topic, partitions=max(topic.partitions, partition + 1), notes=[*topic.notes, note])


def listed(keys: Collection[tuple[str, int]]) -> str:
    """The first _NAMED_MAX partitions, and how many more."""
    shown = ", ".join(partition_directory_name(*key) for key in sorted(keys)[:_NAMED_MAX])
    return shown if len(keys) <= _NAMED_MAX else f"{shown} and {len(keys) - _NAMED_MAX} more"


@dataclass(slots=True)
class Reconciled:
    """The topics after Kafka used the directory, and the changes, as sentences."""

    topics: dict[str, Topic]
    changes: list[str] = field(default_factory=list)


def reconcile(
    known: Mapping[str, Topic], ids: TopicIds, new_id: Callable[[], str], metadata: KafkaMetadata
) -> Reconciled:
    """Adopt topics that Kafka created, drop those it deleted, and take over what it changed of their settings.

    Of ``metadata`` that could not be read to its end no changes of settings are taken.
    """
    out = Reconciled({})
    for name, topic in known.items():
        if name not in ids:
            out.changes.append(f"topic {name} was deleted: none of its {topic.partitions} partitions is there")
    for name, there in ids.items():
        before = known.get(name)
        found = {topic_id for topic_id in there.values() if topic_id is not None}
        if before is None:
            after = adopted_topic(name, there, new_id, metadata=metadata)
            out.changes.append(f"topic {name} was created, with {_count(after.partitions)}")
        elif not found or before.id in found:
            own = [number for number, topic_id in there.items() if topic_id in {None, before.id}]
            after = replace(before, partitions=max(before.partitions, *(number + 1 for number in own)))
            if after.partitions > before.partitions:
                out.changes.append(f"topic {name} has {_count(after.partitions)}, it had {before.partitions}")
            settings = metadata.configs_of(name, before.id)
            if settings is not None and metadata.problem is None and settings != before.kafka_config:
                after, changes = _with_kafka_config(after, settings)
                out.changes += [f"topic {name}: {change}" for change in changes]
        elif len(found) == 1:
            after = adopted_topic(name, there, new_id, metadata=metadata)
            out.changes.append(f"topic {name} was deleted and created again, with {_count(after.partitions)}")
        else:
            after = before
        out.topics[name] = after if after.notes else replace(after, notes=[SHARED_NOTE])
    return out


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"
