"""The log directory: lock, identity, topics and their partition logs, checkpoints, clean-shutdown marker.

This module opens and closes it. ``PartitionLogs`` has the logs, ``PartitionLoader`` puts partitions into service,
``TopicAdmin`` creates and deletes topics.

The order of writes to the disk makes every crash harmless; comments beside the writes give the reasons.
"""

import contextlib
import traceback
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Final

from seglog_broker.config import BrokerConfig
from seglog_broker.storage.directory.adoption import (
    ADOPTED_NOTE,
    REMADE_NOTE,
    adopted_topic,
    listed,
    missing_partitions,
    reconcile,
    topic_ids,
    with_missing,
)
from seglog_broker.storage.directory.kafka_signs import (
    CLEAN_MARKER,
    KafkaOffsets,
    cut_by_kafka,
    drop_stale_checksums,
    expected_partitions,
    metadata_files,
    signs_of_kafka,
    state_after_kafka,
)
from seglog_broker.storage.directory.load_report import Loading, LoadingStoppedError, LoadReport
from seglog_broker.storage.directory.offset_checkpoints import TopicPartition
from seglog_broker.storage.directory.partition_loader import PartitionLoader
from seglog_broker.storage.directory.partition_logs import PartitionLogs
from seglog_broker.storage.directory.properties import decode_properties
from seglog_broker.storage.directory.topic_admin import TopicAdmin
from seglog_broker.storage.directory.topic_registry import TopicRegistry
from seglog_broker.storage.io import checkpoints, filenames
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem, Hold, Lock, parent, read_file, write_file_atomically
from seglog_broker.storage.io.free_space import FreeSpace
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.io.os_errors import suppress_no_room, why
from seglog_broker.storage.log.partition_files import topic_id_in
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.partition_state import MalformedStateError, PartitionState
from seglog_broker.storage.log.recovery_job import RecoveryJob, RecoveryOutcome
from seglog_broker.storage.producers.producer_ids import ProducerIds
from seglog_protocol.errors import LogDirectoryError, SeglogError, StorageError
from seglog_protocol.record_batch import NO_PRODUCER_ID
from seglog_protocol.segment_files import LOG_SUFFIX, TEMPORARY_SUFFIX

FORMAT_VERSION: Final = 1
"""The number in ``seglog-format``; a higher one is of a newer seglog and is refused."""

FORMAT_CONTENT: Final = f"{FORMAT_VERSION}\n".encode()
"""The content of ``seglog-format``."""

_NODE_ID: Final = 1
_META_VERSION: Final = "1"

_REPLACED_FILES: Final = frozenset(
    {
        filenames.META_PROPERTIES_FILE,
        filenames.CLEAN_SHUTDOWN_FILE,
        filenames.CLEAN_PARTITIONS_FILE,
        filenames.REGISTRY_FILE,
        filenames.FORMAT_FILE,
        filenames.PRODUCER_IDS_FILE,
        filenames.CREATION_FILE,
        checkpoints.RECOVERY_POINT_CHECKPOINT,
        checkpoints.LOG_START_CHECKPOINT,
        checkpoints.HIGH_WATERMARK_CHECKPOINT,
        checkpoints.CLEANER_CHECKPOINT,
    }
)
"""Files that are replaced through a ``.tmp``; other ``.tmp`` files are left alone, like every unknown file."""


class LogDirectory:
    """One log directory, locked from ``open`` until ``close`` or ``abandon``. Synchronous; one owner.

    The methods for topics, from ``plan_topic`` to ``delete_topic``, are those of ``TopicAdmin``.
    """

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        config: BrokerConfig,
        path: str,
        *,
        new_uuid: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        """Reads and writes nothing before ``open``."""
        self.path = path
        self.cluster_id = ""
        self.report = LoadReport()
        self.handles = HandlePool(fs, config.seglog_handles_max, readahead=False)
        self.space = FreeSpace(fs, path, config)
        self.registry = TopicRegistry(fs, self._file(filenames.REGISTRY_FILE))
        self.producer_ids = ProducerIds(fs, self._file(filenames.PRODUCER_IDS_FILE))
        self._fs = fs
        self._new_uuid = new_uuid
        self._lock: Lock | None = None
        self._hold: Hold | None = None
        self._table = PartitionLogs(fs, clock, self.handles, path, config, self.report.offline)
        self._checkpoints = self._table.checkpoints
        self._loader = PartitionLoader(fs, path, self._table, self.registry, self.report)
        self._topics = TopicAdmin(fs, path, self._table, self.registry, self.space, self.handles, new_uuid)
        self.config_of = self._table.config_of
        self.note_recovery_point = self._table.note_recovery_point
        self.checkpoint_offsets = self._table.checkpoint_offsets
        self.plan_topic = self._topics.plan_topic
        self.finish_topic = self._topics.finish_topic
        self.opening = self._topics.opening
        self.plan_alteration = self._topics.plan_alteration
        self.finish_alteration = self._topics.finish_alteration
        self.create_topic = self._topics.create_topic
        self.take_half_made = self._topics.take_half_made
        self.delete_topic = self._topics.delete_topic
        self.forget_topic = self._topics.forget_topic
        self.registry_writing = self._topics.registry_writing
        self.note_recorded = self._topics.note_recorded
        self.mark_for_deletion = self._topics.mark_for_deletion

    # --- Partitions and topics ----------------------------------------------------------------------------------------

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """The open logs, by topic and partition."""
        return self._table.logs

    @property
    def recovering(self) -> dict[TopicPartition, RecoveryJob]:
        """The jobs of partitions that must be recovered first, the largest first; see ``finish_recovery``."""
        return self._table.recovering

    @property
    def half_made(self) -> list[str]:
        """As that of ``TopicAdmin``."""
        return self._topics.half_made

    @property
    def unrecorded(self) -> set[str]:
        """As that of ``TopicAdmin``."""
        return self._topics.unrecorded

    @property
    def has_stale_checkpoints(self) -> bool:
        """Whether they still have entries of deleted topics: write them before creating a topic of such a name."""
        return self._checkpoints.is_stale

    def note_checkpoints_written(self) -> None:
        """The files have the content of ``checkpoints``, and are no longer stale."""
        self._checkpoints.is_stale = False

    def checkpoints(self) -> list[tuple[str, bytes]]:
        """(path, content) of the checkpoints of recovery points, log starts and compaction, up to date."""
        return [(path, checkpoints.encode_offsets(offsets)) for path, offsets in self.checkpoint_offsets()]

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use another broker configuration, and with it other defaults for topics."""
        self.space.reconfigure(config)
        self._table.reconfigure(config, self.registry.topics.values())

    def finish_recovery(self, key: TopicPartition, outcome: RecoveryOutcome) -> PartitionLog:
        """Put a partition into service that a worker has recovered; it is not read again.

        OSError or StorageError: it cannot be opened, and stays ``recovering``.
        """
        log = self._loader.finish_recovery(key, outcome)
        self.producer_ids.note_seen(log.producers.highest_id)
        return log

    def give_up_recovery(self, key: TopicPartition, reason: str) -> None:
        """Take a partition that cannot be recovered offline, until the next start."""
        self._loader.give_up_recovery(key, reason)

    # --- Start and stop -----------------------------------------------------------------------------------------------

    @property
    def is_in_place(self) -> bool:
        """Whether the path is still the directory that was opened, neither removed nor replaced."""
        return self._lock is None or self._lock.is_in_place()

    @property
    def worker_descriptors(self) -> tuple[int, ...]:
        """Descriptors that worker processes writing into this directory inherit: see ``Hold``."""
        return () if self._hold is None else self._hold.descriptors

    def open(self, *, in_line_bytes: int | None = None, loading: Loading = lambda _done, _total: None) -> LoadReport:
        """Lock and check the directory, and load every partition.

        After an unclean stop partitions are recovered here, the smallest first, up to ``in_line_bytes`` in total, by
        default all; the others are left ``recovering``.

        Raises LogDirectoryError when the directory cannot be used: locked, foreign, of a newer format, not writable.
        A single partition that cannot be opened is reported and offline. Raises LoadingStoppedError when ``loading``
        does, after closing everything.
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
            self._load_identity(found, has_data=bool(directories) or known)
            if known:
                self.registry.load()
                self._topics.unrecorded |= {self._file(name) for name in self.registry.remove_deleted(directories)}
                self._reconcile(found, directories)
            clean = filenames.CLEAN_SHUTDOWN_FILE in found
            if clean:
                # At once, so that a crash while loading counts as unclean.
                self._fs.unlink(self._file(filenames.CLEAN_SHUTDOWN_FILE))
                self._fs.sync_directory(self.path)
            if filenames.CLEAN_PARTITIONS_FILE in found:
                if not clean and not self.report.kafka_signs:
                    self._checkpoints.load_clean_ends(self.report.problems)
                self._fs.unlink(self._file(filenames.CLEAN_PARTITIONS_FILE))
                self._fs.sync_directory(self.path)
            self.report.clean = clean or not directories
            if not known:
                self._adopt(directories, is_own=filenames.FORMAT_FILE in found)
            if filenames.FORMAT_FILE not in found:
                write_file_atomically(self._fs, self._file(filenames.FORMAT_FILE), FORMAT_CONTENT)
            self._mark_leftovers(directories)
            self._loader.load_all({*found, *directories}, in_line_bytes, loading)
            seen = (log.producers.highest_id for log in self.logs.values())
            self.producer_ids.load(highest_seen=max(seen, default=NO_PRODUCER_ID))
        except OSError as error:
            self.abandon()
            raise self._unusable(error) from error
        except SeglogError:
            self.abandon()
            raise
        except LoadingStoppedError as stopped:
            stopped.is_clean = self._close_loaded()
            self.abandon()
            raise
        return self.report

    def _close_loaded(self) -> bool:
        """Stop while partitions are being loaded; return whether the next start finds a clean stop.

        No record was appended since the stop before, so its checkpoints are still right.
        """
        if not self.report.clean or self.report.offline or self.report.kafka_signs:
            return False
        try:
            for log in self.logs.values():
                log.close()
            write_file_atomically(self._fs, self._file(filenames.CLEAN_SHUTDOWN_FILE), CLEAN_MARKER)
        except (OSError, StorageError):
            return False
        return True

    def _look_before_touching(self) -> None:
        """Make the directory if there is none; refuse a foreign one before anything is written into it."""
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
            directories = self._partition_directories(found)
            self._read_identity(found)
            if filenames.REGISTRY_FILE not in found:
                self._refuse_where_partitions_are_missing(directories)

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
                f"processes of a broker that was killed still work in {self.path}, perhaps waiting for its disk: try "
                "again when they have ended",
                path=self.path,
            ) from error

    def _check_format(self) -> None:
        path = self._file(filenames.FORMAT_FILE)
        if not self._fs.exists(path):
            return
        text = read_file(self._fs, path).decode(errors="replace").strip()
        if not text.isdigit() or int(text) > FORMAT_VERSION:
            raise LogDirectoryError(
                f"{path} says format {text[:20]!r}, this version of seglog knows formats up to {FORMAT_VERSION}: "
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
                    raise ValueError(f"{directory.topic!r} is not a topic name: {problem}")  # noqa: TRY301
            except ValueError as error:
                raise LogDirectoryError(
                    f"{self.path} is neither seglog's nor Kafka's: it has a sub-directory {name!r} ({error}); choose "
                    "an empty directory with --set log.dir=DIRECTORY, or move that one away",
                    path=self.path,
                ) from error
        return directories

    def _read_identity(self, found: list[str]) -> dict[str, str]:
        """The content of ``meta.properties``. Raises LogDirectoryError for an unknown version."""
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

    def _load_identity(self, found: list[str], *, has_data: bool) -> None:
        """Read ``meta.properties``, or write it if it is absent; if it was lost, report a problem."""
        path = self._file(filenames.META_PROPERTIES_FILE)
        if filenames.META_PROPERTIES_FILE in found:
            self.cluster_id = self._read_identity(found).get("cluster.id", "")
            return
        self.cluster_id = filenames.new_id(self._new_uuid())
        if has_data:
            self.report.problems.append(
                f"{filenames.META_PROPERTIES_FILE} was gone: from now on the cluster id is {self.cluster_id}; stop the "
                "broker and put the file back from a backup to have the former one"
            )
        lines = (
            "#",
            "# written by seglog",
            f"node.id={_NODE_ID}",
            f"directory.id={filenames.new_id(self._new_uuid())}",
            f"version={_META_VERSION}",
            f"cluster.id={self.cluster_id}",
        )
        write_file_atomically(self._fs, path, "".join(f"{line}\n" for line in lines).encode())

    def _adopt(self, directories: Mapping[str, filenames.PartitionDirectory], *, is_own: bool) -> None:
        """Without a registry, make it from the directories: of a new directory, or one that Kafka wrote.

        ``is_own``: seglog wrote the directory, so its registry was lost.
        """
        for name, found in directories.items():
            if not found.marker:
                self._refuse_unless_partition(name)
        ids = topic_ids(directories, self._topic_id_in)
        for topic, partitions in ids.items():
            note = REMADE_NOTE if is_own else ADOPTED_NOTE
            self.registry.topics[topic] = adopted_topic(topic, partitions, self._new_topic_id, note)
        for topic, number in missing_partitions(ids, expected_partitions(self._fs, self.path), directories.values()):
            if topic in ids:
                self.registry.topics[topic] = with_missing(self.registry.topics[topic], number)
        if not is_own:
            self.report.adopted = sorted(self.registry.topics)
        elif self.registry.topics:
            self.report.remade = sorted(self.registry.topics)
            self.report.problems.append(
                f"{filenames.REGISTRY_FILE} was missing and was made from the directories: the configuration of "
                f"{len(self.registry.topics)} topics is lost, they keep every record until it is set again"
            )
        self.registry.kafka_metadata = metadata_files(self._fs, self.path)
        self.registry.save()

    def _refuse_where_partitions_are_missing(self, directories: Mapping[str, filenames.PartitionDirectory]) -> None:
        """Refuse a part of Kafka's partitions, of several log.dirs or a cluster: the others would begin empty."""
        ids = topic_ids(directories, self._topic_id_in)
        missing = missing_partitions(ids, expected_partitions(self._fs, self.path), directories.values())
        if missing and self._table.config.seglog_missing_partitions == "refuse":
            raise LogDirectoryError(
                f"{self.path} was written by Kafka and lacks partitions that its files name: {listed(missing)}; put "
                "their directories here, from Kafka's other log.dirs or brokers, or have them begin without records "
                "with --set seglog.missing.partitions=empty",
                path=self.path,
            )

    def _topic_id_in(self, directory: str) -> str | None:
        return topic_id_in(self._fs, self._file(directory))

    def _new_topic_id(self) -> str:
        return filenames.new_id(self._new_uuid())

    def _reconcile(self, found: Collection[str], directories: dict[str, filenames.PartitionDirectory]) -> None:
        """Adopt what Kafka changed, if it used the directory after seglog.

        This comes before the clean-shutdown marker is removed, because that may be the only sign. Repeating it is
        harmless.
        """
        signs = signs_of_kafka(self._fs, self.path, found, self.registry)
        if not signs:
            return
        restored = self._restore_set_aside(directories)
        directories.update(restored)
        whole = {
            name: key for name, key in directories.items() if not self._is_being_deleted(name) and self._has_log(name)
        }
        out = reconcile(self.registry.topics, topic_ids(whole, self._topic_id_in), self._new_topic_id)
        self.report.kafka_signs = signs
        self.report.kafka_changes = [f"{name} is back: Kafka had set it aside" for name in restored] + out.changes
        points, starts, cleaned = (
            self._checkpoints.read(name, self.report.problems)
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
                self._drop_what_kafka_outdated(name, said)
        self.registry.topics = out.topics
        self.registry.kafka_metadata = metadata_files(self._fs, self.path)
        self.registry.save()

    def _restore_set_aside(
        self, directories: dict[str, filenames.PartitionDirectory]
    ) -> dict[str, filenames.PartitionDirectory]:
        """Restore the names of our partitions that Kafka did not know and set aside."""
        found = {}
        for name, aside in list(directories.items()):
            topic = self.registry.topics.get(aside.topic)
            plain = filenames.partition_directory_name(aside.topic, aside.partition)
            if (
                aside.marker == filenames.STRAY_MARKER
                and topic is not None
                and plain not in directories
                and plain not in found
                and self._topic_id_in(name) == topic.id
            ):
                self._fs.rename(self._file(name), self._file(plain))
                del directories[name]
                found[plain] = aside._replace(marker="")
        if found:
            self._fs.sync_directory(self.path)
        return found

    def _drop_what_kafka_outdated(self, name: str, said: KafkaOffsets) -> None:
        """Remove checksums older than their segments, and facts in the partition's state that no longer hold."""
        directory = self._file(name)
        dropped = drop_stale_checksums(self._fs, directory, said.cleaned_before)
        if dropped:
            self.report.kafka_changes.append(f"{name}: {dropped} checksum files were older than their segments")
        try:
            state = PartitionState.read(self._fs, directory)
        except MalformedStateError:
            return  # loading the partition reports it
        cut = cut_by_kafka(self._fs, directory, state)
        if cut is not None:
            self.report.problems.append(
                f"{name}: Kafka cut off offsets {cut[0]} to {cut[1] - 1}, and used them for other records"
            )
        after = state_after_kafka(self._fs, directory, state, said)
        if after != state:
            after.save(self._fs, directory)

    def _has_log(self, name: str) -> bool:
        """Whether a directory holds a partition."""
        inside = self._fs.list_directory(self._file(name))
        return any(file == filenames.PARTITION_METADATA_FILE or file.endswith(LOG_SUFFIX) for file in inside)

    def _refuse_unless_partition(self, name: str) -> None:
        """Refuse a directory such as ``backup-2024``, which has a partition's name but not its files."""
        inside = self._fs.list_directory(self._file(name))
        if inside and not any(f == filenames.PARTITION_METADATA_FILE or f.endswith(LOG_SUFFIX) for f in inside):
            raise LogDirectoryError(
                f"{self.path} is neither seglog's nor Kafka's: its sub-directory {name!r} holds no segments; choose "
                "an empty directory with --set log.dir=DIRECTORY, or move that one away",
                path=self.path,
            )

    def _mark_leftovers(self, directories: Mapping[str, filenames.PartitionDirectory]) -> None:
        """Mark directories of deleted topics for removal; set aside, as Kafka does, those of unknown topics."""
        changed = False
        for name, (topic, partition, marker) in directories.items():
            owner = self.registry.topics.get(topic)
            if marker == filenames.DELETE_MARKER:
                self.report.deleted_directories.append(self._file(name))
            elif not marker and self._is_being_deleted(name):
                marked = filenames.marked_directory_name(topic, partition, self._new_uuid(), filenames.DELETE_MARKER)
                self._fs.rename(self._file(name), self._file(marked))
                self.report.deleted_directories.append(self._file(marked))
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
            with (
                suppress_no_room()
            ):  # else the next start finds no such directory, or one whose name records the deletion
                self.registry.save()
                self.note_recorded()

    def _is_being_deleted(self, directory: str) -> bool:
        return bool(self.registry.deleting) and self._topic_id_in(directory) in self.registry.deleting

    def close(self) -> list[str]:
        """Stop cleanly: close every log, write the checkpoints, last the clean-shutdown marker; return the problems.

        The marker is written only if every log was closed without error, because a start that finds it, also of Kafka,
        trusts all files. Otherwise ``seglog-clean-partitions`` names those that were closed, so that an error in one
        partition, even a bug, does not cost the others a recovery.
        """
        problems = []
        ends = {}
        clean_ends = {}
        self.handles.make_room_for_stop()
        with contextlib.suppress(OSError):
            self.space.make_ready()
        if self.unrecorded:
            with contextlib.suppress(OSError):  # else the next start knows it from the directory names
                self.registry.save()
        for key, log in self.logs.items():
            try:
                log.close()
            except StorageError as error:
                problems.append(error.message)
                continue
            except Exception as error:  # noqa: BLE001 - a bug: report it, and close the others
                problems.append(f"{log.directory} could not be closed, which is a bug of seglog: {_where(error)}")
                continue
            ends[key] = log.log_end_offset
            if log.state.read_only is not None:  # the disk's content is not known
                problems.append(f"{log.directory} is read-only because {log.state.read_only}")
                continue
            self.note_recovery_point(key, log.log_end_offset)
            clean_ends[key] = log.log_end_offset
        for topic, partition in self.recovering:
            name = filenames.partition_directory_name(topic, partition)
            problems.append(f"{self._file(name)} is not recovered yet; the next start does it")
        try:
            high_watermarks = (self._file(checkpoints.HIGH_WATERMARK_CHECKPOINT), checkpoints.encode_offsets(ends))
            for path, content in (*self.checkpoints(), high_watermarks):
                write_file_atomically(self._fs, path, content)
            if not problems and not self.report.offline:
                marker, content = filenames.CLEAN_SHUTDOWN_FILE, CLEAN_MARKER
            else:
                marker, content = filenames.CLEAN_PARTITIONS_FILE, checkpoints.encode_offsets(clean_ends)
            write_file_atomically(self._fs, self._file(marker), content)
        except OSError as error:
            problems.append(f"the checkpoints of {self.path} could not be written: {why(error)}")
        self.abandon()
        return problems

    def abandon(self) -> None:
        """Close every file and release the lock without writing anything."""
        for log in self.logs.values():
            log.release()
        self.handles.close()
        if self._hold is not None:
            self._hold.release()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _unusable(self, error: OSError) -> LogDirectoryError:
        return LogDirectoryError(
            f"{self.path} cannot be used as log directory: {why(error)}; check that it is writable "
            "and has room, or choose another with --set log.dir=DIRECTORY",
            path=self.path,
        )


def _where(error: Exception) -> str:
    """An exception and the line that raised it, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} at {last.filename}:{last.lineno}"
