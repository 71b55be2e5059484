"""What is wrong with the broker, in sentences for its operator: `seglog ping`, /healthz and seglog_problems tell it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from seglog_broker.partitions.clock_trust import ClockTrust
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.partitions.recoveries import Recoveries
from seglog_broker.security.tls import ServerTls
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.clock import Clock

PART_COST: Final = 250.0
"""Microseconds to look at a part of the partitions."""


@dataclass(eq=False)
class Problems:
    """The problems of a broker, looked up whenever they are asked for."""

    _directory: LogDirectory
    _partitions: PartitionTable
    _recoveries: Recoveries
    _clock: Clock
    _clock_trust: ClockTrust
    _tls: ServerTls | None
    _of_transactions: Callable[[], Iterator[str | None]]
    not_reloaded: dict[str, str] = field(default_factory=dict)
    """What the last reload could not use, each with the reason: what was in force before it still is."""

    def __iter__(self) -> Iterator[str]:
        """Each problem, a sentence."""
        return (problem for problem in self.found() if problem is not None)

    def found(self) -> Iterator[str | None]:
        """As iterating over it, with None for what was looked at and is well, so that others may run in between."""
        offline = self._directory.report.offline
        yield from [f"{topic}-{partition} is offline: {reason}" for (topic, partition), reason in offline.items()]
        yield from self._directory.report.problems
        yield self._clock_trust.problem
        for certificate in () if self._tls is None else self._tls.certificates:
            yield certificate.problem(self._clock.now_ms())
        for what, reason in self.not_reloaded.items():
            yield f"{what} was not reloaded, so that the one before is still in force: {reason}"
        yield self._directory.space.problem()
        for recovery in self._recoveries.without_room:
            yield (
                f"{recovery.topic}-{recovery.partition} is read-only until there is room on the disk, which its "
                f"recovery needs ({recovery.lacked_room})"
            )
        for part in self._partitions.in_parts():
            for partition in part:
                if partition.has_problems:
                    yield from partition.what_is_wrong()
            yield None
        yield from self._of_transactions()
