"""``seglog-partition.json``: what the broker must remember about a partition that no Kafka file has a place for.

A plain file in the partition directory, unknown to Kafka and therefore ignored by it. It is replaced as a whole (tmp,
fsync, rename), and a malformed one is treated as absent: everything in it can be found out again, except a read-only
mark, which is why that one is written at once. It carries a checksum of itself.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.sealed_json import MalformedJsonError, seal, unseal
from seglog_broker.storage.segment.damaged_range import DamagedRange
from seglog_protocol.segment_files import PARTITION_STATE_FILE

__all__ = [
    "PARTITION_STATE_FILE",
    "ROLLS_REMEMBERED_MAX",
    "ActiveChecksum",
    "CleanerState",
    "MalformedStateError",
    "PartitionState",
    "Roll",
    "StoppedAt",
]

_VERSION: Final = 1

T = TypeVar("T")


class MalformedStateError(ValueError):
    """A file that is there and makes no sense; the message says why."""


ROLLS_REMEMBERED_MAX: Final = 2_000
"""Segments of a partition whose reason of closing is kept; about 40 bytes each in the file, which is encoded on the
loop: so many take it about two milliseconds."""


class ActiveChecksum(NamedTuple):
    """How far the checksum of the segment that is appended to had come: ``crc`` of its first ``size`` bytes."""

    segment: int
    size: int
    crc: int


class Roll(NamedTuple):
    """Why and when (wall time, ms) a segment was closed."""

    reason: str
    at_ms: int


class StoppedAt(NamedTuple):
    """Where a log began and ended when it was closed in order."""

    log_start: int
    log_end: int


@dataclass(slots=True)
class CleanerState:
    """How compaction of a partition went. Bytes are those of the segments that the last round went through."""

    last_run_ms: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    keyless_dropped: int = 0  # records without a key, in all rounds: a compacted topic cannot keep them
    tombstones_due_ms: int | None = None  # when the first tombstone that was kept may go
    last_error: str | None = None  # of the last round, None if it went well


@dataclass(slots=True)
class PartitionState:
    """The remembered facts; times are wall clock milliseconds, None where unknown."""

    read_only: str | None = None  # why, or None
    damaged: list[DamagedRange] = field(default_factory=list)
    active_segment: int | None = None  # base offset of the segment that first_append_ms speaks of
    first_append_ms: int | None = None  # to the active segment
    last_append_ms: int | None = None
    log_start: int | None = None  # where the log began when this was written, before any file below it went
    log_start_reason: str | None = None  # why the log start last moved: "truncated", "expired", "missing" (files lost)
    deleted_before: int = 0  # where the log start was last moved to because records were to be deleted
    compacted_before: int = 0  # below this offset compaction has been at work: holes there are no loss
    held_end: int = 0  # everything below this offset was on the disk when this was written
    checksum: ActiveChecksum | None = None  # of a segment that may have grown since, or been closed
    rolls: dict[int, Roll] = field(default_factory=dict)  # by the base offset of the closed segment
    cleaner: CleanerState = field(default_factory=CleanerState)
    epochs: list[tuple[int, int]] = field(default_factory=list)  # (epoch, start offset), as in Kafka's file when saved
    stopped: StoppedAt | None = None  # None while a broker has the log open

    def note_roll(self, base_offset: int, reason: str, at_ms: int) -> None:
        """Remember why a segment was closed; of very many only the newest."""
        self.rolls[base_offset] = Roll(reason, at_ms)
        if len(self.rolls) > ROLLS_REMEMBERED_MAX:
            del self.rolls[min(self.rolls)]

    def encode(self) -> bytes:
        """The file's content, on one line: Python's fast encoder knows no indentation."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        facts |= {"damaged": [asdict(damage) for damage in self.damaged], "cleaner": asdict(self.cleaner)}
        return seal({"version": _VERSION} | facts)

    def save(self, fs: FileSystem, directory: str) -> None:
        """Replace the file; returns when it survives a power cut."""
        write_file_atomically(fs, f"{directory}/{PARTITION_STATE_FILE}", self.encode())

    @classmethod
    def load(cls, fs: FileSystem, directory: str) -> "PartitionState":
        """What the file says; an empty state when there is none or it makes no sense."""
        try:
            return cls.read(fs, directory)
        except MalformedStateError:
            return cls()

    @classmethod
    def read(cls, fs: FileSystem, directory: str) -> "PartitionState":
        """What the file says; an empty state when there is none. Raises MalformedStateError."""
        path = f"{directory}/{PARTITION_STATE_FILE}"
        if not fs.exists(path):
            return cls()
        try:
            found = unseal(read_file(fs, path), _KEYS)
            return cls(
                read_only=_optional(str, found.get("read_only")),
                damaged=[_damaged_range(item) for item in found.get("damaged", ())],
                active_segment=_optional(int, found.get("active_segment")),
                first_append_ms=_optional(int, found.get("first_append_ms")),
                last_append_ms=_optional(int, found.get("last_append_ms")),
                log_start=None if found.get("log_start") is None else _offset(found["log_start"]),
                log_start_reason=_optional(str, found.get("log_start_reason")),
                deleted_before=_offset(found.get("deleted_before", 0)),
                compacted_before=_offset(found.get("compacted_before", 0)),
                held_end=_offset(found.get("held_end", 0)),
                checksum=_active_checksum(found.get("checksum")),
                cleaner=_cleaner_state(found.get("cleaner", {})),
                rolls={int(base): Roll(str(reason), int(at)) for base, (reason, at) in found.get("rolls", {}).items()},
                epochs=[(_offset(epoch), _offset(start)) for epoch, start in found.get("epochs", ())],
                stopped=None if found.get("stopped") is None else StoppedAt(*map(_offset, found["stopped"])),
            )
        except MalformedJsonError as error:
            raise MalformedStateError(str(error)) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise MalformedStateError("an entry in it is not possible") from error


_KEYS: Final = frozenset({"version", *(field.name for field in fields(PartitionState))})


def _optional(kind: type[T], value: object) -> T | None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no offset")
    return value


def _damaged_range(item: dict[str, Any]) -> DamagedRange:
    damage = DamagedRange(**item)
    if not all(isinstance(value, int) for name, value in asdict(damage).items() if name != "reason"):
        raise TypeError(f"{item} is no damaged range")
    return damage


def _active_checksum(found: Any) -> ActiveChecksum | None:
    return None if found is None else ActiveChecksum(*map(_offset, found))


def _cleaner_state(found: dict[str, Any]) -> CleanerState:
    return CleanerState(**{field.name: found[field.name] for field in fields(CleanerState) if field.name in found})
