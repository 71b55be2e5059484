"""The plan of a run, with all defaults filled in and checked, its batches, and when they are due.

With a target rate the loop is open: each batch is due at its time, whether earlier ones were answered or not, and
latency counts from that time. A stall then shows in every record delayed by it. (A closed loop, which waits for answers
before it sends again, stops sending during a stall and measures it once: "coordinated omission".) Without a rate the
loop is closed, and a batch is due when a task is free to send it.
"""

import random
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from seglog.core.moments import Moment
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.compression import Codec, compress
from seglog_protocol.messages import Ack, TopicDescription
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header, seal_batch

Verb = Literal["produce", "consume", "roundtrip"]

DURATION_SECONDS: Final = 10.0
COUNT_SECONDS_MAX: Final = 300.0
"""Time limit of a run with only a count."""
COUNT_MAX: Final = 10_000_000
"""Default record limit without a count and a duration."""
ROUNDTRIP_RATE: Final = 1000.0
FETCH_PARTITION_BYTES: Final = 1024 * 1024
LINGER_SECONDS: Final = 0.005
"""At a target rate a batch has the records due in this time, which is the client's default linger time."""

Ended = Literal["count", "duration", "end", "interrupt", "error"]
"""Why a run ended: record limit, time limit, end of the log, Ctrl-C, an error that a retry cannot fix."""

CATCH_UP_SECONDS: Final = 1.0
"""How long after the end of the time limit batches that were due before it may still be sent."""

_RATE_SLACK: Final = 1e-9  # so that sums of fractions do not push the last batch over the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parameters of a run; ``make_plan`` fills in the defaults.

    ``topic`` None: a topic is created for the run. ``partitions`` None: those of the topic, or 1 for a new one.
    ``rate`` is records/s over all connections, None for as fast as answers arrive. ``count`` and ``duration`` (seconds)
    both limit the run, None for no limit. ``batch_records`` None: as many as fit into ``batch_bytes``. ``pipeline`` is
    the number of requests in flight of a connection, ``fill`` the records of a topic that is created for reading.
    """

    verb: Verb
    topic: str | None = None
    partitions: int | None = None
    keep: bool = False
    record_size: int = 100
    batch_bytes: int = 64 * 1024
    batch_records: int | None = None
    compression: str = "none"
    ack: Ack = "disk"
    connections: int = 1
    pipeline: int = 5
    rate: float | None = None
    duration: float | None = None
    count: int | None = None
    seed: int = 0
    start: Moment | None = None
    follow: bool = False
    fill: int = 1_000_000


def make_plan(verb: Verb, **typed: Any) -> Plan:
    """A plan of fields that were typed; None: not given. A ``rate`` of 0 means as fast as answers arrive.

    With only a count the run is also limited to COUNT_SECONDS_MAX; with only a duration there is no other limit;
    without either both defaults apply. Raises ValueError for contradictory values.
    """
    given = {name: value for name, value in typed.items() if value is not None}
    if verb == "consume":
        given = {"batch_bytes": FETCH_PARTITION_BYTES, "pipeline": 1} | given
        if "count" in given:
            given["fill"] = given["count"]
    if "duration" not in given:
        given["duration"] = COUNT_SECONDS_MAX if "count" in given else DURATION_SECONDS
        given.setdefault("count", COUNT_MAX)
    given["rate"] = rate = given.get("rate", ROUNDTRIP_RATE if verb == "roundtrip" else 0) or None
    if rate is not None and not {"batch_bytes", "batch_records"} & given.keys():
        given["batch_records"] = max(1, int(rate * LINGER_SECONDS))
    if "batch_records" in given:
        given["batch_bytes"] = 2**31 - 1  # the topic's limit is the only one left
    plan = Plan(verb=verb, **given)
    if verb == "roundtrip" and plan.ack == "none":
        raise ValueError("--ack must not be none: a round trip counts acknowledged records")
    if plan.follow and plan.topic is None:
        raise ValueError("--follow waits for records of others: name the topic")
    return plan


class Ticket(NamedTuple):
    """A batch to send: its number, number of records and due time (seconds)."""

    number: int
    records: int
    due: float


class Loop:
    """Issues tickets from ``began`` on (seconds of any monotonic clock), open with a rate, else closed.

    It ends after the plan's duration or count, whichever is first. The last batch is cut to the count.
    """

    def __init__(self, plan: Plan, *, began: float, batch_records: int) -> None:
        self.began = began
        self.batch_records = batch_records
        self.rate = plan.rate
        self.ended_by: Ended | None = None
        self._ends_at = float("inf") if plan.duration is None else began + plan.duration
        self._catch_up = 0.0 if plan.rate is None else CATCH_UP_SECONDS
        self._count = float("inf") if plan.count is None else plan.count
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


_TIME_UNKNOWN: Final = 0


class Batches:
    """The batches of a plan, of random text from its seed: each size is built and compressed once.

    A batch has the plan's ``batch_records``, or as many as fit into ``batch_bytes``, whichever is less, and at least
    one record, within the limits of its topic.
    """

    def __init__(self, plan: Plan, topic: TopicDescription) -> None:
        self._record_size = plan.record_size
        self._codec = Codec[plan.compression.upper()]
        self._bytes_max = min(plan.batch_bytes, topic.max_message_bytes, topic.segment_bytes)
        self._random = random.Random(plan.seed)  # noqa: S311 - a load, no secret
        first = self._build(plan.batch_records)
        self.records_max: int = first[0].record_count
        self._built = {self.records_max: first}

    def make(self, records: int, timestamp: int) -> bytes:
        """A batch of so many records, all with ``timestamp`` (epoch ms)."""
        header, body = self._built.get(records) or self._built.setdefault(records, self._build(records))
        return seal_batch(header._replace(base_timestamp=timestamp, max_timestamp=timestamp), body)

    def _build(self, records: int | None) -> tuple[BatchHeader, bytes]:
        builder, has_room = BatchBuilder(), True
        while has_room and builder.record_count != records:
            value = b64encode(self._random.randbytes(self._record_size))[: self._record_size]
            has_room = builder.try_append(_TIME_UNKNOWN, None, value, size_max=self._bytes_max)
        plain = builder.build()
        header = parse_header(plain)._replace(attributes=int(self._codec))
        return header, compress(self._codec, plain[HEADER_SIZE:])
