"""Answers of brokers: fixed ones for golden pictures, and whatever a hostile broker may send."""

from pathlib import Path

from hypothesis import strategies as st

from seglog.core.explaining import PartitionExplanation
from seglog_protocol.messages import INT64_MAX, ConfigEntry, ExplainedSegment, ExplainSegmentsReply

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
