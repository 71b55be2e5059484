"""Committed offsets of groups carried over: each stands before the same record in the target as in the source."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from seglog.mirror.claim import GROUP
from seglog.mirror.cluster import Cluster, Committed
from seglog.mirror.positions import Partition, Position
from seglog.mirror.resuming import read


class CarriedGroup(NamedTuple):
    """A group after its offsets were carried over: records it had not read in the source, and who still reads there."""

    group: str
    lag: int
    members: int
    problem: str = ""


@dataclass
class GroupOffsets:
    """Carries the committed offsets of groups, those in ``only`` or all, where they have moved."""

    source: Cluster
    target: Cluster
    only: Collection[str]
    tell: Callable[[str], None]
    _carried: dict[str, dict[Partition, Committed]] = field(default_factory=dict)
    _written: dict[str, dict[Partition, int]] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    def carry(self, positions: Mapping[Partition, Position]) -> None:
        """Carry what has changed. A group with members in the target, or further there, is left as it is."""
        for group in self._groups():
            offsets = self._offsets_of(group, positions)
            if not offsets or offsets == self._carried.get(group):
                continue
            is_complete = all(at.offset <= positions[where].source for where, at in offsets.items())
            if (problem := self._carry(group, offsets, positions)) and self._told.get(group) != problem:
                self.tell(f"warning: offsets of group {group} are not carried over: {problem}")
            self._told[group] = problem
            if is_complete and not problem:
                self._carried[group] = offsets

    def last(self, positions: Mapping[Partition, Position], ends: Mapping[Partition, int]) -> list[CarriedGroup]:
        """Carry all of them for good, and tell how far each was."""
        self._carried.clear()
        found = []
        for group in self._groups():
            if offsets := self._offsets_of(group, positions):
                problem = self._carry(group, offsets, positions)
                lag = sum(max(0, ends[where] - at.offset) for where, at in offsets.items())
                found.append(CarriedGroup(group, lag, len(self.source.members_of(group)), problem))
        return found

    def _groups(self) -> list[str]:
        known = self.source.groups()
        return [name for name in known if (name in self.only if self.only else not name.startswith(GROUP))]

    def _offsets_of(self, group: str, positions: Mapping[Partition, Position]) -> dict[Partition, Committed]:
        return {where: at for where, at in self.source.committed(group).items() if where in positions}

    def _carry(
        self, group: str, offsets: Mapping[Partition, Committed], positions: Mapping[Partition, Position]
    ) -> str:
        """Set the offsets in the target; "", else why they could not be set."""
        there = self.target.committed(group)
        written = self._written.setdefault(group, {})
        new = {}
        for where, at in offsets.items():
            offset = self._translated(where, at.offset, positions[where])
            now = there[where].offset if where in there else -1
            if now == offset or (now > offset and now != written.get(where)):
                continue  # its members have gone on in the target, or nothing has changed
            new[where] = Committed(offset, at.metadata)
        if not new:
            return ""
        if not (problem := self.target.commit(group, new)):
            written |= {where: what.offset for where, what in new.items()}
        return problem

    def _translated(self, partition: Partition, offset: int, position: Position) -> int:
        """The offset in the target of the record at ``offset`` in the source, or of the next one there.

        Where that cannot be told because the source was compacted since, one before it: records are read again then,
        none is left out.
        """
        if offset >= position.source:
            return position.target
        if offset >= position.straight_from:
            return offset - position.distance
        straight = position.straight_from - position.distance
        records = read(self.source, partition, offset, position.straight_from)
        if (first := next(records, None)) is None:
            return straight
        found = straight - 1 - sum(1 for _ in records)
        there = next(read(self.target, partition, found, found + 1), None)
        if there is not None and there.content == first.content:
            return found
        return max(0, straight - (position.straight_from - offset))
