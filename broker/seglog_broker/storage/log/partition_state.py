"""``seglog-partition.json``: the state of a partition that no file of Kafka stores, written at once or by checkpoints.

A file in the partition directory that Kafka ignores. It is replaced atomically (tmp, fsync, rename), contains its own
checksum, and is treated as absent if malformed. Everything in it can be derived again, except a read-only mark, which
is therefore written at once.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.log.log_files import LogFiles, LogOffsets
from seglog_broker.storage.log.segment_list import SegmentList
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


CHECKSUM_SAVE_BYTES: Final = 4 * 1024 * 1024
"""A checkpoint writes the state for the checksum alone when the active segment has grown by so many bytes. A start that
must read the log anyway computes the rest."""


@dataclass(frozen=True, slots=True, eq=False)
class StateWrite:
    """A write of the state file; ``run`` may be called in a thread, once."""

    _fs: FileSystem
    _path: str
    _content: bytes
    log_start: int  # in ``_content``

    @property
    def file(self) -> tuple[str, bytes]:
        """The path of the file, and what it is to have."""
        return self._path, self._content

    def run(self) -> None:
        """Return when it survives a power cut."""
        write_file_atomically(self._fs, self._path, self._content)

    def has_been_done(self) -> bool:
        """Whether the file has this content."""
        try:
            return read_file(self._fs, self._path) == self._content
        except OSError:
            return False


@dataclass(eq=False, repr=False)
class StateFile:
    """The state of a log, and its file, which may be older. Call ``mark_dirty`` after each change of the state.

    ``proven_start`` is the log start in the file on the disk. One write at a time: between ``prepare`` and
    ``finish`` nothing else writes the file. Offsets, epochs and the active segment are read when it is written.
    """

    _files: LogFiles
    state: PartitionState
    _offsets: LogOffsets
    _epochs: LeaderEpochs
    _segments: SegmentList

    def __post_init__(self) -> None:
        self.proven_start = 0
        self._path = f"{self._files.directory}/{PARTITION_STATE_FILE}"
        self._is_dirty = False  # ``state`` is newer than the file; the next checkpoint writes it
        self._is_urgent = False  # to be written right after the write in flight
        self._in_flight: StateWrite | None = None

    @property
    def start_is_proven(self) -> bool:
        """Whether a start after a crash would find the current log start."""
        return self.proven_start >= self._offsets.start

    @property
    def is_saved(self) -> bool:
        """Whether the file has every change of the state that was marked."""
        return not self._is_dirty

    @property
    def needs_nothing(self) -> bool:
        """Whether ``prepare`` would return None, no write is in flight, and the log is not being restarted."""
        return self._in_flight is None and bool(self._segments) and not self._is_due()

    @property
    def is_expendable(self) -> bool:
        """Whether there is no file yet, and a start finds in others what it would have."""
        state = self.state
        is_plain = self.start_is_proven and state.read_only is None and not state.damaged
        return is_plain and not self._files.fs.exists(self._path)

    def begin(self) -> None:
        """The log is loaded: the disk has its current log start."""
        self.state.log_start = self.proven_start = self._offsets.start

    def mark_dirty(self) -> None:
        """``state`` has changed: the next ``prepare`` writes it."""
        self._is_dirty = True

    def mark_read_only(self, reason: str, *, to_disk: bool = True) -> None:
        """Refuse appends, now and, with ``to_disk``, after a restart, because the disk's content is no longer known."""
        if self.state.read_only is None:
            self.state.read_only = reason
            if to_disk:
                self.try_save()  # may fail on a failed disk; this process refuses anyway

    def prepare(self) -> StateWrite | None:
        """The write that saves the state, None if nothing has changed.

        Give its ``run`` to a thread, then call ``finish`` whatever happened.
        """
        return self._prepare() if self._is_due() else None

    def prepare_last(self) -> StateWrite | None:
        """As ``prepare``, whatever has changed, for a stop; None if the last stop has written the same.

        The file of that stop is on the disk: after any other kind of stop the state has one more leader epoch.
        """
        was_saved = self.is_saved
        write = self._prepare()
        if was_saved and write.has_been_done():
            self.finish(written=True)
            return None
        return write

    def _prepare(self) -> StateWrite:
        self._is_dirty = False
        self._collect()
        self._in_flight = StateWrite(self._files.fs, self._path, self.state.encode(), self._offsets.start)
        return self._in_flight

    def encoded_as_stopped(self) -> bytes:
        """The content that the file would have after a clean stop at this moment; it is not written."""
        self._collect()
        state = self.state
        return replace(
            state,
            held_end=self._offsets.end if state.read_only is None else state.held_end,
            stopped=StoppedAt(self._offsets.start, self._offsets.end),
        ).encode()

    def finish(self, *, written: bool) -> None:
        """End the write that was prepared; save at once what became urgent meanwhile. May raise OSError."""
        write, self._in_flight = self._in_flight, None
        if not written:
            self._is_dirty = True
            return
        if write is not None:
            self.proven_start = write.log_start
        if self._is_urgent:
            self.save()

    def save(self) -> None:
        """Save the state now, or as soon as the write in flight has ended. OSError: it stays dirty."""
        if self._in_flight is not None:  # two writes must not share one temporary file
            self._is_dirty = self._is_urgent = True
            return
        self._collect()
        self._is_dirty = True  # until it is written: if that fails, the next checkpoint tries again
        self.state.save(self._files.fs, self._files.directory)
        self._is_dirty = self._is_urgent = False
        self.proven_start = self._offsets.start

    def try_save(self) -> None:
        """As ``save``, but ignore an error: the next checkpoint tries again."""
        with suppress(OSError):
            self.save()

    def _is_due(self) -> bool:
        if self._is_dirty:
            return True
        active = self._segments.active
        running, saved = active.checksum.running, self.state.checksum
        if running is None:
            return False
        saved_size = saved.size if saved is not None and saved.segment == active.base_offset else 0
        return running.value.size - saved_size >= CHECKSUM_SAVE_BYTES

    def _collect(self) -> None:
        """Copy the log start, the durable end, the epochs and the running checksum into the state."""
        state = self.state
        state.log_start = self._offsets.start
        if state.read_only is None:  # else the disk's content is not known
            state.held_end = max(state.held_end, self._offsets.durable_end)
        state.epochs = [(entry.epoch, entry.start_offset) for entry in self._epochs.entries]
        if not self._segments:  # while the log is restarted
            return
        active = self._segments.active
        running = active.checksum.running
        if running is not None:
            state.checksum = ActiveChecksum(active.base_offset, running.value.size, running.value.crc)
