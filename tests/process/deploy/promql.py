"""What an expression of PromQL names, as far as ours go: metrics, and the labels that it selects and groups by."""

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from seglog_broker.api.monitoring.families import FAMILIES_BY_NAME, Family, Kind

_SERIES = re.compile(r"\b((?:seglog|kafka)_\w+)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_BY = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
SCRAPED_LABELS = {"job", "instance"}
"""Those that Prometheus adds."""


class Named(NamedTuple):
    """A selector of one of our families."""

    family: Family
    labels: set[str]


def named(expression: str) -> Iterator[Named]:
    """Each selector of an expression. Raises KeyError for a metric that there is not."""
    for name, matchers in _SERIES.findall(re.sub(r'"[^"]*"', '""', _BY.sub("", expression))):
        yield Named(_family(name), set(_MATCHER.findall(matchers)))


def grouped(expression: str) -> set[str]:
    """The labels of its ``by`` and ``on``."""
    return {label.strip() for labels in _BY.findall(expression) for label in labels.split(",")} - {"le", ""}


def _family(name: str) -> Family:
    for suffix in ("_bucket", "_sum", "_count"):
        family = FAMILIES_BY_NAME.get(name.removesuffix(suffix))
        if name.endswith(suffix) and family is not None and family.kind is Kind.HISTOGRAM:
            return family
    return FAMILIES_BY_NAME[name]


def check(expression: str, more: AbstractSet[str] = frozenset()) -> None:
    """Every metric of the expression is one of ours and has every label that it is selected by.

    ``more`` are labels that the expression makes itself.
    """
    selectors = list(named(expression))
    known = {*SCRAPED_LABELS, *more}
    for family, labels in selectors:
        assert labels <= {*family.labels, *SCRAPED_LABELS}, (family.name, labels)
        known.update(family.labels)
    assert grouped(expression) <= known, expression
