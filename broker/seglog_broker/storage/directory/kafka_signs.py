"""Detects that Apache Kafka used a log directory after seglog, and adopts what it changed there.

Kafka writes its broker epoch into the clean-shutdown marker, seglog -1. Kafka's metadata log grows at every start. And
its checkpoints name partitions that it created.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from seglog_broker.storage.directory.adoption import listed, reconcile, topic_ids
from seglog_broker.storage.directory.kafka_metadata import (
    METADATA_DIRECTORY,
    SNAPSHOT_SUFFIX,
    KafkaMetadata,
    read_kafka_metadata,
)
from seglog_broker.storage.directory.offset_checkpoints import OffsetCheckpoints
from seglog_broker.storage.directory.partition_loader import LoadReport
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry, Topics
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import File, FileSystem, read_file, write_files_atomically
from seglog_broker.storage.io.small_files import read_offsets
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.log.partition_files import has_partition_files, log_base, topic_id_in
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, MalformedStateError, PartitionState
from seglog_broker.storage.segment import checksum
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol import segment_files as names
from seglog_protocol.batch_scan import BatchScan
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT, TopicPartition, decode_checkpoint
from seglog_protocol.header_scan import HeaderScan
from seglog_protocol.record_batch import HEADER_SIZE
from seglog_protocol.segment_files import OFFSET_MAX

CLEAN_MARKER: Final = b'{"version":0,"brokerEpoch":-1}'
"""What a clean stop of seglog writes into ``.kafka_cleanshutdown``."""

_KAFKAS_MARKER = re.compile(rb'\{"version":0,"brokerEpoch":\d+\}\s*')


def metadata_files(fs: FileSystem, path: str) -> dict[str, int]:
    """The files of Kafka's metadata log in the log directory ``path``, with their sizes in bytes."""
    directory = f"{path}/{METADATA_DIRECTORY}"
    if not fs.exists(directory):
        return {}
    wanted = [name for name in fs.list_directory(directory) if name.endswith((names.LOG_SUFFIX, SNAPSHOT_SUFFIX))]
    return {name: fs.stat(f"{directory}/{name}").size for name in wanted}


def signs_of_kafka(fs: FileSystem, path: str, found: Collection[str], registry: TopicRegistry) -> list[str]:
    """The evidence, as sentences, that Kafka used the directory after ``registry`` was written; empty if none.

    ``found`` are the names in the log directory ``path``.
    """
    signs = []
    marker = filenames.CLEAN_SHUTDOWN_FILE
    if marker in found and _KAFKAS_MARKER.fullmatch(read_file(fs, f"{path}/{marker}")):
        epoch = json.loads(read_file(fs, f"{path}/{marker}"))["brokerEpoch"]
        signs.append(f"{marker} is of Kafka's broker epoch {epoch}")
    metadata = metadata_files(fs, path)
    if registry.kafka_metadata is not None:
        if metadata != registry.kafka_metadata:
            signs.append(f"{METADATA_DIRECTORY} is not as it was")
    elif any(
        fs.stat(f"{path}/{METADATA_DIRECTORY}/{name}").mtime_ms > fs.stat(registry.path).mtime_ms for name in metadata
    ):
        signs.append(f"{METADATA_DIRECTORY} is younger than {filenames.REGISTRY_FILE}")
    counts = {name: topic.partitions for name, topic in registry.topics.items()}
    beyond = {key for key in named_partitions(fs, path) if key[1] >= counts.get(key[0], 0)}
    names_of = {key: filenames.partition_directory_name(*key) for key in beyond}
    unknown = [k for k, name in names_of.items() if name in found and not is_being_deleted(fs, path, name, registry)]
    if unknown:
        signs.append(f"checkpoints name {listed(unknown)}, not known to {filenames.REGISTRY_FILE}")
    return signs


def is_being_deleted(fs: FileSystem, path: str, name: str, registry: TopicRegistry) -> bool:
    """Whether seglog had begun to delete the topic of the partition directory ``name`` before a crash."""
    return bool(registry.deleting) and topic_id_in(fs, f"{path}/{name}") in registry.deleting


def named_partitions(fs: FileSystem, path: str) -> set[TopicPartition]:
    """The partitions in the checkpoints of recovery points and high watermarks; malformed files are skipped."""
    found: set[TopicPartition] = set()
    for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.HIGH_WATERMARK_CHECKPOINT):
        with suppress(checkpoints.MalformedCheckpointError):
            found |= read_offsets(fs, f"{path}/{name}").keys()
    return found


def expected_partitions(fs: FileSystem, path: str) -> set[TopicPartition]:
    """The partitions that a Kafka directory should have: those in its checkpoints and its metadata log."""
    return named_partitions(fs, path) | read_kafka_metadata(fs, path).partitions


def old_format_partitions(
    fs: FileSystem, path: str, directories: Mapping[str, filenames.PartitionDirectory]
) -> list[TopicPartition]:
    """Partitions with messages of magic 0 or 1 where a segment begins, or behind the last indexed batch of the log.

    The format changed with a setting: a change in the middle of a segment shows where the next one begins.
    """
    plain = ((name, parsed) for name, parsed in directories.items() if not parsed.marker)
    return [(topic, number) for name, (topic, number, _) in plain if _has_old_format(fs, f"{path}/{name}")]


def _has_old_format(fs: FileSystem, directory: str) -> bool:
    paths = [f"{directory}/{name}" for name in fs.list_directory(directory) if log_base(name) is not None]
    filled = [path for path in paths if fs.stat(path).size]
    for path in filled:
        with fs.open(path) as file:
            scan = BatchScan(file, file.size(), window_bytes=HEADER_SIZE)
            if scan.old_message_at(0) or (path == filled[-1] and scan.old_message_at(_end_of_batches(fs, path, file))):
                return True
    return False


def _end_of_batches(fs: FileSystem, path: str, file: File) -> int:
    """Where the batches of a ``.log`` end, from the last indexed one on. Kafka's index may be padded with zeros."""
    index = path.removesuffix(names.LOG_SUFFIX) + names.OFFSET_INDEX_SUFFIX
    data = read_file(fs, index) if fs.exists(index) else b""
    last = (len(data.rstrip(b"\0")) - 1) // names.OFFSET_ENTRY.size
    is_whole = 0 <= last < len(data) // names.OFFSET_ENTRY.size
    walk = HeaderScan(file, max(0, names.offset_entry(data, last).position) if is_whole else 0, file.size())
    deque(walk, maxlen=0)
    return walk.position


# --- One partition ----------------------------------------------------------------------------------------------------


class KafkaOffsets(NamedTuple):
    """The offsets in Kafka's checkpoints for a partition, 0 without an entry."""

    recovery_point: int
    log_start: int
    cleaned_before: int


def cut_by_kafka(fs: FileSystem, directory: str, state: PartitionState) -> tuple[int, int] | None:
    """Offsets [start, end) that the log had when seglog closed it, and that Kafka truncated and used again.

    Kafka's first append is the start of the first leader epoch that seglog did not write; its epoch may be lower. If an
    epoch of seglog's is now the first entry, its start was moved up, because earlier records were deleted. None: no
    truncation was found.
    """
    if state.stopped is None or not state.epochs:
        return None
    try:
        lines = decode_checkpoint(read_file(fs, f"{directory}/{LEADER_EPOCH_CHECKPOINT}"), 2)
        entries = [(int(epoch), int(start)) for epoch, start in lines]
    except (FileNotFoundError, ValueError):
        return None
    ours = {epoch for epoch, _ in state.epochs}
    moved_up = {entry for entry in entries[:1] if entry[0] in ours}
    end = state.stopped.log_end
    start = min((entry[1] for entry in entries if entry not in {*state.epochs, *moved_up}), default=end)
    return (start, end) if start < end else None


def state_after_kafka(fs: FileSystem, directory: str, state: PartitionState, said: KafkaOffsets) -> PartitionState:
    """The part of a partition's state that is still valid after Kafka used the log; the rest would report false damage.

    The ends at seglog's last stop are no longer valid, nor is the checksum of a segment that Kafka may have appended
    to. Kafka's recovery point and log start are. The highest leader epoch stays, so that none is used twice.
    """
    cut = cut_by_kafka(fs, directory, state)
    end = names.OFFSET_MAX if cut is None else cut[0]
    return replace(
        state,
        stopped=None,
        checksum=None,
        held_end=min(state.held_end, said.recovery_point, end),
        log_start=None,
        deleted_before=min(state.deleted_before, said.log_start),
        compacted_before=min(state.compacted_before, end),
        damaged=[lost for lost in state.damaged if lost.end_offset <= end and lost.segment >= said.cleaned_before],
    )


def is_checksum_stale(said: checksum.SegmentChecksum, base_offset: int, size: int, cleaned_before: int) -> bool:
    """Whether a ``.checksum`` file may be older than its ``.log``, in a directory that Kafka used since.

    Kafka does not know the file. Its cleaner replaces segments below ``cleaned_before``, the offset in its checkpoint;
    its recovery truncates, which changes the ``size``.
    """
    return base_offset < cleaned_before or said.size != size


def drop_stale_checksums(fs: FileSystem, directory: str, cleaned_before: int) -> int:
    """Remove checksum files that Kafka made out of date; return how many. The scrub writes them again."""
    found = set(fs.list_directory(directory))
    dropped = 0
    for name in found:
        parsed = names.parse_segment_file_name(name)
        if parsed is None or parsed[1] != names.LOG_SUFFIX:
            continue
        if names.segment_file_name(parsed[0], names.CHECKSUM_SUFFIX) not in found:
            continue
        try:
            said = checksum.read_segment_checksum(fs, directory, parsed[0])
        except checksum.MalformedChecksumError:
            continue  # ``check`` reports it, and the scrub writes it again
        size = fs.stat(f"{directory}/{name}").size
        if said is not None and is_checksum_stale(said, parsed[0], size, cleaned_before):
            fs.unlink(checksum.checksum_path(directory, parsed[0]))
            dropped += 1
    if dropped:
        fs.sync_directory(directory)
    return dropped


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
    take_over_access: Callable[[KafkaMetadata], list[str]],
) -> None:
    """Bring ``registry``, the partitions' states and their checksums in line with what Kafka did, if it was there.

    ``found`` are the names in the log directory ``path``; ``directories``, those of them that are of partitions, gain
    the ones that Kafka had set aside. The changes go into ``report``, and those of permissions and quotas through
    ``take_over_access``. Repeating it after a crash is harmless.
    """
    signs = signs_of_kafka(fs, path, found, registry)
    if not signs:
        return
    restored = _restore_set_aside(fs, path, directories, registry)
    whole = {
        name: key
        for name, key in directories.items()
        if not is_being_deleted(fs, path, name, registry) and has_partition_files(fs.list_directory(f"{path}/{name}"))
    }
    metadata = read_kafka_metadata(fs, path)
    registry.metadata_version = metadata.metadata_version or registry.metadata_version
    if metadata.problem is not None:
        report.problems.append(
            f"{metadata.problem}: changes of topics' settings, permissions and quotas are not taken over"
        )
    ids = topic_ids(whole, lambda name: topic_id_in(fs, f"{path}/{name}"))
    out = reconcile(registry.topics, ids, new_topic_id, metadata)
    report.kafka_signs = signs
    report.kafka_changes = [f"{name} is back: Kafka had set it aside" for name in restored] + out.changes
    if metadata.is_there and metadata.problem is None:
        report.kafka_changes += take_over_access(metadata)
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
            said = KafkaOffsets(points.get(key, 0), starts.get(key, 0), cleaned.get(key, 0))
            _drop_what_kafka_outdated(fs, path, name, said, report)
    excuse_holes_of_replicas(
        fs, path, [(each.topic, each.partition) for each in whole.values() if not each.marker], out.topics, cleaned
    )
    registry.topics = Topics(out.topics)
    registry.kafka_metadata = metadata_files(fs, path)
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


def _drop_what_kafka_outdated(fs: FileSystem, path: str, name: str, said: KafkaOffsets, report: LoadReport) -> None:
    """Remove checksums older than their segments, and facts in the partition's state that no longer hold."""
    directory = f"{path}/{name}"
    dropped = drop_stale_checksums(fs, directory, said.cleaned_before)
    if dropped:
        report.kafka_changes.append(f"{name}: {dropped} checksum files were older than their segments")
    try:
        state = PartitionState.read(fs, directory)
    except MalformedStateError:
        return  # loading the partition reports it
    cut = cut_by_kafka(fs, directory, state)
    if cut is not None:
        report.problems.append(
            f"{name}: Kafka cut off offsets {cut[0]} to {cut[1] - 1}, and used them for other records"
        )
    after = state_after_kafka(fs, directory, state, said)
    if after != state:
        after.save(fs, directory)
