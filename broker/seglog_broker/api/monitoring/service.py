"""The metrics of a broker: all families, in slices, made while they are read."""

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from seglog_broker.api.monitoring.families import FAMILIES
from seglog_broker.api.monitoring.samples import Slice
from seglog_broker.api.monitoring.slicing import Source, sliced


class Monitoring:
    """Tells what the broker counts and measures."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        """``sources`` make the samples of families, by their names."""
        self._sources = sources
        self.families: Final = tuple(family for family in FAMILIES if family.name in sources)
        """Those that it tells of, in the order of ``FAMILIES``."""

    def slices(self, names: Collection[str] = ()) -> Iterator[Slice]:
        """The slices of the families of these names, of all where none is named, in their order.

        Names that no family has are left out. Each ``next()`` takes a fraction of a millisecond, see ``slicing``; the
        caller lets other tasks run after some of them. A slice without samples is a pause, or the family has none now.
        """
        for family in self.families:
            if not names or family.name in names:
                yield from sliced(family, self._sources[family.name])
