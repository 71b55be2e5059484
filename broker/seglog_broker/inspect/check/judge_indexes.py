"""The comparison of a segment's two index files with its batches."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_broker.inspect.check.findings import Code, Finding, Severity
from seglog_broker.inspect.check.indexes import ExpectedIndexes, TrueTimes, interval_of
from seglog_broker.inspect.check.plan import PartitionContext, Replacement
from seglog_broker.inspect.dump.facts import Damage
from seglog_broker.inspect.dump.index_files import dump_index
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_protocol import segment_files as names

_REBUILT: Final = "rebuilt from the log"


class FoundIndexes(NamedTuple):
    """The contents of both files, None for one that is missing."""

    offsets: bytes | None
    times: bytes | None


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


class IndexJudge:
    """Compares the index files of one segment with its batches. ``is_live``: the files may lack the last entries.

    Add every batch to ``true_times``, and to the models that ``judge`` gets.
    """

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, context: PartitionContext, *, is_live: bool
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._base_offset = base_offset
        self._context = context
        self._is_live = is_live
        self.found = FoundIndexes(self._read(names.OFFSET_INDEX_SUFFIX), self._read(names.TIME_INDEX_SUFFIX))
        self._stripped = (
            _without_padding(self.found.offsets or b"", names.OFFSET_ENTRY.size),
            _without_padding(self.found.times or b"", names.TIME_ENTRY.size),
        )
        times = self._stripped[1] if is_live else self.found.times or b""
        self.true_times = TrueTimes(times if context.is_adopted else b"", base_offset)

    def intervals(self) -> list[int]:
        """Values of ``index.interval.bytes`` that these files may have been written with, the configured one first."""
        configured = self._context.index_interval
        offsets = self.found.offsets
        if offsets == b"":
            return [configured, names.OFFSET_MAX]  # one that is larger than the segment gives no entries
        other = interval_of(self._stripped[0])
        return [configured] if other in {None, configured} else [configured, other or 0]

    def judge(
        self, models: Sequence[ExpectedIndexes], before_damage: Sequence[ExpectedIndexes], log_size: int
    ) -> tuple[list[Finding], list[Replacement]]:
        """Findings about the two files, and files to replace.

        ``models`` are the expected indexes for each of ``intervals()``, in that order. So are those in
        ``before_damage``, which is empty if no batch is damaged: they include the batches with a wrong checksum. Files
        that match those are not wrong, but are rebuilt with the repair of the damage.
        """
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
        offsets, times = map(_Kind, suffixes, sizes, self.found, self._stripped, closed, live)
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
        if not self._context.is_adopted or not kind.entries:
            return False
        if kind.suffix == names.OFFSET_INDEX_SUFFIX:
            return False
        least = kind.live if self._is_live else kind.closed
        return self.true_times.are_all(least, is_complete=not self._is_live)

    def _judge(self, kind: _Kind, log_size: int, *, is_interval_known: bool) -> Finding | None:
        path = self._path(kind.suffix)
        if kind.found is None:
            is_normal = self._is_live or not log_size
            severity = Severity.NOTE if is_normal else Severity.DERIVED
            return Finding(severity, Code.INDEX_MISSING, path, "is not there")
        padding = len(kind.found) - len(kind.entries)
        if self._is_right(kind):
            if self._is_live and padding > kind.entry_size:
                return Finding(Severity.NOTE, Code.INDEX_PADDING, path, f"ends in {padding} bytes of zeros")
            return None
        damage = [fact for fact in self._compare(kind) if isinstance(fact, Damage)]
        if damage:
            first = damage[0]
            more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
            return Finding(
                Severity.DERIVED, Code.INDEX_WRONG, path, f"{first.reason}{more}", first.position, first.end_position
            )
        if kind.found.startswith(kind.closed) and padding:
            what = f"{padding} bytes of zeros follow its entries, and a start would take them for entries"
            at = (len(kind.closed), len(kind.found))
            return Finding(Severity.DERIVED, Code.INDEX_WRONG, path, what, *at)
        if self._context.is_adopted and not is_interval_known and kind.found and self._ends_well(kind):
            what = "every entry is right, but no single index.interval.bytes gives their spacing"
            return Finding(Severity.NOTE, Code.INDEX_SPACING, path, what)
        what = f"it is not what the log gives: {_difference(kind.found, kind.closed, kind.entry_size)}"
        return Finding(Severity.DERIVED, Code.INDEX_WRONG, path, what)

    def _compare(self, kind: _Kind) -> list[object]:
        """The facts that ``dump`` finds about the single entries."""
        log, index = self._path(names.LOG_SUFFIX), self._path(kind.suffix)
        return list(dump_index(self._fs, index, self._base_offset, log, kind.suffix))

    @staticmethod
    def _ends_well(kind: _Kind) -> bool:
        """Whether a time index ends with the largest timestamp, which retention and look-ups by time rely on."""
        if kind.suffix == names.OFFSET_INDEX_SUFFIX or kind.found is None:
            return True
        return kind.found[-kind.entry_size :] == kind.closed[-kind.entry_size :]

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
    number = next(
        number
        for number in range(wanted)
        if found[number * entry_size : (number + 1) * entry_size]
        != expected[number * entry_size : (number + 1) * entry_size]
    )
    return f"entry {number} differs"
