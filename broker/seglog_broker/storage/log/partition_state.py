"""``seglog-partition.json``: the state of a partition that no file of Kafka stores.

A file in the partition directory that Kafka ignores. It is replaced atomically (tmp, fsync, rename), contains its own
checksum, and is treated as absent if malformed. Everything in it can be derived again, except a read-only mark, which
is therefore written at once.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_protocol import segment_files

PARTITION_STATE_FILE: Final = segment_files.PARTITION_STATE_FILE

_VERSION: Final = 1

Offset = Annotated[int, msgspec.Meta(ge=0)]


class MalformedStateError(ValueError):
    """A state file that cannot be understood; the message says why."""


SEGMENTS_REMEMBERED_MAX: Final = 2_000
"""Segments of a partition whose roll, or transaction index, is recorded: about 40 bytes each in the file. Encoding so
many takes the loop about two milliseconds."""


class ActiveChecksum(NamedTuple):
    """The running checksum of the active segment: ``crc`` of its first ``size`` bytes."""

    segment: Offset
    size: Offset
    crc: Offset


class Roll(NamedTuple):
    """Why and when (wall time, ms) a segment was closed."""

    reason: str
    at_ms: int


class StoppedAt(NamedTuple):
    """Log start and log end at a clean stop."""

    log_start: Offset
    log_end: Offset


@dataclass(slots=True)
class CleanerState:
    """Results of compaction. Bytes are those of the segments of the last round."""

    last_run_ms: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    keyless_dropped: int = 0  # records without a key, in all rounds: compaction drops them
    tombstones_due_ms: int | None = None  # when the first remaining tombstone may be removed
    last_error: str | None = None  # of the last round, None if it succeeded


@dataclass(slots=True)
class PartitionState:
    """The content of the file; times are wall clock milliseconds, None if unknown."""

    read_only: str | None = None  # why, or None
    damaged: list[DamagedRange] = field(default_factory=list)
    unsynced: list[tuple[Offset, Offset]] = field(default_factory=list)  # of damage that a power cut may have left
    active_segment: int | None = None  # base offset of the segment of first_append_ms
    first_append_ms: int | None = None  # to the active segment
    last_append_ms: int | None = None
    log_start: Offset | None = None  # the log start, saved before any file below it is removed
    log_start_reason: str | None = None  # why the log start last moved: "truncated", "expired", "missing" (files lost)
    deleted_before: Offset = 0  # the log start that records were last deleted up to
    compacted_before: Offset = 0  # below this offset gaps are due to compaction
    held_end: Offset = 0  # everything below this offset was on the disk when this was written
    checksum: ActiveChecksum | None = None  # of a segment that may have grown since, or been closed
    rolls: dict[int, Roll] = field(default_factory=dict)  # by the base offset of the closed segment
    cleaner: CleanerState = field(default_factory=CleanerState)
    epochs: list[tuple[Offset, Offset]] = field(default_factory=list)  # (epoch, start), as in Kafka's file when saved
    stopped: StoppedAt | None = None  # None while a broker has the log open
    transaction_indexes: dict[int, tuple[Offset, Offset]] | None = None  # base offset -> size, CRC-32C; None: not known

    def is_unsynced(self, damage: DamagedRange) -> bool:
        """Whether the range was above all that was known to be on the disk when an unclean start found it."""
        return any(start <= damage.start_offset and damage.end_offset <= end for start, end in self.unsynced)

    def note_roll(self, base_offset: int, reason: str, at_ms: int) -> None:
        """Record why a segment was closed; only the newest SEGMENTS_REMEMBERED_MAX are kept."""
        self.rolls[base_offset] = Roll(reason, at_ms)
        if len(self.rolls) > SEGMENTS_REMEMBERED_MAX:
            del self.rolls[min(self.rolls)]

    def encode(self) -> bytes:
        """The file's content, on one line, because Python's fast JSON encoder cannot indent."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        facts |= {"damaged": [asdict(damage) for damage in self.damaged], "cleaner": asdict(self.cleaner)}
        if self.transaction_indexes is not None:
            facts["transaction_indexes"] = dict(sorted(self.transaction_indexes.items())[-SEGMENTS_REMEMBERED_MAX:])
        return seal({"version": _VERSION} | facts)

    def save(self, fs: FileSystem, directory: str) -> None:
        """Replace the file; returns when it survives a power cut."""
        write_file_atomically(fs, f"{directory}/{PARTITION_STATE_FILE}", self.encode())

    @classmethod
    def load(cls, fs: FileSystem, directory: str) -> "PartitionState":
        """The state in the file; an empty one if the file is absent or malformed."""
        try:
            return cls.read(fs, directory)
        except MalformedStateError:
            return cls()

    @classmethod
    def read(cls, fs: FileSystem, directory: str) -> "PartitionState":
        """The state in the file; an empty one if it is absent. Raises MalformedStateError."""
        path = f"{directory}/{PARTITION_STATE_FILE}"
        if not fs.exists(path):
            return cls()
        try:
            found = unseal(read_file(fs, path), _KEYS)
            damaged = [_damaged_range(item) for item in found.pop("damaged", ())]
            state = msgspec.convert(found, cls, str_keys=True)
        except MalformedJsonError as error:
            raise MalformedStateError(str(error)) from error
        except (msgspec.ValidationError, TypeError) as error:
            raise MalformedStateError("an entry in it is not possible") from error
        state.damaged = damaged
        return state


_KEYS: Final = frozenset({"version", *(field.name for field in fields(PartitionState))})


def _damaged_range(item: Any) -> DamagedRange:
    """A range by its own constructor: of a compiled class msgspec does not see which fields there must be."""
    damage = DamagedRange(**item)
    if not all(isinstance(value, int) for name, value in asdict(damage).items() if name != "reason"):
        raise TypeError(f"{item} is not a damaged range")
    return damage
