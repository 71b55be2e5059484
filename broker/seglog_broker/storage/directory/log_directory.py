"""An open log directory: its lock, its partitions and topics, its checkpoints, and its clean stop.

``open_log_directory`` makes one. ``PartitionLogs`` has the logs, ``TopicAdmin`` creates and deletes topics.
"""

import contextlib
import traceback
from dataclasses import dataclass
from typing import Final

from seglog_broker.config import BrokerConfig
from seglog_broker.config.dynamic_config import DynamicConfig
from seglog_broker.storage.directory.accounts import AccountStore
from seglog_broker.storage.directory.acls import AclStore
from seglog_broker.storage.directory.kafka_signs import CLEAN_MARKER
from seglog_broker.storage.directory.partition_loader import LoadReport, PartitionLoader
from seglog_broker.storage.directory.partition_logs import PartitionLogs
from seglog_broker.storage.directory.topic_admin import TopicAdmin
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.io.free_space import FreeSpace
from seglog_broker.storage.io.os_errors import why
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery_job import RecoveryOutcome
from seglog_broker.storage.producers.producer_ids import ProducerIds
from seglog_protocol import checkpoint_files as checkpoints
from seglog_protocol.checkpoint_files import TopicPartition
from seglog_protocol.errors import LogDirectoryError, StorageError
from seglog_protocol.steps import Steps

INODES_OF_A_STOP: Final = 2
"""Files that the stop of a partition makes at most: a snapshot of its producers, and its first state."""


class DirectoryLock:
    """A log directory that this process holds, until ``release``."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        """Raises LogDirectoryError when another process, or a worker of a broker that was killed, holds ``path``."""
        try:
            self._lock = fs.lock(f"{path}/{filenames.LOCK_FILE}")
        except BlockingIOError as error:
            raise LogDirectoryError(
                f"{path} is in use by {error} (its {filenames.LOCK_FILE} is held): stop that one, or "
                "choose another directory with --set log.dir=DIRECTORY",
                path=path,
                holder=str(error),
            ) from error
        try:
            self.hold = fs.hold(path)  # whose descriptors worker processes writing into the directory inherit
        except BlockingIOError as error:
            self._lock.release()
            raise LogDirectoryError(
                f"processes of a broker that was killed still work in {path}, perhaps waiting for its disk: try "
                "again when they have ended",
                path=path,
            ) from error
        except OSError:
            self._lock.release()
            raise

    @property
    def is_in_place(self) -> bool:
        """Whether the path is still the directory that was locked, neither removed nor replaced."""
        return self._lock.is_in_place()

    def release(self) -> None:
        """Let another broker have the directory. A second call does nothing."""
        self.hold.release()
        self._lock.release()


@dataclass(eq=False, repr=False)
class LogDirectory:
    """One log directory, locked until ``close`` or ``abandon``. Synchronous; one owner.

    ``logs`` are the open logs, by topic and partition. ``recovering`` are the jobs of partitions that must be recovered
    first, the largest first; see ``finish_recovery``.
    """

    _fs: FileSystem
    path: str
    lock: DirectoryLock
    cluster_id: str
    report: LoadReport
    space: FreeSpace
    producer_ids: ProducerIds
    accounts: AccountStore
    acls: AclStore
    partitions: PartitionLogs
    topics: TopicAdmin
    _loader: PartitionLoader
    dynamic_config: DynamicConfig
    """The settings made at run time, as they were when the directory was opened."""

    def __post_init__(self) -> None:
        self.logs = self.partitions.logs
        self.recovering = self.partitions.recovering
        self.handles = self.partitions.handles
        self.registry = self.topics.registry

    def reconfigure(self, config: BrokerConfig) -> Steps[None]:
        """Use another broker configuration, and with it other defaults for topics."""
        self.space.reconfigure(config)
        yield from self.partitions.reconfigure(config, self.registry.topics)

    def finish_recovery(self, key: TopicPartition, outcome: RecoveryOutcome) -> PartitionLog:
        """Put a partition into service that a worker has recovered: see ``PartitionLoader.finish_recovery``."""
        log = self._loader.finish_recovery(key, outcome)
        self.producer_ids.note_seen(log.producers.highest_id)
        return log

    def close(self) -> list[str]:
        """Stop cleanly: close every log, write the checkpoints, last the clean-shutdown marker; return the problems.

        The marker is written only if every log was closed without error, because a start that finds it, also of Kafka,
        trusts all files. Otherwise ``seglog-clean-partitions`` names those that were closed, so that an error in one
        partition, even a bug, does not cost the others a recovery; and so it is where inodes are too short for the
        first state of partitions, which is no problem.
        """
        problems = []
        ends = {}
        clean_ends = {}
        self.handles.make_room_for_stop()
        with contextlib.suppress(OSError):
            self.space.make_ready_to_stop()
        if self.topics.unrecorded:
            with contextlib.suppress(OSError):  # else the next start knows it from the directory names
                self.registry.save()
        sparing = self.space.lacks_inodes_for(len(self.logs) * INODES_OF_A_STOP + len(filenames.SPARE_FILES))
        is_complete = True
        for key, error in self.partitions.close(sparing=sparing).items():
            log = self.logs[key]
            if isinstance(error, StorageError):
                problems.append(error.message)
                continue
            if error is not None:
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{error!r} at {last.filename}:{last.lineno}"
                problems.append(f"{log.directory} could not be closed, which is a bug of seglog: {where}")
                continue
            ends[key] = log.log_end_offset
            if log.state.read_only is not None:  # the disk's content is not known
                problems.append(f"{log.directory} is read-only because {log.state.read_only}")
                continue
            is_complete &= log.state_file.is_saved
            self.partitions.note_recovery_point(key, log.log_end_offset)
            clean_ends[key] = log.log_end_offset
        for topic, partition in self.recovering:
            name = filenames.partition_directory_name(topic, partition)
            problems.append(f"{self._file(name)} is not recovered yet; the next start does it")
        try:
            high_watermarks = (self._file(checkpoints.HIGH_WATERMARK_CHECKPOINT), checkpoints.encode_offsets(ends))
            for path, content in (*self.partitions.encoded_checkpoints(), high_watermarks):
                write_file_atomically(self._fs, path, content)
            if not problems and not self.report.offline and is_complete:
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
        self.partitions.release()
        self.handles.close()
        self.lock.release()

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"
