"""Leader epochs: the offsets that were written after each start of the broker, so that a reused offset is detected.

A map epoch -> start offset, both strictly ascending, kept in ``leader-epoch-checkpoint`` of the partition. The
epoch starts at 0 and rises by one at every start that was not clean; the new entry is on disk before the first append,
so no (epoch, offset) is used twice.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_files_atomically
from seglog_protocol.checkpoint_files import (
    LEADER_EPOCH_CHECKPOINT,
    MalformedCheckpointError,
    decode_checkpoint,
    encode_checkpoint,
)
from seglog_protocol.segment_files import OFFSET_MAX

EPOCH_MAX: Final = 2**31 - 1
"""The highest epoch that fits the header of a batch."""

_UNKNOWN: Final = -1


class EpochEntry(NamedTuple):
    """Batches from ``start_offset`` up to that of the next entry have ``epoch``."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The map and its file. Changes stay in memory until ``save``."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._path = f"{directory}/{LEADER_EPOCH_CHECKPOINT}"
        self.entries: list[EpochEntry] = []
        self.problem: str | None = None  # why the file was ignored, or None
        self._saved: list[EpochEntry] | None = None

    def load(self) -> None:
        """Read the file; a malformed one counts as empty and is named in ``problem``."""
        self.entries, self._saved = [], None
        if not self._fs.exists(self._path):
            return
        try:
            for epoch, start in decode_checkpoint(read_file(self._fs, self._path), 2):
                self.assign(int(epoch), int(start))
        except ValueError as error:
            self.entries, self.problem = [], str(error)
            return
        self._saved = list(self.entries)

    @property
    def is_saved(self) -> bool:
        """Whether the file has every change."""
        return self.entries == self._saved

    def save(self) -> None:
        """Write the file if anything changed; returns when it survives a power cut."""
        if not self.is_saved:
            save_together(self._fs, [self])

    @property
    def file(self) -> tuple[str, bytes]:
        """The path of the file, and what it is to have."""
        return self._path, encode_checkpoint(self.entries)

    def note_saved(self) -> None:
        """The file has been written."""
        self._saved = list(self.entries)

    @property
    def latest(self) -> int:
        """The highest epoch, or -1 when there is none."""
        return self.entries[-1].epoch if self.entries else _UNKNOWN

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add that ``epoch`` begins at ``start_offset``; remove entries at the end that contradict it."""
        if not (0 <= epoch <= EPOCH_MAX and 0 <= start_offset <= OFFSET_MAX):
            raise MalformedCheckpointError(f"epoch {epoch} at offset {start_offset}: there is no such epoch or offset")
        if self.entries and epoch == self.entries[-1].epoch and start_offset >= self.entries[-1].start_offset:
            return
        while self.entries and (self.entries[-1].epoch >= epoch or self.entries[-1].start_offset >= start_offset):
            self.entries.pop()
        self.entries.append(EpochEntry(epoch, start_offset))

    def truncate_from_end(self, offset: int) -> None:
        """Drop entries that start at or above ``offset``; a negative one is ignored."""
        if offset >= 0:
            self.entries = [entry for entry in self.entries if entry.start_offset < offset]

    def truncate_from_start(self, offset: int) -> None:
        """Keep only the last of the entries that start at or below ``offset``, and have it start there."""
        below = [entry for entry in self.entries if entry.start_offset <= offset]
        if below:
            self.entries = [EpochEntry(below[-1].epoch, offset), *self.entries[len(below) :]]

    def epoch_for(self, offset: int) -> int:
        """The epoch under which ``offset`` was written, or -1."""
        behind = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[behind - 1].epoch if behind else _UNKNOWN

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(the highest epoch at or below ``epoch``, its end offset), or (-1, -1) when that is not known.

        Below the first epoch it is (``epoch``, the start of the first), for numbers that are no epochs, too, as in
        Kafka; -1 stands for an epoch that a client does not know.
        """
        if epoch == _UNKNOWN or not self.entries or epoch > self.latest:
            return (_UNKNOWN, _UNKNOWN)
        if epoch == self.latest:
            return (epoch, log_end)
        if epoch < self.entries[0].epoch:
            return (epoch, self.entries[0].start_offset)
        at = max(number for number, entry in enumerate(self.entries) if entry.epoch <= epoch)
        return (self.entries[at].epoch, self.entries[at + 1].start_offset)


def save_together(fs: FileSystem, unsaved: Sequence[LeaderEpochs]) -> None:
    """Write the files of several maps, which are synced side by side; each has one file open.

    Returns when they survive a power cut. Raises OSError; then any of them may have been written.
    """
    write_files_atomically(fs, [epochs.file for epochs in unsaved])
    for epochs in unsaved:
        epochs.note_saved()
