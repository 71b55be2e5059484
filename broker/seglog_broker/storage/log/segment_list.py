"""The segments of a log in offset order, each made when it is first asked for.

A log may have ten thousand closed segments of which a start needs none. So it knows their base offsets, which their
names tell, and makes a ``Segment`` with its indexes for those that are read. Sizes are known without that.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, overload

from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names

_BOTH_INDEXES: Final = frozenset({names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX})


class SegmentList(Sequence[Segment]):
    """Segments by number; ``bases`` are their base offsets, ascending, and ``last`` is the one with the largest.

    ``last`` is of no use while the list is empty. Only this class changes ``bases``.
    """

    def __init__(self, fs: FileSystem, directory: str, make: Callable[[int, Sequence[str]], Segment]) -> None:
        """``make`` gets a base offset and the names of the files that are there."""
        self.bases: list[int] = []
        self.last: Segment
        self.removals = 0  # how often some were taken out or replaced: who looks at many in turns begins again then
        self._fs = fs
        self._directory = directory
        self._make = make
        self._made: list[Segment | None] = []
        self._files: dict[int, tuple[str, ...]] = {}  # suffixes by base offset, of those that are not made
        self._sizes: dict[int, int] = {}  # bytes, of the same, as far as they were asked for

    def load(self, found: Iterable[str]) -> None:
        """Take the segments whose ``.log`` is among the names of a directory; only the last of them is made."""
        suffixes_of: dict[str, tuple[str, ...]] = {}
        logs = []
        for name in found:  # there may be fifty thousand
            stem, dot, rest = name.partition(".")
            suffix = dot + rest
            if suffix in names.SEGMENT_SUFFIXES:
                suffixes_of[stem] = (*suffixes_of.get(stem, ()), suffix)
                if suffix == names.LOG_SUFFIX and (parsed := names.parse_segment_file_name(name)) is not None:
                    logs.append((parsed[0], stem))
        self._files = {base: suffixes_of[stem] for base, stem in logs}
        self._sizes = {}
        self.bases = sorted(self._files)
        self._made = list(repeat(None, len(self.bases)))
        self._know_last()

    def closed_without_index(self) -> Iterator[Segment]:
        """All but the last of which an index file is not there."""
        for number, segment in enumerate(self._made[:-1]):
            if segment is not None:
                is_whole = segment.offset_index.exists and segment.time_index.exists
            else:
                is_whole = _BOTH_INDEXES.issubset(self._files[self.bases[number]])
            if not is_whole:
                yield self[number]

    # --- As a sequence ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.bases)

    @overload
    def __getitem__(self, number: int) -> Segment: ...
    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...
    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self.bases)))]
        return self._made[number] or self._now_made(number)

    def __contains__(self, segment: object) -> bool:
        return any(one is segment for one in self._made)

    def __delitem__(self, numbers: slice) -> None:
        for base in self.bases[numbers]:
            self._forget(base)
        del self.bases[numbers], self._made[numbers]
        self.removals += 1
        self._know_last()

    def append(self, segment: Segment) -> None:
        """Add one behind the last."""
        self.bases.append(segment.base_offset)
        self._made.append(segment)
        self.last = segment

    def replace(self, first: int, behind: int, segment: Segment) -> None:
        """Put one in the place of numbers [first, behind)."""
        for base in self.bases[first:behind]:
            self._forget(base)
        self.bases[first:behind] = [segment.base_offset]
        self._made[first:behind] = [segment]
        self.removals += 1
        self._know_last()

    def known(self) -> Iterator[Segment]:
        """Those that were made, in order: no other one has anything open, or anything that is not on the disk."""
        return (segment for segment in self._made if segment is not None)

    @property
    def bases_of_unknown_time(self) -> list[int]:
        """Base offsets of those whose largest timestamp is not known yet."""
        return [b for b, s in zip(self.bases, self._made, strict=True) if s is None or not s.is_time_known]

    def at(self, base_offset: int) -> Segment | None:
        """The one with this base offset."""
        number = bisect_left(self.bases, base_offset)
        return self[number] if self.bases[number : number + 1] == [base_offset] else None

    # --- Sizes --------------------------------------------------------------------------------------------------------

    @property
    def total_size(self) -> int:
        """Bytes of all ``.log`` files; the file system is asked only for those not known yet."""
        return self.size_between(0, len(self.bases))

    def size_between(self, first: int, behind: int) -> int:
        """As ``total_size``, of those with numbers [first, behind)."""
        sizes, total = self._sizes, 0
        for base, segment in zip(self.bases[first:behind], self._made[first:behind], strict=True):
            if segment is not None:
                total += segment.size
                continue
            size = sizes.get(base)
            if size is None:
                path = f"{self._directory}/{names.segment_file_name(base, names.LOG_SUFFIX)}"
                size = sizes[base] = self._fs.stat(path).size
            total += size
        return total

    def paths_of_unknown_size(self, count_max: int) -> dict[int, str]:
        """Paths of ``.log`` files, by base offset, of which ``total_size`` would ask the size: at most so many."""
        if len(self._sizes) == len(self._files):
            return {}  # nearly always
        unknown = self._files.keys() - self._sizes.keys()
        wanted = sorted(unknown)[:count_max] if len(unknown) > count_max else unknown
        return {base: f"{self._directory}/{names.segment_file_name(base, names.LOG_SUFFIX)}" for base in wanted}

    def note_sizes(self, sizes: Mapping[int, int]) -> None:
        """Take note of what ``sizes_of`` found."""
        self._sizes |= {base: size for base, size in sizes.items() if base in self._files}

    # ------------------------------------------------------------------------------------------------------------------

    def _now_made(self, number: int) -> Segment:
        base = self.bases[number]
        present = [names.segment_file_name(base, suffix) for suffix in self._files[base]]
        segment = self._made[number] = self._make(base, present)
        self._forget(base)
        return segment

    def _know_last(self) -> None:
        if self.bases:
            self.last = self[-1]

    def _forget(self, base: int) -> None:
        self._files.pop(base, None)
        self._sizes.pop(base, None)


def sizes_of(fs: FileSystem, paths: Mapping[int, str]) -> dict[int, int]:
    """Bytes of these files, by the same keys; those that are gone are left out. For a thread, too."""
    sizes = {}
    for key, path in paths.items():
        try:
            sizes[key] = fs.stat(path).size
        except FileNotFoundError:
            continue
    return sizes
