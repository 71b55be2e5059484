"""Slices of samples as text for Prometheus: its first format, and OpenMetrics.

Lines of samples are the same in both. Its own client library would take ten times as long for tens of thousands of
them, and four megabytes for the servers that it brings along; tests hold our pages to what it writes and reads.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import accumulate
from typing import Final

from seglog_broker.api.monitoring.families import Family, Kind
from seglog_broker.api.monitoring.samples import Buckets, Column, Slice
from seglog_broker.listeners.http.answers import accepted

END: Final = b"# EOF\n"
"""Stands behind everything in OpenMetrics."""

_SPECIAL: Final = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}
"""Floats that Python spells otherwise than both formats."""

_OPENMETRICS_TYPE: Final = "application/openmetrics-text"
_OPENMETRICS_VERSIONS: Final = frozenset({"", "0.0.1", "1.0.0"})
"""Those that a client may ask for; what is sent fits all of them."""


class Format(Enum):
    """What a page of metrics is written in."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Exposition:
    """Writes slices, one after the other; what describes a family stands before its first one alone."""

    def __init__(self, wanted: Format) -> None:
        self._is_openmetrics = wanted is Format.OPENMETRICS
        self._latest: Family | None = None

    def encode(self, piece: Slice) -> bytes:
        """The text of a slice. All slices of a family follow each other."""
        family, column = piece
        head = "" if family is self._latest else self._head(family)
        self._latest = family
        if family.kind is not Kind.HISTOGRAM:
            return (head + _lines(family.name, family.labels, column)).encode()
        return "".join([head, *[_histogram(family, *sample) for sample in column.samples]]).encode()

    def _head(self, family: Family) -> str:
        """What describes a family; OpenMetrics has the name of a counter without its ending."""
        name = family.name
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        if self._is_openmetrics:
            text = text.replace('"', r"\"")
            name = name.removesuffix("_total") if family.kind is Kind.COUNTER else name
        return f"# HELP {name} {text}\n# TYPE {name} {family.kind.value}\n"

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


def _lines(name: str, names: Sequence[str], column: Column) -> str:
    """A line for each sample; its labels have these names, and stand in the library's order: the alphabet's."""
    order = sorted(range(len(names)), key=names.__getitem__)
    lines = []
    for labels, value in zip(column.labels, column.values, strict=True):
        if value is None:
            continue
        words = ",".join([f'{names[place]}="{_escaped(labels[place])}"' for place in order])
        number = repr(value)
        braces = f"{{{words}}}" if words else ""
        lines.append(f"{name}{braces} {_SPECIAL.get(number, number)}\n")
    return "".join(lines)


def _escaped(value: str) -> str:
    """As both formats have the value of a label."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def _histogram(family: Family, labels: tuple[str, ...], buckets: float | Buckets) -> str:
    assert isinstance(buckets, Buckets)
    counts = list(accumulate(buckets.counts))
    rows = Column([(*labels, bound) for bound in (*map(repr, buckets.bounds), "+Inf")], counts)
    lines = [_lines(f"{family.name}_bucket", (*family.labels, "le"), rows)]
    for ending, value in (("count", counts[-1]), ("sum", buckets.sum)):
        lines.append(_lines(f"{family.name}_{ending}", family.labels, Column([labels], [value])))
    return "".join(lines)
