"""How many files a new archive will have and of which size, and what would be better: a line before it starts.

From sizes and times of the log's segments, which the broker knows without reading records. Records of a segment are
taken to be spread over all periods between its first and its largest timestamp, so there may be fewer files.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from seglog.cli.figures import bytes_text
from seglog.client import Client
from seglog.core.errors import count_of
from seglog_protocol.messages import ExplainedSegment
from seglog_spark.tables.manifest import Layout
from seglog_spark.tables.periods import UNITS
from seglog_spark.tables.targets import SMALL_BYTES


class Made(NamedTuple):
    """Up to so many files of about ``size`` bytes of log each."""

    layout: Layout
    files: int
    size: int

    def __str__(self) -> str:
        period = "day" if self.layout == "date" else self.layout
        how = f"--partition-by {period}" if period else "without --partition-by"
        return f"{how} up to {count_of(self.files, 'file')} of about {bytes_text(self.size)} of log"


def made(layout: Layout, partitions: Iterable[Sequence[ExplainedSegment]], file_bytes: int, range_bytes: int) -> Made:
    """The files of an archive with this layout, of files of ``file_bytes`` and ranges of ``range_bytes``."""
    files = total = 0
    for segments in partitions:
        size = sum(found.size for found in segments)
        total += size
        if layout is None:
            files += -(-size // file_bytes)
        elif size:
            offsets = sum(found.next_offset - found.base_offset for found in segments)
            periods = min(_periods(layout, segments), offsets)
            files += max(periods - -size // range_bytes - 1, -(-size // file_bytes))
    return Made(layout, files, total // max(1, files))


def _periods(layout: str, segments: Sequence[ExplainedSegment]) -> int:
    """Periods that the segments touch, each once."""
    spans = np.array(
        [(found.first_timestamp or 0, found.largest_timestamp or 0) for found in segments], "datetime64[ms]"
    )
    numbers = spans.astype(f"datetime64[{UNITS[layout]}]").astype(np.int64)
    count, reached = 0, np.iinfo(np.int64).min
    for first, last in sorted(numbers.tolist()):
        count += max(0, last - max(first - 1, reached))
        reached = max(reached, last)
    return count


def segments_of(client: Client, topic: str) -> list[Sequence[ExplainedSegment]]:
    """The segments of each partition with records; empty from a broker that does not tell them."""
    if "explain_segments" not in client.broker.apis:
        return []
    return [client.explain.segments(topic, place.partition).segments for place in client.offsets(topic)]


def sentence(
    layout: Layout, partitions: Sequence[Sequence[ExplainedSegment]], file_bytes: int, range_bytes: int
) -> str:
    """The line: what ``layout`` makes, and the finest coarser one whose files have a useful size, if there is need."""
    ours = made(layout, partitions, file_bytes, range_bytes)
    if layout is None or ours.size >= SMALL_BYTES:
        return str(ours)
    names: list[Layout] = [None, "year", "month", "date", "hour"]
    coarser = [made(name, partitions, file_bytes, range_bytes) for name in names[: names.index(layout)]]
    better = next((found for found in reversed(coarser) if found.size >= SMALL_BYTES), coarser[0])
    return f"{ours}; better {better}: small files are slow to read" if better.files < ours.files else str(ours)
