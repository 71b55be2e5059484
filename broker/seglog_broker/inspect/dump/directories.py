"""The overview of a partition directory, or of a log directory with its topics, checkpoints and partitions.

Counts come from batch headers; checksums are not verified. A running broker may remove a file after it was listed and
before it is read; that is a note.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from seglog_broker.inspect import facts as f
from seglog_broker.inspect.dump import small_files
from seglog_broker.inspect.dump.index_files import summarize_index
from seglog_broker.inspect.dump.log_file import changed_meanwhile, codec_name, full_reason
from seglog_broker.inspect.log_walk import InvalidBytes, walk_file
from seglog_broker.storage.directory.identity import decode_properties, root_names
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, is_directory, read_file
from seglog_broker.storage.io.small_files import read_offsets
from seglog_broker.storage.log.partition_files import topic_id_in
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol.checkpoint_files import MalformedCheckpointError, TopicPartition
from seglog_protocol.record_batch import NO_TIMESTAMP
from seglog_protocol.segment_files import (
    AWAITED_SUFFIX,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_index_problem,
    parse_segment_file_name,
    segment_file_name,
    time_index_problem,
)

_KNOWN_FILES: Final = filenames.OWN_FILES | {
    filenames.META_PROPERTIES_FILE,
    filenames.LOCK_FILE,
    filenames.CLEAN_SHUTDOWN_FILE,
    filenames.BALLAST_FILE,
    *filenames.SPARE_FILES,
}
_IDENTITIES: Final = ("cluster.id", "node.id", "broker.id")
"""Properties of which each ``meta.properties`` of Kafka's has one."""

_PARTITION_FILES: Final = frozenset(
    {checkpoints.LEADER_EPOCH_CHECKPOINT, filenames.PARTITION_METADATA_FILE, PARTITION_STATE_FILE}
)

AWAITED: Final = "its bytes are to come from the backup that the directory was begun from, which seglogd fetches"
REMOVED_MEANWHILE: Final = "it was removed while it was read: a broker is running"

Offsets = Mapping[str, Mapping[TopicPartition, int]]
"""The offsets of the log directory's checkpoints, by file name."""


def with_read_errors(facts: Iterator[f.Fact], path: str) -> Iterator[f.Fact]:
    """``facts``, followed by a ``Damage`` where an OSError ends them."""
    try:
        yield from facts
    except OSError as error:
        yield f.Damage(error.filename or path, None, None, f"it cannot be read: {error.strerror or error}")


def is_partition_directory(names: Sequence[str]) -> bool:
    """Whether a directory with these files is a partition, by its content and not by its own name."""
    return any(name in _PARTITION_FILES or parse_segment_file_name(name) is not None for name in names)


def is_log_directory(fs: FileSystem, path: str, names: Sequence[str]) -> bool:
    """Whether a directory with these names in it is a log directory: it has what seglog and Kafka alone write.

    A name such as ``dbus-1`` is no sign of that, and neither are properties of something else. Raises OSError.
    """
    return (
        any(name in filenames.OWN_FILES for name in names)
        or (filenames.META_PROPERTIES_FILE in names and _is_kafkas(fs, f"{path}/{filenames.META_PROPERTIES_FILE}"))
        or any(_partition_name(name) is not None and _is_partition(fs, f"{path}/{name}") for name in names)
    )


def _is_kafkas(fs: FileSystem, path: str) -> bool:
    """Whether a ``meta.properties`` names a version and the broker or cluster that it belongs to."""
    properties = decode_properties(read_file(fs, path))
    return "version" in properties and any(key in properties for key in _IDENTITIES)


def _is_partition(fs: FileSystem, path: str) -> bool:
    """Whether there is a partition directory ``path``; one that cannot be read is taken for none."""
    try:
        return fs.stat(path).is_directory and is_partition_directory(fs.list_directory(path))
    except OSError:
        return False


# --- Log directory ----------------------------------------------------------------------------------------------------


def dump_log_directory(fs: FileSystem, path: str, *, count: bool = True) -> Iterator[f.Fact]:
    """The facts of a log directory; without ``count`` no ``.log`` is read. Raises OSError."""
    found = root_names(fs, path)
    directories = [name for name in found if is_directory(fs, f"{path}/{name}")]
    yield from _identity(fs, path, found)
    yield from _topics(fs, path, found, directories)
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for name in filenames.OFFSET_CHECKPOINTS:
        if name in found:
            yield from _checkpoint(fs, path, name, offsets)
    foreign = []
    for name in directories:
        if name in filenames.SKIPPED_DIRECTORIES:
            yield f.Note(f"{path}/{name}", "Kafka's own; seglog ignores it")
        elif (parsed := _partition_name(name)) is None:
            foreign.append(name)
        else:
            partition = f"{path}/{name}"
            yield from with_read_errors(dump_partition(fs, partition, parsed, offsets, count=count), partition)
    for name in foreign:
        yield f.Note(
            f"{path}/{name}", "neither seglog's nor Kafka's: a broker refuses a log directory with such a sub-directory"
        )
    yield from _entries_without_directory(path, directories, offsets)
    others = [name for name in found if name not in directories and name not in _KNOWN_FILES]
    if others:
        yield f.Note(path, f"other files: {_listed(others, 10)}")


def _identity(fs: FileSystem, path: str, found: Sequence[str]) -> Iterator[f.Fact]:
    identity, version, problems = {}, None, []
    if filenames.META_PROPERTIES_FILE in found:
        identity = decode_properties(read_file(fs, f"{path}/{filenames.META_PROPERTIES_FILE}"))
    if filenames.FORMAT_FILE in found:
        for fact in small_files.read_format(fs, f"{path}/{filenames.FORMAT_FILE}"):
            if isinstance(fact, f.Property):
                version = fact.value
            else:
                problems.append(fact)
    yield f.LogDirectoryFound(path, version, filenames.CLEAN_SHUTDOWN_FILE in found, identity)
    yield from problems


def _topics(fs: FileSystem, path: str, found: Sequence[str], directories: Sequence[str]) -> Iterator[f.Fact]:
    if filenames.REGISTRY_FILE in found:
        for fact in small_files.read_registry(fs, f"{path}/{filenames.REGISTRY_FILE}"):
            yield fact
            if isinstance(fact, f.TopicFound):
                missing = [
                    name
                    for number in range(fact.partitions)
                    if (name := filenames.partition_directory_name(fact.name, number)) not in directories
                ]
                if missing:
                    text = f"no directory yet for {_listed(missing)}: a start creates the missing ones"
                    yield f.Note(path, f"topic {fact.name}: {text}")
        return
    live = [parsed for name in directories if (parsed := _partition_name(name)) is not None and not parsed.marker]
    if live:
        lost = "; their configuration is lost" if filenames.FORMAT_FILE in found else ""
        yield f.Note(
            path, f"no seglog-topics.json: a start adopts the topics from their directories, with all records{lost}"
        )
    for topic in sorted({parsed.topic for parsed in live}):
        numbers = [parsed.partition for parsed in live if parsed.topic == topic]
        paths = [f"{path}/{filenames.partition_directory_name(topic, number)}" for number in numbers]
        topic_id = next(filter(None, (topic_id_in(fs, directory) for directory in paths)), None)
        yield f.TopicFound(topic, topic_id, max(numbers) + 1, {}, [])


def _checkpoint(
    fs: FileSystem, path: str, name: str, offsets: dict[str, dict[TopicPartition, int]]
) -> Iterator[f.Fact]:
    file = f"{path}/{name}"
    try:
        offsets[name] = read_offsets(fs, file)
    except MalformedCheckpointError:
        yield f.CheckpointFound(name, fs.stat(file).size, None)
        yield from small_files.read_offset_checkpoint(fs, file)  # its Damage has the reason
    else:
        yield f.CheckpointFound(name, fs.stat(file).size, len(offsets[name]))


def _entries_without_directory(path: str, directories: Sequence[str], offsets: Offsets) -> Iterator[f.Note]:
    for name, entries in offsets.items():
        absent = [
            directory
            for key in sorted(entries)
            if (directory := filenames.partition_directory_name(*key)) not in directories
        ]
        if absent:
            yield f.Note(f"{path}/{name}", f"it names partitions that have no directory: {_listed(absent)}")


def _partition_name(name: str) -> filenames.PartitionDirectory | None:
    try:
        found = filenames.parse_partition_directory(name)
    except ValueError:
        return None
    return None if filenames.why_invalid_topic(found.topic) else found


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


# --- Partition --------------------------------------------------------------------------------------------------------


def dump_partition(
    fs: FileSystem,
    path: str,
    parsed: filenames.PartitionDirectory | None = None,
    offsets: Offsets | None = None,
    *,
    count: bool = True,
) -> Iterator[f.Fact]:
    """The facts of a partition directory. ``offsets`` are those in the log directory's checkpoints, if it is known.

    ``parsed`` is the parsed name of the directory. Without ``count`` no ``.log`` is read.
    """
    try:
        found = fs.list_directory(path)
        sizes = {name: fs.stat(f"{path}/{name}").size for name in found}
    except FileNotFoundError:
        yield f.Note(path, REMOVED_MEANWHILE)
        return
    if parsed is None:
        parsed = _partition_name(path.rpartition("/")[2])
    stems: dict[int, list[str]] = {}
    for name in found:
        if (stem := parse_segment_file_name(name)) is not None:
            stems.setdefault(stem[0], []).append(name)
    bases = [base for base in sorted(stems) if segment_file_name(base, LOG_SUFFIX) in sizes]
    epochs, small = _small_facts(fs, path, found)
    key = None if parsed is None or parsed.marker else (parsed.topic, parsed.partition)
    recovery_point = _offset(offsets, checkpoints.RECOVERY_POINT_CHECKPOINT, key)
    yield f.PartitionFound(
        path=path,
        topic=parsed and parsed.topic,
        partition=parsed and parsed.partition,
        marker=parsed.marker if parsed else "",
        topic_id=topic_id_in(fs, path),
        segments=len(bases),
        size=sum(sizes[segment_file_name(base, LOG_SUFFIX)] for base in bases),
        epochs=epochs,
        snapshots=[base for base in sorted(stems) if segment_file_name(base, SNAPSHOT_SUFFIX) in sizes],
        log_start=_offset(offsets, checkpoints.LOG_START_CHECKPOINT, key),
        recovery_point=recovery_point,
        high_watermark=_offset(offsets, checkpoints.HIGH_WATERMARK_CHECKPOINT, key),
    )
    yield from small
    compacted_before = max(
        (fact.compacted_before for fact in small if isinstance(fact, f.StateFound)),
        default=_offset(offsets, checkpoints.CLEANER_CHECKPOINT, key),
    )
    end: int | None = None
    followings: list[int | None] = [*bases[1:], None]
    for base, following in zip(bases, followings, strict=False):  # without a segment only None is left
        segment = _segment(fs, path, base, following, stems[base], compacted_before, count=count)
        for fact in with_read_errors(segment, f"{path}/{segment_file_name(base, LOG_SUFFIX)}"):
            if isinstance(fact, f.SegmentFound) and count:
                end = base if fact.next_offset is None else fact.next_offset
            yield fact
    if end is not None and recovery_point is not None and end < recovery_point:
        yield f.Damage(path, None, None, f"the log ends at offset {end}, its recovery point is {recovery_point}")
    yield from _other_files(path, found, bases)
    if not bases:
        yield f.Note(path, "it has no segment: no .log file is in it")


def _other_files(path: str, found: Sequence[str], bases: Sequence[int]) -> Iterator[f.Note]:
    orphans: list[str] = []
    others: list[str] = []
    known = set(bases)
    for name in found:
        stem = parse_segment_file_name(name)
        if name in _PARTITION_FILES or name.endswith(SNAPSHOT_SUFFIX) or (stem is not None and stem[0] in known):
            continue
        (orphans if stem is not None and stem[1] in SEGMENT_SUFFIXES else others).append(name)
    if orphans:
        yield f.Note(path, f"without their .log, so a start removes them: {_listed(orphans, 10)}")
    if others:
        yield f.Note(path, f"other files: {_listed(others, 10)}")


def _small_facts(fs: FileSystem, path: str, found: Sequence[str]) -> tuple[list[tuple[int, int]], list[f.Fact]]:
    """(leader epochs, the other facts of the small files)."""
    epochs, facts = [], []
    readers = (
        (checkpoints.LEADER_EPOCH_CHECKPOINT, small_files.read_epochs),
        (filenames.PARTITION_METADATA_FILE, small_files.read_partition_metadata),
        (PARTITION_STATE_FILE, small_files.read_partition_state),
    )
    for name, reader in readers:
        if name not in found:
            continue
        for fact in reader(fs, f"{path}/{name}"):
            if isinstance(fact, f.EpochFound):
                epochs.append((fact.epoch, fact.start_offset))
            elif not isinstance(fact, f.Property):  # the topic id, which is in ``PartitionFound``
                facts.append(fact)
    return epochs, facts


def _segment(
    fs: FileSystem,
    path: str,
    base: int,
    following: int | None,
    names: Sequence[str],
    compacted_before: int | None,
    *,
    count: bool,
) -> Iterator[f.Fact]:
    """The facts of one segment: its line, then its damage and notes; ``count`` walks over its batches."""
    log = segment_file_name(base, LOG_SUFFIX)
    offset_index = segment_file_name(base, OFFSET_INDEX_SUFFIX)
    time_index = segment_file_name(base, TIME_INDEX_SUFFIX)
    counts = _Counts(compacted_before)
    problems: list[f.Fact] = []
    if segment_file_name(base, AWAITED_SUFFIX) in names:
        problems.append(f.Note(f"{path}/{log}", f"it is not there yet: {AWAITED}"))
        count = False
    try:
        size = fs.stat(f"{path}/{log}").size
        if count:
            problems += counts.walk(fs, f"{path}/{log}", base, following)
        ends = summarize_index(fs, f"{path}/{offset_index}", OFFSET_INDEX_SUFFIX) if offset_index in names else None
        times = summarize_index(fs, f"{path}/{time_index}", TIME_INDEX_SUFFIX) if time_index in names else None
        log_size = fs.stat(f"{path}/{log}").size  # read after the index, because a running broker writes the log first
    except FileNotFoundError as error:
        yield f.Note(error.filename or f"{path}/{log}", REMOVED_MEANWHILE)
        return
    shown = (log, offset_index, time_index, segment_file_name(base, SNAPSHOT_SUFFIX))
    yield f.SegmentFound.of(
        counts if count else None,
        base_offset=base,
        size=size,
        codecs=sorted(counts.codecs) if count else None,
        offset_index_entries=None if ends is None else ends.entries,
        offset_index_padding=None if ends is None else ends.padding_bytes,
        time_index_entries=None if times is None else times.entries,
        time_index_padding=None if times is None else times.padding_bytes,
        other_files=[name for name in names if name not in shown],
    )
    yield from problems
    if ends is not None and (problem := offset_index_problem(ends.ends, log_size)):
        yield f.Damage(f"{path}/{offset_index}", None, None, problem)
    if times is not None and (problem := time_index_problem(times.ends)):
        yield f.Damage(f"{path}/{time_index}", None, None, problem)


class _Counts:
    """Totals of a segment, from its batch headers. ``compacted_before`` is None where nothing tells of compaction."""

    def __init__(self, compacted_before: int | None) -> None:
        self._compacted_before = compacted_before
        self.batches = 0
        self.records = 0
        self.next_offset: int | None = None
        self.codecs: set[str] = set()
        self.first_timestamp: int | None = None
        self.max_timestamp = NO_TIMESTAMP

    def walk(self, fs: FileSystem, path: str, base: int, following: int | None) -> Iterator[f.Fact]:
        """Read the headers and yield problems. ``following`` is the base offset of the next segment."""
        with fs.open(path) as file:
            size = file.size()
            for found in walk_file(file, size, base, checksums=False):
                if isinstance(found, InvalidBytes):
                    note = changed_meanwhile(file, size, path) if found.is_tail else None
                    yield note or f.Damage(path, found.position, found.end_position, full_reason(found))
                    continue
                header = found.header
                self.batches += 1
                self.records += header.record_count
                self.next_offset = header.next_offset
                self.codecs.add(codec_name(header))
                self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
                if self.first_timestamp is None:
                    self.first_timestamp = header.max_timestamp
            if following is not None and self.next_offset is not None and self.next_offset > following:
                yield f.Damage(path, None, None, f"its offsets go on to {self.next_offset - 1}, into the next segment")
            elif following is not None and (end := self.next_offset or base) < following:
                yield f.Note(path, f"offsets {end} to {following - 1} are in no segment: {self._why_absent(following)}")

    def _why_absent(self, following: int) -> str:
        """Why the offsets up to those of the next segment are in none."""
        if self._compacted_before is None:
            return "compaction removed their records, or a file is lost"
        if following <= self._compacted_before:
            return "compaction removed their records"
        if self._compacted_before:
            return f"compaction has come to offset {self._compacted_before} only, so a file is lost"
        return "nothing here was compacted, so a file is lost"


def _offset(offsets: Offsets | None, name: str, key: TopicPartition | None) -> int | None:
    return None if offsets is None or key is None else offsets.get(name, {}).get(key)
