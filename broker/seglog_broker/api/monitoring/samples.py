"""Samples of a family, in slices that cost the loop little, and the topics and groups with samples of their own.

Rows of samples are kept from one scrape to the next, with what their values are read from: to find thousands of
partitions takes longer than to write their samples; and they are nearly always those of the scrape before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Generic, NamedTuple, TypeVar

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


TURN_SECONDS: Final = 0.000_1
"""A turn ends when making and encoding its slices has taken so long: what a client's request may have to wait for.

A turn costs as much again for itself. What the last slice costs is added: about as much where its labels are new, and
more for logs of thousands of segments.
"""

SLICE_SECONDS: Final = TURN_SECONDS / 2
"""A slice whose samples are made one by one ends when that has taken so long."""

TURN_BYTES: Final = 48 * 1024
"""A turn ends when its slices are so large: what the socket of a scraper should take at once."""

Source = Callable[[], Iterable[Sample | Column | None]]
"""Makes the samples of one family, one after the other or in columns of SLICE_SAMPLES_MAX at most.

None: this step took time and found no sample. Other tasks may run between two of them, so what a source
walks over must not change under it.
"""


def weight(sample: Sample) -> int:
    """What a sample counts in a slice."""
    return len(sample.value.counts) if isinstance(sample.value, Buckets) else 1


def sliced(family: Family, source: Source, seconds: Callable[[], float] = perf_counter) -> Iterator[Slice]:
    """The slices of a family; at least one. One without samples is a pause, or there are none."""
    samples: list[Sample] = []
    count = slices = 0
    began = seconds()
    for made in source():
        if isinstance(made, Column):
            if samples:
                yield Slice.of(family, samples)
            has_samples = made.values.count(None) < len(made.values)
            yield Slice(family, made) if has_samples else Slice.of(family, [])
            samples, count, slices, began = [], 0, slices + 1, seconds()
            continue
        if made is not None:
            if count + weight(made) > SLICE_SAMPLES_MAX:
                yield Slice.of(family, samples)
                samples, count, began = [], 0, seconds()
            samples.append(made)
            count += weight(made)
        if seconds() - began > SLICE_SECONDS:
            yield Slice.of(family, samples)
            samples, count, slices, began = [], 0, slices + 1, seconds()
    if samples or not slices:
        yield Slice.of(family, samples)


def in_turns(
    slices: Iterable[Slice], encode: Callable[[Slice], bytes], seconds: Callable[[], float] = perf_counter
) -> Iterator[list[bytes]]:
    """What is made of ``slices`` in one turn, encoded; nothing if there were no samples in it.

    Each ``next()`` is a turn: the caller lets other tasks run before the following one.
    """
    began = seconds()
    parts: list[bytes] = []
    size = 0
    for piece in slices:
        if piece.column.values:
            parts.append(encode(piece))
            size += len(parts[-1])
        if size >= TURN_BYTES or seconds() - began > TURN_SECONDS:
            yield parts
            parts, size, began = [], 0, seconds()
    yield parts


SAMPLES_MAX: Final = 2_000
"""Partitions of topics, and committed offsets of groups, that have samples: so many samples has a family at most."""

NAME_CHARACTERS_MAX: Final = 249
"""Groups with longer names have no samples; names of topics are never longer. It bounds the bytes of a family."""


def select(sizes: Mapping[str, int], samples: Mapping[str, int], count_max: int) -> list[str]:
    """The names with the largest ``sizes``, at most ``count_max``, whose ``samples`` together are few enough.

    One that has too many for what is left does not keep smaller ones out.
    """
    selected: list[str] = []
    left = SAMPLES_MAX
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if len(selected) == count_max:
            break
        if samples[name] <= left and len(name) <= NAME_CHARACTERS_MAX:
            selected.append(name)
            left -= samples[name]
    return selected


ROWS_MAX: Final = 100
"""Rows that have their values at a time: with their lines, some 150 µs."""

RowT = TypeVar("RowT")
Block = tuple[Sequence[tuple[str, ...]], Sequence[RowT]]
"""The labels of some rows, and what their values are read from."""


@dataclass(eq=False, repr=False)
class KeptRows(Generic[RowT]):
    """The rows of some families, kept for as long as ``stamp`` returns the same; at most SAMPLES_MAX of them.

    ``find`` yields the labels of each row, with what its values are read from, None where there is none; others may run
    between two of them, and what they change must change the ``stamp``.
    """

    _find: Callable[[], Iterable[tuple[tuple[str, ...], RowT] | None]]
    _stamp: Callable[[], object]

    def __post_init__(self) -> None:
        self._kept: Sequence[Block[RowT]] = ()
        self._kept_at: object = None

    def each(self, value: Callable[[RowT], float | None]) -> Source:
        """The source of a family with a value for each row, some rows at a time; None after other work."""

        def columns() -> Iterator[Column | None]:
            for block in self._blocks():
                yield None if block is None else Column(block[0], [value(row) for row in block[1]])

        return columns

    def _blocks(self) -> Iterator[Block[RowT] | None]:
        stamp = self._stamp()
        if self._kept_at == stamp:
            yield from self._kept
            return
        blocks: list[Block[RowT]] = []
        labels: list[tuple[str, ...]] = []
        rows: list[RowT] = []
        count = 0
        for found in self._find():
            if found is not None:
                if count == SAMPLES_MAX:  # some have come since it was counted what is to be found
                    break
                count += 1
                labels.append(found[0])
                rows.append(found[1])
            if len(labels) < ROWS_MAX:
                yield None
                continue
            blocks.append((labels, rows))
            labels, rows = [], []
            yield blocks[-1]
        if labels:
            blocks.append((labels, rows))
            yield blocks[-1]
        self._kept, self._kept_at = blocks, stamp
