"""Creates the files of a topic: planned on the loop, run in a thread, put into service on the loop.

Meanwhile ``seglog-creation.json`` has the partitions that are being made. A start completes only those: the directory
of any other partition that is absent was lost, with its records.
"""

from typing import Final, NamedTuple

from seglog_broker.storage.directory.topic_registry import Topic
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.sealed_json import MalformedJsonError, seal, unseal
from seglog_broker.storage.log.partition_files import make_partition
from seglog_broker.storage.log.partition_log import PartitionLog

_VERSION: Final = 1
_KEYS: Final = frozenset({"version", "topic_id", "first_partition"})


class PendingCreation(NamedTuple):
    """The partitions of one topic that are being made, or were at a crash: those from ``first_partition`` on."""

    topic_id: str
    first_partition: int

    @classmethod
    def read(cls, fs: FileSystem, path: str) -> "PendingCreation | None":
        """The content of the file in the log directory ``path``; None if it is absent or malformed."""
        file = f"{path}/{filenames.CREATION_FILE}"
        if not fs.exists(file):
            return None
        try:
            found = unseal(read_file(fs, file), _KEYS)
            return cls(str(found["topic_id"]), int(found["first_partition"]))
        except (MalformedJsonError, KeyError, TypeError, ValueError):
            return None

    def has(self, topic_id: str, partition: int) -> bool:
        """Whether this partition is one of them."""
        return topic_id == self.topic_id and partition >= self.first_partition

    def save(self, fs: FileSystem, path: str) -> None:
        """Write the file; returns when it survives a power cut."""
        content = seal({"version": _VERSION, **self._asdict()})
        write_file_atomically(fs, f"{path}/{filenames.CREATION_FILE}", content)


class TopicCreation:
    """The files of a new topic, or of partitions added to one, from ``first_partition`` on.

    ``run`` makes them. It uses no shared state, so it may be called in a thread; a second time only if it makes no
    partitions.
    """

    def __init__(
        self, fs: FileSystem, path: str, topic: Topic, first_partition: int, registry_path: str, registry: bytes
    ) -> None:
        self.topic = topic
        self.first_partition = first_partition
        self.logs: dict[tuple[str, int], PartitionLog] = {}  # those opened so far, see ``TopicAdmin.opening``
        self._fs = fs
        self._path = path
        self._registry_path = registry_path
        self._registry = registry

    @property
    def makes_partitions(self) -> bool:
        """Whether there are partitions to make, beside writing the registry."""
        return self.first_partition < self.topic.partitions

    def run(self) -> None:
        """Write the registry, then the directories: a start after a crash completes these. May raise OSError."""
        if self.makes_partitions:
            PendingCreation(self.topic.id, self.first_partition).save(self._fs, self._path)
        write_file_atomically(self._fs, self._registry_path, self._registry)
        for partition in range(self.first_partition, self.topic.partitions):
            name = filenames.partition_directory_name(self.topic.name, partition)
            make_partition(self._fs, f"{self._path}/{name}", self.topic.id)
        if self.makes_partitions:
            self._fs.sync_directory(self._path)
            self._fs.unlink(f"{self._path}/{filenames.CREATION_FILE}")
            self._fs.sync_directory(self._path)  # from the first record on, an absent directory is lost
