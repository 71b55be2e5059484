"""Gaps: offsets without a record, which consumers always report."""

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

GAPS_KEPT_MAX: Final = 1_000


class ConsumerGap(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of a partition without a record.

    ``reason`` is one of compacted, expired, truncated, damaged, missing.
    """

    topic: str
    partition: int
    start: int
    end: int
    reason: str


class GapLog:
    """The gaps of a consumer: the last 1,000 (adjacent ones with one reason are merged) and totals of all.

    Iterates from the oldest kept to the newest.
    """

    def __init__(self) -> None:
        self.total = 0
        """Number of gaps, after merging."""
        self.offsets_total = 0
        """Number of offsets in all gaps."""
        self._kept: deque[list[ConsumerGap]] = deque(maxlen=GAPS_KEPT_MAX)
        self._last: dict[int, list[ConsumerGap]] = {}  # the newest of each partition, in a box that merging replaces in

    def add(self, gap: ConsumerGap) -> None:
        """Add a gap, which must begin at or after the end of its partition's last one."""
        self.offsets_total += gap.end - gap.start
        box = self._last.get(gap.partition)
        if box is not None and box[0].end == gap.start and box[0].reason == gap.reason:
            box[0] = box[0]._replace(end=gap.end)
            return
        self.total += 1
        self._last[gap.partition] = box = [gap]
        self._kept.append(box)

    def __iter__(self) -> Iterator[ConsumerGap]:
        return iter([box[0] for box in self._kept])

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<GapLog of {self.total} gaps, {self.offsets_total} offsets>"
