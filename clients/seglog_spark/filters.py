"""Filter pushdown: bounds on topics, partitions and offsets. Does not depend on Spark.

Only filters that an offset range applies exactly are pushed down; Spark applies the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from seglog_spark.offsets import OffsetRange

ValueT = TypeVar("ValueT")

Operator = Literal["=", "in", "<", "<=", ">", ">=", "is not null"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bounds of a read; None is no bound. Offsets are in [``first``, ``end``)."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int | None = None

    def narrowed(self, column: str, operator: Operator, values: Iterable[object]) -> "Wanted | None":
        """These bounds and ``column operator values``; None when a range cannot apply that exactly."""
        given = tuple(values)
        if operator == "is not null":
            return self if column in {"topic", "partition", "offset"} else None
        if column == "topic" and operator in {"=", "in"}:
            names = frozenset(value for value in given if isinstance(value, str))
            return replace(self, topics=_both(self.topics, names))
        numbers = [value for value in given if isinstance(value, int)]
        if column == "partition" and operator in {"=", "in"}:
            return replace(self, partitions=_both(self.partitions, frozenset(numbers)))
        if column == "offset" and operator != "in" and len(numbers) == 1:
            return self._bounded(operator, numbers[0])
        return None

    def _bounded(self, operator: Operator, offset: int) -> "Wanted":
        first, end = self.first, self.end
        if operator in {"=", ">", ">="}:
            first = max(first, offset + (operator == ">"))
        if operator in {"=", "<", "<="}:
            limit = offset + (operator != "<")
            end = limit if end is None else min(end, limit)
        return replace(self, first=first, end=end)

    def cut(self, found: OffsetRange) -> list[OffsetRange]:
        """The part of a range within the bounds: one range, or none."""
        if self.topics is not None and found.topic not in self.topics:
            return []
        if self.partitions is not None and found.partition not in self.partitions:
            return []
        start = max(found.start, self.first)
        end = found.end if self.end is None else min(found.end, self.end)
        return [found._replace(start=start, end=end)] if start < end else []


def _both(known: frozenset[ValueT] | None, more: frozenset[ValueT]) -> frozenset[ValueT]:
    return more if known is None else known & more
