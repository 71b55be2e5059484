"""What was appended and is not on the disk yet: the bytes that a power cut would take, and since when they exist."""

from collections.abc import Callable
from time import perf_counter


class NotDurable:
    """Those of all partitions."""

    def __init__(self, seconds: Callable[[], float] = perf_counter) -> None:
        """``seconds`` is a clock that never goes back."""
        self.seconds = seconds
        self.size = 0
        """Bytes of record batches."""
        self.since: dict[NotDurablePart, float] = {}
        """When the oldest of them was appended, of each partition that has some."""

    def age_seconds(self) -> float:
        """How old the oldest of them is; 0 if there are none."""
        return max(0.0, self.seconds() - min(self.since.values())) if self.since else 0.0


class NotDurablePart:
    """Those of one partition: what came since the flush under way began, and what that flush is about."""

    __slots__ = ("_all", "_flushing", "_new", "_new_since")

    def __init__(self, all_parts: NotDurable) -> None:
        self._all = all_parts
        self._new = 0
        self._new_since = 0.0
        self._flushing = 0

    @property
    def size(self) -> int:
        """Bytes of record batches."""
        return self._new + self._flushing

    def add(self, size: int) -> None:
        """Batches of ``size`` bytes together were appended."""
        if not self._new:
            self._new_since = self._all.seconds()
            if not self._flushing:
                self._all.since[self] = self._new_since
        self._new += size
        self._all.size += size

    def begin_flush(self) -> None:
        """A flush of everything has begun."""
        self._flushing += self._new
        self._new = 0

    def end_flush(self, *, is_durable: bool) -> None:
        """It has ended; ``is_durable`` if it succeeded."""
        if not self._flushing:
            return
        if not is_durable:
            self._new += self._flushing
            self._flushing = 0
            self._new_since = self._all.since[self]
            return
        self._all.size -= self._flushing
        self._flushing = 0
        if self._new:
            self._all.since[self] = self._new_since
        else:
            del self._all.since[self]

    def clear(self) -> None:
        """All is on the disk, or deleted."""
        self._all.size -= self._new + self._flushing
        self._new = self._flushing = 0
        self._all.since.pop(self, None)
