"""Adopts what Apache Kafka changed in a log directory that it used after seglog."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from seglog_broker.storage.directory import kafka_signs
from seglog_broker.storage.directory.adoption import reconcile, topic_ids
from seglog_broker.storage.directory.kafka_metadata import read_kafka_metadata
from seglog_broker.storage.directory.offset_checkpoints import OffsetCheckpoints
from seglog_broker.storage.directory.partition_loader import LoadReport
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, write_files_atomically
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.log.partition_files import has_partition_files, topic_id_in
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, MalformedStateError, PartitionState
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol.checkpoint_files import TopicPartition
from seglog_protocol.segment_files import OFFSET_MAX

_WRITTEN_AT_ONCE: Final = 100
"""Files that are open together."""


def excuse_holes_of_replicas(
    fs: FileSystem,
    path: str,
    partitions: Iterable[TopicPartition],
    topics: Mapping[str, Topic],
    cleaned: Mapping[TopicPartition, int],
) -> None:
    """Take holes in compacted partitions that neither seglog nor this Kafka's cleaner has had for compaction's.

    A Kafka that fetches a partition from another one gets the holes that the other one's cleaner made, and only its own
    is in its checkpoint, which says ``cleaned``. Before they are taken for lost records, a state of the partition says
    that all of it may have been compacted, up to its end when it is loaded. Repeating it after a crash is harmless.
    """
    states = []
    for topic, partition in partitions:
        directory = f"{path}/{filenames.partition_directory_name(topic, partition)}"
        is_compacted = topic in topics and "compact" in topics[topic].config.get("cleanup.policy", "")
        if is_compacted and (topic, partition) not in cleaned and not fs.exists(f"{directory}/{PARTITION_STATE_FILE}"):
            epochs = LeaderEpochs(fs, directory)
            epochs.load()
            state = PartitionState(compacted_before=OFFSET_MAX, epochs=[*epochs.entries])
            states.append((f"{directory}/{PARTITION_STATE_FILE}", state.encode()))
    for first in range(0, len(states), _WRITTEN_AT_ONCE):
        write_files_atomically(fs, states[first : first + _WRITTEN_AT_ONCE])


def adopt_kafka_changes(
    fs: FileSystem,
    path: str,
    found: Collection[str],
    directories: dict[str, filenames.PartitionDirectory],
    registry: TopicRegistry,
    offsets: OffsetCheckpoints,
    report: LoadReport,
    new_topic_id: Callable[[], str],
) -> None:
    """Bring ``registry``, the partitions' states and their checksums in line with what Kafka did, if it was there.

    ``found`` are the names in the log directory ``path``; ``directories``, those of them that are of partitions, gain
    the ones that Kafka had set aside. The changes go into ``report``. Repeating it after a crash is harmless.
    """
    signs = kafka_signs.signs_of_kafka(fs, path, found, registry)
    if not signs:
        return
    restored = _restore_set_aside(fs, path, directories, registry)
    whole = {
        name: key
        for name, key in directories.items()
        if not kafka_signs.is_being_deleted(fs, path, name, registry)
        and has_partition_files(fs.list_directory(f"{path}/{name}"))
    }
    metadata = read_kafka_metadata(fs, path)
    registry.metadata_version = metadata.metadata_version or registry.metadata_version
    if metadata.problem is not None:
        report.problems.append(f"{metadata.problem}: changes of topics' settings are not taken over")
    ids = topic_ids(whole, lambda name: topic_id_in(fs, f"{path}/{name}"))
    out = reconcile(registry.topics, ids, new_topic_id, metadata)
    report.kafka_signs = signs
    report.kafka_changes = [f"{name} is back: Kafka had set it aside" for name in restored] + out.changes
    points, starts, cleaned = (
        offsets.read(name, report.problems)
        for name in (
            checkpoints.RECOVERY_POINT_CHECKPOINT,
            checkpoints.LOG_START_CHECKPOINT,
            checkpoints.CLEANER_CHECKPOINT,
        )
    )
    for name, (topic, partition, marker) in whole.items():
        key = topic, partition
        if not marker:
            said = kafka_signs.KafkaOffsets(points.get(key, 0), starts.get(key, 0), cleaned.get(key, 0))
            _drop_what_kafka_outdated(fs, path, name, said, report)
    excuse_holes_of_replicas(
        fs, path, [(each.topic, each.partition) for each in whole.values() if not each.marker], out.topics, cleaned
    )
    registry.topics = out.topics
    registry.kafka_metadata = kafka_signs.metadata_files(fs, path)
    registry.save()


def _restore_set_aside(
    fs: FileSystem, path: str, directories: dict[str, filenames.PartitionDirectory], registry: TopicRegistry
) -> list[str]:
    """Restore the names of our partitions that Kafka did not know and set aside; return these names."""
    restored = []
    for name, aside in list(directories.items()):
        topic = registry.topics.get(aside.topic)
        plain = filenames.partition_directory_name(aside.topic, aside.partition)
        if (
            aside.marker == filenames.STRAY_MARKER
            and topic is not None
            and plain not in directories
            and topic_id_in(fs, f"{path}/{name}") == topic.id
        ):
            fs.rename(f"{path}/{name}", f"{path}/{plain}")
            del directories[name]
            directories[plain] = aside._replace(marker="")
            restored.append(plain)
    if restored:
        fs.sync_directory(path)
    return restored


def _drop_what_kafka_outdated(
    fs: FileSystem, path: str, name: str, said: kafka_signs.KafkaOffsets, report: LoadReport
) -> None:
    """Remove checksums older than their segments, and facts in the partition's state that no longer hold."""
    directory = f"{path}/{name}"
    dropped = kafka_signs.drop_stale_checksums(fs, directory, said.cleaned_before)
    if dropped:
        report.kafka_changes.append(f"{name}: {dropped} checksum files were older than their segments")
    try:
        state = PartitionState.read(fs, directory)
    except MalformedStateError:
        return  # loading the partition reports it
    cut = kafka_signs.cut_by_kafka(fs, directory, state)
    if cut is not None:
        report.problems.append(
            f"{name}: Kafka cut off offsets {cut[0]} to {cut[1] - 1}, and used them for other records"
        )
    after = kafka_signs.state_after_kafka(fs, directory, state, said)
    if after != state:
        after.save(fs, directory)
