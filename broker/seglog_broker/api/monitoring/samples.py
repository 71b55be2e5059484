"""Samples of a family, a slice of them at a time."""

from typing import Final, NamedTuple

from seglog_broker.api.monitoring.families import Family

SLICE_SAMPLES_MAX: Final = 500
"""Samples of one slice: some 2 ms to make, or to write as text. A histogram counts as one sample for each bucket."""


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


class Slice(NamedTuple):
    """A part of the samples of one family; all slices of a family follow each other."""

    family: Family
    samples: list[Sample]
