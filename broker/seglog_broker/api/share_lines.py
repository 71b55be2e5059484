"""Share fetches that wait for records: in a line before each share partition, the longest-waiting one first.

An append may wake a thousand workers, and has records for one. So the first in a line is woken alone. When it has taken
what it wants it lets the next one try, as long as there is something.
"""

from collections.abc import Callable, Sequence
from typing import Final

from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.partitions.fetch_purgatory import FetchPurgatory, Waiter
from seglog_broker.partitions.partition import Partition
from seglog_broker.runtime.begun import Signal

LOOKS_MAX: Final = 10_000
"""Share partitions that one request waits for; it is not woken by those behind them."""


class _Line:
    """The requests that wait for a share partition, each with the state of it in which it found nothing."""

    __slots__ = ("freed", "key", "partition", "requests", "waiter")

    def __init__(self, key: PartitionKey, partition: Partition, wake_first: "Callable[[_Line], None]") -> None:
        self.key = key
        self.partition = partition
        self.requests: dict[Signal, tuple[int, int, int]] = {}
        self.freed = 0
        """Counts the times that records became available again."""
        self.waiter = Waiter(lambda _waiter: wake_first(self))

    @property
    def state(self) -> tuple[int, int, int]:
        """Changes whenever a request may find something."""
        log = self.partition.log
        return log.log_end_offset, log.last_stable_offset, self.freed

    def park(self, purgatory: FetchPurgatory) -> None:
        """Wait for appends, unless it does, or nobody is in it."""
        if self.requests and not self.waiter.is_waiting and purgatory.is_open:
            self.waiter.bytes_wanted = 0
            self.waiter.watch([self.partition.waiters])
            purgatory.park(self.waiter)


class ShareLines:
    """All lines of the broker."""

    def __init__(self, purgatory: FetchPurgatory) -> None:
        self._purgatory = purgatory
        self._lines: dict[PartitionKey, _Line] = {}
        self.waiting: set[Signal] = set()
        """The requests that wait, each until its signal is set."""

    def note_available(self, key: PartitionKey) -> None:
        """Records of a share partition became available again, or it may lock more of them."""
        line = self._lines.get(key)
        if line is not None:
            line.freed += 1
            line.waiter.wake()

    def pass_on(self, keys: Sequence[PartitionKey]) -> None:
        """Let the next ones in the lines before these try: the caller has taken what it wants, or leaves."""
        for key in keys:
            line = self._lines.get(key)
            if line is not None:
                line.waiter.wake()

    async def wait(
        self, places: Sequence[tuple[PartitionKey, Partition]], deadline: float, note: Callable[[Signal], None]
    ) -> None:
        """Return when one of these may have something, at ``deadline`` (trio's time), or when the signal is set.

        ``note`` gets the signal. What is in a state that the caller has looked at in this turn does not wake it.
        """
        if not self._purgatory.is_open:
            return
        signal = Signal()
        note(signal)
        alarm = Waiter(lambda _alarm: signal.set())
        alarm.deadline = deadline
        self.waiting.add(signal)
        lines = [self._enter(signal, key, partition) for key, partition in places[:LOOKS_MAX]]
        self._purgatory.park(alarm)
        is_woken = False
        try:
            await signal.wait()
            is_woken = True
        finally:
            alarm.unwatch()
            self.waiting.discard(signal)
            for line in lines:
                self._leave(signal, line)
            if not is_woken:
                self.pass_on([line.key for line in lines])

    def _enter(self, signal: Signal, key: PartitionKey, partition: Partition) -> _Line:
        line = self._lines.get(key)
        if line is None or line.partition is not partition:
            line = self._lines[key] = _Line(key, partition, self._wake_first)
        line.requests[signal] = line.state
        line.park(self._purgatory)
        return line

    def _wake_first(self, line: _Line) -> None:
        first, state = next(iter(line.requests.items()))
        if state != line.state or line.partition.is_deleted:
            first.set()  # which leaves the line, now or soon
        else:
            line.park(self._purgatory)

    def _leave(self, signal: Signal, line: _Line) -> None:
        line.requests.pop(signal, None)
        line.park(self._purgatory)
        if not line.requests:
            line.waiter.unwatch()
            if self._lines.get(line.key) is line:
                del self._lines[line.key]
