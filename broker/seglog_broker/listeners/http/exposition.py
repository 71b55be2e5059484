"""Slices of samples as text for Prometheus: its first format, and OpenMetrics.

Its own client library writes what describes a family, and histograms. Samples of one value, of which there are tens of
thousands, have lines that are the same in both formats; they are written here, in a fraction of the library's time.
"""

from collections.abc import Iterable
from enum import Enum
from itertools import accumulate
from typing import Final

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from seglog_broker.api.monitoring.families import Family, Kind
from seglog_broker.api.monitoring.samples import Buckets, Column, Slice
from seglog_broker.listeners.http.answers import accepted

END: Final = b"# EOF\n"
"""Stands behind everything in OpenMetrics."""

_TOTAL: Final = "_total"

_SPECIAL: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
"""Floats that Python spells otherwise than both formats."""

_OPENMETRICS_TYPE: Final = "application/openmetrics-text"
_OPENMETRICS_VERSIONS: Final = frozenset({"", "0.0.1", "1.0.0"})
"""Those that a client may ask for; what is sent fits all of them."""


class Format(Enum):
    """What a page of metrics is written in."""

    TEXT = exposition.CONTENT_TYPE_PLAIN_0_0_4
    OPENMETRICS = openmetrics.CONTENT_TYPE_LATEST


class _Single(Collector):
    """What the library reads: a registry of one family."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return (self._metric,)


class Exposition:
    """Writes slices, one after the other; what describes a family stands before its first one alone."""

    def __init__(self, wanted: Format) -> None:
        self._is_openmetrics = wanted is Format.OPENMETRICS
        self._latest: Family | None = None

    def encode(self, piece: Slice) -> bytes:
        """The text of a slice. All slices of a family follow each other."""
        family = piece.family
        if family.kind is Kind.HISTOGRAM:
            return self._by_library(piece)
        head = b"" if family is self._latest else self._by_library(Slice.of(family, []))
        return head + _lines(family, piece.column)

    def _by_library(self, piece: Slice) -> bytes:
        collector = _Single(_metric(piece))
        if self._is_openmetrics:
            # Our names need no escaping, and the default would look at each of their characters.
            encoded: bytes = openmetrics.generate_latest(collector, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
            written = encoded.removesuffix(END)
        else:
            written = exposition.generate_latest(collector)
        if piece.family is self._latest:
            while written.startswith(b"# "):
                written = written.partition(b"\n")[2]
        self._latest = piece.family
        return written

    def end(self) -> bytes:
        """What stands behind all slices."""
        return END if self._is_openmetrics else b""


def format_of(accept: str) -> Format:
    """The format that a client likes best, by its header Accept: OpenMetrics if it names it, else the text."""
    best = {Format.OPENMETRICS: 0.0, Format.TEXT: 0.0}
    for entry in accepted(accept):
        if entry.value == _OPENMETRICS_TYPE and entry.parameters.get("version", "") in _OPENMETRICS_VERSIONS:
            found = Format.OPENMETRICS
        elif entry.value == "text/plain":
            found = Format.TEXT
        else:
            continue
        best[found] = max(best[found], entry.quality)
    return Format.OPENMETRICS if best[Format.OPENMETRICS] > best[Format.TEXT] else Format.TEXT


def _lines(family: Family, column: Column) -> bytes:
    """A line for each sample; labels in the library's order: the alphabet's."""
    names = family.labels
    order = sorted(range(len(names)), key=names.__getitem__)
    lines = []
    for labels, value in zip(column.labels, column.values, strict=True):
        if value is None:
            continue
        words = ",".join([f'{names[place]}="{_escaped(labels[place])}"' for place in order])
        number = repr(value)
        braces = f"{{{words}}}" if words else ""
        lines.append(f"{family.name}{braces} {_SPECIAL.get(number, number)}\n")
    return "".join(lines).encode()


def _escaped(value: str) -> str:
    """As both formats have the value of a label."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def _metric(piece: Slice) -> Metric:
    """The family with histograms, for the library."""
    family = piece.family
    name = family.name.removesuffix(_TOTAL) if family.kind is Kind.COUNTER else family.name
    metric = Metric(name, family.help, family.kind.value)
    for sample in piece.samples:
        assert isinstance(sample.value, Buckets)
        _add_buckets(metric, dict(zip(family.labels, sample.labels, strict=True)), sample.value)
    return metric


def _add_buckets(metric: Metric, labels: dict[str, str], buckets: Buckets) -> None:
    bounds = (*buckets.bounds, float("inf"))
    count = 0
    for bound, count in zip(bounds, accumulate(buckets.counts), strict=True):
        metric.add_sample(f"{metric.name}_bucket", labels | {"le": _number(bound)}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, buckets.sum)


def _number(value: float | Buckets) -> str:
    written: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return written
