"""Flushes: the fsyncs that make a log durable. They are prepared on the loop; the kernel or a thread runs them."""

from collections.abc import Sequence
from itertools import islice

from seglog_broker.storage.io.filesystem import File, FileSystem, PendingSync
from seglog_broker.storage.io.handle_pool import Lease


class Flush:
    """The fsyncs that make a log durable up to ``end_offset``. Run it once, alone or with others; then release it.

    It owns leases on the files and does not use the log, so that it can run in a thread.
    """

    def __init__(self, fs: FileSystem, leases: Sequence[Lease[File]], directory: str | None, end_offset: int) -> None:
        self._fs = fs
        self.leases = leases
        self.directory = directory  # to be synced too, because a file in it is new; or None
        self.end_offset = end_offset
        self.files_are_synced = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to sync, so that it need not be run."""
        return not self.leases and self.directory is None

    def run(self) -> None:
        """Return when everything is on the disk.

        After an OSError it is unknown, for good, which bytes are on the disk. If ``files_are_synced`` is true
        nevertheless, only the names in the directory are in doubt.
        """
        [error] = run_flushes(self._fs, [self])
        if error is not None:
            raise error

    def release(self) -> None:
        """Release the leases, whether or not the flush succeeded."""
        for lease in self.leases:
            lease.release()


class PendingFlushes:
    """Flushes that run without a thread; see ``begin_flushes``."""

    def __init__(self, flushes: Sequence[Flush], syncing: PendingSync) -> None:
        self._flushes = flushes
        self._syncing = syncing

    @property
    def descriptor(self) -> int | None:
        """As that of ``PendingSync``."""
        return self._syncing.descriptor

    def collect(self) -> list[OSError | None] | None:
        """The error of each flush, None where it succeeded; None for the list while some are running."""
        outcomes = self._syncing.collect()
        return None if outcomes is None else _note_files(self._flushes, outcomes)


def begin_flushes(fs: FileSystem, flushes: Sequence[Flush]) -> PendingFlushes | None:
    """Begin to run flushes side by side, and return at once.

    Returns None, with nothing begun, if ``run_flushes`` must do it: because the file system cannot, or because a
    directory must be synced too, as after a roll.
    """
    if any(flush.directory is not None for flush in flushes):
        return None
    syncing = fs.begin_sync(_files_of(flushes))
    return None if syncing is None else PendingFlushes(flushes, syncing)


def run_flushes(fs: FileSystem, flushes: Sequence[Flush]) -> list[OSError | None]:
    """Run many flushes side by side, in any thread. Returns the error of each, None where it succeeded.

    The files are synced first, then the directories, each only if all of its flush's files were synced.
    """
    errors = _note_files(flushes, fs.sync_files(_files_of(flushes)))
    named = [(number, flush.directory) for number, flush in enumerate(flushes) if flush.files_are_synced]
    directories = [(number, directory) for number, directory in named if directory is not None]
    synced = fs.sync_directories([directory for _, directory in directories])
    for (number, _), error in zip(directories, synced, strict=True):
        errors[number] = error
    return errors


def _files_of(flushes: Sequence[Flush]) -> list[File]:
    return [lease.resource for flush in flushes for lease in flush.leases]


def _note_files(flushes: Sequence[Flush], outcomes: Sequence[OSError | None]) -> list[OSError | None]:
    """Record in each flush whether its files are synced; return its first error of ``outcomes``, those of all files."""
    errors: list[OSError | None] = []
    left = iter(outcomes)
    for flush in flushes:
        failed = [error for error in islice(left, len(flush.leases)) if error is not None]
        flush.files_are_synced = not failed
        errors.append(failed[0] if failed else None)
    return errors
