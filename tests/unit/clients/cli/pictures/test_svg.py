"""Pictures as SVG: golden ones, and that any is a document that is readable on both backgrounds."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC

from hypothesis import given, settings

from seglog.cli.pictures.model import Kind
from seglog.cli.pictures.explained import seek_picture
from seglog.cli.pictures.explained import segments_picture
from seglog.cli.pictures.svg import svg_of
from seglog.core.explaining import PartitionExplanation
from seglog.core.moments import AtTime
from seglog_protocol.messages import ExplainReply
from tests.support import examples
from tests.unit.clients.cli.pictures.answers import CHAIN, NOW, SEEK, explanations, golden, seeks

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_of_segments() -> None:
    assert svg_of([segments_picture(CHAIN, UTC)]) == golden("segments.svg")


def test_a_picture_of_a_seek() -> None:
    assert svg_of([seek_picture(SEEK, AtTime(NOW), UTC)]) == golden("seek.svg")


def test_several_pictures_stand_below_each_other() -> None:
    one, two = (ET.fromstring(svg_of([segments_picture(CHAIN, UTC)] * count)) for count in (1, 2))
    assert float(two.attrib["height"]) > 1.7 * float(one.attrib["height"])
    assert len(list(two)) > 1.9 * (len(list(one)) - 3)


def _contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG defines it: from 1 to 21."""

    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return sum(part * share for part, share in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_and_every_kind_stand_out_on_the_light_and_on_the_dark_background() -> None:
    light, _, dark = svg_of([]).partition("@media (prefers-color-scheme: dark)")
    for style in (light, dark):
        colours = dict(re.findall(r"^ *\.([\w-]+)(?:, \.title)? \{ (?:fill|stroke): (#\w{6}) \}$", style, re.MULTILINE))
        assert colours.keys() >= {"paper", "ink", "faint", *(kind.name.lower().replace("_", "-") for kind in Kind)}
        paper = colours.pop("paper")
        assert _contrast(colours["ink"], paper) > 10
        assert _contrast(colours["faint"], paper) > 4.5
        assert min(_contrast(colour, paper) for name, colour in colours.items() if name not in {"file", "axis"}) > 2.8


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
