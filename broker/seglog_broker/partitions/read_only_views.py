"""Partitions that are read while their recovery waits for room on the disk."""

from collections.abc import Iterable

from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.log.read_only_view import ReadOnlyView


class Views:
    """Those of one broker, each as a partition that takes no records and that no background task sees."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, int], tuple[Partition, ReadOnlyView]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, key: object) -> bool:
        return key in self._all

    def get(self, key: tuple[str, int]) -> Partition | None:
        """What is read of this partition for now."""
        found = self._all.get(key)
        return None if found is None else found[0]

    def serve(self, partition: Partition, view: ReadOnlyView) -> None:
        """Have it read from now on, until ``end``."""
        self._all[partition.topic, partition.number] = partition, view

    def end(self, keys: Iterable[tuple[str, int]], *, is_deleted: bool = False) -> None:
        """They have been recovered, or deleted: fetches that wait for their records are retried."""
        for key in keys:
            partition, view = self._all.pop(key, (None, None))
            if partition is not None and view is not None:
                view.close()
                if is_deleted:
                    partition.note_deleted()
                else:
                    partition.wake_all()

    def close(self) -> None:
        """Let go of every file."""
        self.end(list(self._all))
