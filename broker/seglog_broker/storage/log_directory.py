"""The log directory: the lock, the identity, the topics and their partition logs, the checkpoints, the clean marker.

Here it is opened and closed; how partitions are loaded and topics come and go is in ``directory_loading`` and
``directory_topics``, which it inherits from.

The order in which things reach the disk is what makes every crash harmless; it is written where it happens.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

from seglog_broker.storage import checkpoints, filenames
from seglog_broker.storage.directory_core import LoadReport
from seglog_broker.storage.directory_loading import DirectoryLoading
from seglog_broker.storage.directory_topics import DirectoryTopics
from seglog_broker.storage.filesystem import parent, read_file, write_file_atomically
from seglog_broker.storage.properties import decode_properties
from seglog_broker.storage.topics import Topic
from seglog_protocol.errors import LogDirectoryError, SeglogError, StorageError
from seglog_protocol.record_batch import NO_PRODUCER_ID
from seglog_protocol.segment_files import LOG_SUFFIX, TEMPORARY_SUFFIX

FORMAT_VERSION: Final = 1
"""What ``seglog-format`` says; a higher number was written by a newer seglog and is refused."""

_NODE_ID: Final = 1
_META_VERSION: Final = "1"

_ADOPTED_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_ADOPTED_NOTE: Final = (
    "adopted from a directory that Apache Kafka wrote: its configuration is not in there, so this topic keeps "
    "everything (cleanup.policy=delete, retention.ms=-1, retention.bytes=-1)"
)

_REPLACED_FILES: Final = frozenset(
    {
        filenames.META_PROPERTIES_FILE,
        filenames.CLEAN_SHUTDOWN_FILE,
        filenames.REGISTRY_FILE,
        filenames.FORMAT_FILE,
        filenames.PRODUCER_IDS_FILE,
        checkpoints.RECOVERY_POINT_CHECKPOINT,
        checkpoints.LOG_START_CHECKPOINT,
        checkpoints.HIGH_WATERMARK_CHECKPOINT,
        checkpoints.CLEANER_CHECKPOINT,
    }
)
"""Files that are replaced through a ``.tmp``; somebody else's ``.tmp`` is left alone, as every unknown file is."""


class LogDirectory(DirectoryLoading, DirectoryTopics):
    """One log directory, locked for the life of this object. Synchronous; one owner."""

    @property
    def worker_descriptors(self) -> tuple[int, ...]:
        """For processes that write into this directory: see ``Hold``."""
        return () if self._hold is None else self._hold.descriptors

    def open(self, *, in_line_bytes: int | None = None) -> LoadReport:
        """Lock, look at what is there, and load every partition.

        What an unclean stop left to be read is read here, the smallest tails first, up to ``in_line_bytes``, by default
        all of it; partitions for which that is not enough are left ``recovering``.

        Raises LogDirectoryError when the directory cannot be used: locked, foreign, of a newer format, not writable.
        A single partition that cannot be opened is only reported, and offline.
        """
        try:
            self._look_before_touching()
            self._take_lock()
            self.space.begin()
            self._check_format()
            found = self._fs.list_directory(self.path)
            known = self._fs.exists(self._file(filenames.REGISTRY_FILE))
            directories = self._partition_directories(found)
            for name in found:
                if name.removesuffix(TEMPORARY_SUFFIX) in _REPLACED_FILES and name.endswith(TEMPORARY_SUFFIX):
                    self._fs.unlink(self._file(name))
            self._load_identity(found)
            clean = filenames.CLEAN_SHUTDOWN_FILE in found
            if clean:
                # At once, so that a crash while loading counts as unclean.
                self._fs.unlink(self._file(filenames.CLEAN_SHUTDOWN_FILE))
                self._fs.sync_directory(self.path)
            self.report.clean = clean or not directories
            if known:
                self.registry.load()
            else:
                self._adopt(directories)
            if filenames.FORMAT_FILE not in found:
                write_file_atomically(self._fs, self._file(filenames.FORMAT_FILE), f"{FORMAT_VERSION}\n".encode())
            self._mark_leftovers(directories)
            self._load_logs(set(found), in_line_bytes)
            seen = (log.producers.highest_id for log in self.logs.values())
            self.producer_ids.load(highest_seen=max(seen, default=NO_PRODUCER_ID))
        except OSError as error:
            self.abandon()
            raise self._unusable(error) from error
        except SeglogError:
            self.abandon()
            raise
        return self.report

    def _look_before_touching(self) -> None:
        """Make the directory if there is none; refuse somebody else's before anything is written into it."""
        if not self._fs.exists(self.path):
            missing = [self.path]
            while not self._fs.exists(above := parent(missing[-1])):
                missing.append(above)
            for path in reversed(missing):
                self._fs.make_directory(path)
                self._fs.sync_directory(parent(path))
        elif not self._fs.stat(self.path).is_directory:
            raise LogDirectoryError(f"{self.path} is a file; log.dir must name a directory", path=self.path)
        else:
            self._check_format()
            found = self._fs.list_directory(self.path)
            self._partition_directories(found)
            self._read_identity(found)

    def _take_lock(self) -> None:
        try:
            self._lock = self._fs.lock(self._file(filenames.LOCK_FILE))
        except BlockingIOError as error:
            raise LogDirectoryError(
                f"{self.path} is in use by another broker (its {filenames.LOCK_FILE} is held): stop that one, or "
                "choose another directory with --set log.dir=DIRECTORY",
                path=self.path,
            ) from error
        try:
            self._hold = self._fs.hold(self.path)
        except BlockingIOError as error:
            raise LogDirectoryError(
                f"processes of a broker that was killed are still at work in {self.path}, held up by its disk perhaps: "
                "try again when they have ended",
                path=self.path,
            ) from error

    def _check_format(self) -> None:
        path = self._file(filenames.FORMAT_FILE)
        if not self._fs.exists(path):
            return
        text = read_file(self._fs, path).decode(errors="replace").strip()
        if not text.isdigit() or int(text) > FORMAT_VERSION:
            raise LogDirectoryError(
                f"{self.path} has format {text[:20]!r}, this version of seglog knows formats up to {FORMAT_VERSION}: "
                "use the newer version that wrote it",
                path=self.path,
            )

    def _partition_directories(self, found: list[str]) -> dict[str, filenames.PartitionDirectory]:
        """The partition directories by name. Raises LogDirectoryError when there is any other sub-directory."""
        directories = {}
        for name in found:
            if name in filenames.SKIPPED_DIRECTORIES or not self._fs.stat(self._file(name)).is_directory:
                continue
            try:
                directories[name] = directory = filenames.parse_partition_directory(name)
                problem = filenames.why_invalid_topic(directory.topic)
                if problem is not None:
                    raise ValueError(f"{directory.topic!r} is no topic's name: {problem}")  # noqa: TRY301
            except ValueError as error:
                raise LogDirectoryError(
                    f"{self.path} is neither seglog's nor Kafka's: it has a sub-directory {name!r} ({error}); choose "
                    "an empty directory with --set log.dir=DIRECTORY, or move that one away",
                    path=self.path,
                ) from error
        return directories

    def _read_identity(self, found: list[str]) -> dict[str, str]:
        """What ``meta.properties`` says. Raises LogDirectoryError when it has a version that nobody knows."""
        if filenames.META_PROPERTIES_FILE not in found:
            return {}
        path = self._file(filenames.META_PROPERTIES_FILE)
        properties = decode_properties(read_file(self._fs, path))
        if properties.get("version", "0") not in ("0", _META_VERSION):
            raise LogDirectoryError(
                f"{path} has version {properties['version']!r}, which neither this seglog nor the Kafka it knows "
                "writes: choose another directory with --set log.dir=DIRECTORY",
                path=self.path,
            )
        return properties

    def _load_identity(self, found: list[str]) -> None:
        """Read ``meta.properties``, or write it for a new directory."""
        path = self._file(filenames.META_PROPERTIES_FILE)
        if filenames.META_PROPERTIES_FILE in found:
            self.cluster_id = self._read_identity(found).get("cluster.id", "")
            return
        self.cluster_id = filenames.new_id(self._new_uuid())
        lines = (
            "#",
            "# written by seglog",
            f"node.id={_NODE_ID}",
            f"directory.id={filenames.new_id(self._new_uuid())}",
            f"version={_META_VERSION}",
            f"cluster.id={self.cluster_id}",
        )
        write_file_atomically(self._fs, path, "".join(f"{line}\n" for line in lines).encode())

    def _adopt(self, directories: Mapping[str, filenames.PartitionDirectory]) -> None:
        """No registry: a new directory, or one that Kafka wrote. Its topics are taken as they stand, and kept."""
        for name, (topic, partition, marker) in directories.items():
            if marker:
                continue
            self._refuse_unless_partition(name)
            known = self.registry.topics.get(topic)
            topic_id = self._adopted_id(name) or (known.id if known else filenames.new_id(self._new_uuid()))
            count = max(partition + 1, known.partitions if known else 0)
            self.registry.topics[topic] = Topic(topic, topic_id, count, dict(_ADOPTED_CONFIG), [_ADOPTED_NOTE])
        self.report.adopted = sorted(self.registry.topics)
        self.registry.save()

    def _refuse_unless_partition(self, name: str) -> None:
        """A name like a partition's is not enough to adopt somebody's ``backup-2024``: it must look like one inside."""
        inside = self._fs.list_directory(self._file(name))
        if inside and not any(f == filenames.PARTITION_METADATA_FILE or f.endswith(LOG_SUFFIX) for f in inside):
            raise LogDirectoryError(
                f"{self.path} is neither seglog's nor Kafka's: its sub-directory {name!r} holds no segments; choose "
                "an empty directory with --set log.dir=DIRECTORY, or move that one away",
                path=self.path,
            )

    def _mark_leftovers(self, directories: Mapping[str, filenames.PartitionDirectory]) -> None:
        """Mark what a deletion left, for removal, and set aside, as Kafka does, directories that no topic knows."""
        changed = False
        for name, (topic, partition, marker) in directories.items():
            owner = self.registry.topics.get(topic)
            if marker == filenames.DELETE_MARKER:
                self.report.doomed.append(self._file(name))
            elif not marker and self._is_doomed(name):
                marked = filenames.marked_directory_name(topic, partition, self._new_uuid(), filenames.DELETE_MARKER)
                self._fs.rename(self._file(name), self._file(marked))
                self.report.doomed.append(self._file(marked))
                changed = True
            elif not marker and (owner is None or partition >= owner.partitions):
                aside = filenames.marked_directory_name(topic, partition, self._new_uuid(), filenames.STRAY_MARKER)
                self._fs.rename(self._file(name), self._file(aside))
                self.report.problems.append(f"{name} belongs to no known topic and was set aside as {aside}")
                changed = True
        if changed:
            self._fs.sync_directory(self.path)
        if self.registry.deleting:
            self.registry.deleting = []
            self.registry.save()

    def _is_doomed(self, directory: str) -> bool:
        return bool(self.registry.deleting) and self._adopted_id(directory) in self.registry.deleting

    def close(self) -> list[str]:
        """Stop in order: every log to disk, then the checkpoints, last the clean marker; return what went wrong.

        The marker is written only if every log was closed without error, because a start that finds it believes
        everything else.
        """
        problems = []
        ends = {}
        with contextlib.suppress(OSError):
            self.space.make_ready()
        for key, log in self.logs.items():
            try:
                log.close()
                ends[key] = log.log_end_offset
                if log.state.read_only is not None:  # what its files hold is known by reading them, if at all
                    problems.append(f"{log.directory} is read-only because {log.state.read_only}")
                    continue
                self.note_recovery_point(key, log.log_end_offset)
            except StorageError as error:
                problems.append(error.message)
        try:
            high_watermarks = (self._file(checkpoints.HIGH_WATERMARK_CHECKPOINT), checkpoints.encode_offsets(ends))
            for path, content in (*self.checkpoints(), high_watermarks):
                write_file_atomically(self._fs, path, content)
            if not problems and not self.report.offline and not self.recovering:
                marker = b'{"version":0,"brokerEpoch":-1}'
                write_file_atomically(self._fs, self._file(filenames.CLEAN_SHUTDOWN_FILE), marker)
        except OSError as error:
            problems.append(f"the checkpoints of {self.path} could not be written: {error}")
        self.abandon()
        return problems

    def abandon(self) -> None:
        """Let go of every file and of the lock without writing anything."""
        for log in self.logs.values():
            log.release()
        self.handles.close()
        if self._hold is not None:
            self._hold.release()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _unusable(self, error: OSError) -> LogDirectoryError:
        return LogDirectoryError(
            f"{self.path} cannot be used as log directory: {error.strerror or error}; check that it is writable "
            "and has room, or choose another with --set log.dir=DIRECTORY",
            path=self.path,
        )
