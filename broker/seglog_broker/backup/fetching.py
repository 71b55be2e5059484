"""The work of fetchers for a broker that is started from a backup: the log directory is begun, the rest fetched later.

At once come all files but older segments: the active ones, indexes, snapshots of producers, small files, and all of
internal topics, which a start reads. Of every other closed segment only the ``.log`` is left for later, where it is
not so short that the backup has it together with others, and where no start has to read it: a state of producers is
counted from the newest snapshot on that is not above the active segment.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing, contextmanager

from seglog_broker.backup.counting import BytesDone
from seglog_broker.backup.destination import Destination, DestinationError
from seglog_broker.backup.opening import open_destination
from seglog_broker.backup.points import PointStore
from seglog_broker.backup.restoring import restore, write_files
from seglog_broker.backup.store import BackupError, FileEntry, Manifest
from seglog_broker.backup.taking import SHORT_BYTES
from seglog_broker.storage.directory.identity import is_being_restored, root_names
from seglog_broker.storage.directory.restored_from import RestoredFrom
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.segment.awaited import discard_arrived, read_awaited
from seglog_broker.workers.fetch_jobs import BeginJob, Begun, FetchJob, FetchResult
from seglog_broker.workers.messages import Tools
from seglog_protocol import segment_files as names
from seglog_protocol.errors import StorageError
from seglog_protocol.internal_topics import is_internal


def begin_directory(tools: Tools, job: BeginJob, progress: BytesDone) -> Begun:
    """Do the job. What a killed one has left is removed first. Raises StorageError, OSError."""
    with _opened(tools, job) as destination:
        _remove_unfinished(tools.fs, job.log_dir)
        points = PointStore(destination)
        if job.takes_over:
            points.marker_to_take_over()
        manifest = points.at(job.until_ms).manifest()
        later = files_for_later(manifest)
        origin = RestoredFrom(job.place, job.key_file, manifest.id) if later else None

        def take_over() -> None:
            if job.takes_over:
                points.take_over(job.new_id, manifest.id)

        restore(
            *(tools.fs, manifest, destination, job.log_dir, job.new_id, progress),
            later=later,
            origin=origin,
            before_last_step=take_over,
        )
        awaited_size = sum(file.size for file in later)
        return Begun(manifest.id, manifest.size - awaited_size, len(later), awaited_size)


def fetch_segment(tools: Tools, job: FetchJob, progress: BytesDone) -> FetchResult:
    """Do the job. Raises StorageError, OSError."""
    with _opened(tools, job) as destination:
        try:
            awaited = read_awaited(tools.fs, job.directory, job.base_offset)
        except ValueError as error:
            raise StorageError(f"what is awaited in {job.directory} is not known: {error}") from error
        name = f"{names.segment_file_name(job.base_offset, names.LOG_SUFFIX)}{names.TEMPORARY_SUFFIX}"
        file = FileEntry(name, awaited.size, awaited.mtime_ms, 0, awaited.parts)
        try:
            write_files(tools.fs, destination, job.directory, [file], progress)
        except BaseException:  # on a full disk it would keep what others need
            discard_arrived(tools.fs, job.directory, job.base_offset)
            raise
        return FetchResult(awaited.size)


def files_for_later(manifest: Manifest) -> list[FileEntry]:
    """The ``.log`` files without which a broker can serve the directory."""
    files: dict[str, dict[str, FileEntry]] = {}
    for file in manifest.files:
        directory, _, name = file.path.rpartition("/")
        files.setdefault(directory, {})[name] = file
    found: list[FileEntry] = []
    for log in manifest.logs:
        if not is_internal(log.topic) and log.log_end is not None:  # else a start has to find out more
            found += _older_segments(files.get(filenames.partition_directory_name(log.topic, log.partition), {}))
    return found


def _older_segments(files: dict[str, FileEntry]) -> Iterator[FileEntry]:
    parsed = {name: found for name in files if (found := names.parse_segment_file_name(name)) is not None}
    if any(suffix.endswith(names.SWAP_SUFFIX) for _, suffix in parsed.values()):
        return  # of a compaction that a kill has interrupted: a start reads what it replaces
    bases = sorted(base for base, suffix in parsed.values() if suffix == names.LOG_SUFFIX)
    snapshots = [base for base, suffix in parsed.values() if suffix == names.SNAPSHOT_SUFFIX and base <= bases[-1]]
    counted_from = bisect_right(bases, max(snapshots, default=-1)) - 1  # the number of the first that a start may read
    for base in bases[: max(0, counted_from)]:
        file = files[names.segment_file_name(base, names.LOG_SUFFIX)]
        if file.size >= SHORT_BYTES:
            yield file


def _remove_unfinished(fs: FileSystem, path: str) -> None:
    """Remove all that a restore has left that was killed."""
    if fs.exists(path) and is_being_restored(fs, path):
        for name in sorted(root_names(fs, path), key=lambda name: name == filenames.FORMAT_FILE):  # the mark last
            if fs.stat(f"{path}/{name}").is_directory:
                fs.remove_tree(f"{path}/{name}")
            else:
                fs.unlink(f"{path}/{name}")
        fs.sync_directory(path)


@contextmanager
def _opened(tools: Tools, job: BeginJob | FetchJob) -> Iterator[Destination]:
    """The destination of a job; its failures become StorageError."""
    try:
        throttle = Throttle(job.bytes_per_second or None, time.monotonic, time.sleep, window_seconds=0.0)
        with closing(open_destination(tools.fs, job.place, key_file=job.key_file, throttle=throttle)) as destination:
            yield destination
    except (BackupError, DestinationError) as error:
        raise StorageError(str(error)) from error
