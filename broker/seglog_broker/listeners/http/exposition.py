"""Slices of samples as text for Prometheus, by its own client library: its first format, and OpenMetrics."""

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import accumulate
from typing import Final

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from seglog_broker.api.monitoring.families import Family, Kind
from seglog_broker.api.monitoring.samples import Buckets, Slice

END: Final = b"# EOF\n"
"""Stands behind everything in OpenMetrics."""

_TOTAL: Final = "_total"

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
    for entry in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in entry.split(";"))
        values = {name.strip(): value.strip() for name, _, value in (p.partition("=") for p in parameters)}
        if kind == _OPENMETRICS_TYPE and values.get("version", "") in _OPENMETRICS_VERSIONS:
            found = Format.OPENMETRICS
        elif kind == "text/plain":
            found = Format.TEXT
        else:
            continue
        best[found] = max(best[found], _quality(values.get("q", "1")))
    return Format.OPENMETRICS if best[Format.OPENMETRICS] > best[Format.TEXT] else Format.TEXT


def _quality(written: str) -> float:
    try:
        quality = float(written)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0


def _metric(piece: Slice) -> Metric:
    family = piece.family
    is_counter = family.kind is Kind.COUNTER
    name = family.name.removesuffix(_TOTAL) if is_counter else family.name
    metric = Metric(name, family.help, family.kind.value)
    for sample in piece.samples:
        labels = dict(zip(family.labels, sample.labels, strict=True))
        if isinstance(sample.value, Buckets):
            _add_buckets(metric, labels, sample.value)
        else:
            metric.add_sample(name + _TOTAL if is_counter else name, labels, sample.value)
    return metric


def _add_buckets(metric: Metric, labels: dict[str, str], buckets: Buckets) -> None:
    bounds: Iterator[float] = iter((*buckets.bounds, float("inf")))
    count = 0
    for bound, count in zip(bounds, accumulate(buckets.counts), strict=True):
        metric.add_sample(f"{metric.name}_bucket", labels | {"le": _le(bound)}, count)
    metric.add_sample(f"{metric.name}_count", labels, count)
    metric.add_sample(f"{metric.name}_sum", labels, buckets.sum)


def _le(bound: float) -> str:
    written: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return written
