"""The cases: what is asked of every server, and what we want to reach beside Apache Kafka."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from benchmarks.batches import batch_of, one_record
from benchmarks.harness import MIB, Goal

Ack = Literal["os", "disk"]
"""What an acknowledged append survives: a crash of the server, or a loss of power."""

GROUPS: Final = (
    "small",
    "large",
    "disk",
    "fetch",
    "seeks",
    "commits",
    "transactions",
    "jobs",
    "compaction",
    "firehose",
    "kafka",
)

NATIVE: Final = "seglog, native"
NATIVE_COMPILED: Final = "seglog, native, compiled"
LISTENER: Final = "seglog, Kafka's wire"
LISTENER_COMPILED: Final = "seglog, Kafka's wire, compiled"
OURS: Final = (NATIVE, NATIVE_COMPILED, LISTENER, LISTENER_COMPILED)
"""The sides of a case that are ours: by the protocol, and by the build. Without "compiled": the sources."""

Goals = Mapping[str, Goal]
"""By the side."""


class AppendCase(NamedTuple):
    """The same append over and over. ``batch_bytes`` 0 is one record of 100 bytes; ``depth`` is of each connection."""

    group: str
    name: str
    batch_bytes: int
    connections: int
    depth: int
    ack: Ack
    goals: Goals

    def batch(self) -> tuple[bytes, int]:
        """The batch of the request, and how many records are in it."""
        return batch_of(self.batch_bytes) if self.batch_bytes else (one_record(), 1)


class FetchCase(NamedTuple):
    """One fetch after the other through a warm partition."""

    name: str
    partition_bytes: int
    goals: Goals


def _ratios(native: float, listener: float, *, pure: tuple[float, float] | None = None) -> Goals:
    """Ratios to Kafka that the compiled build should reach; ``pure``: those of the sources."""
    limits = {NATIVE_COMPILED: native, LISTENER_COMPILED: listener}
    if pure is not None:
        limits |= dict(zip((NATIVE, LISTENER), pure, strict=True))
    return MappingProxyType({side: Goal("≥", limit, "ratio") for side, limit in limits.items()})


_16K, _256K = 16 * 1024, 256 * 1024

APPENDS: Final = (
    AppendCase("small", "100 B, depth 1, os", 0, 1, 1, "os", _ratios(1.3, 1.3, pure=(0.9, 0.9))),
    AppendCase("small", "100 B, 64 deep, os", 0, 1, 64, "os", _ratios(10, 8, pure=(6, 5))),
    AppendCase("small", "100 B, 16 connections x 1, os", 0, 16, 1, "os", _ratios(1.1, 1.1, pure=(0.8, 0.75))),
    AppendCase("small", "100 B, 16 connections x 16, os", 0, 16, 16, "os", _ratios(3, 3, pure=(2, 1.5))),
    AppendCase("large", "16 KiB, depth 1, os", _16K, 1, 1, "os", _ratios(1.1, 1.1)),
    AppendCase("large", "16 KiB, 64 deep, os", _16K, 1, 64, "os", _ratios(5, 4)),
    AppendCase("large", "256 KiB, 5 deep, os", _256K, 1, 5, "os", _ratios(2, 2)),
    AppendCase("large", "1 MiB, 5 deep, os", MIB, 1, 5, "os", _ratios(3, 2.5)),
    AppendCase("disk", "100 B, depth 1, disk", 0, 1, 1, "disk", _ratios(1.3, 1.3)),
    AppendCase("disk", "100 B, 64 deep, disk", 0, 1, 64, "disk", _ratios(25, 20)),
    AppendCase("disk", "100 B, 16 connections x 1, disk", 0, 16, 1, "disk", _ratios(8, 8)),
)

FETCHES: Final = (
    FetchCase("fetch, 1 MiB each", MIB, _ratios(1.05, 1.05)),
    FetchCase("fetch, 8 MiB each", 8 * MIB, _ratios(1.05, 1.05)),
)

SEEK_GOALS: Final = _ratios(1, 1)
COMMIT_GOALS: Final = _ratios(1, 1)
TRANSACTION_GOALS: Final = _ratios(1.5, 1.5)
JOB_GOALS: Final[Mapping[Ack, Goals]] = MappingProxyType({"os": {}, "disk": _ratios(2, 2)})
"""An acknowledgement of ours is always on the disk."""

COMPACTION_GOALS: Final[Goals] = MappingProxyType({NATIVE: Goal("≥", 1, "ratio")})

OTHERS_GOAL: Final = Goal("≤", 8, "value")
"""Milliseconds, for the p99 of others beside a firehose."""

STALL_GOAL: Final = Goal("≤", 10, "value")
"""Milliseconds."""
