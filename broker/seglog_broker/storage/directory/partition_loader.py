"""Loads the partitions of the log directory, or leaves them to be recovered first, and the report about that."""

import contextlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from seglog_broker.config import TopicConfig
from seglog_broker.storage.directory.partition_logs import PartitionLogs
from seglog_broker.storage.directory.topic_admin import PendingCreation
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.io.os_errors import is_no_room, suppress_no_room, why
from seglog_broker.storage.io.small_files import keep_copy
from seglog_broker.storage.log.leader_epochs import LeaderEpochs, save_together
from seglog_broker.storage.log.loaded_log import LoadedLog, OpenReport
from seglog_broker.storage.log.partition_files import make_is_incomplete, make_partition, topic_id_in
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_broker.storage.log.recovery import TailUnreadError
from seglog_broker.storage.log.recovery_job import RecoveryJob, RecoveryOutcome, unread_tail
from seglog_protocol.checkpoint_files import TopicPartition
from seglog_protocol.errors import InvalidConfigError, SeglogError, StorageError

EPOCHS_AT_A_TIME: Final = 64
"""Partitions whose leader epochs are written and synced together, after an unclean stop; each has one file open."""

RECOVERY_BYTES: Final = 128 * 1024
"""The cost of the fsyncs of one partition's recovery, expressed in bytes read."""


@dataclass(slots=True)
class LoadReport:
    """The result of opening the log directory, for the broker's log and for ``ping``."""

    clean: bool = True
    adopted: list[str] = field(default_factory=list)  # topics of a directory that Kafka wrote
    kafka_settings: list[str] = field(default_factory=list)  # of brokers, in Kafka's metadata log; not taken over
    adopted_accounts: list[str] = field(default_factory=list)  # of a Kafka's metadata log
    adopted_rules: int = 0  # of a Kafka's metadata log
    adopted_quotas: int = 0
    remade: list[str] = field(default_factory=list)  # topics made from directories because the registry was lost
    kafka_signs: list[str] = field(default_factory=list)  # evidence that Kafka used the directory after seglog
    kafka_changes: list[str] = field(default_factory=list)  # what Kafka changed
    opened: dict[TopicPartition, OpenReport] = field(default_factory=dict)
    offline: dict[TopicPartition, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    deleted_directories: list[str] = field(default_factory=list)  # of deleted topics, still to be removed


Loading = Callable[[int, int], None]
"""Called before each partition with the number loaded and the total; may raise ``LoadingStoppedError``."""


class LoadingStoppedError(Exception):
    """Raised by a ``Loading`` to stop: no more is loaded, nothing is served."""

    is_clean: bool = False  # whether the directory was left as by a clean stop


class PartitionLoader:
    """Puts the partitions of one log directory into service, at the start or after their recovery."""

    def __init__(
        self, fs: FileSystem, path: str, partitions: PartitionLogs, registry: TopicRegistry, report: LoadReport
    ) -> None:
        """Fills ``report``, whose ``offline`` is that of ``partitions``."""
        self._fs = fs
        self._path = path
        self._partitions = partitions
        self._checkpoints = partitions.checkpoints
        self._registry = registry
        self._report = report
        self._unsaved: dict[TopicPartition, LeaderEpochs] = {}  # of partitions that begin a new epoch

    def load_all(self, found: set[str], in_line_bytes: int | None, loading: Loading) -> None:
        """Load every partition of the registry; ``found`` are the names in the directory. Raises what ``loading`` does.

        After an unclean stop partitions are recovered here, up to ``in_line_bytes`` in total; the rest is left
        ``recovering``.
        """
        self._checkpoints.load(found, self._report.problems, is_clean=self._report.clean)
        jobs: dict[TopicPartition, RecoveryJob] = {}
        being_made = PendingCreation.read(self._fs, self._path)
        if being_made is None and filenames.CREATION_FILE in found:
            copied = keep_copy(self._fs, f"{self._path}/{filenames.CREATION_FILE}")
            self._report.problems.append(f"{filenames.CREATION_FILE} is ignored, it cannot be understood; {copied}")
        total = sum(topic.partitions for topic in self._registry.topics.values())
        done = itertools.count()
        for topic in list(self._registry.topics.values()):
            try:
                config = self._partitions.config.topic_config(topic.config)
            except InvalidConfigError as error:
                self._report.problems.append(f"topic {topic.name} uses the broker's defaults: {error.message}")
                config = self._partitions.config.topic_config({})
            for partition in range(topic.partitions):
                loading(next(done), total)
                key = (topic.name, partition)
                name = filenames.partition_directory_name(*key)
                try:
                    is_new = name not in found or make_is_incomplete(self._fs, f"{self._path}/{name}")
                    if is_new:
                        if being_made is None or not being_made.has(topic.id, partition):
                            self._refuse_unless_new(key, is_there=name in found)
                        # a crash came between registry and directories: make or complete it
                        make_partition(self._fs, f"{self._path}/{name}", topic.id)
                        self._fs.sync_directory(self._path)
                    self._check_topic_id(topic, name)
                    if not is_new:
                        self._report_missing_state(key, name)
                    if self._report.clean or is_new or self._checkpoints.stopped_clean(key):
                        self._note_loaded(key, self._partitions.load(key, config, clean=True))
                    else:
                        job = self._load_unless_unread(key, config)
                        if job is not None:
                            jobs[key] = job
                except (OSError, SeglogError) as error:
                    self._note_unopened(key, config, error)
                if len(self._unsaved) == EPOCHS_AT_A_TIME:
                    self._save_epochs()
        self._save_epochs()
        self._recover_in_line(jobs, in_line_bytes)
        without_log = self._partitions.without_log
        if filenames.CREATION_FILE in found and not any(
            being_made is not None and being_made.has(self._registry.topics[key[0]].id, key[1]) for key in without_log
        ):
            self._fs.unlink(f"{self._path}/{filenames.CREATION_FILE}")
            self._fs.sync_directory(self._path)
        self._checkpoints.settle(self._partitions.logs, without_log)
        if self._checkpoints.is_stale:
            with suppress_no_room():
                for path, content in self._partitions.encoded_checkpoints():
                    write_file_atomically(self._fs, path, content)
                self._checkpoints.note_written()

    def _report_missing_state(self, key: TopicPartition, name: str) -> None:
        """A clean stop of seglog always leaves the file. After any other stop it may not have been written yet."""
        is_own_stop = self._report.clean and not self._report.kafka_signs and key[0] not in self._report.adopted
        if is_own_stop and not self._fs.exists(f"{self._path}/{name}/{PARTITION_STATE_FILE}"):
            self._report.problems.append(
                f"{name}: {PARTITION_STATE_FILE} is missing: deleted and damaged records are known by other files"
            )

    def _refuse_unless_new(self, key: TopicPartition, *, is_there: bool) -> None:
        """Refuse to make a lost partition again as an empty one, unless ``seglog.missing.partitions`` allows it.

        If it does, the log begins at the highest offset known, so that no offset is used twice.
        """
        known = self._checkpoints.recovery_point(key)
        directory = self._partitions.path_of(key)
        if not known and (key[0] in self._report.adopted or (is_there and self._fs.list_directory(directory))):
            return  # an empty one of Kafka's, or half made by a version without ``seglog-creation.json``
        had = f", and had records up to offset {known - 1}" if known else ""
        what = "has lost its files" if is_there else "is gone"
        if self._partitions.config.seglog_missing_partitions == "refuse":
            raise StorageError(
                f"{directory} {what}{had}: put it back, or have it begin without records with "
                "--set seglog.missing.partitions=empty"
            )
        self._checkpoints.begin_without_records(key)
        self._report.problems.append(f"{filenames.partition_directory_name(*key)} begins without records{had}")

    def _load_unless_unread(self, key: TopicPartition, config: TopicConfig) -> RecoveryJob | None:
        """Open a log after an unclean stop if it needs no recovery; else return the job for that."""
        directory = self._partitions.path_of(key)
        recovery_point = self._checkpoints.recovery_point(key)
        tail = unread_tail(self._fs, directory, recovery_point)
        if tail.is_tidy:
            with contextlib.suppress(TailUnreadError):
                loaded = self._partitions.load(key, config, clean=False, may_recover=False, saves_epochs=False)
                self._note_loaded(key, loaded)
                if not loaded.epochs.is_saved:
                    self._unsaved[key] = loaded.epochs
                return None
        return self._recovery_job(key, config, tail.size)

    def _recovery_job(self, key: TopicPartition, config: TopicConfig, size: int) -> RecoveryJob:
        return RecoveryJob(
            self._partitions.path_of(key),
            size,
            self._checkpoints.recovery_point(key),
            self._checkpoints.log_start(key),
            self._checkpoints.first_dirty(key) or 0,
            segment_index_bytes=config.segment_index_bytes,
            index_interval_bytes=config.index_interval_bytes,
            producer_expiration_ms=self._partitions.config.producer_id_expiration_ms,
        )

    def _recover_in_line(self, jobs: Mapping[TopicPartition, RecoveryJob], bytes_max: int | None) -> None:
        """Recover the smallest partitions, so that most are served at once; the rest stays, the largest first.

        With the largest first, the last job of several processes is a small one, and no process works alone for long.
        """
        used = 0
        for key, job in sorted(jobs.items(), key=lambda item: item[1].size):
            used += job.size + RECOVERY_BYTES
            if bytes_max is not None and used > bytes_max:
                self._partitions.recovering = {key: job} | self._partitions.recovering
                continue
            config = self._partitions.config_of(self._registry.topics[key[0]])
            try:
                self._note_loaded(key, self._partitions.load(key, config, clean=False))
            except (OSError, SeglogError) as error:
                self._note_unopened(key, config, error)

    def _note_unopened(self, key: TopicPartition, config: TopicConfig, error: OSError | SeglogError) -> None:
        """Leave a partition that only lacks disk space to be recovered later; else it is offline."""
        directory = self._partitions.path_of(key)
        if is_no_room(error) and self._fs.exists(directory):
            size = unread_tail(self._fs, directory, self._checkpoints.recovery_point(key)).size
            self._partitions.recovering[key] = self._recovery_job(key, config, size)
        else:
            self._partitions.offline[key] = why(error)

    def _note_loaded(self, key: TopicPartition, loaded: LoadedLog) -> None:
        """Report what was found when a log was loaded."""
        self._report.opened[key] = loaded.report
        name = filenames.partition_directory_name(*key)
        self._report.problems += [f"{name}: {problem}" for problem in loaded.report.problems]

    def _save_epochs(self) -> None:
        """Save the leader epochs of partitions that have begun a new one, together or, where that fails, one by one."""
        if not self._unsaved:
            return
        unsaved, self._unsaved = self._unsaved, {}
        try:
            save_together(self._fs, list(unsaved.values()))
        except OSError:
            for key, epochs in unsaved.items():
                try:
                    epochs.save()
                except OSError as error:
                    self._partitions.logs.pop(key).release()
                    del self._report.opened[key]
                    self._note_unopened(key, self._partitions.config_of(self._registry.topics[key[0]]), error)

    def finish_recovery(self, key: TopicPartition, outcome: RecoveryOutcome) -> PartitionLog:
        """Put a partition into service that a worker has recovered; it is not read again.

        OSError or StorageError: it cannot be opened, and stays ``recovering``.
        """
        self._checkpoints.limit_recovery_point(key, outcome.end_offset)  # a read-only log has no other
        try:
            config = self._partitions.config_of(self._registry.topics[key[0]])
            loaded = self._partitions.load(key, config, clean=True, may_recover=False, saved_end=outcome.end_offset)
            self._note_loaded(key, loaded)
        except TailUnreadError as error:
            raise StorageError(
                f"{self._partitions.recovering[key].directory} has changed since it was recovered"
            ) from error
        log = self._partitions.logs[key]
        del self._partitions.recovering[key]
        name = filenames.partition_directory_name(*key)
        problems = (f"{name}: {problem}" for problem in outcome.problems)
        self._report.problems += [problem for problem in problems if problem not in self._report.problems]
        self._checkpoints.note_log(key)
        if log.state.read_only is None:
            self._partitions.note_recovery_point(key, log.log_end_offset)
        return log

    def _check_topic_id(self, topic: Topic, name: str) -> None:
        """Raise StorageError if the directory is of another topic of the same name."""
        path = f"{self._path}/{name}/{filenames.PARTITION_METADATA_FILE}"
        found = topic_id_in(self._fs, f"{self._path}/{name}")
        if found is None:
            if self._fs.exists(path):
                self._report.problems.append(
                    f"{name}: {filenames.PARTITION_METADATA_FILE} names no topic id and is replaced, with {topic.id}; "
                    f"{keep_copy(self._fs, path)}"
                )
            write_file_atomically(self._fs, path, filenames.encode_partition_metadata(topic.id))
        elif found != topic.id:
            raise StorageError(f"{path} names topic id {found}, the topic {topic.name} has {topic.id}")
