"""What tells that Apache Kafka had a log directory after seglog: read from its files, nothing is changed.

Kafka names its broker epoch in the marker of a clean stop, where ours has -1. Its metadata log grows with every start.
And its checkpoints name partitions that only it has made.
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from seglog_broker.storage.directory.adoption import listed
from seglog_broker.storage.directory.kafka_metadata import METADATA_DIRECTORY, SNAPSHOT_SUFFIX, partitions_of_kafka
from seglog_broker.storage.directory.topic_registry import TopicRegistry
from seglog_broker.storage.io import checkpoints, filenames
from seglog_broker.storage.io.checkpoints import LEADER_EPOCH_CHECKPOINT, TopicPartition, decode_checkpoint
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.checksum import (
    MalformedChecksumError,
    SegmentChecksum,
    checksum_path,
    read_segment_checksum,
)
from seglog_protocol import segment_files as names

CLEAN_MARKER: Final = b'{"version":0,"brokerEpoch":-1}'
"""What our stop writes into ``.kafka_cleanshutdown``."""

_KAFKAS_MARKER = re.compile(rb'\{"version":0,"brokerEpoch":\d+\}\s*')


def metadata_files(fs: FileSystem, path: str) -> dict[str, int]:
    """The sizes in bytes of the files of Kafka's metadata log in the log directory ``path``; none where it has none."""
    directory = f"{path}/{METADATA_DIRECTORY}"
    if not fs.exists(directory):
        return {}
    wanted = [name for name in fs.list_directory(directory) if name.endswith((names.LOG_SUFFIX, SNAPSHOT_SUFFIX))]
    return {name: fs.stat(f"{directory}/{name}").size for name in wanted}


def signs_of_kafka(fs: FileSystem, path: str, found: Collection[str], registry: TopicRegistry) -> list[str]:
    """Why Kafka must have had the directory since ``registry`` was written, as sentences; none when nothing says so.

    ``found`` are the names in the log directory ``path``.
    """
    return list(_signs(fs, path, found, registry))


def _signs(fs: FileSystem, path: str, found: Collection[str], registry: TopicRegistry) -> Iterator[str]:
    marker = filenames.CLEAN_SHUTDOWN_FILE
    if marker in found and _KAFKAS_MARKER.fullmatch(read_file(fs, f"{path}/{marker}")):
        epoch = json.loads(read_file(fs, f"{path}/{marker}"))["brokerEpoch"]
        yield f"{marker} is of Kafka's broker epoch {epoch}"
    metadata = metadata_files(fs, path)
    if registry.kafka_metadata is not None:
        if metadata != registry.kafka_metadata:
            yield f"{METADATA_DIRECTORY} is not as it was"
    elif any(
        _modified_ms(fs, f"{path}/{METADATA_DIRECTORY}/{name}") > _modified_ms(fs, registry.path) for name in metadata
    ):
        yield f"{METADATA_DIRECTORY} is younger than {filenames.REGISTRY_FILE}"
    unknown = []
    for key in named_partitions(fs, path):
        topic = registry.topics.get(key[0])
        name = filenames.partition_directory_name(*key)
        if (topic is None or key[1] >= topic.partitions) and name in found and not _is_doomed(fs, path, name, registry):
            unknown.append(key)
    if unknown:
        yield f"checkpoints name {listed(unknown)}, not known to {filenames.REGISTRY_FILE}"


def _is_doomed(fs: FileSystem, path: str, name: str, registry: TopicRegistry) -> bool:
    """Whether seglog had begun to delete its topic, and a crash came in between."""
    try:
        metadata = read_file(fs, f"{path}/{name}/{filenames.PARTITION_METADATA_FILE}")
        return filenames.decode_partition_metadata(metadata) in registry.deleting
    except (FileNotFoundError, ValueError):
        return False


def _modified_ms(fs: FileSystem, path: str) -> int:
    return fs.stat(path).mtime_ms


def named_partitions(fs: FileSystem, path: str) -> set[TopicPartition]:
    """The partitions that have an entry in the recovery points or the high watermarks; a malformed file has none."""
    found: set[TopicPartition] = set()
    for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.HIGH_WATERMARK_CHECKPOINT):
        try:
            found |= checkpoints.read_offsets(fs, f"{path}/{name}").keys()
        except checkpoints.MalformedCheckpointError:
            continue
    return found


def partitions_spoken_of(fs: FileSystem, path: str) -> set[TopicPartition]:
    """The partitions that a directory of Kafka's should have: those of its checkpoints and of its metadata log."""
    return named_partitions(fs, path) | partitions_of_kafka(fs, path)


# --- One partition ----------------------------------------------------------------------------------------------------


class KafkaOffsets(NamedTuple):
    """What Kafka's checkpoints say of a partition, 0 where they say nothing."""

    recovery_point: int
    log_start: int
    cleaned_before: int


def cut_by_kafka(fs: FileSystem, directory: str, state: PartitionState) -> tuple[int, int] | None:
    """Offsets [start, end) that the log had when seglog closed it, and that Kafka has cut off and given again.

    The first entry of the leader epochs that seglog did not write begins where Kafka went on; its epoch may be a lower
    one. An epoch of ours that is first now has moved up, because what came before it was deleted. None: nothing was
    cut, as far as can be told.
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
    """What is still true of a partition's state when Kafka had the log since; what is not would make false damage.

    What our last stop knew for sure is not any more, nor is the checksum of a segment that Kafka may have gone on
    with. Kafka knows what is on the disk and where the log starts. The highest leader epoch stays, so that none is used
    twice.
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


def is_checksum_stale(said: SegmentChecksum, base_offset: int, size: int, cleaned_before: int) -> bool:
    """Whether a checksum of ours can be older than its ``.log``, in a directory that Kafka had since.

    Kafka does not know the file. Its cleaner puts other segments in the place of those below ``cleaned_before``, which
    is in its checkpoint; its recovery cuts, and then the ``size`` is another.
    """
    return base_offset < cleaned_before or said.size != size


def drop_stale_checksums(fs: FileSystem, directory: str, cleaned_before: int) -> int:
    """Remove the checksum files that Kafka has outdated; return how many. The scrub writes them again."""
    found = set(fs.list_directory(directory))
    dropped = 0
    for name in found:
        parsed = names.parse_segment_file_name(name)
        if parsed is None or parsed[1] != names.LOG_SUFFIX:
            continue
        if names.segment_file_name(parsed[0], names.CHECKSUM_SUFFIX) not in found:
            continue
        try:
            said = read_segment_checksum(fs, directory, parsed[0])
        except MalformedChecksumError:
            continue  # a check names it, and the scrub writes it again
        size = fs.stat(f"{directory}/{name}").size
        if said is not None and is_checksum_stale(said, parsed[0], size, cleaned_before):
            fs.unlink(checksum_path(directory, parsed[0]))
            dropped += 1
    if dropped:
        fs.sync_directory(directory)
    return dropped
