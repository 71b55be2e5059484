"""Loading the partitions of the log directory: what is served at once, and what is recovered first."""

import contextlib
from collections.abc import Mapping
from typing import Final

from seglog_broker.config import TopicConfig
from seglog_broker.storage import checkpoints, filenames
from seglog_broker.storage.directory_core import DirectoryCore, TopicPartition
from seglog_broker.storage.filesystem import write_file_atomically
from seglog_broker.storage.partition_files import make_is_incomplete, make_partition
from seglog_broker.storage.partition_log import PartitionLog
from seglog_broker.storage.recovery import TailUnreadError
from seglog_broker.storage.recovery_job import RecoveryJob, RecoveryOutcome, unread_tail
from seglog_broker.storage.topics import Topic
from seglog_protocol.errors import InvalidConfigError, SeglogError, StorageError

RECOVERY_BYTES: Final = 128 * 1024
"""What the fsyncs of one partition's recovery weigh beside the bytes that are read, however few those are."""


class DirectoryLoading(DirectoryCore):
    """A directory whose partitions come into service, at the start or when they have been recovered."""

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
