"""A snapshot of a log directory in use: a directory in it, from which a backup is copied without the broker.

It has second names (hard links) of all files that do not change or only grow, and the small files as a clean stop would
write them, so that a copy of it opens as after a clean stop. ``seglog-snapshot.json``, which is written last, has the
lengths of the files that grow:

    version   1
    lengths   bytes by path, of those files that have more behind what belongs to the snapshot
    problems  a sentence for each partition that is not in the snapshot as after a clean stop

The name is that of a deleted partition, which every start removes, also that of Kafka. Nothing is synced: after a crash
there is no snapshot. Where no broker runs a backup makes the second names itself, and holds a ``.lock`` beside them
while it copies, so that a broker that starts meanwhile leaves them.
"""

import itertools
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from seglog_broker.storage.directory.kafka_metadata import METADATA_DIRECTORY
from seglog_broker.storage.directory.kafka_signs import CLEAN_MARKER
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry, Topics
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, Lock, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal
from seglog_broker.storage.log.closing import FrozenLog
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol.checkpoint_files import TopicPartition

_VERSION: Final = 1

LINKED_LAST: Final = (
    filenames.META_PROPERTIES_FILE,
    filenames.FORMAT_FILE,
    filenames.PRODUCER_IDS_FILE,
    filenames.DYNAMIC_CONFIGS_FILE,
    filenames.ACCOUNTS_FILE,
    filenames.ACLS_FILE,
    filenames.CLOCK_FILE,
)
"""Files of the log directory that are replaced as a whole. Producer ids after the logs: none in those is above it."""


class SnapshotOffsets:
    """The offsets of the partitions in a snapshot, by the file that has them: a checkpoint, or that of clean ends."""

    def __init__(self) -> None:
        self.files: dict[str, dict[TopicPartition, int]] = {
            name: {} for name in (*filenames.OFFSET_CHECKPOINTS, filenames.CLEAN_PARTITIONS_FILE)
        }

    def add(self, key: TopicPartition, frozen: FrozenLog, *, first_dirty: int | None) -> None:
        """Add a partition that is in the snapshot as after a clean stop."""
        self.files[checkpoints.HIGH_WATERMARK_CHECKPOINT][key] = frozen.log_end
        if frozen.log_start > frozen.bases[0]:
            self.files[checkpoints.LOG_START_CHECKPOINT][key] = frozen.log_start
        if first_dirty is not None:
            self.files[checkpoints.CLEANER_CHECKPOINT][key] = first_dirty
        if frozen.is_sound:
            for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, filenames.CLEAN_PARTITIONS_FILE):
                self.files[name][key] = frozen.log_end

    def forget(self, key: TopicPartition) -> None:
        """Leave a partition out again."""
        for offsets in self.files.values():
            offsets.pop(key, None)


class SnapshotWriter:
    """Makes one snapshot: ``begin``, ``add_log`` for each partition, ``finish``; and ``remove`` in any case.

    All methods may run in a thread, and raise OSError.
    """

    def __init__(self, fs: FileSystem, log_dir: str, new_uuid: Callable[[], uuid.UUID] = uuid.uuid4) -> None:
        """``log_dir`` is the log directory."""
        self._fs = fs
        self._log_dir = log_dir
        self.name: Final = filenames.marked_directory_name(
            filenames.SNAPSHOT_TOPIC, 0, new_uuid(), filenames.DELETE_MARKER
        )
        self.path: Final = f"{log_dir}/{self.name}"
        self._lengths: dict[str, Mapping[str, int]] = {}  # by partition's directory, by file

    def begin(self) -> None:
        """Make the directory."""
        self._fs.make_directory(self.path)

    def hold(self) -> Lock:
        """Make the directory, and keep starts of a broker from removing it until the lock is released."""
        self.begin()
        return self._fs.lock(f"{self.path}/{filenames.LOCK_FILE}")

    def add_files(self, paths: Iterable[str]) -> None:
        """Add files of a log directory that no broker uses, by their paths in it."""
        for directory, files in itertools.groupby(paths, lambda path: path.rpartition("/")[0]):
            if directory:
                self._fs.make_directory(f"{self.path}/{directory}")
            for file in files:
                self._fs.link(f"{self._log_dir}/{file}", f"{self.path}/{file}")

    def add_log(self, frozen: FrozenLog) -> None:
        """Add a log. No segment of it may be renamed or removed meanwhile."""
        name = frozen.directory.rpartition("/")[2]
        self._fs.make_directory(f"{self.path}/{name}")
        for file in frozen.linked(self._fs.list_directory(frozen.directory)):
            self._fs.link(f"{frozen.directory}/{file}", f"{self.path}/{name}/{file}")
        for file, content in frozen.contents:
            self._write(f"{name}/{file}", content)
        self._lengths[name] = frozen.lengths

    def add_as_it_is(self, name: str) -> None:
        """Add the files of a directory in the log directory, which nothing uses; none is no error."""
        source = f"{self._log_dir}/{name}"
        if not self._fs.exists(source):
            return
        self._fs.make_directory(f"{self.path}/{name}")
        for file in self._fs.list_directory(source):
            if not self._fs.stat(f"{source}/{file}").is_directory:
                self._fs.link(f"{source}/{file}", f"{self.path}/{name}/{file}")

    def drop(self, name: str) -> None:
        """Leave out a partition whose topic was deleted meanwhile, or which is to be added again."""
        if self._fs.exists(f"{self.path}/{name}"):
            self._fs.remove_tree(f"{self.path}/{name}")
        self._lengths.pop(name, None)

    def finish(
        self, topics: Mapping[str, Topic], directory: TopicRegistry, offsets: SnapshotOffsets, problems: Sequence[str]
    ) -> None:
        """Add the files of the log directory itself, whose registry is ``directory``.

        All partitions of ``topics`` are in the snapshot.
        """
        registry = TopicRegistry(self._fs, f"{self.path}/{filenames.REGISTRY_FILE}")
        registry.topics = Topics(topics)
        registry.kafka_metadata, registry.metadata_version = directory.kafka_metadata, directory.metadata_version
        self._write(filenames.REGISTRY_FILE, registry.content())
        clean_ends = offsets.files[filenames.CLEAN_PARTITIONS_FILE]
        for name in filenames.OFFSET_CHECKPOINTS:
            if offsets.files[name] or name != checkpoints.CLEANER_CHECKPOINT:
                self._write(name, checkpoints.encode_offsets(offsets.files[name]))
        self.add_as_it_is(METADATA_DIRECTORY)
        for name in LINKED_LAST:
            if self._fs.exists(f"{self._log_dir}/{name}"):
                self._fs.link(f"{self._log_dir}/{name}", f"{self.path}/{name}")
        if len(clean_ends) == sum(topic.partitions for topic in topics.values()):
            self._write(filenames.CLEAN_SHUTDOWN_FILE, CLEAN_MARKER)
        else:
            self._write(filenames.CLEAN_PARTITIONS_FILE, checkpoints.encode_offsets(clean_ends))
        lengths = {f"{name}/{file}": length for name, of in self._lengths.items() for file, length in of.items()}
        facts = {"version": _VERSION, "lengths": lengths, "problems": list(problems)}
        self._write(filenames.SNAPSHOT_FILE, seal(facts))

    def remove(self) -> None:
        """Remove what there is of the snapshot."""
        if self._fs.exists(self.path):
            self._fs.remove_tree(self.path)

    def _write(self, name: str, content: bytes) -> None:
        # By a rename: a file that is written in place could be one of the log, by its second name.
        write_file_atomically(self._fs, f"{self.path}/{name}", content, sync=False)


def is_held(fs: FileSystem, path: str) -> bool:
    """Whether a backup copies the snapshot ``path``, which it has made itself. Raises OSError."""
    if fs.exists(f"{path}/{filenames.LOCK_FILE}"):
        try:
            fs.lock(f"{path}/{filenames.LOCK_FILE}").release()
        except BlockingIOError:
            return True
    return False


class MalformedSnapshotDirectoryError(ValueError):
    """There is no whole snapshot; the message is the end of a sentence."""


def read_snapshot(fs: FileSystem, path: str) -> tuple[dict[str, int], list[str]]:
    """Lengths by path, and problems, of the snapshot at ``path``. Raises MalformedSnapshotDirectoryError, OSError."""
    try:
        found: dict[str, Any] = unseal(read_file(fs, f"{path}/{filenames.SNAPSHOT_FILE}"), ())
    except MalformedJsonError as error:
        raise MalformedSnapshotDirectoryError(str(error)) from error
    if found.get("version") != _VERSION:
        raise MalformedSnapshotDirectoryError(
            f"its version is {found.get('version')!r}, not {_VERSION}: use the version of seglogd that the broker has"
        )
    return dict(found["lengths"]), list(found["problems"])


#
# Who connects is sent one line of JSON: ``{"snapshot": NAME}`` when the snapshot is there, ``{"error": SENTENCE}`` when
# there is none, or, later, none any more. The snapshot is removed when the connection ends.

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Of a line."""


class NoSnapshotError(Exception):
    """The broker makes no snapshot now, or has given it up; the message says why, and what to do."""


def encode_answer(*, snapshot: str | None = None, error: str | None = None) -> bytes:
    """The line for a snapshot of this name, or for none."""
    return json.dumps({"error": error} if snapshot is None else {"snapshot": snapshot}).encode() + b"\n"


def decode_answer(line: bytes) -> str:
    """The name of the snapshot. Raises NoSnapshotError, with what the broker says if it refuses."""
    try:
        found = json.loads(line)
        if "error" in found:
            raise NoSnapshotError(str(found["error"]))
        name = found["snapshot"]
        if filenames.parse_partition_directory(name).marker != filenames.DELETE_MARKER or "/" in name:
            raise ValueError(name)  # noqa: TRY301
    except (ValueError, TypeError, KeyError) as error:
        raise NoSnapshotError("the broker's answer is not understood: use the seglogd of its version") from error
    return str(name)
