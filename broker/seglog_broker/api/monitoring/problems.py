"""Problems of the broker, for its operator: `seglog ping`, /healthz, `seglog doctor` and seglog_problems tell them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from seglog_broker.partitions.partition import Problem
from seglog_broker.partitions.scheduler import Service
from seglog_broker.security.tls import ServerTls

PART_COST: Final = 250.0
"""Microseconds to look at a part of the partitions."""


@dataclass(eq=False, repr=False)
class Problems(Service):
    """The problems of a broker, looked up whenever they are asked for."""

    _tls: ServerTls | None
    _of_transactions: Callable[[], Iterator[Problem | None]]
    not_reloaded: dict[str, str] = field(default_factory=dict)
    """What the last reload could not use, each with the reason: what was in force before it still is."""

    def __iter__(self) -> Iterator[Problem]:
        """Each problem."""
        return (problem for problem in self.found() if problem is not None)

    def found(self) -> Iterator[Problem | None]:
        """As iterating over it, with None for what was looked at and is well, so that others may run in between."""
        offline = self._directory.report.offline
        for (topic, number), reason in offline.items():
            yield Problem("disk", f"{topic}-{number} is offline: {reason}")
        others = [*self._directory.report.problems, self._clock_trust.problem]
        others += [each.problem(self._clock.now_ms()) for each in (self._tls.certificates if self._tls else ())]
        others += [
            f"{what} was not reloaded, so that the one before is still in force: {reason}"
            for what, reason in self.not_reloaded.items()
        ]
        yield from (None if sentence is None else Problem("other", sentence) for sentence in others)
        space = self._directory.space
        if (sentence := space.problem()) is not None:
            yield Problem("disk-full" if space.is_full or space.lacks_inodes else "disk-fills", sentence)
        for recovery in self._recoveries.without_room:
            yield Problem(
                "disk-full",
                f"{recovery.topic}-{recovery.partition} is read-only until there is room on the disk, which its "
                f"recovery needs ({recovery.lacked_room})",
            )
        for part in self._table.in_parts():
            for partition in part:
                if partition.has_problems:
                    yield from partition.what_is_wrong()
            yield None
        yield from self._of_transactions()
