"""The segments of a log in offset order; each ``Segment`` is made on first access.

A log may have ten thousand closed segments, none of which a start needs. So the list has their base offsets, from the
file names, and makes a ``Segment`` with its indexes only for those that are used. Sizes do not need it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, overload

from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.segment.segment import Segment
from seglog_protocol import segment_files as names

_BOTH_INDEXES: Final = frozenset({names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX})


class SegmentList(Sequence[Segment]):
    """Segments by number; ``bases`` are their base offsets, ascending, and ``active`` is the one with the largest.

    ``active`` is unset while the list is empty. ``bases`` changes with the list: copy it to keep it. ``awaited`` are
    the base offsets of those whose bytes are still to come, ascending.
    """

    def __init__(self, fs: FileSystem, directory: str, make: Callable[[int, Sequence[str]], Segment]) -> None:
        """``make`` gets a base offset and the names of the files that are there."""
        self._bases: list[int] = []
        self.bases: Sequence[int] = self._bases
        self.awaited: dict[int, None] = {}  # each log has one, and an empty set 216 bytes
        self.active: Segment
        self.removals = 0  # and replacements: an iteration in several turns restarts when it changes
        self._fs = fs
        self._directory = directory
        self.make = make
        self._made: list[Segment | None] = []
        self._files: dict[int, tuple[str, ...]] = {}  # suffixes by base offset, of segments not made yet
        self._sizes: dict[int, int] = {}  # bytes, of the same, where known
        self._closed_size = 0  # of the closed segments, when these were the removals and the length
        self._closed_removals = self._closed_count = -1

    def load(self, found: Iterable[str]) -> None:
        """Add the segments whose ``.log`` is among the names of a directory; only the last ``Segment`` is made."""
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
        self._closed_count = -1
        self._bases[:] = sorted(self._files)
        self.awaited = {base: None for base in self._bases if names.AWAITED_SUFFIX in self._files[base]}
        self._made = list(repeat(None, len(self._bases)))
        self._find_active()

    def closed_without_index(self) -> list[Segment]:
        """All but the last segment that lack an index file, without those that are awaited."""
        found = []
        for number, segment in enumerate(self._made[:-1]):
            if self._bases[number] in self.awaited:
                continue
            if segment is not None:
                is_whole = segment.offset_index.exists and segment.time_index.exists
            else:
                is_whole = _BOTH_INDEXES.issubset(self._files[self._bases[number]])
            if not is_whole:
                found.append(self[number])
        return found

    def __len__(self) -> int:
        return len(self._bases)

    @overload
    def __getitem__(self, number: int) -> Segment: ...
    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...
    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self._bases)))]
        return self._made[number] or self._now_made(number)

    def __contains__(self, segment: object) -> bool:
        return any(one is segment for one in self._made)

    def append(self, segment: Segment) -> None:
        """Add a segment after the last; it becomes the active one."""
        self._bases.append(segment.base_offset)
        self._made.append(segment)
        self.active = segment

    def drop_oldest(self, count: int) -> list[Segment]:
        """Remove the first ``count``; return them."""
        dropped = self[:count]
        self._leave(self._bases[:count])
        del self._bases[:count], self._made[:count]
        self.removals += 1
        self._find_active()
        return dropped

    def replace(self, first: int, end: int, segment: Segment) -> None:
        """Replace the segments with numbers [first, end) with one segment."""
        self._leave(self._bases[first:end])
        self._bases[first:end] = [segment.base_offset]
        self._made[first:end] = [segment]
        self.removals += 1
        self._find_active()

    @property
    def awaited_size(self) -> int:
        """Bytes of the segments that are awaited."""
        return sum([self.size_between(number, number + 1) for number in map(self.floor, self.awaited)])

    def note_arrived(self, base_offset: int) -> None:
        """The bytes of a segment that was awaited are there."""
        del self.awaited[base_offset]
        suffixes = self._files.get(base_offset)
        if suffixes is not None:
            self._files[base_offset] = tuple(suffix for suffix in suffixes if suffix != names.AWAITED_SUFFIX)
        elif (segment := self.at(base_offset)) is not None:
            segment.note_arrived()

    def floor(self, offset: int) -> int:
        """The number of the last segment with a base offset at or below ``offset``; -1 when all lie above."""
        return bisect_right(self._bases, offset) - 1

    def first_from(self, offset: int) -> int:
        """The number of the first segment with a base offset at or above ``offset``; their count when all lie below."""
        return bisect_left(self._bases, offset)

    def end_of(self, number: int, log_end: int) -> int:
        """The base offset of the segment after ``number``, or ``log_end`` for the last."""
        return self._bases[number + 1] if number + 1 < len(self._bases) else log_end

    def known(self) -> Iterator[Segment]:
        """The segments made so far, in order. The others have no open file and nothing unsynced."""
        return (segment for segment in self._made if segment is not None)

    @property
    def bases_of_unknown_time(self) -> list[int]:
        """Base offsets of those whose largest timestamp is not known yet."""
        return [b for b, s in zip(self._bases, self._made, strict=True) if s is None or not s.is_time_known]

    def at(self, base_offset: int) -> Segment | None:
        """The segment with this base offset, None if there is none."""
        number = bisect_left(self._bases, base_offset)
        return self[number] if self._bases[number : number + 1] == [base_offset] else None

    @property
    def total_size(self) -> int:
        """Bytes of all ``.log`` files; the file system is asked only for those not known yet."""
        count = len(self._bases)
        if count == 0:
            return 0
        if self._closed_removals != self.removals or self._closed_count != count:
            self._closed_size = self.size_between(0, count - 1)
            self._closed_removals, self._closed_count = self.removals, count
        return self._closed_size + self.active.log.size

    @property
    def known_size(self) -> int | None:
        """As ``total_size``; None while the file system would have to be asked."""
        return self.total_size if len(self._sizes) == len(self._files) else None

    def size_between(self, first: int, behind: int) -> int:
        """As ``total_size``, of the segments with numbers from ``first`` up to, without, ``behind``."""
        sizes, total = self._sizes, 0
        for base, segment in zip(self._bases[first:behind], self._made[first:behind], strict=True):
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
        """Store the result of ``sizes_of``."""
        self._sizes |= {base: size for base, size in sizes.items() if base in self._files}

    # ------------------------------------------------------------------------------------------------------------------

    def _now_made(self, number: int) -> Segment:
        base = self._bases[number]
        present = [names.segment_file_name(base, suffix) for suffix in self._files[base]]
        segment = self._made[number] = self.make(base, present)
        self._forget(base)
        return segment

    def _find_active(self) -> None:
        if self._bases:
            self.active = self[-1]

    def _forget(self, base: int) -> None:
        self._files.pop(base, None)
        self._sizes.pop(base, None)

    def _leave(self, bases: Sequence[int]) -> None:
        for base in bases:
            self._forget(base)
            self.awaited.pop(base, None)


def sizes_of(fs: FileSystem, paths: Mapping[int, str]) -> dict[int, int]:
    """The sizes of these files in bytes, by the same keys, without missing files. May run in a thread."""
    sizes = {}
    for key, path in paths.items():
        try:
            sizes[key] = fs.stat(path).size
        except FileNotFoundError:
            continue
    return sizes
