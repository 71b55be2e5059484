"""The cases: what is asked of every server, and what we want to reach beside Apache Kafka and beside the bare loop."""

from typing import Final, Literal, NamedTuple

from benchmarks.batches import batch_of, one_record
from benchmarks.harness import MIB, Goal

Ack = Literal["os", "disk"]
"""What an acknowledged append survives: a crash of the server, or a loss of power."""

GROUPS: Final = ("small", "large", "disk", "fetch", "seeks", "compaction", "firehose", "kafka")


class AppendCase(NamedTuple):
    """The same append over and over. ``batch_bytes`` 0 is one record of 100 bytes; ``depth`` is of each connection."""

    group: str
    name: str
    batch_bytes: int
    connections: int
    depth: int
    ack: Ack
    goal: Goal
    bare_goal: Goal | None = None

    def batch(self) -> tuple[bytes, int]:
        """The batch of the request, and how many records are in it."""
        return batch_of(self.batch_bytes) if self.batch_bytes else (one_record(), 1)


class FetchCase(NamedTuple):
    """One fetch after the other through a warm partition."""

    name: str
    partition_bytes: int
    goal: Goal


def _ratio(limit: float) -> Goal:
    return Goal("≥", limit, "ratio")


_16K, _256K = 16 * 1024, 256 * 1024

APPENDS: Final = (
    AppendCase("small", "100 B, depth 1, os", 0, 1, 1, "os", _ratio(1.5)),
    AppendCase("small", "100 B, 64 deep, os", 0, 1, 64, "os", _ratio(10), _ratio(0.5)),
    AppendCase("small", "100 B, 16 connections x 1, os", 0, 16, 1, "os", _ratio(0.8)),
    AppendCase("small", "100 B, 16 connections x 16, os", 0, 16, 16, "os", _ratio(3)),
    AppendCase("large", "16 KiB, depth 1, os", _16K, 1, 1, "os", _ratio(1.5)),
    AppendCase("large", "16 KiB, 64 deep, os", _16K, 1, 64, "os", _ratio(3)),
    AppendCase("large", "256 KiB, 5 deep, os", _256K, 1, 5, "os", _ratio(1.5)),
    AppendCase("large", "1 MiB, 5 deep, os", MIB, 1, 5, "os", _ratio(1.5)),
    AppendCase("disk", "100 B, depth 1, disk", 0, 1, 1, "disk", _ratio(1)),
    AppendCase("disk", "100 B, 64 deep, disk", 0, 1, 64, "disk", _ratio(20)),
    AppendCase("disk", "100 B, 16 connections x 1, disk", 0, 16, 1, "disk", _ratio(4)),
)

FETCHES: Final = (
    FetchCase("fetch, 1 MiB each", MIB, _ratio(1)),
    FetchCase("fetch, 8 MiB each", 8 * MIB, _ratio(1)),
)

COMPACTION_GOAL: Final = _ratio(1)
STALL_GOAL: Final = Goal("≤", 10, "value")
"""Milliseconds."""
