"""Rows of samples that are kept from one scrape to the next, with what their values are read from.

To find thousands of partitions takes longer than to write their samples; and they are nearly always those of the scrape
before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from seglog_broker.api.monitoring.samples import SAMPLES_MAX, Column, Source

ROWS_MAX: Final = 100
"""Rows that have their values at a time: with their lines, some 150 µs."""

ReadT = TypeVar("ReadT")
SomeT = TypeVar("SomeT")


class _Block(NamedTuple, Generic[SomeT]):
    labels: Sequence[tuple[str, ...]]
    some: SomeT


@dataclass(eq=False, repr=False)
class KeptRows(Generic[ReadT, SomeT]):
    """The rows of some families, kept for as long as ``stamp`` returns the same; at most SAMPLES_MAX of them.

    ``find`` yields the labels of each row, with what its values are read from, None where there is none; others may run
    between two of them, and what they change must change the ``stamp``. ``arrange`` puts what some rows are read from
    beside each other, so that the values of a family come from one list.
    """

    _find: Callable[[], Iterable[tuple[tuple[str, ...], ReadT] | None]]
    _arrange: Callable[[Sequence[ReadT]], SomeT]
    _stamp: Callable[[], object]

    def __post_init__(self) -> None:
        self._kept: Sequence[_Block[SomeT]] = ()
        self._kept_at: object = None

    def source(self, values: Callable[[SomeT], Sequence[float | None]]) -> Source:
        """The source of a family, see ``columns``."""
        return lambda: self.columns(values)

    def columns(self, values: Callable[[SomeT], Sequence[float | None]]) -> Iterator[Column | None]:
        """The values of a family for all rows, some at a time; None after other work that took time."""
        for block in self._blocks():
            yield None if block is None else Column(block.labels, values(block.some))

    def _blocks(self) -> Iterator[_Block[SomeT] | None]:
        stamp = self._stamp()
        if self._kept_at == stamp:
            yield from self._kept
            return
        blocks: list[_Block[SomeT]] = []
        labels: list[tuple[str, ...]] = []
        read: list[ReadT] = []
        count = 0
        for found in self._find():
            if found is not None:
                if count == SAMPLES_MAX:  # some have come since it was counted what is to be found
                    break
                count += 1
                labels.append(found[0])
                read.append(found[1])
            if len(labels) < ROWS_MAX:
                yield None
                continue
            blocks.append(_Block(labels, self._arrange(read)))
            labels, read = [], []
            yield blocks[-1]
        if labels:
            blocks.append(_Block(labels, self._arrange(read)))
            yield blocks[-1]
        self._kept, self._kept_at = blocks, stamp
