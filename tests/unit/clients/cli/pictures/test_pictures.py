"""Pictures of ``explain``: golden ones of fixed answers, and what holds of whatever a hostile broker may send."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC
from itertools import pairwise
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.cli.pictures.explained import seek_picture, segments_picture
from seglog.cli.pictures.model import Kind
from seglog.cli.pictures.svg import svg_of
from seglog.cli.pictures.text import ASCII, BOXES, WIDTH_MIN, Glyphs, glyphs_for, lines_of
from seglog.core.explaining import PartitionExplanation
from seglog.core.moments import AtOffset, AtTime
from seglog_protocol.messages import (
    INT64_MAX,
    ConfigEntry,
    ExplainedLookup,
    ExplainedProbe,
    ExplainedSegment,
    ExplainReply,
    ExplainSegmentsReply,
)
from tests.support import examples

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


# --- Pictures of ``explain``: golden ones, what holds of any answer, and that SVG is readable on both backgrounds -----


SVG = "{http://www.w3.org/2000/svg}"


def _text(explained: PartitionExplanation) -> str:
    return "\n".join(lines_of(segments_picture(explained, UTC), 80)) + "\n"


@pytest.mark.parametrize("name", ["segments", "seek"])
def test_pictures_are_as_they_were_approved(name: str) -> None:
    """In 160 columns the times stand beside the bars; of a seek each probe is drawn, and the scan."""
    picture = segments_picture(CHAIN, UTC) if name == "segments" else seek_picture(SEEK, AtTime(NOW), UTC)
    for width in (80, 160):
        assert "\n".join(lines_of(picture, width)) + "\n" == golden(f"{name}_{width}.txt")
    assert svg_of([picture]) == golden(f"{name}.svg")


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
@given(explanations, seeks, st.integers(0, INT64_MAX), st.integers(1, 250), st.sampled_from([BOXES, ASCII]))
def test_any_answer_is_drawn_within_the_width(
    explained: PartitionExplanation, reply: ExplainReply, place: int, width: int, glyphs: Glyphs
) -> None:
    sought = [seek_picture(reply, wanted, UTC) for wanted in (AtOffset(place), AtTime(place))]
    for picture in (segments_picture(explained, UTC, rows=4), *sought):
        lines = lines_of(picture, width, glyphs)
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


# --- Seeks ------------------------------------------------------------------------------------------------------------


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


# --- SVG --------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(explanations, seeks)
def test_any_answer_is_a_document_whose_text_lies_within_it(
    explained: PartitionExplanation, reply: ExplainReply
) -> None:
    document = ET.fromstring(svg_of([segments_picture(explained, UTC), seek_picture(reply, AtTime(NOW), UTC)]))
    width, height = float(document.attrib["width"]), float(document.attrib["height"])
    for element in document.iter(f"{SVG}text"):
        assert 0 <= float(element.attrib["x"]) <= width
        assert 0 <= float(element.attrib["y"]) <= height
