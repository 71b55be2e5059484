"""The metrics of a broker: all families, in slices, made while they are read."""

from collections.abc import Collection, Iterator, Mapping

from seglog_broker.api.monitoring.families import FAMILIES
from seglog_broker.api.monitoring.samples import Slice
from seglog_broker.api.monitoring.slicing import Source, sliced


class Monitoring:
    """Tells what the broker counts and measures."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        """``sources`` make the samples of families, by their names."""
        self._sources = sources

    def slices(self, names: Collection[str] = ()) -> Iterator[Slice]:
        """The slices of the families of these names, of all where none is named, in the order of ``FAMILIES``.

        Names that no family has are left out. Each ``next()`` takes some 2 ms at most; the caller lets other tasks run
        before the following one. A slice without samples is such a pause, or the family has none now.
        """
        for family in FAMILIES:
            if names and family.name not in names:
                continue
            source = self._sources.get(family.name)
            if source is not None:
                yield from sliced(family, source)
