"""What a broker tells of itself: configuration, process, and metrics by family, which are in docs/METRICS.md."""

from typing import ClassVar

import msgspec

from seglog_protocol.messages.base import Int64, Items, Message, Request, default
from seglog_protocol.messages.topics import ConfigEntry


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


class DescribeBrokerRequest(Request):
    """Ask for the configuration in force, the listeners and the process. No secret is in the reply."""

    api: ClassVar[str] = "describe_broker"


class DescribedListener(Message):
    """One socket that listens.

    ``name`` is empty for seglog's own, ``http`` for health and metrics, else as in ``listeners``. ``address`` is
    HOST:PORT on the broker's machine; ``advertised`` is where Kafka's clients are told to connect, None where that is
    the address they have reached.
    """

    name: str
    protocol: str
    address: str
    advertised: str | None = None


class RefusedAccess(Message):
    """An operation that was seen at ``seen_ms``, and that no rule allows; the names are those of Kafka."""

    principal: str
    operation: str
    resource: str
    name: str
    seen_ms: Int64


class AccessDescription(Message):
    """Rules of access: how many there are, and ``enforced``, whether they are in force.

    ``refused_if_enforced`` has what clients did lately while they are not, and would not be let do: the newest first.
    """

    enforced: bool
    rules: Int64
    refused_if_enforced: list[RefusedAccess] = default([])


class DescribeBrokerReply(Message):
    """Every broker key with value and origin, and what the broker runs on.

    ``warnings`` are sentences about settings that can be used and leave something open, or ask for more than the
    machine has. ``versions`` are of seglogd, build, python and kernel. ``limits`` are counts that the machine grants
    (open_files, processors; memory in bytes; 0: unknown) and, in force after these, connections. ``user`` is the id
    of the process's user, ``process`` its own on its machine; ``now_ms`` is the broker's clock.
    """

    config: dict[str, ConfigEntry]
    warnings: list[str]
    listeners: list[DescribedListener]
    versions: dict[str, str]
    limits: dict[str, Int64]
    now_ms: Int64
    process: Int64 = default(0)
    user: Int64 = default(0)
    access: AccessDescription | None = None
