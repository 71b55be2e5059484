"""Writes ``seglog-partition.json`` of one log: at once, or with the next checkpoint."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.log.log_files import LogFiles, LogOffsets
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, ActiveChecksum, PartitionState, StoppedAt
from seglog_broker.storage.log.segment_list import SegmentList

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
