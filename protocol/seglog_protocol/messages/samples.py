"""The metrics of a broker, by family; docs/METRICS.md has the families."""

from typing import ClassVar

import msgspec

from seglog_protocol.messages.base import Items, Message, Request, default


class SamplesRequest(Request):
    """Read the metrics of ``families``, of all if none is named; those behind the family ``after``.

    Names of no family are ignored, so that a newer client may ask for what an older broker has not.
    """

    api: ClassVar[str] = "samples"
    families: Items[str] = default([])
    after: str = default("")


class SamplesReply(Message):
    """Families with their samples, as a msgpack list of MetricFamily in the payload.

    ``more``: further ones follow behind the last; they are asked for by its name in ``after``.
    """

    more: bool = default(False)


class MetricBuckets(msgspec.Struct, frozen=True, array_like=True):
    """What a histogram has counted; ``counts`` has a number for each bucket alone, and one more than ``bounds``.

    ``bounds`` are inclusive upper bounds; the last bucket has none. ``sum`` is that of all values.
    """

    bounds: list[float]
    counts: list[int]
    sum: float

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One value, or the buckets of one histogram; ``labels`` has a value for each label of the family."""

    labels: list[str]
    value: int | float | MetricBuckets


class MetricFamily(Message):
    """Samples that share a name and a meaning; ``kind`` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    labels: list[str]
    samples: list[MetricSample]

    def value(self, *labels: str) -> int | float | MetricBuckets | None:
        """The value with these labels, None if there is none."""
        wanted = list(labels)
        return next((sample.value for sample in self.samples if sample.labels == wanted), None)
