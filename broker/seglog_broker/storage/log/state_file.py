"""Bringing ``seglog-partition.json`` of one log to the disk: at once, or with the next checkpoint."""

from contextlib import suppress
from typing import Final

from seglog_broker.storage.io.filesystem import FileSystem, write_file_atomically
from seglog_broker.storage.log.leader_epochs import LeaderEpochs
from seglog_broker.storage.log.log_files import LogFiles, LogOffsets
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, ActiveChecksum, PartitionState
from seglog_broker.storage.log.segment_list import SegmentList

CHECKSUM_SAVE_BYTES: Final = 4 * 1024 * 1024
"""By which the active segment has grown before a checkpoint writes for its checksum alone: a start that has to read the
log anyway adds up the rest."""


class StateWrite:
    """A write of the state file; ``run`` may be called in a thread, once."""

    def __init__(self, fs: FileSystem, path: str, content: bytes, log_start: int) -> None:
        """``log_start`` is what ``content`` says of the log start."""
        self.log_start = log_start
        self._fs = fs
        self._path = path
        self._content = content

    def run(self) -> None:
        """Return when it survives a power cut."""
        write_file_atomically(self._fs, self._path, self._content)


class StateFile:
    """The state of a log and its file, which may be older: ``mark_dirty`` after each change.

    ``proven_start`` is the log start that the file on the disk proves. One write at a time: between ``prepare`` and
    ``finish`` nothing else writes the file.
    """

    __slots__ = (
        "_epochs",
        "_files",
        "_in_flight",
        "_is_dirty",
        "_is_urgent",
        "_offsets",
        "_path",
        "_segments",
        "proven_start",
        "state",
    )

    def __init__(
        self,
        files: LogFiles,
        state: PartitionState,
        offsets: LogOffsets,
        epochs: LeaderEpochs,
        segments: SegmentList,
    ) -> None:
        """``offsets``, ``epochs`` and the active one of ``segments`` are asked when the file is written."""
        self.state = state
        self.proven_start = 0
        self._path = f"{files.directory}/{PARTITION_STATE_FILE}"
        self._files = files
        self._offsets = offsets
        self._epochs = epochs
        self._segments = segments
        self._is_dirty = False  # something in ``state`` is newer than the file; the next checkpoint writes it
        self._is_urgent = False  # and is not to wait that long
        self._in_flight: StateWrite | None = None

    @property
    def start_is_proven(self) -> bool:
        """Whether a start after a crash finds the log start where it is now."""
        return self.proven_start >= self._offsets.start

    def begin(self) -> None:
        """The log is loaded: where it starts now is what the disk says."""
        self.state.log_start = self.proven_start = self._offsets.start

    def mark_dirty(self) -> None:
        """Something in ``state`` has changed: the next ``prepare`` has it written."""
        self._is_dirty = True

    def mark_read_only(self, reason: str, *, to_disk: bool = True) -> None:
        """Take no more appends, now and, with ``to_disk``, after a restart: what the disk holds is no longer known."""
        if self.state.read_only is None:
            self.state.read_only = reason
            if to_disk:
                self.try_save()  # a disk that failed may not take the mark either; this process knows

    def prepare(self) -> StateWrite | None:
        """The write that brings the state to the disk, None when nothing in it is new.

        Give its ``run`` to a thread, then call ``finish`` whatever happened.
        """
        if not (self._is_dirty or self._checksum_is_due()):
            return None
        self._is_dirty = False
        self._collect()
        self._in_flight = StateWrite(self._files.fs, self._path, self.state.encode(), self._offsets.start)
        return self._in_flight

    def finish(self, *, written: bool) -> None:
        """Take note of the end of the write that was prepared; what was to be saved meanwhile follows. OSError."""
        write, self._in_flight = self._in_flight, None
        if not written:
            self._is_dirty = True
            return
        if write is not None:
            self.proven_start = write.log_start
        if self._is_urgent:
            self.save()

    def save(self) -> None:
        """Have the state on the disk now, or as soon as the write under way has ended. OSError: it stays dirty."""
        if self._in_flight is not None:  # two writers must not meet in one temporary file
            self._is_dirty = self._is_urgent = True
            return
        self._collect()
        self._is_dirty = True  # until it is there: where it cannot be written now, the next checkpoint does
        self.state.save(self._files.fs, self._files.directory)
        self._is_dirty = self._is_urgent = False
        self.proven_start = self._offsets.start

    def try_save(self) -> None:
        """As ``save``; where the disk refuses, the next checkpoint tries again."""
        with suppress(OSError):
            self.save()

    def _checksum_is_due(self) -> bool:
        active = self._segments.active
        running, saved = active.checksum.running, self.state.checksum
        if running is None:
            return False
        saved_size = saved.size if saved is not None and saved.segment == active.base_offset else 0
        return running.value.size - saved_size >= CHECKSUM_SAVE_BYTES

    def _collect(self) -> None:
        """Have the state say where the log begins, how much is on the disk, its epochs, and the checksum so far."""
        state = self.state
        state.log_start = self._offsets.start
        if state.read_only is None:  # else it is not known what the disk holds
            state.held_end = max(state.held_end, self._offsets.durable_end)
        state.epochs = [(entry.epoch, entry.start_offset) for entry in self._epochs.entries]
        if not self._segments:  # between an old log and one begun anew
            return
        active = self._segments.active
        running = active.checksum.running
        if running is not None:
            state.checksum = ActiveChecksum(active.base_offset, running.value.size, running.value.crc)
