"""What every part of the log directory shares: its logs, what is known of those it has not, and the checkpoints."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from seglog_broker.config import BrokerConfig, TopicConfig
from seglog_broker.storage.directory.offset_checkpoints import OffsetCheckpoints, TopicPartition
from seglog_broker.storage.directory.topic_registry import Topic, TopicRegistry
from seglog_broker.storage.io import checkpoints, filenames
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem, Hold, Lock, read_file
from seglog_broker.storage.io.free_space import FreeSpace
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.loader import LoadedLog, OpenReport, load
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery_job import RecoveryJob
from seglog_broker.storage.producers.producer_ids import ProducerIds
from seglog_protocol.errors import InvalidConfigError


@dataclass(slots=True)
class LoadReport:
    """What opening the log directory found; for the broker's log and for ``ping``."""

    clean: bool = True
    adopted: list[str] = field(default_factory=list)  # topics of a directory that Kafka wrote
    remade: list[str] = field(default_factory=list)  # topics of a registry that was lost
    kafka_signs: list[str] = field(default_factory=list)  # that Kafka had the directory since seglog did
    kafka_changes: list[str] = field(default_factory=list)  # what it left otherwise than it was
    opened: dict[TopicPartition, OpenReport] = field(default_factory=dict)
    offline: dict[TopicPartition, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)  # directories of deleted topics, still to be removed


Loading = Callable[[int, int], None]
"""Told, before each partition is loaded, how many are and how many there will be; see ``LoadingStoppedError``."""


class LoadingStoppedError(Exception):
    """Raised by a ``Loading``: the rest is not to be loaded, nothing is to be served."""

    is_clean: bool = False  # whether the next start finds the directory as a clean stop leaves it


class DirectoryCore:
    """The logs of one directory by topic and partition. The parts build on this; ``LogDirectory`` is the whole."""

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
        self.half_made: list[str] = []
        """Renamed directories of partitions that could not be made, still to be removed: by the next start at last."""
        self.report = LoadReport()
        self._fs = fs
        self._clock = clock
        self._config = config
        self._new_uuid = new_uuid
        self.handles = HandlePool(fs, config.seglog_handles_max, readahead=False)
        self.space = FreeSpace(fs, path, config)
        self.registry = TopicRegistry(fs, self._file(filenames.REGISTRY_FILE))
        self.producer_ids = ProducerIds(fs, self._file(filenames.PRODUCER_IDS_FILE))
        self._lock: Lock | None = None
        self._hold: Hold | None = None
        self._checkpoints = OffsetCheckpoints(fs, path)
        self.unrecorded: set[str] = set()
        """Directories whose names alone say that a topic was deleted, for want of room to write the registry: they are
        emptied, and stay until it is written."""

    @property
    def is_in_place(self) -> bool:
        """Whether it is still the directory that was opened, and not removed or replaced by somebody."""
        return self._lock is None or self._lock.is_in_place()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take another configuration of the broker, and with it other defaults for topics; all of it, at once."""
        self._config = config
        self.space.reconfigure(config)
        for topic in self.registry.topics.values():
            topic_config = self.config_of(topic)
            for partition in range(topic.partitions):
                log = self.logs.get((topic.name, partition))
                if log is None:
                    continue
                log.set_producer_expiration(config.producer_id_expiration_ms)
                if log.config != topic_config:
                    log.reconfigure(topic_config)

    def config_of(self, topic: Topic) -> TopicConfig:
        """The configuration of a topic, open or not; the broker's defaults where nobody understands it."""
        try:
            return self._config.topic_config(topic.config)
        except InvalidConfigError:
            return self._config.topic_config({})

    def _new_log(self, key: TopicPartition, config: TopicConfig) -> PartitionLog:
        """The log of a partition that was just made."""
        return PartitionLog(
            load(
                self._fs,
                self.handles,
                self._clock,
                self._file(filenames.partition_directory_name(*key)),
                config,
                clean=True,
                producer_expiration_ms=self._config.producer_id_expiration_ms,
            )
        )

    def _loaded(
        self,
        key: TopicPartition,
        config: TopicConfig,
        *,
        clean: bool,
        may_recover: bool,
        saved_end: int | None,
    ) -> LoadedLog:
        return load(
            self._fs,
            self.handles,
            self._clock,
            self._file(filenames.partition_directory_name(*key)),
            config,
            clean=clean,
            recovery_point=self._checkpoints.recovery_point(key),
            high_watermark=self._checkpoints.high_watermark(key),
            saved_end=saved_end,
            log_start=self._checkpoints.log_start(key),
            first_dirty_offset=self._checkpoints.first_dirty(key),
            may_recover=may_recover,
            producer_expiration_ms=self._config.producer_id_expiration_ms,
        )

    def note_recovery_point(self, key: TopicPartition, offset: int) -> None:
        """Everything below ``offset`` is on the disk, indexes included: a start need not read it.

        What was known to be there before, as after a clean stop, stays known.
        """
        self._checkpoints.note_recovery_point(key, offset, self.logs[key].log_end_offset)

    @property
    def has_stale_checkpoints(self) -> bool:
        """They still speak of topics that are gone: to be written before one of such a name is created."""
        return self._checkpoints.is_stale

    def note_checkpoints_written(self) -> None:
        """They are on the disk as ``checkpoints`` has them: nothing in them is stale any more."""
        self._checkpoints.is_stale = False

    def checkpoints(self) -> list[tuple[str, bytes]]:
        """(path, content) of the checkpoints of recovery points, log starts and compaction as they should be now."""
        return [(path, checkpoints.encode_offsets(offsets)) for path, offsets in self.checkpoint_offsets()]

    def checkpoint_offsets(self) -> list[tuple[str, dict[TopicPartition, int]]]:
        """As ``checkpoints``, still to be encoded."""
        return self._checkpoints.offsets(self.logs, self.report.offline.keys() | self.recovering.keys())

    def _adopted_id(self, directory: str) -> str | None:
        path = f"{self._file(directory)}/{filenames.PARTITION_METADATA_FILE}"
        try:
            return filenames.decode_partition_metadata(read_file(self._fs, path))
        except (FileNotFoundError, ValueError):
            return None

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"
