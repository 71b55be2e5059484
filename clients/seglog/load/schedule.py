"""The schedule of batches; the clock is passed in.

With a target rate the loop is open: each batch is due at its time, whether earlier ones were answered or not, and
latency counts from that time. A stall then shows in every record delayed by it. (A closed loop, which waits for answers
before it sends again, stops sending during a stall and measures it once: "coordinated omission".) Without a rate the
loop is closed, and a batch is due when a task is free to send it.
"""

from typing import Final, Literal, NamedTuple

Ended = Literal["count", "duration", "end", "interrupt", "error"]
"""Why a run ended: record limit, time limit, end of the log, Ctrl-C, an error that a retry cannot fix."""

CATCH_UP_SECONDS: Final = 1.0
"""How long after the end of the time limit batches that were due before it may still be sent."""

_RATE_SLACK: Final = 1e-9  # so that sums of fractions do not push the last batch over the end


class Ticket(NamedTuple):
    """A batch to send: its number, number of records, due time (seconds), and whether it is measured."""

    number: int
    records: int
    due: float
    is_measured: bool


class Schedule:
    """Issues tickets from ``began`` on (seconds of any monotonic clock).

    ``warmup`` seconds come first and are not measured; then ``duration`` seconds or ``count`` records, whichever ends
    first. The last batch is cut to ``count``.
    """

    def __init__(
        self,
        *,
        began: float,
        batch_records: int,
        rate: float | None = None,
        warmup: float = 0.0,
        duration: float | None = None,
        count: int | None = None,
    ) -> None:
        self.batch_records = batch_records
        self.rate = rate
        self.measured_from = began + warmup
        self.ends_at = None if duration is None else self.measured_from + duration
        self.ended_by: Ended | None = None
        self._began = began
        self._catch_up = 0.0 if rate is None else CATCH_UP_SECONDS
        self._count = count
        self._numbers = 0
        self._records = 0
        self._measured_records = 0

    def take(self, now: float) -> Ticket | None:
        """The next ticket, possibly due in the future; None when the run is over, with the reason in ``ended_by``."""
        if self.ended_by is not None:
            return None
        due = now if self.rate is None else self._began + self._records / self.rate
        if self.ends_at is not None and max(due, now - self._catch_up) >= self.ends_at - _RATE_SLACK:
            self.ended_by = "duration"
            return None
        is_measured = due >= self.measured_from - _RATE_SLACK
        records = self.batch_records
        if is_measured and self._count is not None:
            records = min(records, self._count - self._measured_records)
            if records <= 0:
                self.ended_by = "count"
                return None
        self._records += records
        if is_measured:
            self._measured_records += records
        self._numbers += 1
        return Ticket(self._numbers - 1, records, due, is_measured)

    def stop(self, why: Ended) -> None:
        """Issue no more tickets; the first reason counts."""
        self.ended_by = self.ended_by or why

    @property
    def unsent(self) -> int:
        """Measured records that were due in time but not sent, because all tasks were busy."""
        if self.rate is None or self.ends_at is None or self.ended_by != "duration":
            return 0
        due = round((self.ends_at - self._began) * self.rate)
        if self._count is not None:
            due = min(due, self._records - self._measured_records + self._count)
        return max(0, due - self._records)
