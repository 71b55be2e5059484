"""The result of opening a log directory, and its progress."""

from collections.abc import Callable
from dataclasses import dataclass, field

from seglog_broker.storage.directory.offset_checkpoints import TopicPartition
from seglog_broker.storage.log.loader import OpenReport


@dataclass(slots=True)
class LoadReport:
    """The result of opening the log directory, for the broker's log and for ``ping``."""

    clean: bool = True
    adopted: list[str] = field(default_factory=list)  # topics of a directory that Kafka wrote
    kafka_settings: list[str] = field(default_factory=list)  # of brokers, in Kafka's metadata log; not taken over
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
