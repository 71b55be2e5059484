"""Answers of brokers: fixed ones for golden pictures, and whatever a hostile broker may send."""

from pathlib import Path

from hypothesis import strategies as st

from seglog.core.explaining import PartitionExplanation
from seglog_protocol.messages import (
    INT64_MAX,
    ConfigEntry,
    ExplainedLookup,
    ExplainedProbe,
    ExplainedSegment,
    ExplainReply,
    ExplainSegmentsReply,
)

NOW = 1_700_000_000_000  # 2023-11-14T22:13:20Z
MINUTE = 60_000
TEN = NOW - 200_000  # 22:10:00
"""The first record of a segment that may expire 7 min later, is checked 5 min after that, and is gone 1 min later."""

CHAIN = PartitionExplanation(
    ExplainSegmentsReply(
        *("commits", 0, NOW, 16, 51, 3, 35_840, 1, 16_384, 6 * MINUTE, TEN + 6 * MINUTE),
        earliest_reason="expired",
        config={
            "retention.ms": ConfigEntry(str(5 * MINUTE), "topic"),
            "retention.bytes": ConfigEntry("-1", "default"),
            "file.delete.delay.ms": ConfigEntry(str(MINUTE), "topic"),
        },
    ),
    [
        ExplainedSegment(
            *(0, 16, 16_384, "deleted", "the time rule took it out of the log"),
            rule="time",
            gone_from_ms=NOW + 40_000,
            gone_by_ms=NOW + 40_000,
        ),
        ExplainedSegment(
            *(16, 32, 16_384, "closed", "it is young"),
            first_timestamp=TEN,
            largest_timestamp=TEN + 2 * MINUTE,
            rolled="size",
            rolled_ms=TEN + 2 * MINUTE,
            age_since_ms=TEN + 2 * MINUTE,
            age_source="largest timestamp",
            deletable_ms=TEN + 7 * MINUTE,
            leaves_from_ms=TEN + 7 * MINUTE,
            leaves_by_ms=TEN + 13 * MINUTE,
            gone_from_ms=TEN + 8 * MINUTE,
            gone_by_ms=TEN + 14 * MINUTE,
        ),
        ExplainedSegment(
            *(32, 48, 16_384, "closed", "retention.ms = -1 sets no limit to its age"),
            first_timestamp=TEN + 2 * MINUTE,
            largest_timestamp=TEN + 3 * MINUTE,
            bytes_to_come=20_000,
        ),
        ExplainedSegment(
            *(48, 51, 3_072, "active", "its newest record is 20 s old; appends put that off"),
            first_timestamp=TEN + 3 * MINUTE,
            largest_timestamp=NOW - 20_000,
            age_since_ms=NOW - 20_000,
            age_source="largest timestamp",
            deletable_ms=NOW - 20_000 + 5 * MINUTE,
            leaves_from_ms=NOW - 20_000 + 5 * MINUTE,
            leaves_by_ms=NOW - 20_000 + 11 * MINUTE,
            gone_from_ms=NOW - 20_000 + 6 * MINUTE,
            gone_by_ms=NOW - 20_000 + 12 * MINUTE,
        ),
    ],
)

EMPTY = PartitionExplanation(ExplainSegmentsReply("t", 0, NOW, 0, 0, 0, 0, 0, 0, MINUTE, NOW + MINUTE), [])
"""A topic without records, as a broker that tells nothing of its active segment has it."""


def golden(name: str) -> str:
    """A picture as it was approved."""
    return (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8")


_texts = st.text(max_size=60)
_numbers = st.one_of(st.integers(0, 200), st.integers(NOW - 10**7, NOW + 10**7), st.integers(-INT64_MAX - 1, INT64_MAX))
_perhaps = st.none() | _numbers


def segments(number: int = 0) -> st.SearchStrategy[ExplainedSegment]:
    """A segment of any sizes, states and times, in any order."""
    return st.builds(
        ExplainedSegment,
        *(st.just(number) if number else _numbers, _numbers, _numbers),
        *(st.sampled_from(["deleted", "closed", "active", "compacting"]) | _texts, _texts),
        first_timestamp=_perhaps,
        largest_timestamp=_perhaps,
        rolled=st.none() | _texts,
        rolled_ms=_perhaps,
        rule=st.none() | _texts,
        age_since_ms=_perhaps,
        age_source=st.none() | st.just("largest timestamp") | _texts,
        deletable_ms=_perhaps,
        leaves_from_ms=_perhaps,
        leaves_by_ms=_perhaps,
        gone_from_ms=_perhaps,
        gone_by_ms=_perhaps,
        bytes_to_come=_perhaps,
    )


_entries = st.builds(ConfigEntry, _numbers.map(str) | _texts, st.just("topic"))
partitions = st.builds(
    ExplainSegmentsReply,
    *(_texts, *[_numbers] * 10),
    config=st.fixed_dictionaries({}, optional={"retention.ms": _entries, "file.delete.delay.ms": _entries}),
    doubts=st.lists(_texts, max_size=2),
    problems=st.lists(_texts, max_size=2),
)
explanations = st.builds(PartitionExplanation, partitions, st.lists(segments(), max_size=9))


# --- Seeks ------------------------------------------------------------------------------------------------------------

_TRAIL = (161, 80, 40, 60, 50, 45, 43, 42)

SEEK = ExplainReply(
    *("commits", 0, 4, "number 3 of 4, the last with a base offset at or below 60000"),
    segment=55_120,
    lookups=[
        ExplainedLookup(
            *("time", "commits-0/00000000000000055120.timeindex", 3, NOW, 2, NOW - 5000, 59_990),
            trail=[ExplainedProbe(entry, NOW - 15_000 + 10_000 * entry) for entry in (1, 2)],
        ),
        ExplainedLookup(
            *("offset", "commits-0/00000000000000055120.index", 323, 59_990, 8, 59_990, 718_913),
            trail=[ExplainedProbe(entry, 59_990 + 100 * (entry - 42)) for entry in _TRAIL],
        ),
    ],
    scan_start=718_913,
    scanned_bytes=20_891,
    scanned_batches=2,
    read_bytes=29_282,
    positions=[718_913, 739_804],
    log_size=4_181_683,
    position=739_804,
    batch_size=4096,
    base_offset=59_992,
    last_offset=60_025,
    record_offset=60_001,
    record_timestamp=NOW + 7,
    files=["commits-0/00000000000000055120.log"],
)
"""A seek to a time through both indexes."""

_probes = st.builds(ExplainedProbe, _numbers, _numbers)
_lookups = st.builds(
    ExplainedLookup,
    *(st.sampled_from(["time", "offset"]) | _texts, _texts, *[_numbers] * 3),
    key=_perhaps,
    value=_perhaps,
    trail=st.lists(_probes, max_size=5),
)
seeks = st.builds(
    ExplainReply,
    *(_texts, _numbers, _numbers, _texts),
    segment=_perhaps,
    lookups=st.lists(_lookups, max_size=3),
    scan_start=_numbers,
    scanned_bytes=_numbers,
    scanned_batches=_numbers,
    read_bytes=_numbers,
    positions=st.lists(_numbers, max_size=5),
    log_size=_numbers,
    position=_perhaps,
    batch_size=_numbers,
    base_offset=_perhaps,
    last_offset=_perhaps,
    record_offset=_perhaps,
    record_timestamp=_perhaps,
    rebuilt_indexes=st.booleans(),
)
