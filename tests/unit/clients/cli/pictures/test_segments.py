"""The picture of ``explain segments``: golden ones, and what holds of any answer."""

import re
from datetime import UTC

import click
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.cli.pictures.explained import segments_picture
from seglog.cli.pictures.text import ASCII, BOXES, WIDTH_MIN, Glyphs, glyphs_for, lines_of
from seglog.core.explaining import PartitionExplanation
from seglog_protocol.messages import ExplainedSegment
from tests.support import examples
from tests.unit.clients.cli.pictures.answers import CHAIN, EMPTY, MINUTE, NOW, TEN, explanations, golden


def _text(explained: PartitionExplanation, width: int = 80) -> str:
    return "\n".join(lines_of(segments_picture(explained, UTC), width)) + "\n"


def test_the_whole_chain_at_80_columns() -> None:
    assert _text(CHAIN) == golden("segments_80.txt")


def test_at_160_columns_the_times_stand_beside_the_bars() -> None:
    assert _text(CHAIN, 160) == golden("segments_160.txt")


def test_without_box_characters_it_is_ascii() -> None:
    assert glyphs_for("utf-8") is BOXES
    for encoding in ("ascii", "latin-1", "no such encoding", None):
        assert glyphs_for(encoding) is ASCII
    lines = lines_of(segments_picture(CHAIN, UTC), 80, ASCII)
    assert "\n".join(lines) + "\n" == golden("segments_ascii.txt")
    assert "\n".join(lines).isascii()


def test_colours_take_no_room() -> None:
    coloured = lines_of(segments_picture(CHAIN, UTC), 80, colours=True)
    assert "\x1b[34m█" in "\n".join(coloured)
    assert [click.unstyle(line).rstrip() for line in coloured] == golden("segments_80.txt").splitlines()


def test_an_empty_topic() -> None:
    assert _text(EMPTY) == golden("segments_empty.txt")


def test_of_thousands_of_segments_the_first_and_the_last_are_shown_and_the_others_counted() -> None:
    many = [
        ExplainedSegment(n * 10, n * 10 + 10, 1000, "closed", "", first_timestamp=TEN, largest_timestamp=TEN + n)
        for n in range(980)
    ]
    text = _text(PartitionExplanation(CHAIN.partition, many))
    assert text.count("… 940 more segments, offsets 200 to 9,599, 940,000 bytes\n") == 2
    assert sum(line.split()[1:2] == ["closed"] for line in text.splitlines()) == 40
    assert "  9,600  closed" in text


def test_where_no_times_are_known_nothing_is_drawn() -> None:
    dull = PartitionExplanation(CHAIN.partition, [ExplainedSegment(0, 1, 5, "closed", "")])
    [row] = segments_picture(dull, UTC).strips[0].rows
    assert (row.spans, row.marks) == ((), ())
    assert row.details == ("5", *["-"] * 6)


def aged(number: int, newest: int) -> ExplainedSegment:
    """A segment of one record, kept for a week, with checks and removals a minute apart."""
    due = newest + 10_080 * MINUTE
    return ExplainedSegment(
        *(number, number + 1, 5, "closed", ""),
        first_timestamp=newest,
        largest_timestamp=newest,
        age_since_ms=newest,
        age_source="largest timestamp",
        deletable_ms=due,
        leaves_from_ms=due,
        leaves_by_ms=due + MINUTE,
        gone_from_ms=due + MINUTE,
        gone_by_ms=due + 2 * MINUTE,
    )


def test_a_minute_beside_weeks_has_a_column_of_its_own() -> None:
    text = _text(PartitionExplanation(CHAIN.partition, [aged(n, NOW - n * 3000 * MINUTE) for n in range(5)]))
    assert "≈" not in text
    bars = [line for line in text.splitlines() if "closed" in line and "─" in line]
    assert [re.sub("─+", "─", bar).split()[2] for bar in bars] == ["█─░▒x"] * 5


def test_years_in_which_nothing_happens_are_broken() -> None:
    text = _text(PartitionExplanation(CHAIN.partition, [aged(0, 0), aged(1, NOW - 5 * MINUTE)]))
    [axis] = [line for line in text.splitlines() if line.startswith("SEGMENT  STATE")]
    assert axis.count("≈") == 1
    [bar] = [line for line in text.splitlines() if line.startswith("      1  closed")]
    assert len(bar.split("█")[1]) > 20
    assert "1970-01-01" in text


@settings(max_examples=examples(200))
@given(explanations, st.integers(1, 250), st.sampled_from([BOXES, ASCII]))
def test_any_answer_is_drawn_within_the_width(explained: PartitionExplanation, width: int, glyphs: Glyphs) -> None:
    lines = lines_of(segments_picture(explained, UTC, rows=4), width, glyphs)
    assert max(map(len, lines)) <= max(width, WIDTH_MIN)
    assert all(line.isprintable() for line in lines)


@settings(max_examples=examples(200))
@given(explanations, st.integers(1, 9))
def test_every_segment_is_a_row_or_counted(explained: PartitionExplanation, rows: int) -> None:
    drawn = segments_picture(explained, UTC, rows=rows).strips[0].rows
    counted = sum(int(row.note.split()[0]) for row in drawn if row.note)
    assert sum(not row.note for row in drawn) + counted == len(explained.segments)
    assert sum(not row.note for row in drawn) <= max(2, rows)


@settings(max_examples=examples(200))
@given(explanations)
def test_the_spans_of_a_row_lie_side_by_side(explained: PartitionExplanation) -> None:
    for row in segments_picture(explained, UTC).strips[0].rows:
        places = [place for span in row.spans for place in span[:2]]
        assert places == sorted(places)
        assert all(0 <= place <= 1 for place in (*places, *(mark.at for mark in row.marks)))
