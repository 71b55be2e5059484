"""The check of a segment's two index files against its batches.

The expected bytes are built from the batches by the rule that the broker writes them by. Indexes have no checksum, but
can be computed from the log, so comparing bytes checks every entry. The ``index.interval.bytes`` that an index was
written with is in no file: if the configured one does not give the same bytes, the only other possible one is derived
from the entries.
"""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import pairwise
from typing import Final, NamedTuple

from seglog_broker.inspect.check.plan import PartitionContext, Replacement
from seglog_broker.inspect.dump.index_files import dump_index
from seglog_broker.inspect.facts import Damage
from seglog_broker.inspect.findings import Code, Finding, Severity
from seglog_broker.inspect.log_walk import InvalidBytes
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_protocol import segment_files as names
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.record_batch import NO_TIMESTAMP, BatchHeader

_REBUILT: Final = "rebuilt from the log"


# --- What the files should have ---------------------------------------------------------------------------------------


class IndexBytes(NamedTuple):
    """The bytes of both index files of a segment."""

    offsets: bytes
    times: bytes


class ExpectedIndexes:
    """The indexes of a segment with the batches added so far, with an entry every ``interval`` bytes."""

    def __init__(self, base_offset: int, interval: int, bytes_max: int) -> None:
        self.interval = interval
        self._base_offset = base_offset
        self._offsets_max = bytes_max // names.OFFSET_ENTRY.size
        self._times_max = bytes_max // names.TIME_ENTRY.size
        self._offsets = bytearray()
        self._times = bytearray()
        self._indexed = 0
        self._largest = (NO_TIMESTAMP, base_offset)
        self._last_time = NO_TIMESTAMP

    def add(self, position: int, header: BatchHeader) -> None:
        """Add the batch at ``position``."""
        if header.max_timestamp > self._largest[0]:
            self._largest = (header.max_timestamp, header.last_offset)
        if position - self._indexed > self.interval and not self._is_full:
            self._offsets += names.encode_offset_entry(header.last_offset - self._base_offset, position)
            self._times += self._time_entry()
            self._last_time = max(self._last_time, self._largest[0])
            self._indexed = position

    def live(self) -> IndexBytes:
        """The files of a segment that is appended to."""
        return IndexBytes(bytes(self._offsets), bytes(self._times))

    def closed(self) -> IndexBytes:
        """The files of a closed segment: the time index ends with the largest timestamp."""
        return IndexBytes(bytes(self._offsets), bytes(self._times) + self._time_entry())

    @property
    def _is_full(self) -> bool:
        """Whether an index is full; one slot of the time index is kept for the last entry."""
        return (
            len(self._offsets) // names.OFFSET_ENTRY.size >= self._offsets_max
            or len(self._times) // names.TIME_ENTRY.size >= self._times_max - 1
        )

    def _time_entry(self) -> bytes:
        timestamp, offset = self._largest
        if timestamp <= self._last_time:
            return b""
        return names.encode_time_entry(timestamp, offset - self._base_offset)


class TrueTimes:
    """Checks the entries of a time index, wherever they were added: each must be true of the batches.

    Kafka also adds the largest timestamp at every stop, so its indexes have entries between those of the interval.
    ``found`` is the content of the index.
    """

    def __init__(self, found: bytes, base_offset: int) -> None:
        self._entries = _split(found, names.TIME_ENTRY.size)
        self._wanted = frozenset(self._entries)
        self._true: set[bytes] = set()
        self._base_offset = base_offset
        self._largest = NO_TIMESTAMP

    def add(self, header: BatchHeader) -> None:
        """Add the next batch."""
        if self._wanted and header.max_timestamp > self._largest:
            self._largest = header.max_timestamp
            entry = names.encode_time_entry(header.max_timestamp, header.last_offset - self._base_offset)
            if entry in self._wanted:
                self._true.add(entry)

    def are_all(self, least: bytes, *, is_complete: bool) -> bool:
        """Whether every entry of the index is true and in order, and the entries in ``least`` are among them.

        If the index is not ``is_complete``, it may end before the last entry of ``least``.
        """
        size = names.TIME_ENTRY.size
        if self._entries and len(self._entries[-1]) < size:
            return False
        timestamps = [names.TIME_ENTRY.unpack(entry)[0] for entry in self._entries]
        wanted = _split(least, size)
        if not is_complete:
            wanted = [entry for entry in wanted if timestamps and names.TIME_ENTRY.unpack(entry)[0] <= timestamps[-1]]
        is_rising = all(one < following for one, following in pairwise(timestamps))
        return is_rising and self._wanted == self._true and self._wanted >= set(wanted)


def interval_of(offsets: bytes) -> int | None:
    """The largest ``index.interval.bytes`` that gives these entries of an offset index; None if none does."""
    positions = [0, *(entry.position for entry in names.offset_entries(offsets))]
    smallest = min((following - one for one, following in pairwise(positions)), default=0)
    return smallest - 1 if smallest > 0 else None


# --- What the files have ----------------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """One of the two index files, and what it should be."""

    suffix: str
    entry_size: int
    found: bytes | None  # its content; None if it is missing
    stripped: bytes  # its content without entries of zeros at the end
    closed: bytes  # the right content if the segment is closed
    live: bytes  # the right content if the segment is active

    @property
    def entries(self) -> bytes:
        """The content without padding. A single entry may be all zeros: the first offset, at 1970."""
        return self.stripped if self.found != self.live else self.live


class IndexCheck:
    """Compares the index files of one segment with its batches: take all ``batches`` first, then ``judge``.

    ``is_live``: the segment is active, or was when the broker was killed, so that its indexes may lack entries.
    """

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, context: PartitionContext, *, is_live: bool
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._base_offset = base_offset
        self._context = context
        self._is_live = is_live
        offsets, times = self._read(names.OFFSET_INDEX_SUFFIX), self._read(names.TIME_INDEX_SUFFIX)
        self._found = (offsets, times)  # None for a missing file
        self._stripped = (
            _without_padding(offsets or b"", names.OFFSET_ENTRY.size),
            _without_padding(times or b"", names.TIME_ENTRY.size),
        )
        times = self._stripped[1] if is_live else times or b""
        self._true_times = TrueTimes(times if context.is_adopted else b"", base_offset)
        bytes_max = context.index_bytes_max
        self._models = [ExpectedIndexes(base_offset, each, bytes_max) for each in self._intervals()]
        # Of a segment with damaged batches: as if those with a wrong checksum were right.
        self._before_damage: list[ExpectedIndexes] = []

    def batches(self, segment: Iterable[LocatedBatch | InvalidBytes]) -> Iterator[LocatedBatch]:
        """The valid batches of ``segment``, which is what ``LogWalk.segment`` returned."""
        for found in segment:
            if isinstance(found, InvalidBytes):
                if found.header is not None:
                    self._before_damage = self._before_damage or deepcopy(self._models)
                    for model in self._before_damage:
                        model.add(found.position, found.header)
                continue
            for model in (*self._models, *self._before_damage):
                model.add(*found)
            self._true_times.add(found.header)
            yield found

    def _intervals(self) -> list[int]:
        """Values of ``index.interval.bytes`` that these files may have been written with, the configured one first."""
        configured = self._context.index_interval
        if self._found[0] == b"":
            return [configured, names.OFFSET_MAX]  # one that is larger than the segment gives no entries
        other = interval_of(self._stripped[0])
        return [configured] if other in {None, configured} else [configured, other or 0]

    def judge(self, log_size: int) -> tuple[list[Finding], list[Replacement]]:
        """Findings about the two files, and files to replace.

        Files that match the batches with a wrong checksum as well are not wrong, but are rebuilt with the repair of the
        damage.
        """
        models, before_damage = self._models, self._before_damage
        fitting = next((model for model in models if self._may_be_of(model)), None)
        before = next((number for number, model in enumerate(before_damage) if self._may_be_of(model)), None)
        if fitting is None and before is not None:
            kinds_before = self._kinds(before_damage[before])
            if all(self._is_right(kind) for kind in kinds_before):
                return [], self._replacements(models[before])
        fitting = fitting or (models[before] if before is not None else None)
        findings = [
            finding
            for kind in self._kinds(fitting or models[0])
            if (finding := self._judge(kind, log_size, is_interval_known=fitting is not None)) is not None
        ]
        if all(finding.severity == Severity.NOTE for finding in findings):
            return findings, []
        return findings, self._replacements(fitting or models[0])

    def _replacements(self, model: ExpectedIndexes) -> list[Replacement]:
        """Replacements for both files, because both must have the same interval."""
        return [
            Replacement(self._path(kind.suffix), kind.closed, _REBUILT)
            for kind in self._kinds(model)
            if kind.found != kind.closed
        ]

    def _kinds(self, model: ExpectedIndexes) -> tuple[_Kind, _Kind]:
        closed, live = model.closed(), model.live()
        suffixes = (names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX)
        sizes = (names.OFFSET_ENTRY.size, names.TIME_ENTRY.size)
        offsets, times = map(_Kind, suffixes, sizes, self._found, self._stripped, closed, live)
        return offsets, times

    def _may_be_of(self, model: ExpectedIndexes) -> bool:
        offsets, times = self._kinds(model)
        return self._is_right(offsets) and (
            bool(offsets.found) or model.interval < names.OFFSET_MAX or self._is_right(times)
        )

    def _is_right(self, kind: _Kind) -> bool:
        if kind.found is None:
            return False
        if kind.found == kind.closed or (self._is_live and kind.live.startswith(kind.entries)):
            return True
        if not self._context.is_adopted or not kind.entries or kind.suffix == names.OFFSET_INDEX_SUFFIX:
            return False
        least = kind.live if self._is_live else kind.closed
        return self._true_times.are_all(least, is_complete=not self._is_live)

    def _judge(self, kind: _Kind, log_size: int, *, is_interval_known: bool) -> Finding | None:
        path = self._path(kind.suffix)
        if kind.found is None:
            severity = Severity.NOTE if self._is_live or not log_size else Severity.DERIVED
            return Finding(severity, Code.INDEX_MISSING, path, "is not there")
        padding = len(kind.found) - len(kind.entries)
        if self._is_right(kind):
            if self._is_live and padding > kind.entry_size:
                return Finding(Severity.NOTE, Code.INDEX_PADDING, path, f"ends in {padding} bytes of zeros")
            return None
        facts = dump_index(self._fs, path, self._base_offset, self._path(names.LOG_SUFFIX), kind.suffix)
        damage = [fact for fact in facts if isinstance(fact, Damage)]
        if damage:
            first = damage[0]
            more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
            what = f"{first.reason}{more}"
            return Finding(Severity.DERIVED, Code.INDEX_WRONG, path, what, first.position, first.end_position)
        if kind.found.startswith(kind.closed) and padding:
            what = f"{padding} bytes of zeros follow its entries, and a start would take them for entries"
            at = (len(kind.closed), len(kind.found))
            return Finding(Severity.DERIVED, Code.INDEX_WRONG, path, what, *at)
        # Retention and look-ups by time rely on the last entry of a time index.
        last = slice(-kind.entry_size, None)
        ends_well = kind.suffix == names.OFFSET_INDEX_SUFFIX or kind.found[last] == kind.closed[last]
        if self._context.is_adopted and not is_interval_known and kind.found and ends_well:
            what = "every entry is right, but no single index.interval.bytes gives their spacing"
            return Finding(Severity.NOTE, Code.INDEX_SPACING, path, what)
        what = f"it is not what the log gives: {_difference(kind.found, kind.closed, kind.entry_size)}"
        return Finding(Severity.DERIVED, Code.INDEX_WRONG, path, what)

    def _read(self, suffix: str) -> bytes | None:
        path = self._path(suffix)
        return read_file(self._fs, path) if self._fs.exists(path) else None

    def _path(self, suffix: str) -> str:
        return f"{self._directory}/{names.segment_file_name(self._base_offset, suffix)}"


def _without_padding(found: bytes, entry_size: int) -> bytes:
    """The entries up to the last one that is not all zeros: Kafka preallocates its indexes."""
    used = -(-len(found.rstrip(b"\0")) // entry_size) * entry_size
    return found[:used]


def _difference(found: bytes, expected: bytes, entry_size: int) -> str:
    there, wanted = len(found) // entry_size, len(expected) // entry_size
    if there != wanted:
        return f"{there} entries instead of {wanted}"
    pairs = zip(_split(found, entry_size), _split(expected, entry_size), strict=False)
    return f"entry {[one == other for one, other in pairs].index(False)} differs"


def _split(content: bytes, entry_size: int) -> list[bytes]:
    """The entries; the last one may be shorter."""
    return [content[at : at + entry_size] for at in range(0, len(content), entry_size)]
