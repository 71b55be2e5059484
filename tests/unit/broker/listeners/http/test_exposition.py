"""What is written for Prometheus is what its own library would write, whatever is in names and values."""

import gzip
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from seglog_broker.api.monitoring.families import FAMILIES, Family, Kind
from seglog_broker.api.monitoring.samples import Buckets, Column, Sample, Slice
from seglog_broker.listeners.http.answers import Gzip, coding_of
from seglog_broker.listeners.http.exposition import Exposition, Format
from tests.support import each_case

NUMBERS = st.one_of(st.integers(-(2**63), 2**63), st.floats())
COUNTS = st.integers(0, 2**40)
BOUNDS = st.floats(1e-9, 999_999)  # none of ours is larger: from a million on the library has exponents
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
        named = dict(zip(family.labels, labels, strict=True))
        if isinstance(value, Buckets):
            counts = list(accumulate(value.counts))
            for bound, count in zip((*value.bounds, math.inf), counts, strict=True):
                le: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
                metric.add_sample(f"{family.name}_bucket", named | {"le": le}, count)
            metric.add_sample(f"{family.name}_count", named, counts[-1])
            metric.add_sample(f"{family.name}_sum", named, value.sum)
        else:
            metric.add_sample(family.name, named, value)
    if wanted is Format.TEXT:
        return exposition.generate_latest(Registry(metric))
    written: bytes = openmetrics.generate_latest(Registry(metric))  # type: ignore[no-untyped-call]
    return written


@pytest.mark.parametrize("wanted", Format)
@given(st.data())
def test_it_is_what_the_library_writes(wanted: Format, data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(FAMILIES))
    family = family._replace(help=data.draw(st.sampled_from([family.help, 'a "word", \\ and\nmore'])))
    labels = st.tuples(*[WORDS] * len(family.labels))
    numbers: st.SearchStrategy[float | Buckets] = NUMBERS
    if family.kind is Kind.HISTOGRAM:
        numbers = st.builds(Buckets, *[st.tuples(*[each] * n) for n, each in ((3, BOUNDS), (4, COUNTS))], NUMBERS)
    samples = data.draw(st.lists(st.builds(Sample, labels, numbers), min_size=1, max_size=5))
    written = Exposition(wanted)
    cut = data.draw(st.integers(0, len(samples)))
    pieces = [written.encode(Slice.of(family, samples[:cut])), written.encode(Slice.of(family, samples[cut:]))]
    ours, library = lines_of(b"".join(pieces) + written.end()), lines_of(by_library(family, samples, wanted))
    assert [begin for begin, _ in ours] == [begin for begin, _ in library]
    assert all(same_number(one, other) for (_, one), (_, other) in zip(ours, library, strict=True))


@given(st.lists(st.one_of(st.none(), st.integers(0, 2), st.floats(width=16)), min_size=3, max_size=3))
def test_a_row_without_a_value_has_no_line(values: list[float | None]) -> None:
    family = next(family for family in FAMILIES if family.labels == ("topic", "partition"))
    column = Column([("a", "0"), ("b", "1"), ("%", "2")], values)
    ours = lines_of(Exposition(Format.TEXT).encode(Slice(family, column)))
    library = lines_of(by_library(family, column.samples, Format.TEXT))
    assert [begin for begin, _ in ours] == [begin for begin, _ in library]
    assert all(same_number(one, other) for (_, one), (_, other) in zip(ours, library, strict=True))


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


# --- A page that is compressed as it is made is what was put in, whole ------------------------------------------------


@given(st.lists(st.binary(max_size=3_000) | st.just(b"seglog_topics 1\n" * 3_000), max_size=20), st.binary(max_size=9))
def test_what_comes_out_is_what_was_put_in(parts: list[bytes], last: bytes) -> None:
    coding = Gzip()
    sent = b"".join(map(coding.add, parts))
    assert gzip.decompress(sent + coding.end(last)) == b"".join(parts) + last


def test_a_page_that_breaks_off_is_no_gzip() -> None:
    coding = Gzip()
    with pytest.raises((EOFError, zlib.error)):
        gzip.decompress(b"".join(coding.add(b"%d" % number) for number in range(100_000)))


@each_case(
    ("header", "name"),
    [
        ("", None),
        ("identity", None),
        ("gzip", "gzip"),
        ("GZip ; Q=0.1", "gzip"),
        ("deflate,gzip, br", "gzip"),
        ("zstd;q=1.0,gzip;q=0", None),
        ("gzip;q=nan", None),
        ("*", None),
        (";;,=q", None),
    ],
)
def test_it_is_gzip_for_those_who_name_it(header: str, name: str | None) -> None:
    assert coding_of(header).name == name
