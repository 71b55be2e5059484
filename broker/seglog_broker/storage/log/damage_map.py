"""The damaged ranges of a log: kept in one place, of which the state file is written and readers step around."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from seglog_broker.storage.io.handle_pool import OnlyWarm, TurnWantedError
from seglog_broker.storage.log.segment_list import SegmentList
from seglog_broker.storage.log.state_file import StateFile
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol.errors import CorruptRecordError


class DamageMap:
    """Damaged ranges in the order in which they were found, and those of each segment by position.

    ``ranges`` is ``PartitionState.damaged``: changes reach the file with the next write of the state.
    """

    __slots__ = ("_of_segment", "ranges")

    def __init__(self, ranges: list[DamagedRange]) -> None:
        """Take ``ranges`` over: only this class changes the list from now on."""
        self.ranges = ranges
        self._of_segment: dict[int, list[DamagedRange]] = {}
        self._index()

    def list_for(self, base_offset: int) -> list[DamagedRange]:
        """Where bytes of that segment are damaged, by position: a list for ``Segment``, kept up to date."""
        return self._of_segment.setdefault(base_offset, [])

    def in_segment(self, base_offset: int) -> tuple[DamagedRange, ...]:
        """Where bytes of that segment are damaged now, by position."""
        return tuple(self._of_segment.get(base_offset, ()))

    def add(self, damage: DamagedRange) -> None:
        """Add one range behind those that are known."""
        self.replace([*self.ranges, damage])

    def note(self, found: Iterable[DamagedRange]) -> list[DamagedRange]:
        """Add ranges that a reader of a whole segment met; return those that were not known.

        Known ranges that lie within a new one are replaced by it.
        """
        news = []
        for damage in found:
            known = [d for d in self.ranges if d.segment == damage.segment and d.reason == damage.reason]
            if any(d.position <= damage.position and damage.end_position <= d.end_position for d in known):
                continue
            within = [d for d in known if damage.position <= d.position and d.end_position <= damage.end_position]
            self.replace([*(d for d in self.ranges if d not in within), damage])
            news.append(damage)
        return news

    def replace(self, ranges: Iterable[DamagedRange]) -> None:
        """Put ``ranges`` in the place of everything that was known."""
        self.ranges[:] = ranges
        self._index()

    def replace_segments(self, bases: Collection[int], damaged: Iterable[DamagedRange]) -> None:
        """Compaction has replaced segments by one with ``damaged``; what was missing there stays missing."""
        kept = [d for d in self.ranges if d.segment not in bases or d.reason == "missing"]
        self._forget_segments(bases)
        self.replace([*kept, *damaged])

    def explains(self, start: int, end: int) -> bool:
        """Whether one range covers all of [start, end)."""
        return any(d.start_offset <= start and end <= d.end_offset for d in self.ranges)

    def forget_before(self, first_base: int) -> None:
        """The segments below ``first_base``, where the log begins now, are gone.

        Damaged bytes of a segment that is still there stay known, also where no offset is left for them. Those of a
        segment that went are forgotten: where they reached into the next one, that has damage of its own. Of offsets
        that are missing those below the first segment are not missing any more: the log begins there.
        """
        self._forget_segments([base for base in self._of_segment if base < first_base])
        self.replace(
            replace(damage, start_offset=max(damage.start_offset, first_base)) if damage.reason == "missing" else damage
            for damage in list(self.ranges)
            if (damage.segment >= first_base if damage.reason == "damaged" else damage.end_offset > first_base)
        )

    def forget_behind(self, segments: SegmentList) -> bool:
        """Forget what lies behind the ends of ``segments``; say whether anything did.

        Bytes that were cut off may come again, and be sound.
        """
        self._forget_segments(self._of_segment.keys() - set(segments.bases))
        kept = []
        for damage in self.ranges:
            segment = segments.at(damage.segment)
            if segment is not None and damage.end_position <= segment.size:
                kept.append(damage)
        if kept == self.ranges:
            return False
        self.replace(kept)
        return True

    def _forget_segments(self, bases: Iterable[int]) -> None:
        for base in list(bases):
            self._of_segment.pop(base, None)

    def _index(self) -> None:
        """Bring the lists of the segments up to date, in place: the segments hold them."""
        for known in self._of_segment.values():
            known.clear()
        for damage in sorted(dict.fromkeys(self.ranges), key=lambda d: d.position):
            if damage.reason == "damaged":
                self.list_for(damage.segment).append(damage)


class DamageFinder:
    """Finds out how far damage goes that was met, so that the next reader steps around it."""

    __slots__ = ("_damage", "_only_warm", "_state_file")

    def __init__(self, damage: DamageMap, state_file: StateFile, only_warm: OnlyWarm) -> None:
        self._damage = damage
        self._state_file = state_file
        self._only_warm = only_warm

    def measure(self, segment: Segment, next_base: int, error: CorruptRecordError) -> None:
        """Remember the damage that ``error`` speaks of, with its whole extent.

        ``next_base`` is where the segment behind ``segment`` begins, or the log ends.

        Raises the error itself when there are no bytes to step over, which would be a bug; and TurnWantedError where a
        look-up is to be asked for again.
        """
        position, start_offset = error.position, error.start_offset
        if position > 0:  # what led there may be wrong itself: a length, which hides those that follow it
            flaw = segment.flaw_before(position, start_offset, next_base)
            position, start_offset = flaw or (position, start_offset)
        compacted_before = self._state_file.state.compacted_before
        damage = segment.measure_damage(position, start_offset, next_base, compacted_before=compacted_before)
        if damage.end_position <= damage.position:
            raise error
        self._damage.add(damage)
        self._state_file.try_save()  # where that fails it will be found again
        if self._only_warm.is_on:
            raise TurnWantedError  # there may be more of it
