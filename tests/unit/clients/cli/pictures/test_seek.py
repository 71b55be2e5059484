"""The picture of ``explain seek``: golden ones, and what holds of any answer."""

from datetime import UTC
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.cli.pictures.model import Kind
from seglog.cli.pictures.explained import seek_picture
from seglog.cli.pictures.text import ASCII, BOXES, WIDTH_MIN, Glyphs, lines_of
from seglog.core.moments import AtOffset, AtTime
from seglog_protocol.messages import INT64_MAX, ExplainedLookup, ExplainReply
from tests.support import examples
from tests.unit.clients.cli.pictures.answers import NOW, SEEK, golden, seeks


@pytest.mark.parametrize("width", [80, 160])
def test_each_probe_and_the_scan_are_drawn(width: int) -> None:
    text = "\n".join(lines_of(seek_picture(SEEK, AtTime(NOW), UTC), width)) + "\n"
    assert text == golden(f"seek_{width}.txt")


def test_each_probe_halves_what_is_still_possible_and_the_entry_found_is_where_they_end() -> None:
    strip = seek_picture(SEEK, AtTime(NOW), UTC).strips[1]
    *probes, found = strip.rows
    ranges = [row.spans[0] for row in probes]
    assert all(after.last - after.first <= (before.last - before.first) * 0.52 for before, after in pairwise(ranges))
    assert all(span.first <= row.marks[0].at <= span.last for row, span in zip(probes, ranges, strict=True))
    assert [mark.kind for mark in found.marks] == [Kind.FOUND]
    assert found.marks[0].at == probes[-1].marks[0].at


def test_an_empty_index_and_one_that_begins_above() -> None:
    reply = ExplainReply(
        *("t", 0, 1, "why"),
        lookups=[ExplainedLookup("offset", "t-0/a.index", 0, 5, 0), ExplainedLookup("offset", "t-0/a.index", 9, 5, 0)],
    )
    empty, above = seek_picture(reply, AtOffset(5), UTC).strips
    assert empty.rows == above.rows == ()
    assert empty.after == ("It is empty: the scan begins where the segment does.",)
    assert above.after == ("Every entry lies above: the scan begins where the segment does.",)


def test_where_nothing_is_found_no_log_is_drawn() -> None:
    picture = seek_picture(ExplainReply("t", 0, 1, "the offset is the end of the log"), AtOffset(5), UTC)
    assert picture.strips == ()
    assert picture.facts == ("no segment: the offset is the end of the log",)


def test_an_answer_of_an_older_broker_has_no_trail_and_no_sizes() -> None:
    wire = SEEK.to_wire()
    for name in ("positions", "log_size", "batch_size"):
        del wire[name]
    for lookup in wire["lookups"]:
        del lookup["trail"]
    text = "\n".join(lines_of(seek_picture(ExplainReply.from_wire(wire), AtTime(NOW), UTC), 80))
    assert "Offset 59,990 ends the batch at position 718,913: the scan begins there." in text
    assert "●" not in text


@settings(max_examples=examples(200))
@given(seeks, st.integers(0, INT64_MAX), st.integers(1, 250), st.sampled_from([BOXES, ASCII]))
def test_any_answer_is_drawn_within_the_width(reply: ExplainReply, place: int, width: int, glyphs: Glyphs) -> None:
    for wanted in (AtOffset(place), AtTime(place)):
        lines = lines_of(seek_picture(reply, wanted, UTC), width, glyphs)
        assert max(map(len, lines)) <= max(width, WIDTH_MIN)
        assert all(line.isprintable() for line in lines)
