"""Readings of a broker's metrics, what two of them say (values, rates, quantiles), and rows of topics and groups."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from seglog_protocol.messages import HelloReply, MetricBuckets, MetricFamily, MetricSample

if TYPE_CHECKING:
    from seglog.client import Client

SHARE: Final = 0.05
"""The most of the time that the broker is asked in: with very many partitions it is asked less often."""


class Reading(NamedTuple):
    """What a broker has told at one moment."""

    at: float
    """Seconds of the monotonic clock."""
    wall: float
    """Seconds since 1970."""
    hello: HelloReply
    families: Mapping[str, MetricFamily]


def read(client: "Client", names: Sequence[str], last: Reading | None = None) -> Reading:
    """Ask the broker for families of these names, and those of its problems and its start.

    What the problems are is asked where there are some, or were: that takes a connection.
    """
    wanted = ("seglog_start_time_seconds", "seglog_problems", *names)
    families = {family.name: family for family in client.samples(wanted)}
    hello = client.broker if last is None else last.hello
    reading = Reading(time.monotonic(), time.time(), hello, families)
    before, now = Numbers(last).value("seglog_start_time_seconds"), Numbers(reading)
    is_another = before != now.value("seglog_start_time_seconds")
    if is_another or now.value("seglog_problems") or hello.problems:
        return reading._replace(hello=client.ping())
    return reading


def families_of(look: Callable[[Reading], object]) -> list[str]:
    """The names of all families that ``look`` looks up in a reading, also where there are none."""
    asked = _Asked()
    look(Reading(0.0, 0.0, HelloReply("", "", {}, {}), asked))
    return list(asked.names)


class _Asked(dict[str, MetricFamily]):
    """No families, and the names that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def get(self, name: str, *_: object) -> None:  # type: ignore[override]
        """Note the name."""
        self.names[name] = None


class Numbers:
    """What a reading says, and what it says beside an earlier one; None for what is not known."""

    def __init__(self, now: Reading | None, before: Reading | None = None) -> None:
        """``before`` of another start of the broker says nothing: its counters began anew."""
        self._now = {} if now is None else now.families
        self._before: Mapping[str, MetricFamily] = {}
        self.seconds = 0.0
        if now is not None and before is not None and now.at > before.at:
            self._before = before.families
            self.seconds = now.at - before.at
            if Numbers(before).value("seglog_start_time_seconds") != self.value("seglog_start_time_seconds"):
                self._before, self.seconds = {}, 0.0

    def value(self, name: str, *labels: str) -> float | None:
        """The value with these labels."""
        family = self._now.get(name)
        found = None if family is None else family.value(*labels)
        return None if isinstance(found, MetricBuckets) else found

    def total(self, name: str) -> float | None:
        """The sum over all labels."""
        return _total(self._now.get(name))

    def rate(self, name: str) -> float | None:
        """The growth of the sum over all labels, a second."""
        now, before = self.total(name), _total(self._before.get(name))
        if now is None or before is None or not self.seconds:
            return None
        return max(0.0, now - before) / self.seconds

    def by(self, name: str, label: str, *, before: bool = False) -> dict[str, list[tuple[tuple[str, ...], float]]]:
        """Values by one of their labels, each with all of its labels; ``before``: those of the earlier reading."""
        found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
        family = (self._before if before else self._now).get(name)
        if family is not None and label in family.labels:
            place = family.labels.index(label)
            for sample in family.samples:
                if not isinstance(sample.value, MetricBuckets):
                    found.setdefault(sample.labels[place], []).append((tuple(sample.labels), sample.value))
        return found

    def quantile(self, name: str, share: float, wanted: Callable[[Sequence[str]], bool] | None = None) -> float | None:
        """The value that ``share`` of those between the readings are not above, of samples whose labels are ``wanted``.

        None where there were none in between.
        """
        before = {tuple(sample.labels): sample.value for sample in _samples(self._before.get(name))}
        bounds: list[float] = []
        counts: list[int] = []
        for sample in _samples(self._now.get(name)):
            if not isinstance(sample.value, MetricBuckets) or not (wanted is None or wanted(sample.labels)):
                continue
            old = before.get(tuple(sample.labels))
            grown = list(sample.value.counts)
            if isinstance(old, MetricBuckets):
                grown = [now - then for now, then in zip(grown, old.counts, strict=True)]
            elif not self.seconds:
                return None
            bounds = sample.value.bounds
            counts = grown if not counts else [a + b for a, b in zip(counts, grown, strict=True)]
        return quantile_of(bounds, counts, share)


def quantile_of(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """As Prometheus's histogram_quantile: linear within the bucket; None without any. ``counts`` are of each alone."""
    rank = share * sum(counts)
    if not rank:
        return None
    below, lower = 0.0, 0.0
    for upper, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below, lower = below + count, upper
    return bounds[-1] if bounds else None


def _samples(family: MetricFamily | None) -> Sequence[MetricSample]:
    return () if family is None else family.samples


def _total(family: MetricFamily | None) -> float | None:
    if family is None:
        return None
    return sum(sample.value for sample in family.samples if not isinstance(sample.value, MetricBuckets))


Values = Sequence[tuple[tuple[str, ...], float]]


def grown(values: Values, before: Values, seconds: float) -> float | None:
    """By how much values have grown a second, all together; None without an earlier reading."""
    old = dict(before)
    return sum(max(0.0, value - old.get(labels, 0.0)) for labels, value in values) / seconds if seconds else None


class TopicRow(NamedTuple):
    """A topic; None is what is not known."""

    name: str
    partitions: int
    size: float
    records: float
    """In offsets, from the first that was ever written on."""
    rate: float | None
    """Records appended a second."""
    not_durable: float
    """Records that are not on the disk yet."""


class GroupRow(NamedTuple):
    """A group; None is what is not known."""

    name: str
    state: str
    members: int
    lag: float | None
    behind: float | None
    """Seconds that its oldest unread record is old."""
    to_loss: float | None
    """Seconds until retention takes the first of its unread records."""
    rate: float | None = None
    """Of a share group: records that were done a second."""
    in_flight: float | None = None
    """Of a share group: records that members have."""


def topic_rows(numbers: Numbers) -> list[TopicRow]:
    """Those with the most records a second first, then the largest."""
    sizes, durables = (numbers.by(f"seglog_partition_{what}", "topic") for what in ("size_bytes", "durable_offset"))
    ends = numbers.by("seglog_partition_log_end_offset", "topic")
    before = numbers.by("seglog_partition_log_end_offset", "topic", before=True)
    rows = []
    for name, values in ends.items():
        end = sum(value for _, value in values)
        rate = grown(values, before.get(name, ()), numbers.seconds)
        durable = sum(value for _, value in durables.get(name, ()))
        size = sum(value for _, value in sizes.get(name, ()))
        rows.append(TopicRow(name, len(values), size, end, rate, max(0.0, end - durable) if durables else 0.0))
    return sorted(rows, key=lambda row: (-(row.rate or 0.0), -row.size, row.name))


def group_rows(numbers: Numbers) -> list[GroupRow]:
    """Those that lose records soonest first, then those that are furthest behind."""

    def of(name: str, of_share: str) -> dict[str, list[tuple[tuple[str, ...], float]]]:
        return numbers.by(f"seglog_group_{name}", "group") | numbers.by(f"seglog_share_{of_share}", "group")

    lags, seconds = of("lag", "records_waiting"), of("lag_seconds", "oldest_seconds")
    losses = of("time_to_loss_seconds", "time_to_loss_seconds")
    done, in_flight = (numbers.by(f"seglog_share_{name}", "group") for name in ("accepted_total", "records_in_flight"))
    before = numbers.by("seglog_share_accepted_total", "group", before=True)
    states = {
        labels[0]: labels[1]
        for values in numbers.by("seglog_group_state", "group").values()
        for labels, value in values
        if value
    }
    rows = []
    for name, values in numbers.by("seglog_group_members", "group").items():
        rows.append(
            GroupRow(
                name,
                states.get(name, ""),
                int(values[0][1]),
                sum(value for _, value in lags[name]) if name in lags else None,
                max((value for _, value in seconds.get(name, ())), default=None),
                min((value for _, value in losses.get(name, ())), default=None),
                grown(done[name], before.get(name, ()), numbers.seconds) if name in done else None,
                sum(value for _, value in in_flight[name]) if name in in_flight else None,
            )
        )
    return sorted(rows, key=lambda r: (math.inf if r.to_loss is None else r.to_loss, -(r.lag or 0.0), r.name))
