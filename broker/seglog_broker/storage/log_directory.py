"""The log directory: the lock, the identity, the topics and their partition logs, the checkpoints, the clean marker.

The order in which things reach the disk is what makes every crash harmless; it is written where it happens.
"""

import contextlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from seglog_broker.config import BrokerConfig, TopicConfig
from seglog_broker.storage import checkpoints, filenames
from seglog_broker.storage.clock import Clock
from seglog_broker.storage.failures import storage_error
from seglog_broker.storage.filesystem import FileSystem, Hold, Lock, parent, read_file, write_file_atomically
from seglog_broker.storage.free_space import FreeSpace
from seglog_broker.storage.handles import HandlePool
from seglog_broker.storage.partition_files import make_is_incomplete, make_partition
from seglog_broker.storage.partition_log import OpenReport, PartitionLog
from seglog_broker.storage.producer_ids import ProducerIds
from seglog_broker.storage.properties import decode_properties
from seglog_broker.storage.recovery import TailUnreadError
from seglog_broker.storage.recovery_job import RecoveryJob, RecoveryOutcome, unread_tail
from seglog_broker.storage.topics import Topic, TopicRegistry
from seglog_protocol.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogDirectoryError,
    SeglogError,
    StorageError,
    TopicExistsError,
)
from seglog_protocol.record_batch import NO_PRODUCER_ID
from seglog_protocol.segment_files import LOG_SUFFIX, TEMPORARY_SUFFIX

FORMAT_VERSION: Final = 1
"""What ``seglog-format`` says; a higher number was written by a newer seglog and is refused."""

PARTITIONS_MAX: Final = 10_000
"""Of one topic: each costs a directory, three open files and their fsyncs at creation."""

RECOVERY_BYTES: Final = 128 * 1024
"""What the fsyncs of one partition's recovery weigh beside the bytes that are read, however few those are."""

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

TopicPartition = tuple[str, int]


@dataclass(slots=True)
class LoadReport:
    """What opening the log directory found; for the broker's log and for ``ping``."""

    clean: bool = True
    adopted: list[str] = field(default_factory=list)
    opened: dict[TopicPartition, OpenReport] = field(default_factory=dict)
    offline: dict[TopicPartition, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)  # directories of deleted topics, still to be removed


class LogDirectory:
    """One log directory, locked for the life of this object. Synchronous; one owner."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        config: BrokerConfig,
        path: str,
        *,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.path = path
        self.cluster_id = ""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.recovering: dict[TopicPartition, RecoveryJob] = {}
        """What is to be read before a partition can be served, the largest first; see ``finish_recovery``."""
        self.report = LoadReport()
        self._fs = fs
        self._clock = clock
        self._config = config
        self._new_uuid = new_uuid
        self.handles = HandlePool(fs, config.seglog_handles_max)
        self.space = FreeSpace(fs, path, config)
        self.registry = TopicRegistry(fs, self._file(filenames.REGISTRY_FILE))
        self.producer_ids = ProducerIds(fs, self._file(filenames.PRODUCER_IDS_FILE))
        self._lock: Lock | None = None
        self._hold: Hold | None = None
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}  # of partitions that have no log here, offline or recovering
        self._cleaned: dict[TopicPartition, int] = {}  # the cleaner's checkpoint, of the same
        self._has_cleaned = False  # there is such a file, so it must be kept true

    # --- Opening ------------------------------------------------------------------------------------------------------

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

    def _adopted_id(self, directory: str) -> str | None:
        path = f"{self._file(directory)}/{filenames.PARTITION_METADATA_FILE}"
        try:
            return filenames.decode_partition_metadata(read_file(self._fs, path))
        except (FileNotFoundError, ValueError):
            return None

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

    def _load_logs(self, found: set[str], in_line_bytes: int | None) -> None:
        self._recovery_points = self._read_checkpoint(checkpoints.RECOVERY_POINT_CHECKPOINT)
        self._log_starts = self._read_checkpoint(checkpoints.LOG_START_CHECKPOINT)
        self._cleaned = self._read_checkpoint(checkpoints.CLEANER_CHECKPOINT)
        named = self._recovery_points.keys() | self._log_starts.keys() | self._cleaned.keys()
        self._has_cleaned = checkpoints.CLEANER_CHECKPOINT in found
        jobs: dict[TopicPartition, RecoveryJob] = {}
        for topic in list(self.registry.topics.values()):
            try:
                config = self._config.topic_config(topic.config)
            except InvalidConfigError as error:
                self.report.problems.append(f"topic {topic.name} uses the broker's defaults: {error.message}")
                config = self._config.topic_config({})
            for partition in range(topic.partitions):
                key = (topic.name, partition)
                name = filenames.partition_directory_name(*key)
                try:
                    # A crash between registry and directories: made now, or made whole.
                    is_new = name not in found or make_is_incomplete(self._fs, self._file(name))
                    if is_new:
                        make_partition(self._fs, self._file(name), topic.id)
                        self._fs.sync_directory(self.path)
                    self._check_topic_id(topic, name)
                    if self.report.clean or is_new:
                        self._load_log(key, config, clean=True)
                    else:
                        job = self._load_unless_unread(key, config)
                        if job is not None:
                            jobs[key] = job
                except (OSError, SeglogError) as error:
                    self.report.offline[key] = str(error)
        self._recover_in_line(jobs, in_line_bytes)
        without_log = self.report.offline.keys() | self.recovering.keys()
        self._log_starts = {key: offset for key, offset in self._log_starts.items() if key in without_log}
        self._cleaned = {key: offset for key, offset in self._cleaned.items() if key in without_log}
        if not self.logs.keys() | without_log >= named:
            # What is said there of a topic that is gone must not be read as said of a later one of that name.
            for path, content in self.checkpoints():
                write_file_atomically(self._fs, path, content)

    def _load_unless_unread(self, key: TopicPartition, config: TopicConfig) -> RecoveryJob | None:
        """Open a log after an unclean stop if nothing has to be read for it; otherwise what is to be done."""
        directory = self._file(filenames.partition_directory_name(*key))
        recovery_point = self._recovery_points.get(key, 0)
        tail = unread_tail(self._fs, directory, recovery_point)
        if tail.is_tidy:
            with contextlib.suppress(TailUnreadError):
                self._load_log(key, config, clean=False, may_recover=False)
                return None
        return RecoveryJob(
            directory,
            tail.size,
            recovery_point,
            self._log_starts.get(key, 0),
            self._cleaned.get(key, 0),
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            producer_expiration_ms=self._config.producer_id_expiration_ms,
        )

    def _recover_in_line(self, jobs: Mapping[TopicPartition, RecoveryJob], bytes_max: int | None) -> None:
        """Recover what is small, so that most partitions are served at once; the rest stays, the largest first.

        The last one to be done by several processes is then a small one, and none of them works on alone for long.
        """
        used = 0
        for key, job in sorted(jobs.items(), key=lambda item: item[1].size):
            used += job.size + RECOVERY_BYTES
            if bytes_max is not None and used > bytes_max:
                self.recovering = {key: job} | self.recovering
                continue
            try:
                self._load_log(key, self.config_of(self.registry.topics[key[0]]), clean=False)
            except (OSError, SeglogError) as error:
                self.report.offline[key] = str(error)

    def _load_log(self, key: TopicPartition, config: TopicConfig, *, clean: bool, may_recover: bool = True) -> None:
        log = self._log(key, config)
        known = self._recovery_points.get(key, 0)
        try:
            self.report.opened[key] = log.open(
                clean=clean,
                recovery_point=known,
                log_start=self._log_starts.get(key, 0),
                compacted_before=self._cleaned.get(key, 0),
                may_recover=may_recover,
            )
        except (OSError, SeglogError, TailUnreadError):
            log.release()
            raise
        log.first_dirty_offset = self._cleaned.get(key)
        self.logs[key] = log
        self._recovery_points[key] = min(known, log.log_end_offset)

    def config_of(self, topic: Topic) -> TopicConfig:
        """The configuration of a topic, open or not; the broker's defaults where nobody understands it."""
        try:
            return self._config.topic_config(topic.config)
        except InvalidConfigError:
            return self._config.topic_config({})

    def finish_recovery(self, key: TopicPartition, outcome: RecoveryOutcome) -> PartitionLog:
        """Take a partition into service that somebody has recovered; nothing of it is read again.

        OSError or StorageError: it cannot be opened, and is ``recovering`` still.
        """
        known = self._recovery_points.get(key, 0)
        self._recovery_points[key] = min(known, outcome.end_offset)  # where the log is read-only this is all there is
        try:
            self._load_log(key, self.config_of(self.registry.topics[key[0]]), clean=True, may_recover=False)
        except TailUnreadError as error:
            raise StorageError(f"{self.recovering[key].directory} has changed since it was recovered") from error
        log = self.logs[key]
        del self.recovering[key]
        self._log_starts.pop(key, None)
        self._cleaned.pop(key, None)
        self.producer_ids.note_seen(log.producers.highest_id)
        if log.state.read_only is None:
            self.note_recovery_point(key, log.log_end_offset)
        return log

    def give_up_recovery(self, key: TopicPartition, reason: str) -> None:
        """A partition that cannot be recovered is offline until the next start."""
        del self.recovering[key]
        self.report.offline[key] = reason

    def _check_topic_id(self, topic: Topic, name: str) -> None:
        """A directory that belongs to another topic of the same name must not be served as this one."""
        path = f"{self._file(name)}/{filenames.PARTITION_METADATA_FILE}"
        found = self._adopted_id(name)
        if found is None:
            write_file_atomically(self._fs, path, filenames.encode_partition_metadata(topic.id))
        elif found != topic.id:
            raise StorageError(f"{path} names topic id {found}, the topic {topic.name} has {topic.id}")

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoints.read_offsets(self._fs, self._file(name))
        except checkpoints.MalformedCheckpointError as error:
            self.report.problems.append(f"{name} is taken as empty: {error}")
            return {}

    # --- Topics -------------------------------------------------------------------------------------------------------

    def plan_topic(self, name: str, partitions: int, config: dict[str, str]) -> "TopicCreation":
        """Check that a topic can be created and return the work to do, none of which has begun.

        Call the result's ``run`` (many fsyncs: in a thread, if there is a loop to be kept running), then
        ``finish_topic``; nothing else may create or delete topics meanwhile. Raises InvalidTopicError,
        TopicExistsError or InvalidPartitionsError.
        """
        problem = filenames.why_invalid_topic(name)
        if problem is not None:
            raise InvalidTopicError(f"{name[:60]!r} cannot be a topic's name: {problem}", topic=name[:60])
        if name in self.registry.topics:
            raise TopicExistsError(f"topic {name} exists already", topic=name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitionsError(f"a topic has from 1 to {PARTITIONS_MAX} partitions, not {partitions}")
        return self._planned(Topic(name, filenames.new_id(self._new_uuid()), partitions, config), 0)

    def _planned(self, topic: Topic, first_partition: int) -> "TopicCreation":
        registry = self.registry.content(adding=topic)
        return TopicCreation(self._fs, self.path, topic, first_partition, self.registry.path, registry)

    def finish_topic(self, creation: "TopicCreation", error: OSError | None) -> Topic:
        """Take a topic whose files were made into service; StorageError, and no trace of it, when they were not."""
        topic = creation.topic
        try:
            logs = self._opened(creation, error)
        except OSError as failure:
            self._take_back(topic)
            raise storage_error(f"topic {topic.name} could not be created: {failure}", failure) from failure
        self.registry.topics[topic.name] = topic
        self.logs |= logs
        return topic

    def _opened(self, creation: "TopicCreation", error: OSError | None) -> dict[TopicPartition, PartitionLog]:
        """The logs of the partitions that were made; ``error`` if that failed, or what opening them raised."""
        if error is not None:
            raise error
        topic = creation.topic
        config = self._config.topic_config(topic.config)
        made = range(creation.first_partition, topic.partitions)
        logs = {(topic.name, partition): self._log((topic.name, partition), config) for partition in made}
        try:
            for log in logs.values():
                log.open(clean=True)
        except OSError:
            for log in logs.values():
                log.release()
            raise
        return logs

    def plan_alteration(self, topic: Topic, partitions: int, config: dict[str, str]) -> "TopicCreation":
        """The work of giving a topic another configuration and more partitions; then ``finish_alteration``.

        Same rules as for ``plan_topic``. Raises InvalidPartitionsError when there would be fewer.
        """
        if not topic.partitions <= partitions <= PARTITIONS_MAX:
            raise InvalidPartitionsError(
                f"topic {topic.name} has {topic.partitions} partitions and can have up to {PARTITIONS_MAX}, not "
                f"{partitions}: partitions are never taken away"
            )
        return self._planned(replace(topic, partitions=partitions, config=config), topic.partitions)

    def finish_alteration(self, before: Topic, alteration: "TopicCreation", error: OSError | None) -> Topic:
        """Put an alteration in force; StorageError, and everything as it was before, when it could not be written."""
        altered = alteration.topic
        try:
            logs = self._opened(alteration, error)
        except OSError as failure:
            self._take_back_partitions(altered, alteration.first_partition)
            raise storage_error(f"topic {before.name} could not be altered: {failure}", failure) from failure
        self.registry.topics[altered.name] = altered
        self.logs |= logs
        config = self._config.topic_config(altered.config)
        for partition in range(before.partitions):
            log = self.logs.get((altered.name, partition))
            if log is not None:
                log.reconfigure(config)
        return altered

    def create_topic(self, name: str, partitions: int, config: dict[str, str]) -> Topic:
        """``plan_topic`` and what follows from it, in line."""
        creation = self.plan_topic(name, partitions, config)
        try:
            creation.run()
        except OSError as error:
            return self.finish_topic(creation, error)
        return self.finish_topic(creation, None)

    def _take_back(self, topic: Topic) -> None:
        """A topic that could not be made whole must not come back half made at the next start."""
        self.registry.deleting.append(topic.id)
        self._take_back_partitions(topic, 0)

    def _take_back_partitions(self, topic: Topic, first: int) -> None:
        """Remove the directories from partition ``first`` on, then write the registry as it was.

        In this order a crash in between leaves directories to be completed, none that nobody knows of, and on a full
        disk there is room for the registry. Where either fails, the next start does as the registry on disk says.
        """
        for partition in range(first, topic.partitions):
            path = self._file(filenames.partition_directory_name(topic.name, partition))
            self.handles.forget_below(path)
            with contextlib.suppress(OSError):
                if self._fs.exists(path):
                    self._fs.remove_tree(path)
        with contextlib.suppress(OSError):
            self.registry.save()

    def delete_topic(self, topic: Topic) -> list[str]:
        """Take a topic out of service and return the directories to be removed, renamed ``…-delete``.

        The registry is written first: after a crash, or where a directory could not be renamed, the next start removes
        what is left. Whoever still reads from the topic's files holds a lease and finishes undisturbed.
        """
        del self.registry.topics[topic.name]
        self.registry.deleting.append(topic.id)
        try:
            self.registry.save()
        except OSError as error:
            self.registry.topics[topic.name] = topic
            self.registry.deleting.remove(topic.id)
            with contextlib.suppress(OSError):
                self.registry.save()  # the new one may be in its place already, and only not be synced
            raise StorageError(f"topic {topic.name} could not be deleted: {error}") from error
        doomed = []
        for partition in range(topic.partitions):
            log = self.logs.pop((topic.name, partition), None)
            if log is not None:
                log.release()
            self._recovery_points.pop((topic.name, partition), None)
            self._log_starts.pop((topic.name, partition), None)
            self._cleaned.pop((topic.name, partition), None)
            self.report.offline.pop((topic.name, partition), None)
            self.recovering.pop((topic.name, partition), None)
            path = self._file(filenames.partition_directory_name(topic.name, partition))
            name = filenames.marked_directory_name(topic.name, partition, self._new_uuid(), filenames.DELETE_MARKER)
            marked = self._file(name)
            with contextlib.suppress(OSError):
                self._fs.rename(path, marked)
                doomed.append(marked)
        with contextlib.suppress(OSError):
            self._fs.sync_directory(self.path)
        return doomed

    def _log(self, key: TopicPartition, config: TopicConfig) -> PartitionLog:
        return PartitionLog(
            self._fs,
            self.handles,
            self._clock,
            self._file(filenames.partition_directory_name(*key)),
            config,
            producer_expiration_ms=self._config.producer_id_expiration_ms,
        )

    # --- Checkpoints and stopping -------------------------------------------------------------------------------------

    def note_recovery_point(self, key: TopicPartition, offset: int) -> None:
        """Everything below ``offset`` is on the disk, indexes included: a start need not read it.

        What was known to be there before, as after a clean stop, stays known.
        """
        known = min(self._recovery_points.get(key, 0), self.logs[key].log_end_offset)
        self._recovery_points[key] = max(known, offset)

    def checkpoints(self) -> list[tuple[str, bytes]]:
        """(path, content) of the checkpoints of recovery points, log starts and compaction as they should be now."""
        known = self.logs.keys() | self.report.offline.keys() | self.recovering.keys()
        points = {key: offset for key, offset in self._recovery_points.items() if key in known}
        starts = dict(self._log_starts)
        for key, log in self.logs.items():
            if log.log_start_offset > log.first_base_on_disk:  # the others follow from the files
                starts[key] = log.log_start_offset
        cleaned = dict(self._cleaned)
        cleaned |= {k: log.first_dirty_offset for k, log in self.logs.items() if log.first_dirty_offset is not None}
        wanted = [(checkpoints.RECOVERY_POINT_CHECKPOINT, points), (checkpoints.LOG_START_CHECKPOINT, starts)]
        if cleaned or self._has_cleaned:
            self._has_cleaned = True
            wanted.append((checkpoints.CLEANER_CHECKPOINT, cleaned))
        return [(self._file(name), checkpoints.encode_offsets(offsets)) for name, offsets in wanted]

    def close(self) -> list[str]:
        """Stop in order: every log to disk, then the checkpoints, last the clean marker; return what went wrong.

        The marker is written only if every log was closed without error, because a start that finds it believes
        everything else.
        """
        problems = []
        ends = {}
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

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"


class TopicCreation:
    """The files of a new topic, or of partitions added to one, from ``first_partition`` on.

    ``run`` makes them, touches nothing shared, and may be called in a thread, once.
    """

    def __init__(
        self, fs: FileSystem, path: str, topic: Topic, first_partition: int, registry_path: str, registry: bytes
    ) -> None:
        self.topic = topic
        self.first_partition = first_partition
        self._fs = fs
        self._path = path
        self._registry_path = registry_path
        self._registry = registry

    def run(self) -> None:
        """Registry first: after a crash the start completes the directories. OSError: whoever finishes cleans up."""
        write_file_atomically(self._fs, self._registry_path, self._registry)
        for partition in range(self.first_partition, self.topic.partitions):
            name = filenames.partition_directory_name(self.topic.name, partition)
            make_partition(self._fs, f"{self._path}/{name}", self.topic.id)
        if self.first_partition < self.topic.partitions:
            self._fs.sync_directory(self._path)
