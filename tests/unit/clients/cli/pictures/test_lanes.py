"""A topic drawn as lanes: what lies in them, bounds, and that any answer makes a small element of a page."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.cli.pictures.lanes import LANES_MAX, READERS_MAX, apart, lanes_picture
from seglog.cli.pictures.model import Kind, Picture, Row
from seglog.cli.pictures.svg import element_of, picture_style
from seglog.cli.pictures.text import lines_of
from seglog.core.explaining import PartitionExplanation
from seglog.core.offsets import PartitionLag
from seglog_protocol.messages import ExplainedSegment, ExplainSegmentsReply
from tests.support import examples
from tests.unit.clients.cli.pictures.test_pictures import CHAIN, MINUTE, NOW, TEN, explanations


def link(partition: int, base: int | None) -> str:
    """An address as the console has them."""
    return f"?partition={partition}" if base is None else f"{partition}/segments/{base}"


def drawn(*lanes: PartitionExplanation, groups: dict[str, list[PartitionLag]] | None = None) -> Picture:
    return lanes_picture(lanes, groups or {}, UTC, link)


def first_row(picture: Picture) -> Row:
    return picture.strips[0].rows[0]


def lag(position: int, **more: Any) -> PartitionLag:
    return PartitionLag("commits", 0, position, 16, 51, NOW, **more)


def many(count: int) -> PartitionExplanation:
    """A partition with so many segments, each a minute after the other."""
    one = [
        ExplainedSegment(
            n, n + 1, 1000, "closed", "", first_timestamp=TEN + n * MINUTE, largest_timestamp=TEN + n * MINUTE
        )
        for n in range(count)
    ]
    return PartitionExplanation(CHAIN.partition, one)


def test_segments_lie_over_the_time_of_their_records_as_high_as_they_are_large_and_lead_to_their_pages() -> None:
    row = first_row(drawn(CHAIN))
    assert [(span.kind, span.link) for span in row.spans] == [
        (Kind.CLOSED, "0/segments/16"),
        (Kind.CLOSED, "0/segments/32"),
        (Kind.ACTIVE, "0/segments/48"),
    ]
    assert row.spans[0].height == row.spans[1].height > row.spans[2].height
    assert all(before.last <= after.first for before, after in pairwise(row.spans))
    assert (row.link, row.details) == ("?partition=0", ("3", "35.8 kB", "7 to 14 min"))


def test_the_frontier_is_where_retention_reaches_to() -> None:
    frontier = {mark.kind: mark.at for mark in drawn(CHAIN).strips[0].guides}
    assert frontier[Kind.FRONTIER] == 0, "five minutes before now, and the first record is younger"
    assert frontier[Kind.NOW] == 1
    later = PartitionExplanation(CHAIN.partition, [*CHAIN.segments[1:]])
    assert [span.first > 0 for span in first_row(drawn(later)).spans] == [True] * 3


def test_time_is_left_out_between_records_and_never_within_a_segment() -> None:
    long = ExplainedSegment(0, 9, 1000, "active", "", first_timestamp=NOW - 40 * MINUTE, largest_timestamp=NOW)
    late = ExplainedSegment(0, 9, 1000, "active", "", first_timestamp=NOW - 39 * MINUTE, largest_timestamp=NOW - 1)
    scale = drawn(*(PartitionExplanation(CHAIN.partition, [each]) for each in (long, late))).strips[0].scale
    assert scale.place(NOW - 20 * MINUTE) == pytest.approx(0.5)


@pytest.mark.parametrize(("limit", "place"), [(3072 + 16_384, 0.0), (3072 + 8192, 0.5), (3072, 1.0), (60_000, None)])
def test_a_limit_of_bytes_is_marked_in_the_segment_where_it_is_reached(limit: int, place: float | None) -> None:
    sized = {"config": {"retention.bytes": {"value": str(limit), "origin": "topic"}}}
    reply = ExplainSegmentsReply.from_wire(CHAIN.partition.to_wire() | sized)
    row = first_row(drawn(PartitionExplanation(reply, CHAIN.segments)))
    [_, second, _] = row.spans
    found = [(mark.at - second.first) / (second.last - second.first) for mark in row.marks]
    assert found == ([] if place is None else [pytest.approx(place)])


def test_a_compacted_partition_has_a_clean_part_and_a_dirty_one() -> None:
    compacted = {
        "compaction": {"first_dirty_offset": 32},
        "config": {"cleanup.policy": {"value": "compact", "origin": ""}},
    }
    reply = ExplainSegmentsReply.from_wire(CHAIN.partition.to_wire() | compacted)
    picture = drawn(PartitionExplanation(reply, CHAIN.segments))
    assert [span.kind for span in first_row(picture).spans] == [Kind.CLEAN, Kind.DIRTY, Kind.ACTIVE]
    assert [mark.kind for mark in picture.strips[0].guides] == [Kind.NOW], "no time takes records of it"


def test_groups_stand_at_the_time_of_their_next_records() -> None:
    groups = {
        "billing": [lag(16, timestamp=TEN, loss_from_ms=NOW + 5 * MINUTE)],
        "search": [lag(51, newest_timestamp=NOW - 20_000)],
        "lost": [lag(2, timestamp=TEN)],
    }
    picture = drawn(CHAIN, groups=groups)
    pins = [mark for mark in first_row(picture).marks if mark.kind is Kind.READER]
    assert [(pin.letter, pin.name) for pin in pins] == [
        ("A", "billing, at 16, 35 records behind"),
        ("B", "lost, at 2, 14 records before it are lost"),
        ("C", "search, at 51, the end"),
    ]
    assert all(after.at - before.at > 0.02 for before, after in pairwise(pins))
    assert picture.strips[0].after == (
        "A  billing: 35 records behind, the oldest 3 min 20 s old, retention may take its next ones in 5 min",
        "B  lost: 35 records behind, the oldest 3 min 20 s old",
        "C  search: 0 records behind, the oldest 0 s old",
    )
    [lane] = [line for line in lines_of(picture, 120) if line.startswith("        0 ")]
    assert re.sub(r"[^A-C]", "", lane.split("  3 ")[0]) == "ABC", "text has them, too"


def test_the_groups_that_are_furthest_behind_are_drawn_and_the_others_counted() -> None:
    groups = {f"g{n}": [lag(51 - n, timestamp=NOW)] for n in range(READERS_MAX + 2)}
    picture = drawn(CHAIN, groups=groups)
    pins = [mark for mark in first_row(picture).marks if mark.kind is Kind.READER]
    assert len(pins) == READERS_MAX
    assert picture.strips[0].after[0].startswith(f"A  g{READERS_MAX + 1}: ")
    assert picture.strips[0].after[-1] == "Not drawn: 2 groups with less behind."


def test_what_is_wrong_is_marked_and_told() -> None:
    damaged = {"problems": ["offsets 20 to 30 are damaged"]}
    reply = ExplainSegmentsReply.from_wire(CHAIN.partition.to_wire() | damaged)
    picture = drawn(PartitionExplanation(reply, [CHAIN.segments[1], CHAIN.segments[3]]))
    wrong = [mark.name for mark in first_row(picture).marks if mark.kind is Kind.WRONG]
    assert wrong == ["no offsets 32 to 47", "offsets 20 to 30 are damaged"]
    [hole, damage] = [mark for mark in first_row(picture).marks if mark.kind is Kind.WRONG]
    before, _ = first_row(picture).spans
    assert (damage.at - before.first) / (before.last - before.first) == pytest.approx((20 - 16) / 16)
    assert hole.at > before.last
    assert picture.facts[-1] == "commits-0: offsets 20 to 30 are damaged"


def test_older_segments_are_drawn_as_one_where_there_are_many() -> None:
    [merged, *others] = first_row(drawn(many(50))).spans
    assert merged.kind is Kind.OLDER
    assert merged.name == "11 segments from 0, 11 kB"
    assert [others[0].link, others[-1].link, len(others)] == ["0/segments/11", "0/segments/49", 39]


def test_a_picture_of_many_partitions_and_segments_is_small() -> None:
    groups = {f"group-{n}": [lag(20 + n, timestamp=TEN)] for n in range(50)}
    picture = drawn(*[many(100)] * (LANES_MAX + 5), groups=groups)
    assert len(picture.strips[0].rows) == LANES_MAX
    assert len(element_of(picture)) < 75_000


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=30), st.floats(0, 0.03))
def test_what_is_put_apart_overlaps_nowhere_and_ends_within_the_scale(
    places: list[tuple[float, float]], least: float
) -> None:
    moved = apart(sorted((min(pair), max(pair)) for pair in places), least)
    assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(moved))
    assert all(0 <= first <= last <= 1 for first, last in moved)


# --- Elements of pages ------------------------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(st.lists(explanations, max_size=3))
def test_any_answer_is_a_well_formed_element_without_styles(lanes: list[PartitionExplanation]) -> None:
    element = element_of(drawn(*lanes))
    drawing = ET.fromstring(element)
    assert "style" not in {name for each in drawing.iter() for name in (each.tag, *each.attrib)}
    assert drawing.attrib["aria-label"]


def test_an_element_with_links_is_a_group_whose_links_have_names() -> None:
    drawing = ET.fromstring(element_of(drawn(CHAIN)))
    assert drawing.attrib["role"] == "group"
    links = list(drawing.iter("a"))
    assert [each.attrib["href"] for each in links] == ["?partition=0", *(f"0/segments/{n}" for n in (16, 32, 48))]
    assert "".join(links[1].itertext()) == "segment 16, 16.4 kB, closed segment"


def test_every_class_of_an_element_has_a_rule_and_both_backgrounds_have_each_colour() -> None:
    style = picture_style()
    element = element_of(drawn(CHAIN, groups={"billing": [lag(16, timestamp=TEN)]}))
    used = {name for names in re.findall(r'class="([^"]+)"', element) for name in names.split()}
    assert {name for name in used if not re.search(rf"\.{name}[ ,]", style)} == set()
    light, dark = (re.findall(r"(--picture-\w+):", line) for line in style.splitlines()[:2])
    assert light == dark
    assert set(re.findall(r"var\((--picture-\w+)\)", style)) <= set(light)
