"""Where a log once ended, as told by everything beside its records: how a start notices that an end is not the old one.

Each of these marks is a cache that one flipped bit can change, so none is believed alone: the recovery point, the high
watermark of a clean stop, the name of the newest producer snapshot, and what ``seglog-partition.json`` says. All of
them are offsets.

Files of a segment whose ``.log`` is gone bear witness too: a roll makes the ``.log`` first, so one was there.
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
    """Where segments began, behind the last one there is, of which other files are there but no ``.log``; rising.

    A ``.log`` that was renamed to be removed, ``.deleted``, counts as there. None where there is no segment at all.
    """
    logs: set[int] = set()
    renamed: set[int] = set()
    others: set[int] = set()
    for name in names:
        parsed = parse_segment_file_name(name)
        if parsed is None:
            continue
        base, suffix = parsed
        if suffix == LOG_SUFFIX:
            logs.add(base)
        elif suffix.startswith(f"{LOG_SUFFIX}."):
            renamed.add(base)
        elif suffix in SEGMENT_SUFFIXES:
            others.add(base)
    last = max(logs, default=None)
    return [] if last is None else sorted(base for base in others - renamed if base > last)


class LogMarks(NamedTuple):
    """What is said of a log's end; 0 and None say nothing."""

    recovery_point: int
    high_watermark: int | None
    snapshots: Sequence[int]  # offsets of producer snapshots that lie at or behind the last segment's base
    remembered: int  # the ``held_end`` of seglog-partition.json
    last_base: int
    without_log: Sequence[int] = ()  # where segments behind the last one began whose ``.log`` is gone

    @classmethod
    def find(
        cls,
        names: Iterable[str],
        bases: Sequence[int],
        recovery_point: int,
        high_watermark: int | None,
        remembered: int,
    ) -> "LogMarks":
        """``names`` are those in the partition's directory, ``bases`` where its segments begin."""
        names = list(names)
        found = (
            parsed[0] for name in names if (parsed := parse_segment_file_name(name)) and parsed[1] == SNAPSHOT_SUFFIX
        )
        snapshots = sorted(offset for offset in found if offset >= bases[-1])
        without_log = [base for base in bases_without_log(names) if base > bases[-1]]
        return cls(recovery_point, high_watermark, snapshots, remembered, bases[-1], without_log)

    def end_at_clean_stop(self) -> int | None:
        """Where the log ended at the clean stop, None when nothing says so; where marks differ, what most say."""
        votes = self._votes()
        if not votes:
            return None
        return max(votes, key=lambda end: (votes[end], end))

    def end_beside(self, end: int | None) -> int | None:
        """As ``end_at_clean_stop``, where the last batch says ``end`` (None: it is no batch), which may decide."""
        return end if end is not None and self.agree_on(end) else self.end_at_clean_stop()

    def agree_on(self, end: int) -> bool:
        """Whether nothing speaks more strongly for another end than for this one."""
        votes = self._votes()
        return votes[end] > 0 and votes[end] == max(votes.values())

    def held_end(self) -> int:
        """Everything below it was on the disk once, whatever became of it: what two marks agree on."""
        point, remembered = self.recovery_point, self.remembered
        return max(
            point if remembered >= point or self._is_confirmed(point) else 0,
            remembered if point >= remembered or self._is_confirmed(remembered) else 0,
        )

    def _is_confirmed(self, end: int) -> bool:
        """Whether files of the partition speak for it: a snapshot there, or a segment below it whose log is gone."""
        return end in self.snapshots or any(base < end for base in self.without_log)

    def problems(self, end: int) -> list[str]:
        """What cannot be true of a log that ends at ``end``, a sentence for each."""
        said = (
            ("recovery-point-offset-checkpoint", self.recovery_point),
            ("replication-offset-checkpoint", self.high_watermark or 0),
        )
        gone = [
            f"{segment_file_name(base, LOG_SUFFIX)} is gone, its index files are there: the log goes on at {end}, and "
            "whether there were records behind that is not known (it had none on the disk if a power cut took it)"
            for base in self.without_log
        ]
        return gone + [
            f"{name} says {offset}, the log ends at {end}: it is not believed" for name, offset in said if offset > end
        ]

    def _votes(self) -> Counter[int]:
        votes = Counter(end for end in (self.recovery_point, self.high_watermark, self.remembered) if end)
        votes.update(self.snapshots[-1:])
        return votes
