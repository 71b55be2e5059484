"""Closes logs: their records and indexes to the disk, then their last small files, last their handles; or freezes one.

A clean stop closes every log, and an fsync waits for the disk. So the logs are closed a round at a time, and the fsyncs
of a round run side by side, in three waves: first the files of segments; then the temporary files of producer
snapshots, leader epochs and states; last the directories in which these were renamed. Each wave of a log begins when
the one before is on the disk, because the state and the snapshot's name say where the log ended. An error concerns its
log alone.

A frozen log is the log at one moment, for a copy of it that opens like a log after a clean stop. Closed segments do not
change, the active one only grows, and all but the last small files are replaced as a whole. So the copy is made of
second names of the files, the lengths of those that grow, and the small files as a clean stop would write them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from seglog_broker.storage.io.filenames import PARTITION_METADATA_FILE
from seglog_broker.storage.io.filesystem import FileSystem, write_files_atomically
from seglog_broker.storage.io.flushes import Flush, run_flushes
from seglog_broker.storage.io.handle_pool import STOP_EXCESS, HandlePool
from seglog_broker.storage.io.os_errors import is_no_room, storage_error
from seglog_broker.storage.log.loaded_log import LoadedLog
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE, StateWrite, StoppedAt
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT
from seglog_protocol.errors import OutOfResourcesError


class FrozenLog(NamedTuple):
    """What a copy of a log consists of, as long as its segments are neither renamed nor removed."""

    directory: str
    log_start: int
    log_end: int
    is_sound: bool
    """Whether it is known what is on the disk: False after a failed fsync."""
    bases: Sequence[int]
    """Of its segments, ascending; the last one is active."""
    lengths: Mapping[str, int]
    """Bytes of the files of the active segment, by name: those behind them are of later appends."""
    contents: Sequence[tuple[str, bytes]]
    """Small files by name, as a clean stop would write them."""

    def linked(self, found: Sequence[str]) -> list[str]:
        """Those of the names ``found`` in the directory that the copy has as they are."""
        closed, active = set(self.bases[:-1]), self.bases[-1]
        written = {name for name, _ in self.contents}

        def is_linked(name: str) -> bool:
            parsed = names.parse_segment_file_name(name)
            if parsed is None:
                return name == PARTITION_METADATA_FILE
            base, suffix = parsed
            is_snapshot = suffix == names.SNAPSHOT_SUFFIX and (base in closed or base == active)
            return name in self.lengths or is_snapshot or (base in closed and suffix in names.SEGMENT_SUFFIXES)

        return [name for name in found if name not in written and is_linked(name)]


def freeze(log: LoadedLog) -> FrozenLog:
    """The content of a copy of the log at this moment, as after a clean stop.

    Raises OSError when index entries that are in memory cannot be written.
    """
    active = log.segments.active
    active.offset_index.write_pending()
    active.time_index.write_pending()
    lengths = {
        names.segment_file_name(active.base_offset, suffix): size
        for suffix, size in (
            (names.LOG_SUFFIX, active.size),
            (names.OFFSET_INDEX_SUFFIX, active.offset_index.size),
            (names.TIME_INDEX_SUFFIX, active.time_index.size),
        )
    }
    transactions = names.segment_file_name(active.base_offset, names.TXN_INDEX_SUFFIX)
    if log.files.fs.exists(f"{log.files.directory}/{transactions}"):
        lengths[transactions] = log.files.fs.stat(f"{log.files.directory}/{transactions}").size
    contents = [
        (PARTITION_STATE_FILE, log.state_file.encoded_as_stopped()),
        (LEADER_EPOCH_CHECKPOINT, log.epochs.file[1]),
    ]
    snapshot = log.snapshots.file_at(log.offsets.end)
    if snapshot is not None:
        contents.append((names.segment_file_name(log.offsets.end, names.SNAPSHOT_SUFFIX), snapshot[1]))
    return FrozenLog(
        log.files.directory,
        log.offsets.start,
        log.offsets.end,
        log.state_file.state.read_only is None,
        tuple(log.segments.bases),
        lengths,
        contents,
    )


LOGS_A_ROUND: Final = 64
"""Logs that are closed together; each has up to three small files open at a time, beside the handles of the pool."""

T = TypeVar("T")
Contents = list[tuple[str, bytes]]
"""(path, content) of files to be replaced."""


class LogClosing:
    """The closing of one log, in the steps of ``close_together``, which calls each of them once and in this order."""

    def __init__(self, log: LoadedLog) -> None:
        self.directory = log.files.directory
        self._log = log
        self._snapshot: tuple[str, bytes] | None = None
        self._state: StateWrite | None = None

    def begin(self, *, sparing: bool) -> Flush:
        """Write what the indexes have in memory; return the flush of all segments. Raises OSError or StorageError."""
        self._log.segments.active.close()
        return self._log.flusher.prepare_deep_flush(sparing=sparing)

    def end_flush(self, flush: Flush, error: OSError | None, *, sparing: bool) -> None:
        """Apply the result of the flush, and sync what it had no room for. Raises OSError or StorageError."""
        if self._log.flusher.settle_flush(flush, error) < self._log.offsets.end:
            self._log.flusher.flush_deep(sparing=sparing)

    def last_files(self, *, sparing: bool) -> Contents:
        """The small files as they are to be found by the next start, without those that are so already."""
        state, end, epochs = self._log.state_file.state, self._log.offsets.end, self._log.epochs
        if not sparing:
            self._snapshot = self._log.snapshots.file_at(end)
        if state.read_only is None:
            state.held_end = end
        state.stopped = StoppedAt(self._log.offsets.start, end)
        if sparing and self._log.state_file.is_expendable:
            self._log.state_file.mark_dirty()
        else:
            self._state = self._log.state_file.prepare_last()
        return [
            *([] if self._snapshot is None else [self._snapshot]),
            *([] if epochs.is_saved else [epochs.file]),  # retention truncates them and does not save
            *([] if self._state is None else [self._state.file]),
        ]

    def write(self, contents: Contents) -> None:
        """Write the last files of this log alone. Where the snapshot finds no room, a start reads more batches."""
        fs = self._log.files.fs
        try:
            write_files_atomically(fs, contents)
        except OSError as error:
            if self._snapshot is None or not is_no_room(error):
                raise
            contents.remove(self._snapshot)
            self._snapshot = None
            write_files_atomically(fs, contents)

    def finish(self) -> None:
        """The last files are on the disk. Raises OSError."""
        if self._snapshot is not None:
            self._log.snapshots.note_taken(self._log.offsets.end)
        self._log.epochs.note_saved()
        if self._state is not None:
            self._log.state_file.finish(written=True)
            self._state = None
        self._log.snapshots.remove_strays(self._log.segments.bases)

    def release(self) -> None:
        """Give up the writers, whatever has failed; the handle pool still has the files."""
        if self._state is not None:
            self._log.state_file.finish(written=False)
        self._log.release_writers()


def close_together(
    fs: FileSystem, handles: HandlePool, closings: Sequence[LogClosing], *, sparing: bool = False
) -> list[Exception | None]:
    """Close logs; after that a start need not check their directories. Returns the error of each, or None.

    A StorageError is one of the disk: the next start has to recover that log. Any other error is a bug. With
    ``sparing``, because inodes are short, no file is made that a start can do without: then a state may not be saved
    (``StateFile.is_saved``).
    """
    errors: list[Exception | None] = []
    while len(errors) < len(closings):
        first = len(errors)
        errors += _close_round(fs, handles, closings[first : first + LOGS_A_ROUND], sparing=sparing)
    return errors


def _close_round(
    fs: FileSystem, handles: HandlePool, closings: Sequence[LogClosing], *, sparing: bool
) -> list[Exception | None]:
    """Close the first of these logs, as many as there are handles for, but at least one."""
    failed: dict[LogClosing, Exception] = {}

    def attempt(closing: LogClosing, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except OSError as error:
            failed[closing] = storage_error(f"{closing.directory} could not be closed: {error}", error)
            failed[closing].__cause__ = error
        except Exception as error:  # noqa: BLE001 - a bug in one must not cost the others a recovery
            failed[closing] = error
        return None

    flushes: list[tuple[LogClosing, Flush]] = []
    tried: list[LogClosing] = []
    for closing in closings:
        if flushes and not handles.has_room_for(STOP_EXCESS):
            break
        tried.append(closing)
        flush = attempt(closing, partial(closing.begin, sparing=sparing))
        if flush is not None:
            flushes.append((closing, flush))
        elif flushes and isinstance(failed[closing], OutOfResourcesError):
            del failed[tried.pop()]  # again in the next round, when the files of this one are closed
            break
    try:
        outcomes = run_flushes(fs, [flush for _, flush in flushes])
    except Exception as error:  # noqa: BLE001 - a bug: what of these logs is on the disk is not known
        for closing, flush in flushes:
            flush.release()
            failed[closing] = error
    else:
        for (closing, flush), outcome in zip(flushes, outcomes, strict=True):
            attempt(closing, partial(closing.end_flush, flush, outcome, sparing=sparing))
    handles.forget_in(*(closing.directory for closing in tried))  # the small files may need their descriptors
    written: dict[LogClosing, Contents] = {}
    for closing in tried:
        if closing not in failed:
            contents = attempt(closing, partial(closing.last_files, sparing=sparing))
            if contents is not None:
                written[closing] = contents
    if not _are_written_together(fs, written):
        for closing, contents in written.items():
            attempt(closing, partial(closing.write, contents))
    for closing in written:
        if closing not in failed:
            attempt(closing, closing.finish)
    for closing in tried:
        closing.release()
    return [failed.get(closing) for closing in tried]


def _are_written_together(fs: FileSystem, written: Mapping[LogClosing, Contents]) -> bool:
    """Write the last files of several logs at once; if that fails, it is not known which of them are on the disk."""
    if len(written) < 2:
        return False
    try:
        write_files_atomically(fs, [file for contents in written.values() for file in contents])
    except Exception:  # noqa: BLE001 - also of a bug, which shows again in the log that has it
        return False
    return True
