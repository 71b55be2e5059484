"""Where seglog answers otherwise than Kafka, on purpose: one sentence for each, and exactly what ours is.

Nothing that is not listed here may differ. All of it comes down to five choices, which ARCHITECTURE.md explains: later
records outlive earlier damage, offsets of what was on the disk are not given out again, indexes are only believed where
the log agrees, an index that is missing or impossible is rebuilt, and the time of a file's last change is never taken
for a record's.
"""

from dataclasses import dataclass
from typing import Final

_DAMAGE_KEPT = (
    "bytes are damaged with valid batches behind them: Kafka cuts the log there (or lets no consumer get past it); "
    "seglog keeps every byte, names the range and serves what follows"
)
_INDEX_AHEAD = (
    "an index entry points beyond the log: Kafka takes the segment's base as the log end, hides its records and would "
    "give their offsets to others; seglog believes the log and rebuilds the index"
)
_INDEX_GARBAGE = (
    "a closed segment's index holds garbage: Kafka scans from where it leads and finds no record of that time; seglog "
    "sees that no batch begins there and rebuilds it"
)
_TIME_INDEX_LOST = (
    "a closed segment's time index is missing or empty: Kafka takes the file's modification time for its largest "
    "timestamp, looks there and answers none; seglog rebuilds the index"
)
_TIME_INDEX_TORN = (
    "a closed segment's time index ends in half an entry: Kafka drops that, misses the segment's largest timestamp and "
    "answers with a later record; seglog rebuilds the index"
)
_SEGMENT_GONE = (
    "the last segment's log is gone or empty, and the recovery point says that it was on the disk: Kafka ends the log "
    "before it and gives its offsets to other records; seglog names them as missing and goes on behind them"
)
_FIRST_GONE = (
    "the first segment is gone: Kafka begins the log at the next one in silence; seglog keeps the log start and "
    "names the records as missing until the loss is accepted"
)


@dataclass(frozen=True)
class Difference:
    """Ours, where it is not Kafka's answer; what is not given here is the same as Kafka's."""

    why: str
    log_start: int | None = None
    log_end: int | None = None
    damaged: tuple[tuple[int, int], ...] | None = None  # ranges that cannot be read; the records are all others
    other_times: int = 0  # how many of the asked times have another answer: the first record at or after them
    largest_timestamp: bool = False  # the largest timestamp is another: that of a record


WHOLE: Final = {
    "unclean-recovered": "as-left-0",
    "unclean-recovered-from-zero": "as-left-0",
    "damaged-clean-start": "intact-0",
    "damaged-unclean-start": "intact-0",
}
"""The partition of a case that nothing was done to; the others held the same records."""

_INDEXES_EMPTY = Difference(_TIME_INDEX_LOST, other_times=26, largest_timestamp=True)
_EITHER_START = {
    "index-garbage-0": Difference(_INDEX_GARBAGE, other_times=3),
    "no-timeindex-0": Difference(_TIME_INDEX_LOST, other_times=11),
    "timeindex-odd-length-0": Difference(_TIME_INDEX_TORN, other_times=3),
    "last-log-gone-0": Difference(_SEGMENT_GONE, log_end=240),
}

DIFFERENCES: Final = {
    "unclean-recovered": {
        "flip-first-batch-0": Difference(
            _DAMAGE_KEPT, log_end=440, damaged=((352, 360),), other_times=1, largest_timestamp=True
        ),
        "flip-in-closed-0": Difference(_DAMAGE_KEPT, damaged=((216, 224),), other_times=1),
    },
    "unclean-recovered-from-zero": {
        "flip-first-batch-0": Difference(
            _DAMAGE_KEPT, log_end=440, damaged=((352, 360),), other_times=1, largest_timestamp=True
        ),
        "flip-in-closed-0": Difference(
            _DAMAGE_KEPT, log_end=440, damaged=((216, 224),), other_times=1, largest_timestamp=True
        ),
    },
    "damaged-clean-start": _EITHER_START
    | {
        "empty-indexes-0": _INDEXES_EMPTY,
        "first-segment-gone-0": Difference(_FIRST_GONE, log_start=0),
        "index-ahead-0": Difference(_INDEX_AHEAD, log_end=240, damaged=(), other_times=1, largest_timestamp=True),
        "log-emptied-0": Difference(_SEGMENT_GONE, log_end=240, largest_timestamp=True),
    },
    "damaged-unclean-start": _EITHER_START
    | {
        "empty-indexes-0": Difference(_TIME_INDEX_LOST, other_times=26),
        "log-emptied-0": Difference(_SEGMENT_GONE, log_end=240),
    },
}
"""By case and partition."""
