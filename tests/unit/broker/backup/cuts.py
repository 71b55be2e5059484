"""What a broker that backs up continuously publishes, made of an open log directory without one."""

from collections.abc import Callable

from seglog_broker.backup.points import PointWriter
from seglog_broker.backup.store import FILES, FileEntry, LogEntry, ms_of
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.snapshot import LINKED_LAST
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_broker.storage.segment.awaited import Part
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT
from seglog_protocol.checksum import crc32c
from seglog_protocol.segment_files import LOG_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, parse_segment_file_name

_SMALL = {filenames.PARTITION_METADATA_FILE, LEADER_EPOCH_CHECKPOINT, PARTITION_STATE_FILE}


def publish_cut(
    fs: FileSystem,
    directory: LogDirectory,
    writer: PointWriter,
    now_ms: int,
    meanwhile: Callable[[], object] = lambda: None,
) -> str:
    """Publish all of the directory as it is; its files are read after ``meanwhile``. The id of the moment."""
    state = writer.state.copy()
    wanted = {filenames.REGISTRY_FILE: read_file(fs, f"{directory.path}/{filenames.REGISTRY_FILE}")}
    state.files.clear()
    state.logs.clear()
    sizes: dict[str, dict[int, int]] = {}
    for (topic, number), log in directory.logs.items():
        topic_id = directory.registry.topics[topic].id
        state.logs[topic, number] = LogEntry(topic, number, topic_id, log.log_start_offset, log.log_end_offset, ())
        sizes[f"{topic}-{number}"] = {base: log.segments.at(base).size for base in log.segments.bases}  # type: ignore[union-attr]
    meanwhile()
    for name, segments in sizes.items():
        for file in fs.list_directory(f"{directory.path}/{name}"):
            base, suffix = parse_segment_file_name(file) or (-1, "")
            is_closed = suffix in SEGMENT_SUFFIXES and base in segments and base != max(segments)
            if file in _SMALL or is_closed or (suffix == SNAPSHOT_SUFFIX and base <= max(segments)):
                wanted[f"{name}/{file}"] = read_file(fs, f"{directory.path}/{name}/{file}")
        active = f"{name}/{max(segments):020}{LOG_SUFFIX}"
        wanted[active] = read_file(fs, f"{directory.path}/{active}")[: segments[max(segments)]]
    for file in LINKED_LAST:
        if fs.exists(f"{directory.path}/{file}"):
            wanted[file] = read_file(fs, f"{directory.path}/{file}")
    state.id = writer.next_id(now_ms)
    bundle = f"{FILES}{state.id}-000000"
    writer.destination.put(bundle, wanted.values())
    position = 0
    for path, content in wanted.items():
        parts = (Part(bundle, position, len(content), crc32c(content)),) if content else ()
        state.files[path] = FileEntry(path, len(content), ms_of(state.id), 0, parts)
        position += len(content)
    return writer.publish(state).id
