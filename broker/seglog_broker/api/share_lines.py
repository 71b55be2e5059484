"""Share fetches that wait for records: in a line before each share partition, the longest-waiting one first.

An append may wake a thousand workers, and has records for one. So the first in a line is woken alone. When it has taken
what it wants it lets the next one try, as long as there is something.
"""

from collections.abc import Callable, Sequence
from typing import Final

from seglog_broker.api.share_collection import Seen, State, state_of
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.partitions.fetch_purgatory import FetchPurgatory, Waiter
from seglog_broker.runtime.begun import Signal

LOOKS_MAX: Final = 10_000
"""Share partitions that one request waits for; it is not woken by those behind them."""


class _Line:
    """The requests that wait for a share partition, each with the state of it in which it found nothing."""

    __slots__ = ("machine", "partition", "requests", "waiter")

    def __init__(self, seen: Seen, wake_first: "Callable[[_Line], None]") -> None:
        self.machine, self.partition, _ = seen
        self.requests: dict[Signal, State] = {}
        self.waiter = Waiter(lambda _waiter: wake_first(self))

    def has(self, state: State) -> bool:
        """True if nothing has changed since that state."""
        return state == state_of(self.machine, self.partition) and not self.partition.is_deleted

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
        if key in self._lines:
            self._lines[key].waiter.wake()

    def pass_on(self, seen: Sequence[Seen]) -> None:
        """Let the next ones in the lines before these try: the caller has taken what it wants, or leaves."""
        if self._lines:
            for each in seen:
                self.note_available(each.machine.partition)

    async def wait(self, seen: Sequence[Seen], deadline: float, note: Callable[[Signal], None]) -> None:
        """Return when one of these is not as it was seen, at ``deadline`` (trio's time), or when the signal is set.

        ``note`` gets the signal.
        """
        if not self._purgatory.is_open:
            return
        signal = Signal()
        note(signal)
        alarm = Waiter(lambda _alarm: signal.set())
        alarm.deadline = deadline
        self.waiting.add(signal)
        seen = seen[:LOOKS_MAX]
        lines = [self._enter(signal, each) for each in seen]
        self._purgatory.park(alarm)
        is_woken = False
        try:
            if all(line.has(each.state) for line, each in zip(lines, seen, strict=True)):
                await signal.wait()
            is_woken = True
        finally:
            alarm.unwatch()
            self.waiting.discard(signal)
            for line in lines:
                self._leave(signal, line)
            if not is_woken:
                self.pass_on(seen)

    def _enter(self, signal: Signal, seen: Seen) -> _Line:
        key = seen.machine.partition
        line = self._lines.get(key)
        if line is None or line.machine is not seen.machine or line.partition is not seen.partition:
            line = self._lines[key] = _Line(seen, self._wake_first)
        line.requests[signal] = seen.state
        line.park(self._purgatory)
        return line

    def _wake_first(self, line: _Line) -> None:
        first, state = next(iter(line.requests.items()))
        if line.has(state):
            line.park(self._purgatory)
        else:
            first.set()  # which leaves the line, now or soon

    def _leave(self, signal: Signal, line: _Line) -> None:
        line.requests.pop(signal, None)
        line.park(self._purgatory)
        if not line.requests:
            line.waiter.unwatch()
            if self._lines.get(line.machine.partition) is line:
                del self._lines[line.machine.partition]
