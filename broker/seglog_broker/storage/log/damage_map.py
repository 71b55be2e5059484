"""The damaged ranges of a log, which the state file stores and readers skip."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from seglog_broker.storage.io.pauses import OnlyWarm, TurnWantedError
from seglog_broker.storage.log.partition_state import StateFile
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import CorruptRecordError


class DamageMap:
    """Damaged ranges in the order in which they were found, and those of each segment by position.

    ``ranges`` is ``PartitionState.damaged``: changes reach the file with the next write of the state.
    """

    def __init__(self, ranges: list[DamagedRange]) -> None:
        """Owns ``ranges`` from now on: only this class changes the list."""
        self.ranges = ranges
        self._of_segment: dict[int, list[DamagedRange]] = {}
        self._index()

    def list_for(self, base_offset: int) -> list[DamagedRange]:
        """The damaged byte ranges of that segment, by position: a list for ``Segment``, kept up to date."""
        return self._of_segment.setdefault(base_offset, [])

    def in_segment(self, base_offset: int) -> tuple[DamagedRange, ...]:
        """The damaged byte ranges of that segment now, by position."""
        return tuple(self._of_segment.get(base_offset, ()))

    def add(self, damage: DamagedRange) -> None:
        """Add one range after those that are known."""
        self.replace([*self.ranges, damage])

    def note(self, found: Iterable[DamagedRange]) -> list[DamagedRange]:
        """Add ranges that a reader of a whole segment found; return the new ones.

        Known ranges that lie within a new one are replaced by it.
        """
        news = []
        for damage in found:
            known = [d for d in self.ranges if d.segment == damage.segment and d.reason == damage.reason]
            if any(other.covers_bytes_of(damage) for other in known):
                continue
            within = [other for other in known if damage.covers_bytes_of(other)]
            self.replace([*(d for d in self.ranges if d not in within), damage])
            news.append(damage)
        return news

    def replace(self, ranges: Iterable[DamagedRange]) -> None:
        """Replace all ranges with ``ranges``."""
        self.ranges[:] = ranges
        self._index()

    def replace_segments(self, bases: Collection[int], damaged: Iterable[DamagedRange]) -> None:
        """Compaction has replaced segments by one with ``damaged``. Ranges of missing offsets stay."""
        kept = [d for d in self.ranges if d.segment not in bases or d.reason == "missing"]
        self._forget_segments(bases)
        self.replace([*kept, *damaged])

    def explains(self, start: int, end: int) -> bool:
        """Whether one range covers all of [start, end)."""
        return any(d.start_offset <= start and end <= d.end_offset for d in self.ranges)

    def forget_before(self, first_base: int, log_start: int | None = None) -> None:
        """Forget the segments below ``first_base``, the new beginning of the log, which starts at ``log_start``.

        Damaged bytes of a remaining segment stay known, even if their offsets are below the log start. Those of a
        removed segment are forgotten: damage that reached into the next one has a range of its own there. Missing
        offsets below both the first segment and the log start are no longer missing, since the log begins later.
        """
        start = first_base if log_start is None else min(first_base, log_start)
        self._forget_segments([base for base in self._of_segment if base < first_base])
        self.replace(
            replace(damage, start_offset=max(damage.start_offset, start)) if damage.reason == "missing" else damage
            for damage in list(self.ranges)
            if (damage.segment >= first_base if damage.reason == "damaged" else damage.end_offset > start)
        )

    def _forget_segments(self, bases: Iterable[int]) -> None:
        for base in list(bases):
            self._of_segment.pop(base, None)

    def _index(self) -> None:
        """Update the lists of the segments in place, because the segments hold them."""
        for known in self._of_segment.values():
            known.clear()
        for damage in sorted(dict.fromkeys(self.ranges), key=lambda d: d.position):
            if damage.reason == "damaged":
                self.list_for(damage.segment).append(damage)


@dataclass(slots=True, eq=False)
class DamageFinder:
    """Measures the extent of damage that a reader met, so that later reads skip it."""

    _damage: DamageMap
    _state_file: StateFile
    _only_warm: OnlyWarm

    def measure(self, segment: Segment, next_base: int, error: CorruptRecordError) -> None:
        """Record the whole extent of the damage in ``segment`` that ``error`` reports.

        ``next_base`` is where the next segment begins, or the log ends.

        Raises the error itself when there are no bytes to skip, which would be a bug, and TurnWantedError where the
        look-up must be repeated.
        """
        position, start_offset = error.position, error.start_offset
        if position > 0:  # the batch before it may be the damaged one: a wrong length hides the batches after it
            flaw = segment.flaws.find_before(position, start_offset, next_base)
            position, start_offset = flaw or (position, start_offset)
        compacted_before = self._state_file.state.compacted_before
        damage = segment.measure_damage(position, start_offset, next_base, compacted_before=compacted_before)
        if damage.end_position <= damage.position:
            raise error
        self._damage.add(damage)
        self._state_file.try_save()  # if that fails, the damage is found again
        if self._only_warm.is_on:
            raise TurnWantedError  # there may be more of it
