"""The end of a log by everything but its records: how a start notices that records at the end are lost.

The marks are offsets: the recovery point, the high watermark of a clean stop, the name of the newest producer snapshot,
and ``held_end`` of ``seglog-partition.json``. One flipped bit can change any of them, so no single mark is trusted.

Files of a segment whose ``.log`` is gone are a mark, too: a roll creates the ``.log`` first, so there was one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from seglog_protocol.segment_files import (
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)


def bases_without_log(names: Iterable[str]) -> list[int]:
    """The base offsets, ascending, of segments after the last ``.log`` that have other files but no ``.log``.

    A ``.log`` renamed to ``.deleted`` counts as present. Empty if there is no segment at all.
    """
    parsed = [found for name in names if (found := parse_segment_file_name(name)) is not None]
    last = max((base for base, suffix in parsed if suffix == LOG_SUFFIX), default=None)
    renamed = {base for base, suffix in parsed if suffix.startswith(f"{LOG_SUFFIX}.")}
    there = {base for base, suffix in parsed if suffix in SEGMENT_SUFFIXES}
    return [] if last is None else sorted(base for base in there - renamed if base > last)


class LogMarks(NamedTuple):
    """The marks of a log's end; 0 and None are unknown."""

    recovery_point: int
    high_watermark: int | None
    snapshots: Sequence[int]  # offsets of producer snapshots at or after the last segment's base
    remembered: int  # the ``held_end`` of seglog-partition.json
    without_log: Sequence[int] = ()  # base offsets of segments after the last one whose ``.log`` is gone

    @classmethod
    def find(
        cls,
        names: Iterable[str],
        bases: Sequence[int],
        recovery_point: int,
        high_watermark: int | None,
        remembered: int,
    ) -> "LogMarks":
        """The marks in a directory with the file ``names``; ``bases`` are its segments' base offsets."""
        names = list(names)
        found = (
            parsed[0] for name in names if (parsed := parse_segment_file_name(name)) and parsed[1] == SNAPSHOT_SUFFIX
        )
        snapshots = sorted(offset for offset in found if offset >= bases[-1])
        without_log = [base for base in bases_without_log(names) if base > bases[-1]]
        return cls(recovery_point, high_watermark, snapshots, remembered, without_log)

    def end_at_clean_stop(self) -> int | None:
        """The log end at the clean stop by most of the marks, None if there is no mark."""
        votes = self._votes()
        return max(votes, key=lambda end: (votes[end], end), default=None)

    def end_beside(self, end: int | None) -> int | None:
        """As ``end_at_clean_stop``, but ``end``, by the last batch, wins a tie. None: there is no valid last batch."""
        return end if end is not None and self.agree_on(end) else self.end_at_clean_stop()

    def agree_on(self, end: int) -> bool:
        """Whether at least one mark names this end, and no other end has more marks."""
        votes = self._votes()
        return votes[end] > 0 and votes[end] == max(votes.values())

    def held_end(self) -> int:
        """Everything below it was on the disk once: the highest offset that two marks confirm."""
        point, remembered = self.recovery_point, self.remembered
        return max(
            point if remembered >= point or self._is_confirmed(point) else 0,
            remembered if point >= remembered or self._is_confirmed(remembered) else 0,
        )

    def _is_confirmed(self, end: int) -> bool:
        """Whether files confirm it: a snapshot at that offset, or a segment below it whose log is gone."""
        return end in self.snapshots or any(base < end for base in self.without_log)

    def problems(self, end: int) -> list[str]:
        """A sentence for each mark that contradicts a log ending at ``end``."""
        said = (
            ("recovery-point-offset-checkpoint", self.recovery_point),
            ("replication-offset-checkpoint", self.high_watermark or 0),
        )
        gone = [
            f"{segment_file_name(base, LOG_SUFFIX)} is missing, its index files exist: the log continues at {end}, and "
            "whether there were records after that is not known (it had none on the disk if a power cut took it)"
            for base in self.without_log
        ]
        return gone + [
            f"{name} says {offset}, the log ends at {end}: it is ignored" for name, offset in said if offset > end
        ]

    def _votes(self) -> Counter[int]:
        votes = Counter(end for end in (self.recovery_point, self.high_watermark, self.remembered) if end)
        votes.update(self.snapshots[-1:])
        return votes
