"""Making the files of a topic: planned on the loop, done in a thread, taken into service on the loop again."""

from seglog_broker.storage import filenames
from seglog_broker.storage.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.partition_files import make_partition
from seglog_broker.storage.topics import Topic


class TopicCreation:
    """The files of a new topic, or of partitions added to one, from ``first_partition`` on.

    ``run`` makes them, touches nothing shared, and may be called in a thread; again only if none are made.
    """

    def __init__(
        self, fs: FileSystem, path: str, topic: Topic, first_partition: int, registry_path: str, registry: bytes
    ) -> None:
        self.topic = topic
        self.first_partition = first_partition
        self._fs = fs
        self._path = path
        self._registry_path = registry_path
        self._registry = registry

    @property
    def makes_partitions(self) -> bool:
        """Whether there is more to it than writing the registry."""
        return self.first_partition < self.topic.partitions

    def run(self) -> None:
        """Registry first: after a crash the start completes the directories. OSError: whoever finishes cleans up."""
        write_file_atomically(self._fs, self._registry_path, self._registry)
        for partition in range(self.first_partition, self.topic.partitions):
            name = filenames.partition_directory_name(self.topic.name, partition)
            make_partition(self._fs, f"{self._path}/{name}", self.topic.id)
        if self.makes_partitions:
            self._fs.sync_directory(self._path)
