"""What of a log directory goes to Kafka: its topics, the files of its partitions, and the offsets that belong to them.

Nothing is changed here. The caller holds the directory's lock.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.coordinators.share.records import ShareReplay
from seglog_broker.coordinators.share.runs import ARCHIVING
from seglog_broker.storage.directory.accounts import AccountStore
from seglog_broker.storage.directory.acls import AclStore
from seglog_broker.storage.directory.dynamic_configs import read_dynamic_configs
from seglog_broker.storage.directory.identity import check_format, decode_properties, read_cluster_id, root_names
from seglog_broker.storage.directory.kafka_metadata import read_kafka_metadata
from seglog_broker.storage.directory.kafka_signs import signs_of_kafka
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.io.small_files import read_offsets
from seglog_broker.storage.log.partition_files import topic_id_in
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.producers.producer_ids import ProducerIds
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.texts import counted
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol import segment_files as names
from seglog_protocol.access import Rules
from seglog_protocol.checkpoint_files import MalformedCheckpointError, TopicPartition, decode_checkpoint
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.internal_topics import SHARE_GROUPS_TOPIC
from seglog_protocol.record_batch import NO_PRODUCER_ID, iter_batches
from seglog_protocol.records import iter_records
from seglog_protocol.steps import finished
from seglog_protocol.transaction_files import MalformedSnapshotError, decode_snapshot

_OF_KAFKA: Final = {*names.SEGMENT_SUFFIXES, names.SNAPSHOT_SUFFIX} - {names.CHECKSUM_SUFFIX}
_BY_POSITION: Final = (names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
_IN_THE_MAKING: Final = (names.CLEANED_SUFFIX, names.SWAP_SUFFIX)
"""Of a compaction that a kill interrupted: Kafka's start completes or removes it, as ours does."""

_START_ONCE: Final = "start seglogd on it once, stop it, and run this again"


class ExportError(Exception):
    """The directory cannot be exported so; the message says why, and what to do. Nothing has changed."""


class SourceFile(NamedTuple):
    """A file of a partition; ``is_final``: a segment's ``.log`` that is closed and on the disk, never written again.

    ``without`` are ranges of bytes that are left out, by position.
    """

    name: str
    size: int
    is_final: bool
    without: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """A partition: ``leader_epoch`` is the highest one in its log, 0 without any."""

    leader_epoch: int
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A log directory. ``offsets`` are those of OFFSET_CHECKPOINTS; no id from ``next_producer_id`` on was given.

    ``notes`` are sentences about what will be otherwise with Kafka, from what the files say.
    """

    path: str
    cluster_id: str
    node_id: int
    directory_id: str
    is_clean: bool
    topics: dict[str, Topic]
    partitions: dict[TopicPartition, SourcePartition]
    offsets: dict[str, dict[TopicPartition, int]]
    accounts: AccountStore
    rules: Rules
    dynamic: DynamicConfig
    next_producer_id: int
    archiving: int = 0
    """Records of share groups that wait until their dead letters are written."""
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of all files of partitions."""
        return sum(file.size for partition in self.partitions.values() for file in partition.files)

    @property
    def segments(self) -> int:
        """Segments of all partitions."""
        files = (file for partition in self.partitions.values() for file in partition.files)
        return sum(file.name.endswith(names.LOG_SUFFIX) for file in files)


def read_source(fs: FileSystem, path: str) -> Source:
    """Read what there is to know. Raises ExportError, OSError, and LogDirectoryError for files not understood."""
    check_format(fs, path)
    found = root_names(fs, path)
    registry = _registry(fs, path, found)
    notes: list[str] = []
    offsets = {name: _offsets(fs, path, name, notes) for name in filenames.OFFSET_CHECKPOINTS}
    partitions = {}
    for topic in registry.topics.values():
        for number in range(topic.partitions):
            key = (topic.name, number)
            partitions[key] = _partition(fs, path, topic, number, offsets, notes)
    for name, known in offsets.items():
        offsets[name] = {key: offset for key, offset in known.items() if key in partitions}
    accounts = AccountStore(fs, f"{path}/{filenames.ACCOUNTS_FILE}")
    accounts.load()
    acls = AclStore(fs, f"{path}/{filenames.ACLS_FILE}")
    acls.load()
    properties = decode_properties(read_file(fs, f"{path}/{filenames.META_PROPERTIES_FILE}"))
    node_id = properties.get("node.id") or properties.get("broker.id") or ""
    cluster_id = read_cluster_id(fs, path, found)
    if not cluster_id:
        raise ExportError(f"{path}/{filenames.META_PROPERTIES_FILE} names no cluster id: put it back from a backup")
    is_clean = filenames.CLEAN_SHUTDOWN_FILE in found
    if not is_clean:
        notes.append(
            f"{path} was not stopped cleanly: Kafka recovers what is behind the recovery points when it starts"
        )
    return Source(
        path,
        cluster_id,
        int(node_id) if node_id.isdecimal() else 1,
        properties.get("directory.id", ""),
        is_clean,
        dict(registry.topics),
        partitions,
        offsets,
        accounts,
        acls.rules,
        read_dynamic_configs(fs, f"{path}/{filenames.DYNAMIC_CONFIGS_FILE}"),
        _next_producer_id(fs, path, partitions),
        _archiving(fs, path, partitions, offsets[checkpoints.LOG_START_CHECKPOINT]),
        notes,
    )


def _registry(fs: FileSystem, path: str, found: list[str]) -> TopicRegistry:
    registry = TopicRegistry(fs, f"{path}/{filenames.REGISTRY_FILE}")
    if filenames.REGISTRY_FILE not in found:
        raise ExportError(f"{path} has no {filenames.REGISTRY_FILE}, seglog has not served it yet: {_START_ONCE}")
    registry.load()
    signs = signs_of_kafka(fs, path, found, registry)
    if signs:
        raise ExportError(f"Kafka used {path} after seglog ({signs[0]}): {_START_ONCE}")
    if filenames.CREATION_FILE in found:
        raise ExportError(f"partitions of {path} were being made when its broker was killed: {_START_ONCE}")
    return registry


def _offsets(fs: FileSystem, path: str, name: str, notes: list[str]) -> dict[TopicPartition, int]:
    try:
        return read_offsets(fs, f"{path}/{name}")
    except MalformedCheckpointError as error:
        notes.append(f"{name} is written anew without entries, because it cannot be understood: {error}")
        return {}


def _partition(
    fs: FileSystem,
    path: str,
    topic: Topic,
    number: int,
    offsets: dict[str, dict[TopicPartition, int]],
    notes: list[str],
) -> SourcePartition:
    """One partition of the source; its offsets go into ``offsets``. Raises ExportError for one that is gone."""
    name = filenames.partition_directory_name(topic.name, number)
    directory = f"{path}/{name}"
    if not fs.exists(directory):
        raise ExportError(f"{directory} is gone: {_START_ONCE}; it says what can be done")
    topic_id = topic_id_in(fs, directory)
    if topic_id != topic.id:
        raise ExportError(
            f"{directory}/{filenames.PARTITION_METADATA_FILE} does not have topic id {topic.id}: {_START_ONCE}"
        )
    state = PartitionState.load(fs, directory)
    key = (topic.name, number)
    if state.log_start is not None:  # saved before the checkpoint is
        starts = offsets[checkpoints.LOG_START_CHECKPOINT]
        starts[key] = max(starts.get(key, 0), state.log_start)
    for base, (size, crc) in (state.transaction_indexes or {}).items():
        index = f"{directory}/{names.segment_file_name(base, names.TXN_INDEX_SUFFIX)}"
        is_gone = not fs.exists(f"{directory}/{names.segment_file_name(base, names.LOG_SUFFIX)}")  # with its segment
        if not is_gone and not (fs.exists(index) and crc32c(read_file(fs, index)[:size]) == crc):
            raise ExportError(f"{index} is not as it was written, and Kafka would not notice: {_START_ONCE}")
    unsynced = [damage for damage in state.damaged if state.is_unsynced(damage)]
    notes += [
        f"{name} will be without the damaged bytes of offsets {damage.start_offset} to {damage.end_offset - 1}, which "
        "may never have been synced: Kafka's consumers pass them"
        for damage in unsynced
    ]
    damaged = [damage for damage in state.damaged if damage not in unsynced]
    if damaged:
        first = damaged[0].start_offset
        notes.append(
            f"{name} has {counted(len(damaged), 'damaged range')}, from offset {first} on: Kafka's consumers "
            "stop there, and go on only from an offset behind it"
        )
    if state.read_only is not None:
        notes.append(f"{name} is read-only here ({state.read_only}), and will not be with Kafka")
    recovery_point = offsets[checkpoints.RECOVERY_POINT_CHECKPOINT].get(key, 0)
    return SourcePartition(_leader_epoch(fs, directory), tuple(_files(fs, directory, recovery_point, unsynced)))


def _leader_epoch(fs: FileSystem, directory: str) -> int:
    path = f"{directory}/{checkpoints.LEADER_EPOCH_CHECKPOINT}"
    if not fs.exists(path):
        return 0
    try:
        return max((int(epoch) for epoch, _ in decode_checkpoint(read_file(fs, path), 2)), default=0)
    except ValueError as error:
        raise ExportError(
            f"{path} cannot be understood ({error}), and ends the start of a Kafka: {_START_ONCE}"
        ) from error


def _files(
    fs: FileSystem, directory: str, recovery_point: int, unsynced: Sequence[DamagedRange]
) -> Iterator[SourceFile]:
    """The files that Kafka knows, by name; what is ours alone, deleted or unknown is left out.

    So are the indexes of segments without some bytes, by which other positions change: Kafka makes them again.
    """
    found = fs.list_directory(directory)
    parsed = {name: names.parse_segment_file_name(name) for name in found}
    bases = sorted(base for base, suffix in filter(None, parsed.values()) if suffix == names.LOG_SUFFIX)
    ends = dict(pairwise(bases))
    for name in found:
        part = parsed[name]
        if part is None:
            if name in (checkpoints.LEADER_EPOCH_CHECKPOINT, filenames.PARTITION_METADATA_FILE):
                yield SourceFile(name, fs.stat(f"{directory}/{name}").size, is_final=False)
            continue
        base, suffix = part
        if suffix == names.AWAITED_SUFFIX:
            raise ExportError(
                f"the segment {base} of {directory} is still to come from the backup that the directory was begun "
                "from: run seglogd on it until `seglog ping` tells that all is there, and begin again"
            )
        plain = next((suffix.removesuffix(end) for end in _IN_THE_MAKING if suffix.endswith(end)), suffix)
        without = tuple(sorted((d.position, d.end_position) for d in unsynced if d.segment == base))
        if suffix == names.LOG_SUFFIX:
            is_final = not without and ends.get(base, names.OFFSET_MAX) <= recovery_point
            yield SourceFile(name, fs.stat(f"{directory}/{name}").size, is_final, without)
        elif plain in _OF_KAFKA and not (without and suffix in _BY_POSITION):
            yield SourceFile(name, fs.stat(f"{directory}/{name}").size, is_final=False)


def _archiving(
    fs: FileSystem,
    path: str,
    partitions: dict[TopicPartition, SourcePartition],
    starts: dict[TopicPartition, int],
) -> int:
    """How many records of share groups wait for their dead letters; what is damaged tells nothing."""
    replay = ShareReplay()
    for (topic, number), partition in partitions.items():
        directory = f"{path}/{filenames.partition_directory_name(topic, number)}"
        segments = [file.name for file in partition.files if file.name.endswith(names.LOG_SUFFIX)]
        for name in segments if topic == SHARE_GROUPS_TOPIC else ():
            with contextlib.suppress(CorruptRecordError):
                for header, batch in iter_batches(read_file(fs, f"{directory}/{name}")):
                    if header.next_offset > starts.get((topic, number), 0):
                        finished(replay.read(header, iter_records(header, batch)))
    finished(replay.catch_up())
    return sum(state.runs.records[ARCHIVING] for state in replay.states.values())


def _next_producer_id(fs: FileSystem, path: str, partitions: dict[TopicPartition, SourcePartition]) -> int:
    """Above all ids that seglog gave, that Kafka gave, and that snapshots of producers have."""
    highest = max(read_kafka_metadata(fs, path).next_producer_id - 1, NO_PRODUCER_ID)
    for (topic, number), partition in partitions.items():
        directory = f"{path}/{filenames.partition_directory_name(topic, number)}"
        for file in partition.files:
            if file.name.endswith(names.SNAPSHOT_SUFFIX):
                try:
                    entries = decode_snapshot(read_file(fs, f"{directory}/{file.name}"))
                except MalformedSnapshotError:
                    continue  # torn by a kill: Kafka makes it again from the records
                highest = max(highest, max((entry.producer_id for entry in entries), default=NO_PRODUCER_ID))
    return ProducerIds(fs, f"{path}/{filenames.PRODUCER_IDS_FILE}", highest_seen=highest).next_id
