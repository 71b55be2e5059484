"""Which records a member gets: those that are available again first, then ones that nobody has had.

Source: ``acquire`` of Kafka's SharePartition, KIP-932 and KIP-1206.
"""

from collections.abc import Sequence

from seglog_broker.coordinators.share.in_flight import COUNT_MAX, THROTTLED_FROM, Acquired, InFlight, Limits
from seglog_broker.coordinators.share.runs import ACQUIRED, AVAILABLE, Run


class Acquisition:
    """One request of a member for records; ``acquired`` has what it gets."""

    __slots__ = (
        "_batch_size", "_batches", "_deadline_ms", "_in_flight", "_is_record_limit", "_limits", "_member", "_passed",
        "_room", "_runs", "_taken", "_throttled_from", "acquired",
    )  # fmt: skip

    def __init__(
        self,
        in_flight: InFlight,
        member: str,
        batch_size: int,
        is_record_limit: bool,
        deadline_ms: int,
        limits: Limits,
    ) -> None:
        self.acquired: list[Acquired] = []
        self._in_flight = in_flight
        self._runs = in_flight.runs
        self._member = member
        self._batches: Sequence[tuple[int, int]] = ()
        self._batch_size = batch_size
        self._is_record_limit = is_record_limit
        self._deadline_ms = deadline_ms
        self._limits = limits
        self._throttled_from = max(THROTTLED_FROM, (limits.delivery_count_max + 1) // 2)
        self._room = 0
        self._taken = 0
        self._passed = 0  # offsets before it were looked at

    def take(self, batches: Sequence[tuple[int, int]], fetch_offset: int, max_records: int) -> None:
        """Take up to ``max_records`` of ``batches`` of the log, read from ``fetch_offset`` on."""
        in_flight = self._in_flight
        if not batches or max_records <= 0:
            return
        base, last = batches[0][0], batches[-1][1]
        if last < in_flight.start_offset:
            return
        self._batches = batches
        self._room = min(max_records, self._limits.record_locks_max - (in_flight.end_offset - in_flight.start_offset))
        if self._room <= 0:
            # What is in flight may be taken again, whatever the limit.
            if fetch_offset >= in_flight.end_offset:
                return
            self._room = min(max_records, in_flight.end_offset - fetch_offset)
            last = min(last, in_flight.end_offset - 1)
        if fetch_offset < base:
            in_flight.archive_stale(fetch_offset, base - 1)
        first = max(base, in_flight.start_offset)
        self._passed = max(first, in_flight.end_offset) if len(self._runs) == 0 else first
        if self._take_in_flight(first, last) and self._taken < self._room and self._passed <= last:
            self._take_new(self._passed, last)
        in_flight.pass_gaps(self._passed)
        in_flight.move_start()

    def _take_in_flight(self, first: int, last: int) -> bool:
        """Take what is available of offsets in flight; False if nothing else may come with it."""
        runs = self._runs
        index = runs.index(first)
        while self._taken < self._room and index < len(runs) and runs[index].first <= last:
            run = runs[index]
            if self._passed < run.first and self._in_flight.has_gaps:
                self._take_new(self._passed, run.first - 1)
                index = runs.index(run.first)
            elif run.state != AVAILABLE:
                self._passed = run.last + 1
                index += 1
            else:
                batch_end = run.batch + run.batch_size
                available = self._available(max(first, run.first), min(last, batch_end - 1))
                is_throttled = max([each.count for each in available]) >= self._throttled_from
                if is_throttled and self._taken > 0:
                    return False
                self._take_available(available, max(first, run.first), min(last, batch_end - 1))
                self._passed = batch_end
                if is_throttled:
                    return False
                index = runs.index(batch_end)
        return True

    def _available(self, first: int, last: int) -> list[Run]:
        runs = self._runs
        index = runs.index(first)
        found = []
        while index < len(runs) and runs[index].first <= last:
            if runs[index].state == AVAILABLE:
                found.append(runs[index])
            index += 1
        return found

    def _take_available(self, available: list[Run], first: int, last: int) -> None:
        """Take of available runs of one batch.

        A record with half its deliveries behind it comes with fewer others each time, and the last time alone.
        """
        most = self._limits.delivery_count_max
        room = self._room - self._taken if self._is_record_limit else last - first + 1
        quota = 0
        taken = 0
        for run in available:
            start = max(first, run.first)
            wanted = min(last, run.last, start + room - taken - 1) - start + 1
            count = run.count
            is_last = most > THROTTLED_FROM and count == most - 1
            if is_last:
                if taken > 0:
                    return
                wanted = 1
            if count >= self._throttled_from and quota == 0:
                quota = max(1, run.batch_size >> (count - self._throttled_from + 1))
            if quota > taken:
                wanted = min(wanted, quota - taken)
            self._give(start, start + wanted - 1, min(count + 1, COUNT_MAX))
            taken += wanted
            if is_last or taken in (quota, room):
                return

    def _give(self, first: int, last: int, count: int) -> None:
        runs = self._runs
        low, high = runs.cut(first, last)
        run = runs[low]
        runs.change(run, ACQUIRED, count)
        run.member, run.deadline_ms = self._member, self._deadline_ms
        runs.join(low, high)
        self._note(first, last, count)

    def _note(self, first: int, last: int, count: int) -> None:
        self._in_flight.lock(self._deadline_ms, first, last)
        self.acquired.append(Acquired(first, last, count))
        self._taken += last - first + 1

    def _take_new(self, first: int, last: int) -> None:
        """Take offsets that are not in flight: whole batches of the log, if the limit of records allows it."""
        wanted = self._room - self._taken
        end = last if wanted > last - first else min(last, self._batch_end(first + wanted - 1))
        start = first
        if self._is_record_limit:
            self._add(first, min(end, first + wanted - 1), end)
        else:
            if end - first >= self._batch_size:
                for base, _ in self._batches:
                    if base > end:
                        break
                    if base - start >= self._batch_size:
                        self._add(start, base - 1, base - 1)
                        start = base
            self._add(start, end, end)
        self._in_flight.end_offset = max(self._in_flight.end_offset, end + 1)
        self._passed = end + 1

    def _batch_end(self, offset: int) -> int:
        """The last offset of the log's batch with ``offset``; between batches that itself."""
        for base, last in self._batches:
            if base <= offset <= last:
                return last
        return offset

    def _add(self, first: int, last: int, batch_end: int) -> None:
        """Put a batch in flight, and give offsets ``first`` to ``last`` of it to the member."""
        size = batch_end - first + 1
        run = Run(first, last, ACQUIRED, 1, first, size)
        run.member, run.deadline_ms = self._member, self._deadline_ms
        self._runs.insert(run)
        if batch_end > last:
            self._runs.insert(Run(last + 1, batch_end, AVAILABLE, 0, first, size))
            self._in_flight.note_available(last + 1)
        self._note(first, last, 1)
