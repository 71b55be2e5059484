"""The retention that really holds, of fixed answers: its text, and the sentence that says why it is longer."""

from typing import Any

import pytest

from seglog.cli.retention import kept, kept_text
from seglog.core.explaining import PartitionExplanation
from seglog_protocol.messages import ConfigEntry, ExplainedSegment, ExplainSegmentsReply

MINUTE = 60_000
NOW = 1_700_000_000_000


def segment(first: int, newest: int, state: str = "closed", *, retention: int = 10, check: int = 5) -> ExplainedSegment:
    """A segment with records of minutes ``first`` to ``newest``, whose files go a minute after it left the log."""
    leaves = NOW + (newest + retention) * MINUTE
    return ExplainedSegment(
        *(0, 16, 16_384, state, ""),
        first_timestamp=NOW + first * MINUTE,
        largest_timestamp=NOW + newest * MINUTE,
        leaves_from_ms=leaves,
        leaves_by_ms=leaves + check * MINUTE,
        gone_from_ms=leaves + MINUTE,
        gone_by_ms=leaves + (check + 1) * MINUTE,
    )


def explained(*segments: ExplainedSegment, **config: Any) -> PartitionExplanation:
    """A partition that keeps records ten minutes, but for ``config``, with _ for the dots of keys."""
    settings = {"retention.ms": 10 * MINUTE, "file.delete.delay.ms": MINUTE, "segment.ms": 60 * MINUTE}
    settings |= {key.replace("_", "."): value for key, value in config.items()}
    reply = ExplainSegmentsReply(
        *("commits", 0, NOW, 0, 16, 1, 16_384, 0, 0, 5 * MINUTE, NOW + MINUTE),
        config={key: ConfigEntry(str(value), "topic") for key, value in settings.items()},
    )
    return PartitionExplanation(reply, list(segments))


def test_the_first_record_of_a_segment_waits_for_the_newest_one_a_check_and_its_files() -> None:
    found = kept(explained(segment(0, 7)))
    assert found[:4] == (10 * MINUTE, 17 * MINUTE, 23 * MINUTE, "17 to 23 min")
    assert found.sentence == (
        "The first record of a segment is kept 17 to 23 min; configured: 10 min. Its segment goes as a whole, with its "
        "newest record, up to 7 min younger; a check comes every 5 min; files go 1 min later."
    )


def test_of_several_segments_the_shortest_and_the_longest_count_and_the_active_one_does_not() -> None:
    assert kept_text(explained(segment(0, 7), segment(7, 9), segment(9, 99, "active"))) == (
        "12 to 23 min, configured 10 min"
    )


def test_without_a_closed_segment_one_is_taken_to_span_segment_ms() -> None:
    assert kept_text(explained(segment(0, 1, "active"))) == "10 min to 1 h 16 min, configured 10 min"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"retention_ms": -1}, "for ever"),
        ({"retention_ms": -1, "retention_bytes": 5000}, "until 5,000 bytes are behind it"),
        ({"cleanup_policy": "compact"}, "until a newer record has its key"),
        ({"cleanup_policy": ""}, "for ever: there is no cleanup.policy"),
        ({"cleanup_policy": "compact,delete"}, "17 to 23 min, configured 10 min"),
    ],
)
def test_what_else_limits_it_is_said(config: dict[str, Any], text: str) -> None:
    assert kept_text(explained(segment(0, 7), **config)) == text


def test_a_limit_of_bytes_beside_the_time_is_named() -> None:
    sentence = kept(explained(segment(0, 7), retention_bytes=5000)).sentence
    assert sentence.endswith("files go 1 min later. It goes sooner, if 5,000 bytes are behind it before.")
