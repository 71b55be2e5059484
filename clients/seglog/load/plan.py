"""The plan of a run, with all defaults filled in and checked, and when its batches are due.

With a target rate the loop is open: each batch is due at its time, whether earlier ones were answered or not, and
latency counts from that time. A stall then shows in every record delayed by it. (A closed loop, which waits for answers
before it sends again, stops sending during a stall and measures it once: "coordinated omission".) Without a rate the
loop is closed, and a batch is due when a task is free to send it.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from seglog.core.moments import Moment
from seglog_protocol.messages import Ack

Verb = Literal["produce", "consume", "roundtrip"]

DURATION_SECONDS: Final = 10.0
COUNT_SECONDS_MAX: Final = 300.0
"""Time limit of a run with only a count."""
COUNT_MAX: Final = 10_000_000
"""Default record limit without a count and a duration."""
ROUNDTRIP_RATE: Final = 1000.0
CONSUME_FILL: Final = 1_000_000
"""Records written to a topic created for reading."""
SEND_BATCH_BYTES: Final = 64 * 1024
FETCH_PARTITION_BYTES: Final = 1024 * 1024
PIPELINE: Final = 5
"""Requests in flight per connection, as in the client's producer."""
LINGER_SECONDS: Final = 0.005
"""At a target rate a batch has the records due in this time, which is the client's default linger time."""
STAMP_SIZE: Final = 16
"""Bytes at the start of a round trip's record: the id of the run, and when the record was due."""

Ended = Literal["count", "duration", "end", "interrupt", "error"]
"""Why a run ended: record limit, time limit, end of the log, Ctrl-C, an error that a retry cannot fix."""

CATCH_UP_SECONDS: Final = 1.0
"""How long after the end of the time limit batches that were due before it may still be sent."""

_RATE_SLACK: Final = 1e-9  # so that sums of fractions do not push the last batch over the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a run; ``make_plan`` fills in the defaults. Raises ValueError for contradictory values.

    ``topic`` None: a topic is created for the run. ``partitions`` None: those of the topic, or 1 for a new one.
    ``rate`` is records/s over all connections, None for as fast as answers arrive. ``count`` and ``duration`` (seconds)
    both limit the run, None for no limit. ``batch_records`` None: as many as fit into ``batch_bytes``.
    """

    verb: Verb
    topic: str | None = None
    partitions: int | None = None
    keep: bool = False
    record_size: int = 100
    batch_bytes: int = SEND_BATCH_BYTES
    batch_records: int | None = None
    compression: str = "none"
    ack: Ack = "disk"
    connections: int = 1
    pipeline: int = PIPELINE
    rate: float | None = None
    duration: float | None = DURATION_SECONDS
    count: int | None = COUNT_MAX
    seed: int = 0
    start: Moment | None = None
    follow: bool = False
    fill: int = CONSUME_FILL

    def __post_init__(self) -> None:
        if self.verb == "roundtrip":
            if self.record_size < STAMP_SIZE:
                raise ValueError(f"--record-size must be {STAMP_SIZE} bytes or more: a round trip stamps its records")
            if self.ack == "none":
                raise ValueError("--ack must not be none: a round trip counts acknowledged records")
        if self.follow and self.topic is None:
            raise ValueError("--follow waits for records of others: name the topic")
        if self.duration is None and self.count is None:
            raise ValueError("a run needs a count or a duration")


def make_plan(
    verb: Verb,
    *,
    count: int | None = None,
    duration: float | None = None,
    rate: float | None = None,
    batch_bytes: int | None = None,
    batch_records: int | None = None,
    pipeline: int | None = None,
    **rest: object,
) -> Plan:
    """A plan from command-line arguments; None: not given. A ``rate`` of 0 means as fast as answers arrive.

    With only a count the run is also limited to COUNT_SECONDS_MAX; with only a duration there is no other limit;
    without either both defaults apply.
    """
    if count is None and duration is None:
        count, duration = COUNT_MAX, DURATION_SECONDS
    elif duration is None:
        duration = COUNT_SECONDS_MAX
    if rate is None and verb == "roundtrip":
        rate = ROUNDTRIP_RATE
    rate = rate or None
    if rate is not None and batch_bytes is None and batch_records is None:
        batch_records = max(1, int(rate * LINGER_SECONDS))
    if batch_bytes is None:
        batch_bytes = FETCH_PARTITION_BYTES if verb == "consume" else SEND_BATCH_BYTES
    if batch_records is not None and verb != "consume":
        batch_bytes = 2**31 - 1  # the topic's limit is the only one left
    if pipeline is None:
        pipeline = 1 if verb == "consume" else PIPELINE
    return Plan(
        verb=verb,
        count=count,
        duration=duration,
        rate=rate,
        batch_bytes=batch_bytes,
        batch_records=batch_records,
        pipeline=pipeline,
        **rest,  # type: ignore[arg-type]
    )


# --- When batches are due ---------------------------------------------------------------------------------------------


class Ticket(NamedTuple):
    """A batch to send: its number, number of records and due time (seconds)."""

    number: int
    records: int
    due: float


class Loop:
    """Issues tickets from ``began`` on (seconds of any monotonic clock), open with a ``rate``, else closed.

    It ends after ``duration`` seconds or ``count`` records, whichever is first. The last batch is cut to ``count``.
    """

    def __init__(
        self,
        *,
        began: float,
        batch_records: int,
        rate: float | None = None,
        duration: float | None = None,
        count: int | None = None,
    ) -> None:
        self.began = began
        self.batch_records = batch_records
        self.rate = rate
        self.ended_by: Ended | None = None
        self._ends_at = float("inf") if duration is None else began + duration
        self._catch_up = 0.0 if rate is None else CATCH_UP_SECONDS
        self._count = float("inf") if count is None else count
        self._numbers = self._records = 0

    def take(self, now: float) -> Ticket | None:
        """The next ticket, possibly due in the future; None when the run is over, with the reason in ``ended_by``."""
        due = now if self.rate is None else self.began + self._records / self.rate
        if self._records >= self._count:
            self.stop("count")
        elif max(due, now - self._catch_up) >= self._ends_at - _RATE_SLACK:
            self.stop("duration")
        if self.ended_by is not None:
            return None
        records = int(min(self.batch_records, self._count - self._records))
        self._records += records
        self._numbers += 1
        return Ticket(self._numbers - 1, records, due)

    def stop(self, why: Ended) -> None:
        """Issue no more tickets; the first reason counts."""
        self.ended_by = self.ended_by or why

    @property
    def unsent(self) -> int:
        """Records that were due in time but not sent, because all tasks were busy."""
        if self.rate is None or self.ended_by != "duration":
            return 0
        return max(0, int(min(round((self._ends_at - self.began) * self.rate), self._count)) - self._records)
