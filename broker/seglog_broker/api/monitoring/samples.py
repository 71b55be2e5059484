"""Samples of a family, a slice of them at a time."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_broker.api.monitoring.families import Family

SLICE_SAMPLES_MAX: Final = 500
"""Samples of one slice. A histogram counts as one sample for each bucket."""


class Buckets(NamedTuple):
    """What a histogram has counted."""

    bounds: tuple[float, ...]
    """Upper bounds of all buckets but the last, which has none; inclusive, as Prometheus's ``le``."""
    counts: tuple[int, ...]
    """Of each bucket alone, one more than bounds."""
    sum: float


class Sample(NamedTuple):
    """One value, or the buckets of one histogram; ``labels`` has a value for each label of the family."""

    labels: tuple[str, ...]
    value: float | Buckets


class Rows:
    """The labels of samples that follow each other, for as many families and scrapes as they are the same.

    To write them as text is most of what a sample costs: the text is made once and kept in ``written``. Most values are
    those of the scrape before too: ``lines`` has what was written then.
    """

    __slots__ = ("labels", "lines", "written")

    def __init__(self, labels: Sequence[tuple[str, ...]]) -> None:
        """``labels`` are those of each sample; they do not change."""
        self.labels = labels
        self.written: dict[tuple[str, ...], bytes] = {}
        """By the names of the labels, of which there are few: families that share rows mostly share them."""
        self.lines: dict[str, tuple[Sequence[float | Buckets | None], bytes]] = {}
        """Of each family, by its name: its latest values, and their lines."""


class Column(NamedTuple):
    """The values of one family for ``rows``: one for each, None where it has no sample."""

    rows: Rows
    values: Sequence[float | Buckets | None]

    @property
    def samples(self) -> list[Sample]:
        """Each value with its labels."""
        pairs = zip(self.rows.labels, self.values, strict=True)
        return [Sample(labels, value) for labels, value in pairs if value is not None]

    def without_gaps(self) -> "Column":
        """The samples alone."""
        samples = self.samples
        return Column(Rows([sample.labels for sample in samples]), [sample.value for sample in samples])


class Slice(NamedTuple):
    """A part of the samples of one family; all slices of a family follow each other."""

    family: Family
    column: Column

    @property
    def samples(self) -> list[Sample]:
        """Its samples."""
        return self.column.samples

    @classmethod
    def of(cls, family: Family, samples: Sequence[Sample]) -> "Slice":
        """A slice of samples with labels of their own, which are not kept for another scrape."""
        return cls(family, Column(Rows([labels for labels, _ in samples]), [value for _, value in samples]))
