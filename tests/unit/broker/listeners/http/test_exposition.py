"""What is written for Prometheus is what its own library would write, whatever is in names and values."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from seglog_broker.api.monitoring.families import FAMILIES, Family, Kind
from seglog_broker.api.monitoring.samples import Buckets, Column, Rows, Sample, Slice
from seglog_broker.listeners.http.exposition import KEPT_BYTES_MAX, Exposition, Format

NUMBERS = st.one_of(st.integers(-(2**63), 2**63), st.floats())
WORDS = st.text(st.one_of(st.sampled_from('\\"\n{},= '), st.characters(exclude_categories=["Cs"])), max_size=20)


@dataclass
class Registry(Collector):
    """What the library reads."""

    metric: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.metric,)


def by_library(family: Family, samples: list[Sample], wanted: Format) -> bytes:
    name = family.name.removesuffix("_total") if family.kind is Kind.COUNTER else family.name
    metric = Metric(name, family.help, family.kind.value)
    for labels, value in samples:
        assert not isinstance(value, Buckets)
        metric.add_sample(family.name, dict(zip(family.labels, labels, strict=True)), value)
    if wanted is Format.TEXT:
        return exposition.generate_latest(Registry(metric))
    written: bytes = openmetrics.generate_latest(Registry(metric))  # type: ignore[no-untyped-call]
    return written


@pytest.mark.parametrize("wanted", Format)
@given(st.data())
def test_it_is_what_the_library_writes(wanted: Format, data: st.DataObject) -> None:
    family = data.draw(st.sampled_from([family for family in FAMILIES if family.kind is not Kind.HISTOGRAM]))
    labels = st.tuples(*[WORDS] * len(family.labels))
    samples = data.draw(st.lists(st.builds(Sample, labels, NUMBERS), min_size=1, max_size=5))
    written = Exposition(wanted)
    cut = data.draw(st.integers(0, len(samples)))
    pieces = [written.encode(Slice.of(family, samples[:cut])), written.encode(Slice.of(family, samples[cut:]))]
    ours, library = lines_of(b"".join(pieces) + written.end()), lines_of(by_library(family, samples, wanted))
    assert [begin for begin, _ in ours] == [begin for begin, _ in library]
    assert all(same_number(one, other) for (_, one), (_, other) in zip(ours, library, strict=True))


@given(st.data())
def test_rows_that_are_kept_have_the_lines_of_their_latest_values(data: st.DataObject) -> None:
    first, second = [family for family in FAMILIES if family.labels == ("topic", "partition")][:2]
    rows = Rows([("a", "0"), ("b", "1"), ("%", "2")])
    values = st.lists(st.one_of(st.none(), st.integers(0, 2), st.floats(width=16)), min_size=3, max_size=3)
    for family in data.draw(st.lists(st.sampled_from([first, second]), min_size=2, max_size=6)):
        column = Column(rows, data.draw(values))
        ours, library = (
            lines_of(page)
            for page in (
                Exposition(Format.TEXT).encode(Slice(family, column)),
                by_library(family, column.samples, Format.TEXT),
            )
        )
        assert [begin for begin, _ in ours] == [begin for begin, _ in library]
        assert all(same_number(one, other) for (_, one), (_, other) in zip(ours, library, strict=True))


def test_lines_are_kept_for_the_next_page_up_to_a_size() -> None:
    family = next(family for family in FAMILIES if family.labels == ("topic", "partition"))

    def kept(name: str) -> int:
        rows = Rows([(name, str(number)) for number in range(200)])
        for value in (1, 2):
            Exposition(Format.TEXT).encode(Slice(family, Column(rows, [value] * 200)))
        return sum(len(lines) for _, lines in rows.lines.values())

    assert 200 * len(family.name) < kept("orders") <= KEPT_BYTES_MAX
    assert kept("o" * 249) == 0


def lines_of(page: bytes) -> list[tuple[str, str]]:
    """Each line: what stands before its last space, and what behind it."""
    found = [line.rpartition(" ") for line in page.decode().split("\n")]
    return [(begin, end) for begin, _, end in found]


def same_number(one: str, other: str) -> bool:
    """Whether two spellings are of one number, or are the same: whole numbers are written in full, as 1000000."""
    try:
        return float(one) == float(other) or math.isnan(float(one)) == math.isnan(float(other)) is True
    except ValueError:
        return one == other


def test_a_histogram_has_its_buckets_in_sum_and_its_head_once() -> None:
    family = next(family for family in FAMILIES if family.kind is Kind.HISTOGRAM and not family.labels)
    written = Exposition(Format.TEXT)
    buckets = Buckets((0.1, 1.0), (1, 2, 3), 9.5)
    text = written.encode(Slice.of(family, [])) + written.encode(Slice.of(family, [Sample((), buckets)]))
    assert text.count(b"# TYPE") == 1
    [found] = text_string_to_metric_families(text.decode())
    values = [(sample.labels.get("le"), sample.value) for sample in found.samples]
    assert values == [("0.1", 1), ("1.0", 3), ("+Inf", 6), (None, 6), (None, 9.5)]
