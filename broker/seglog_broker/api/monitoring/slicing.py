"""Cuts the samples of a family into slices that cost the loop little."""

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Final

from seglog_broker.api.monitoring.families import Family
from seglog_broker.api.monitoring.samples import SLICE_SAMPLES_MAX, Buckets, Sample, Slice

SLICE_SECONDS: Final = 0.001
"""A slice ends when making it has taken so long. What the last sample costs is added: little, but for logs of thousands
of segments."""

Source = Callable[[], Iterable[Sample | None]]
"""Makes the samples of one family, one after the other. None: there is no sample here, which took time all the same.

Other tasks may run between two of them, so what a source walks over must not change under it.
"""


def weight(sample: Sample) -> int:
    """What a sample counts in a slice."""
    return len(sample.value.counts) if isinstance(sample.value, Buckets) else 1


def sliced(family: Family, source: Source, seconds: Callable[[], float] = perf_counter) -> Iterator[Slice]:
    """The slices of a family; at least one. One without samples is a pause, or there are none."""
    samples: list[Sample] = []
    count = 0
    began = seconds()
    for sample in source():
        if sample is not None:
            if count + weight(sample) > SLICE_SAMPLES_MAX:
                yield Slice(family, samples)
                samples, count, began = [], 0, seconds()
            samples.append(sample)
            count += weight(sample)
        if seconds() - began > SLICE_SECONDS:
            yield Slice(family, samples)
            samples, count, began = [], 0, seconds()
    yield Slice(family, samples)
