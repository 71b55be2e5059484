"""The choice of records that a member gets: available ones first, then ones that nobody has had.

Source: KIP-932, KIP-1206 and ``acquire`` of Kafka's SharePartition.
"""

from collections.abc import Sequence
from typing import Final

from seglog_broker.coordinators.share.in_flight import NO_OFFSET, Acquired, InFlight
from seglog_broker.coordinators.share.runs import ACQUIRED, AVAILABLE, Run
from seglog_broker.coordinators.share.settings import ShareSettings

THROTTLED_FROM: Final = 2
"""Deliveries that a record has behind it before it is throttled, at least; with more allowed, half of those."""

COUNT_MAX: Final = 32_767
"""Deliveries are counted no further: a record has an int16 for them."""


class Acquisition:
    """One request of a member for records; ``acquired`` has what it gets. See ``SharePartition.acquire``."""

    def __init__(
        self,
        in_flight: InFlight,
        member: str,
        deadline_ms: int,
        batches: Sequence[tuple[int, int]],
        batch_size: int,
        is_record_limit: bool,
        settings: ShareSettings,
    ) -> None:
        """``batches`` are those of the log; it must not be changed."""
        self.acquired: list[Acquired] = []
        self._in_flight = in_flight
        self._member = member
        self._deadline_ms = deadline_ms
        self._batches = batches
        self._batch_size = max(1, batch_size)  # clients may say anything
        self._is_record_limit = is_record_limit
        self._settings = settings
        self._throttled_from = max(THROTTLED_FROM, (settings.delivery_count_max + 1) // 2)
        self._room = self._taken = 0
        self._passed = 0  # offsets before it were looked at

    def take(self, fetch_offset: int, max_records: int) -> None:
        """Take up to ``max_records`` of the batches, which were read from ``fetch_offset`` on."""
        in_flight, batches = self._in_flight, self._batches
        start, end = in_flight.start_offset, in_flight.end_offset
        if not batches or max_records <= 0 or start == NO_OFFSET or batches[-1][1] < start:
            return
        if fetch_offset > end:  # the group was set back since these were read: it is to have what comes before them
            return
        base, last = batches[0][0], batches[-1][1]
        self._room = min(max_records, self._settings.record_locks_max - (end - start))
        if self._room <= 0:
            # Too much is in flight; of that some may be taken again.
            if fetch_offset >= end:
                return
            self._room, last = min(max_records, end - fetch_offset), min(last, end - 1)
        if fetch_offset < base:
            in_flight.archive(fetch_offset, base - 1, AVAILABLE)  # the log has them no more
        first = max(base, in_flight.start_offset)
        self._passed = first
        if self._take_in_flight(first, last) and self._taken < self._room and self._passed <= last:
            self._take_new(self._passed, last)
        in_flight.pass_gaps(self._passed)
        in_flight.move_start()

    def _take_in_flight(self, first: int, last: int) -> bool:
        """Take what is available of offsets in flight; False if nothing else may come with it."""
        for run in self._in_flight.runs.within(first, last):
            gap = max(self._passed, self._in_flight.gap_from)
            if gap < run.first and self._in_flight.gap_from != NO_OFFSET and self._taken < self._room:
                self._take_new(gap, run.first - 1)
            if self._taken >= self._room:
                break
            if run.state == AVAILABLE and run.last >= self._passed:
                end = run.batch + run.batch_size
                if not self._take_batch(max(first, run.first), min(last, end - 1)):
                    return False
                self._passed = end
            self._passed = max(self._passed, run.last + 1)
        return True

    def _take_batch(self, first: int, last: int) -> bool:
        """Take of what is available of one batch; False if nothing else may come with it.

        A record with half its deliveries behind it comes with fewer others each time, and the last time alone.
        """
        available = [run for run in self._in_flight.runs.within(first, last) if run.state == AVAILABLE]
        is_throttled = max([run.count for run in available]) >= self._throttled_from
        if is_throttled and self._taken > 0:
            return False
        most = self._settings.delivery_count_max
        room = self._room - self._taken if self._is_record_limit else last - first + 1
        quota = taken = 0
        for run in available:
            start = max(first, run.first)
            wanted = min(last - start + 1, run.last - start + 1, room - taken)
            count = run.count
            is_last = most > THROTTLED_FROM and count == most - 1
            if is_last and taken > 0:
                break
            if is_last:
                wanted = 1
            if count >= self._throttled_from and quota == 0:
                quota = max(1, run.batch_size >> (count - self._throttled_from + 1))
            if quota > taken:
                wanted = min(wanted, quota - taken)
            self._give(start, start + wanted - 1, min(count + 1, COUNT_MAX))
            taken += wanted
            if is_last or taken in (quota, room):
                break
        return not is_throttled

    def _give(self, first: int, last: int, count: int) -> None:
        runs = self._in_flight.runs
        for run in runs.cut(first, last):
            runs.change(run, ACQUIRED, count)
            run.member, run.deadline_ms = self._member, self._deadline_ms
        runs.join(first, last)
        self._note(first, last, count)

    def _note(self, first: int, last: int, count: int) -> None:
        self._in_flight.lock(self._deadline_ms, first, last)
        self.acquired.append(Acquired(first, last, count))
        self._taken += last - first + 1

    def _take_new(self, first: int, last: int) -> None:
        """Take offsets that are not in flight: whole batches of the log, if the limit of records allows it."""
        if len(self._in_flight.runs) == 0:
            first = max(first, self._in_flight.end_offset)
        wanted = self._room - self._taken
        end = last if wanted > last - first else min(last, self._batch_end(first + wanted - 1))
        if self._is_record_limit:
            self._add(first, min(end, first + wanted - 1), end)
        else:
            start = first
            if end - first >= self._batch_size:
                for base, _ in self._batches:
                    if base - start >= self._batch_size and base <= end:
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
        run = Run(first, last, ACQUIRED, 1, first, batch_end - first + 1)
        run.member, run.deadline_ms = self._member, self._deadline_ms
        self._in_flight.runs.insert(run)
        if batch_end > last:
            self._in_flight.runs.insert(Run(last + 1, batch_end, AVAILABLE, 0, first, batch_end - first + 1))
            self._in_flight.note_available(last + 1)
        self._note(first, last, 1)
