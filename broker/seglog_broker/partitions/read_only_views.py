"""Partitions that are read while their recovery waits for room on the disk."""

from collections.abc import Iterable

from seglog_broker.partitions.partition import Partition
from seglog_broker.storage.log.read_only_view import ReadOnlyView


class Views:
    """The read-only views of one broker, each with a partition that takes no records. Background tasks skip them."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, int], tuple[Partition, ReadOnlyView]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, key: object) -> bool:
        return key in self._all

    def get(self, key: tuple[str, int]) -> Partition | None:
        """The partition over the view for ``key``, or None."""
        found = self._all.get(key)
        return None if found is None else found[0]

    def serve(self, partition: Partition, view: ReadOnlyView) -> None:
        """Serve ``partition``, whose log is ``view``, until ``end``."""
        self._all[partition.topic, partition.number] = partition, view

    def end(self, keys: Iterable[tuple[str, int]], *, is_deleted: bool = False) -> None:
        """Close the views of partitions that were recovered or deleted, and wake the fetches that wait there."""
        for key in keys:
            partition, view = self._all.pop(key, (None, None))
            if partition is not None and view is not None:
                view.close()
                if is_deleted:
                    partition.note_deleted()
                else:
                    partition.wake_all()

    def close(self) -> None:
        """Close all views."""
        self.end(list(self._all))
