"""Creates the files of topics: planned on the loop, run in a thread, put into service on the loop.

Meanwhile ``seglog-creation.json`` has the partitions that are being made. A start completes only those: the directory
of any other partition that is absent was lost, with its records.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal
from seglog_broker.storage.log.partition_files import make_partitions
from seglog_broker.storage.log.partition_log import PartitionLog

_VERSION: Final = 2
_KEYS: Final = frozenset({"version", "first_partitions", "topic_id", "first_partition"})


class PendingCreation(NamedTuple):
    """The partitions that are being made, or were at a crash."""

    first_partitions: Mapping[str, int]
    """By topic id: the partitions from this one on."""

    @classmethod
    def read(cls, fs: FileSystem, path: str) -> "PendingCreation | None":
        """The content of the file in the log directory ``path``; None if it is absent or malformed."""
        file = f"{path}/{filenames.CREATION_FILE}"
        if not fs.exists(file):
            return None
        try:
            found = unseal(read_file(fs, file), _KEYS)
            if found["version"] == 1:  # of one topic
                return cls({str(found["topic_id"]): int(found["first_partition"])})
            return cls({str(topic_id): int(first) for topic_id, first in found["first_partitions"].items()})
        except (MalformedJsonError, KeyError, TypeError, ValueError, AttributeError):
            return None

    def has(self, topic_id: str, partition: int) -> bool:
        """Whether this partition is one of them."""
        first = self.first_partitions.get(topic_id)
        return first is not None and partition >= first

    def save(self, fs: FileSystem, path: str) -> None:
        """Write the file; returns when it survives a power cut."""
        content = seal({"version": _VERSION, "first_partitions": self.first_partitions})
        write_file_atomically(fs, f"{path}/{filenames.CREATION_FILE}", content)


class NewPartitions(NamedTuple):
    """A topic that is new, or altered, and the first of its partitions that are new; those after it are, too."""

    topic: Topic
    first_partition: int

    @property
    def keys(self) -> Iterator[tuple[str, int]]:
        """Topic and number of each new partition."""
        return ((self.topic.name, number) for number in range(self.first_partition, self.topic.partitions))


class TopicCreation:
    """The files of new topics, or of partitions added to one.

    ``run`` makes them. It uses no shared state, so it may be called in a thread; a second time only if it makes no
    partitions.
    """

    def __init__(
        self, fs: FileSystem, path: str, parts: Sequence[NewPartitions], registry_path: str, registry: bytes
    ) -> None:
        self.parts = parts
        self.logs: dict[tuple[str, int], PartitionLog] = {}  # those opened so far, see ``TopicAdmin.opening``
        self._fs = fs
        self._path = path
        self._registry_path = registry_path
        self._registry = registry

    @property
    def makes_partitions(self) -> bool:
        """Whether there are partitions to make, beside writing the registry."""
        return any(first < topic.partitions for topic, first in self.parts)

    def run(self) -> None:
        """Write the registry, then the directories: a start after a crash completes these. May raise OSError."""
        if self.makes_partitions:
            PendingCreation({topic.id: first for topic, first in self.parts}).save(self._fs, self._path)
        write_file_atomically(self._fs, self._registry_path, self._registry)
        if self.makes_partitions:
            directories = [
                (f"{self._path}/{filenames.partition_directory_name(*key)}", part.topic.id)
                for part in self.parts
                for key in part.keys
            ]
            make_partitions(self._fs, directories)
            self._fs.sync_directory(self._path)
            self._fs.unlink(f"{self._path}/{filenames.CREATION_FILE}")
            self._fs.sync_directory(self._path)  # from the first record on, an absent directory is lost
