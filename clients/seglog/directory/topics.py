"""A log directory: its topics, partitions and consumers."""

import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seglog.core.consumer_options import ConsumerOptions
from seglog.directory.partition import PartitionFiles
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import LogDirectoryError, UnknownTopicError
from seglog_protocol.isolation import READ_UNCOMMITTED, Isolation

if TYPE_CHECKING:
    from seglog.core.fetcher import OutOfRange
    from seglog.core.offsets import Place
    from seglog.core.records import ConsumerGap
    from seglog.directory.consumer import DirectoryConsumer

_NO_TOPICS: Final = frozenset({"__cluster_metadata"})
"""Kafka's internal directories that look like a topic's."""


class LogDirectory:
    """A broker's log directory, on this machine or on shared storage.

    Raises LogDirectoryError when the directory does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if not self.path.is_dir():
            raise LogDirectoryError(f"{self.path} is not a directory on this machine", path=str(self.path))

    def topics(self) -> dict[str, list[int]]:
        """Topics by name, each with its partitions in this directory, ascending."""
        found: dict[str, list[int]] = {}
        for entry in os.scandir(self.path):
            topic, _, number = entry.name.rpartition("-")  # deleted topics end in a word, not in a number
            if topic == ".Trash" and not (Path(entry) / "partition.metadata").exists():
                continue  # a desktop's
            if topic and topic not in _NO_TOPICS and number.isascii() and number.isdecimal() and entry.is_dir():
                found.setdefault(topic, []).append(int(number))
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic in this directory. Raises UnknownTopicError, with the most similar name."""
        topics = self.topics()
        if topic not in topics:
            nearest = next(iter(get_close_matches(topic, topics, 1)), "")
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            raise UnknownTopicError(f"no topic {topic!r} in {self.path}{hint}", topic=topic, nearest=nearest)
        return topics[topic]

    def partition(self, topic: str, number: int) -> PartitionFiles:
        """One partition; its methods raise if it does not exist."""
        return PartitionFiles(self.path, topic, number)

    def consumer(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        start: "Place | None" = None,
        until: "Place | None" = None,
        durable_only: bool = False,
        isolation: Isolation = READ_UNCOMMITTED,
        on_out_of_range: "OutOfRange" = "error",
        on_gap: "Callable[[ConsumerGap], None] | None" = None,
        partition_bytes: int,
        decompressed_batch_bytes_max: int = DECOMPRESSED_BATCH_BYTES_MAX,
    ) -> "DirectoryConsumer":
        """As ``Client.consumer`` without ``follow``. ``durable_only``: up to the recovery point on disk."""
        from seglog.directory.consumer import DirectoryConsumer  # noqa: PLC0415 - it is slow to import

        options = ConsumerOptions(
            partitions=partitions,
            start=start,
            until=until,
            durable_only=durable_only,
            isolation=isolation,
            on_out_of_range=on_out_of_range,
            on_gap=on_gap,
            decompressed_batch_bytes_max=decompressed_batch_bytes_max,
            partition_bytes=partition_bytes,
        )
        return DirectoryConsumer(self.partitions, self.partition, topic, options)
