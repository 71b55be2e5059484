"""What a log remembers beside its records: taken up at a start, kept true, brought to the disk."""

from contextlib import suppress
from typing import Final

from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE
from seglog_broker.storage.log.core import LogCore
from seglog_broker.storage.log.leader_epochs import EpochEntry
from seglog_broker.storage.log.partition_state import (
    PARTITION_STATE_FILE,
    ActiveChecksum,
    MalformedStateError,
    PartitionState,
    StateWrite,
)
from seglog_broker.storage.segment.checksum import NO_BYTES, SegmentChecksum

CHECKSUM_CATCH_UP_BYTES: Final = 16 * 1024 * 1024
"""Read at a clean start where the active segment's checksum is not known; a larger one is covered by the scrub."""

CHECKSUM_SAVE_BYTES: Final = 4 * 1024 * 1024
"""By which the active segment has grown before a checkpoint writes for its checksum alone: a start that has to read the
log anyway adds up the rest."""


class LogWithState(LogCore):
    """A log whose ``state`` gets to its file, now or with the next checkpoint."""

    def mark_read_only(self, reason: str, *, to_disk: bool = True) -> None:
        """Take no more appends, now and, with ``to_disk``, after a restart: what the disk holds is no longer known."""
        if self.state.read_only is None:
            self.state.read_only = reason
            # A disk that failed may not take the mark either; this process knows.
            with suppress(OSError):
                if to_disk:
                    self._save_state()

    def prepare_state(self) -> StateWrite | None:
        """The write that brings ``state`` to the disk, None when nothing in it is new.

        Give its ``run`` to a thread, then call ``finish_state`` whatever happened.
        """
        if not (self._state_unsaved or self._checksum_is_due()):
            return None
        self._state_unsaved = False
        self._note_what_others_hold()
        path = f"{self.directory}/{PARTITION_STATE_FILE}"
        self._start_being_saved = self.log_start_offset
        self._state_being_saved = StateWrite(self._fs, path, self.state.encode())
        return self._state_being_saved

    def finish_state(self, *, written: bool) -> None:
        """Take note of the end of a state's writing; what was to be saved meanwhile follows."""
        self._state_being_saved = None
        if not written:
            self._state_unsaved = True
            return
        self.proven_start_offset = self._start_being_saved
        if self._state_is_urgent:
            self._save_state()

    def _save_state(self) -> None:
        """Have ``state`` on the disk now; two writers must not meet in one temporary file."""
        if self._state_being_saved is not None:
            self._state_unsaved = self._state_is_urgent = True
            return
        self._note_what_others_hold()
        self._state_unsaved = True  # until it is there: where it cannot be written now, the next checkpoint does
        self.state.save(self._fs, self.directory)
        self._state_unsaved = self._state_is_urgent = False
        self.proven_start_offset = self.log_start_offset

    def _checksum_is_due(self) -> bool:
        running, saved = self.active.checksum.running, self.state.checksum
        if running is None:
            return False
        saved_size = saved.size if saved is not None and saved.segment == self.active.base_offset else 0
        return running.value.size - saved_size >= CHECKSUM_SAVE_BYTES

    def _note_what_others_hold(self) -> None:
        """Have the state say where the log begins, how much is on the disk, its epochs, and the checksum so far."""
        self.state.log_start = self.log_start_offset
        if self.state.read_only is None:  # else nobody knows what the disk holds
            self.state.held_end = max(self.state.held_end, self.durable_end_offset)
        self.state.epochs = [(entry.epoch, entry.start_offset) for entry in self.epochs.entries]
        running = self.active.checksum.running if self._segments else None  # between an old log and one begun anew
        if running is not None:
            self.state.checksum = ActiveChecksum(self.active.base_offset, running.value.size, running.value.crc)

    def _take_up_state(self, *, clean: bool, compacted_before: int) -> int:
        """Read the state and the leader epochs; return the highest epoch that was ever given, -1 for none.

        Kafka's file of epochs has no checksum, the state has. So what our own stop in order has left there is believed
        where the file says something else, unless that has a higher epoch.
        """
        try:
            self.state = PartitionState.read(self._fs, self.directory)
        except MalformedStateError as error:
            self.state_problem = f"{PARTITION_STATE_FILE} is taken for absent: {error}"
            self.state = PartitionState()
        is_own_stop = clean and self.state.stopped is not None  # no Kafka had the log since
        self._stopped = self.state.stopped
        if clean and self.state.stopped is not None:
            self.state.log_start = self.state.stopped.log_start
        self.state.stopped = None
        self.state.compacted_before = max(self.state.compacted_before, compacted_before)
        self.epochs.load()
        # One of our stops that did not remember its epochs did not bring them to the disk after retention, either.
        is_current = bool(self.state.epochs) or not self._fs.exists(f"{self.directory}/{PARTITION_STATE_FILE}")
        self._epochs_of_stop = list(self.epochs.entries) if is_current else []
        remembered = [EpochEntry(*entry) for entry in self.state.epochs]
        highest = max(remembered, default=None)
        if highest is None:
            return self.epochs.latest
        if is_own_stop and self.epochs.entries != remembered and self.epochs.latest <= highest.epoch:
            if self.epochs.entries != remembered[: len(self.epochs.entries)]:  # Kafka drops epochs without records
                self.epochs.problem = self.epochs.problem or "it is not what the last stop left there"
            self.epochs.entries = remembered
        return max(self.epochs.latest, highest.epoch)

    def _take_up_checksum(self, *, bytes_max: int, is_sound: bool) -> None:
        """Go on with the active segment's checksum from where it is known, if at most ``bytes_max`` must be read.

        Unless the bytes are what was counted (``is_sound``) it begins anew. What is known of bytes that were cut off,
        or have changed, is forgotten for good before any is appended.
        """
        active, known = self.active, self.state.checksum
        if active.checksum.running is not None:
            return  # it was just made
        if known is not None and known.segment != active.base_offset:
            known = None
        so_far = NO_BYTES
        for found in (active.checksum.read(), known and SegmentChecksum(known.size, known.crc)):
            if found is not None and is_sound and so_far.size < found.size <= active.size:
                so_far = found
        if active.checksum.drop():
            self._fs.sync_directory(self.directory)
        if active.size - so_far.size <= bytes_max:
            active.checksum.begin(active.measure(so_far))
        if known is not None and so_far.size < known.size:
            self.state.checksum = None
            self._save_state()

    def _settle_appends(self, *, clean: bool) -> None:
        """Restore when the active segment was written to first and last; after a crash the first is an estimate.

        Its first timestamp is a good one if it can be true: not before the segment existed, not after its last write.
        """
        state, active = self.state, self.active
        closed = set(self._bases[:-1])
        state.rolls = {base: roll for base, roll in state.rolls.items() if base in closed}
        if not clean:
            state.last_append_ms = None  # the file's modification time knows better
        if not active.size:
            state.first_append_ms = None  # what had been appended is gone
        elif state.active_segment != active.base_offset or state.first_append_ms is None:
            begun = f"{self.directory}/{PARTITION_METADATA_FILE}"
            not_before = self._segments[-2].modified_ms if len(self._segments) > 1 else self._fs.stat(begun).mtime_ms
            state.first_append_ms = min(max(not_before, active.first_timestamp), active.modified_ms)
            state.active_segment = active.base_offset
            self._state_unsaved = True
