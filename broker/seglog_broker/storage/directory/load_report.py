"""What opening a log directory found, and how that is told while it goes on."""

from collections.abc import Callable
from dataclasses import dataclass, field

from seglog_broker.storage.directory.offset_checkpoints import TopicPartition
from seglog_broker.storage.log.loader import OpenReport


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
