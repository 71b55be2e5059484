"""The partitions of a log directory, with and without a loaded log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random

from seglog_broker.config import BrokerConfig, TopicConfig
from seglog_broker.storage.directory.offset_checkpoints import OffsetCheckpoints
from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.io.handle_pool import HandlePool
from seglog_broker.storage.log.closing import close_together
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.loader import load
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_broker.storage.log.recovery_job import RecoveryJob
from seglog_protocol.checkpoint_files import TopicPartition, encode_offsets
from seglog_protocol.errors import InvalidConfigError
from seglog_protocol.steps import Pace, Steps, finished


@dataclass(eq=False, repr=False)
class PartitionLogs:
    """Logs by topic and partition, their loading, and the partitions without a log.

    ``recovering`` are the jobs of partitions that must be recovered, the largest first; ``offline`` is why a partition
    cannot be served until the next start.
    """

    _fs: FileSystem
    _clock: Clock
    handles: HandlePool
    _path: str
    config: BrokerConfig
    offline: dict[TopicPartition, str]
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict, init=False)
    recovering: dict[TopicPartition, RecoveryJob] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.checkpoints = OffsetCheckpoints(self._fs, self._path)
        # One source of chance for all logs: it has 2.5 KB, spreads rolls, and protects nothing.
        self._load = partial(load, self._fs, self.handles, self._clock, random=Random())  # noqa: S311

    @property
    def without_log(self) -> set[TopicPartition]:
        """Partitions that are offline or to be recovered."""
        return self.offline.keys() | self.recovering.keys()

    def path_of(self, key: TopicPartition) -> str:
        """The directory of a partition."""
        return f"{self._path}/{filenames.partition_directory_name(*key)}"

    def config_of(self, topic: Topic) -> TopicConfig:
        """The configuration of a topic, loaded or not; the broker's defaults if it is invalid."""
        try:
            return self.config.topic_config(topic.config)
        except InvalidConfigError:
            return self.config.topic_config({})

    def reconfigure(self, config: BrokerConfig, topics: Mapping[str, Topic]) -> Steps[None]:
        """Use another broker configuration, and with it other defaults for ``topics``; new logs have them at once."""
        self.config = config
        pace = Pace()
        found: dict[str, TopicConfig] = {}
        for key in list(self.logs):
            log, topic = self.logs.get(key), topics.get(key[0])
            if log is None or topic is None:
                continue
            if topic.name not in found:
                found[topic.name] = self.config_of(topic)
            log.producers.expiration_ms = config.producer_id_expiration_ms
            if log.config != found[topic.name]:
                log.reconfigure(found[topic.name])
            if pace.is_due():
                yield
                found.clear()  # a topic may have been altered meanwhile

    def new_log(self, key: TopicPartition, config: TopicConfig) -> PartitionLog:
        """Load the log of a new partition, without adding it to ``logs``. Raises what ``load`` raises."""
        expiration_ms = self.config.producer_id_expiration_ms
        return PartitionLog(self._load(self.path_of(key), config, clean=True, producer_expiration_ms=expiration_ms))

    def load(
        self,
        key: TopicPartition,
        config: TopicConfig,
        *,
        clean: bool,
        may_recover: bool = True,
        saves_epochs: bool = True,
        saved_end: int | None = None,
    ) -> LoadedLog:
        """Load a partition into ``logs``, with its checkpointed offsets. Raises what ``load`` of a log raises."""
        checkpoints = self.checkpoints
        loaded = self._load(
            self.path_of(key),
            config,
            clean=clean,
            recovery_point=checkpoints.recovery_point(key),
            high_watermark=checkpoints.high_watermark(key),
            saved_end=saved_end,
            log_start=checkpoints.log_start(key),
            first_dirty_offset=checkpoints.first_dirty(key),
            may_recover=may_recover,
            saves_epochs=saves_epochs,
            producer_expiration_ms=self.config.producer_id_expiration_ms,
        )
        log = self.logs[key] = PartitionLog(loaded)
        checkpoints.limit_recovery_point(key, log.log_end_offset)
        return loaded

    def forget(self, key: TopicPartition) -> PartitionLog | None:
        """Take a partition of a deleted topic out of service; return its log, if loaded."""
        self.checkpoints.forget(key)
        self.offline.pop(key, None)
        self.recovering.pop(key, None)
        return self.logs.pop(key, None)

    def give_up_recovery(self, key: TopicPartition, reason: str) -> None:
        """Take a partition that cannot be recovered offline, until the next start."""
        del self.recovering[key]
        self.offline[key] = reason

    def close(self, *, sparing: bool = False) -> dict[TopicPartition, Exception | None]:
        """Close all logs, as ``close_together``: the error of each, or None."""
        closings = [log.closing() for log in self.logs.values()]
        errors = close_together(self._fs, self.handles, closings, sparing=sparing)
        return dict(zip(self.logs, errors, strict=True))

    def release(self) -> None:
        """Give up the writers of all logs without writing anything; the caller closes the handle pool."""
        for log in self.logs.values():
            log.release_writers()

    def note_recovery_point(self, key: TopicPartition, offset: int) -> None:
        """Set the recovery point: everything below ``offset`` is on the disk, indexes included, and needs no recovery.

        A higher recovery point, as after a clean stop, is kept.
        """
        self.checkpoints.note_recovery_point(key, offset, self.logs[key].log_end_offset)

    def gathering_offsets(self) -> Steps[list[tuple[str, dict[TopicPartition, int]]]]:
        """(path, offsets) of the checkpoints of recovery points, log starts and compaction, up to date, in steps."""
        return self.checkpoints.gathering_offsets(self.logs, self.without_log)

    def encoded_checkpoints(self) -> list[tuple[str, bytes]]:
        """(path, content) of the same, as files."""
        return [(path, encode_offsets(offsets)) for path, offsets in finished(self.gathering_offsets())]
