"""The report of a run, as text and as JSON."""

from dataclasses import dataclass, field
from typing import Any, Final

from seglog.core.errors import count_of
from seglog.load.measurement import Measurement, Tally
from seglog.load.plan import Ended, Loop, Plan

CPU_SHARE_BUSY: Final = 0.9
"""Share of a core above which the load generator itself may be the bottleneck."""

_ENDINGS: Final = {
    "count": "all records",
    "duration": "time is over",
    "end": "end of the log",
    "interrupt": "interrupted",
    "error": "an error that trying again does not cure",
}


@dataclass(slots=True)
class Report:
    """A finished run; ``loop`` is that of its batches, if it sent any."""

    plan: Plan
    topic: str
    partitions: int
    loop: Loop | None
    measurement: Measurement
    ended_by: Ended
    notes: list[str] = field(default_factory=list)

    @property
    def unsent(self) -> int:
        """Records that were due and not sent, because all allowed requests were in flight."""
        return 0 if self.loop is None else self.loop.unsent

    @property
    def batch_records(self) -> int | None:
        """Records of a batch that was sent."""
        return None if self.loop is None else self.loop.batch_records

    @property
    def missing(self) -> int:
        """For a round trip: records that were acknowledged and did not arrive."""
        if self.plan.verb != "roundtrip":
            return 0
        return max(0, self.measurement.sent.records - self.measurement.received.records)

    @property
    def has_failed(self) -> bool:
        """Whether there were errors, or lost records in a run that was not interrupted."""
        lost = self.measurement.in_flight or self.missing
        return bool(self.measurement.errors) or (bool(lost) and self.ended_by != "interrupt")

    @property
    def counted(self) -> Tally:
        """The tally used for throughput: acknowledged records, or for ``consume`` received ones."""
        return self.measurement.received if self.plan.verb == "consume" else self.measurement.sent

    @property
    def latency(self) -> str:
        """The name of the time that was measured."""
        if self.plan.verb == "produce":
            return "acknowledged"
        return "fetch" if self.plan.verb == "consume" and not self.plan.follow else "end to end"

    def to_json(self) -> dict[str, Any]:
        """The report for JSON: durations in milliseconds except ``seconds``, sizes in bytes, MB of 10^6 bytes."""
        plan, measurement = self.plan, self.measurement
        seconds, latencies, counted = measurement.seconds, measurement.latencies, self.counted
        shown = latencies.in_ms() | {"count": latencies.count}
        return {
            "verb": plan.verb,
            "topic": self.topic,
            "partitions": self.partitions,
            "connections": plan.connections,
            "pipeline": plan.pipeline,
            "record_size": plan.record_size,
            "batch_records": self.batch_records,
            "compression": plan.compression,
            "ack": None if plan.verb == "consume" else plan.ack,
            "target_rate": plan.rate,
            "ended_by": self.ended_by,
            "seconds": round(seconds, 3),
            "records": counted.records,
            "bytes": counted.bytes,
            "requests": counted.requests,
            "records_per_second": round(_rate(counted.records, seconds), 1),
            "mb_per_second": round(_rate(counted.bytes, seconds) / 1e6, 3),
            "received_records": None if plan.verb == "produce" else measurement.received.records,
            "missing_records": self.missing,
            "unsent_records": self.unsent,
            "unanswered_requests": measurement.in_flight,
            "errors": dict(measurement.errors),
            "latency_ms": {self.latency: shown} if latencies.count else {},
            "cpu_share": round(measurement.cpu_share, 3),
            "is_generator_busy": measurement.cpu_share > CPU_SHARE_BUSY,
            "notes": self.notes,
        }

    def heading(self) -> str:
        """The parameters of the run, in a line."""
        plan = self.plan
        parts = [f"{plan.verb} {self.topic} ({count_of(self.partitions, 'partition')})"]
        if plan.verb != "consume":
            size = f"records of {plan.record_size:,} B"
            batch = "" if self.batch_records is None else f" in batches of {self.batch_records:,}"
            parts += [size + batch, f"compression {plan.compression}", f"ack {plan.ack}"]
        parts += [count_of(plan.connections, "connection"), f"{plan.pipeline} in flight"]
        if plan.rate is not None:
            parts.append(f"target {plan.rate:,.0f} records/s")
        return ", ".join(parts)

    def totals(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Titles and rows of the table of totals."""
        measurement, counted = self.measurement, self.counted
        seconds = measurement.seconds
        errors = sum(measurement.errors.values())
        titles = ("RECORDS", "SECONDS", "RECORDS/S", "MB/S", "REQUESTS", "ERRORS", "GENERATOR CPU")
        row = (
            f"{counted.records:,}",
            f"{seconds:.2f}",
            f"{_rate(counted.records, seconds):,.0f}",
            f"{_rate(counted.bytes, seconds) / 1e6:,.1f}",
            f"{counted.requests:,}",
            f"{errors:,}",
            f"{measurement.cpu_share:.0%}",
        )
        return titles, [row]

    def latency_rows(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Titles and the row of the table of latencies, milliseconds."""
        latencies = self.measurement.latencies
        shown = {name: _shown(ms) for name, ms in latencies.in_ms().items() if name != "mean"}
        return ("LATENCY ms", *shown), [(self.latency, *shown.values())] if latencies.count else []

    def remarks(self) -> list[str]:
        """Remarks needed to interpret the numbers, a sentence each."""
        measurement, plan = self.measurement, self.plan
        remarks = [f"ended: {_ENDINGS[self.ended_by]}", *self.notes]
        remarks += [f"error: {code}, {count_of(count, 'time')}" for code, count in measurement.errors.most_common()]
        if measurement.in_flight:
            remarks.append(f"not answered: {count_of(measurement.in_flight, 'request')}")
        if plan.rate is not None:
            remarks.append("latency counts from when a record was due by the target rate, waiting included")
        if self.unsent:
            remarks.append(
                f"the target rate was not reached: {count_of(self.unsent, 'record')} fell due and could not be sent, "
                "because all requests of the pipeline were in flight; they are not in the latencies"
            )
        if plan.ack == "none" and plan.verb == "produce":
            remarks.append("ack none is not answered: its latency ends when the bytes are handed to the system")
        if plan.verb == "consume" and plan.follow:
            remarks.append("latency is from a batch's largest timestamp to its arrival, by both ends' clocks, to 1 ms")
        if plan.verb == "roundtrip":
            received = measurement.received.records
            remarks.append(f"arrived: {count_of(received, 'record')}, {self.missing:,} missing")
        if measurement.cpu_share > CPU_SHARE_BUSY:
            remarks.append(
                f"WARNING: this load generator used {measurement.cpu_share:.0%} of a core; the numbers may be its own "
                "limit, not the broker's. Try larger batches, or several processes"
            )
        return remarks


def _rate(amount: int, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _shown(milliseconds: float) -> str:
    """Milliseconds with about three digits."""
    return f"{milliseconds:.3f}" if milliseconds < 10 else f"{milliseconds:,.1f}"
