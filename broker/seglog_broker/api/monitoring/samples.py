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


class Column(NamedTuple):
    """The values of one family: one for each item of ``labels``, None where it has no sample."""

    labels: Sequence[tuple[str, ...]]
    values: Sequence[float | Buckets | None]

    @property
    def samples(self) -> list[Sample]:
        """Each value with its labels."""
        pairs = zip(self.labels, self.values, strict=True)
        return [Sample(labels, value) for labels, value in pairs if value is not None]


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
        """A slice of samples that were made one by one."""
        return cls(family, Column([labels for labels, _ in samples], [value for _, value in samples]))
