"""Restores a backup into a directory, and compares what the real loader finds there with what the backup counted."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from seglog_broker.backup.counting import BytesDone, count_segment
from seglog_broker.backup.destination import Destination
from seglog_broker.backup.finishing import NOT_OF_A_CUT, finish_cut
from seglog_broker.backup.store import BackupError, FileEntry, LogEntry, Manifest
from seglog_broker.config import BrokerConfig
from seglog_broker.storage.directory.identity import (
    begin_restore,
    encode_restored_identity,
    mark_behind,
    root_names,
    write_format,
)
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.directory.opening import open_log_directory
from seglog_broker.storage.directory.restored_from import RestoredFrom
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.copying import PieceSync
from seglog_broker.storage.io.filesystem import FileSystem, parent, read_file, write_all, write_file_atomically
from seglog_broker.storage.producers.producer_ids import raise_next_id
from seglog_broker.storage.segment.awaited import AwaitedLog, Part, marker_of, write_awaited
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.segment_files import TEMPORARY_SUFFIX

FILES_A_SYNC: Final = 32
"""Files that are synced side by side."""

GAP_BYTES: Final = 1024 * 1024
"""Bytes between two pieces that are read with them: an object store takes as long for a request."""

DIFFERENCES_MAX: Final = 20

PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""More than a broker gives from the moment of a backup to the last one: none of those may be given again."""

ROOM_BYTES: Final = 64 * 1024 * 1024
"""To be left when a backup is restored: a broker needs room to start."""


def restore(
    fs: FileSystem,
    manifest: Manifest,
    destination: Destination,
    path: str,
    new_id: str,
    progress: BytesDone = lambda _size: None,
    *,
    later: Collection[FileEntry] = (),
    origin: RestoredFrom | None = None,
    before_last_step: Callable[[], None] = lambda: None,
) -> None:
    """Make ``path``, which is absent or empty, the log directory of the backup, with the directory id ``new_id``.

    The segments in ``later`` are left to be awaited, from ``origin``, which must be given then. Until the last step
    every start refuses the directory. Raises BackupError, DestinationError, OSError.
    """
    _refuse_unless_empty(fs, path)
    free = fs.free_bytes(path if fs.exists(path) else parent(path))
    if free < manifest.size + ROOM_BYTES:
        raise BackupError(
            f"the backup has {manifest.size:,} bytes, and there is room for {free:,} where {path} is to be: a broker "
            f"needs {ROOM_BYTES:,} more than the backup has"
        )
    if not fs.exists(path):
        fs.make_directory(path)
        fs.sync_directory(parent(path))
    begin_restore(fs, path)
    left = {file.path for file in later}
    files = [file for file in manifest.files if file.path != filenames.FORMAT_FILE and file.path not in left]
    if manifest.is_cut:
        files = [file for file in files if file.path not in NOT_OF_A_CUT]
    write_files(fs, destination, path, files, progress)
    for file in later:
        write_awaited(fs, f"{path}/{file.path}", AwaitedLog(file.size, file.mtime_ms, file.parts))
    _make_durable(fs, path, [*later, *(file._replace(path=marker_of(file.path)) for file in later)])
    if origin is not None:
        origin.write(fs, path)
    before_last_step()
    finish(fs, path, manifest, new_id)


def finish(fs: FileSystem, path: str, manifest: Manifest, new_id: str) -> None:
    """Make ``path``, which has all files of the backup, a log directory that starts; may be called again.

    Raises LogDirectoryError for a file that makes no sense, OSError.
    """
    if manifest.is_cut:
        finish_cut(fs, path, manifest)
    identity = f"{path}/{filenames.META_PROPERTIES_FILE}"
    if fs.exists(identity):
        write_file_atomically(fs, identity, encode_restored_identity(read_file(fs, identity), new_id, manifest.id))
    raise_next_id(fs, f"{path}/{filenames.PRODUCER_IDS_FILE}", PRODUCER_IDS_SKIPPED)
    mark_behind(fs, path)
    write_format(fs, path)


def compare(
    fs: FileSystem, clock: Clock, config: BrokerConfig, path: str, manifest: Manifest, progress: BytesDone
) -> list[str]:
    """Open a restored directory as a start does, read every record, and stop: a sentence for each difference.

    Raises LogDirectoryError where it cannot be opened.
    """
    directory = open_log_directory(fs, clock, config, path)
    try:
        found = list(_differences(directory, manifest, progress))
    except BaseException:
        directory.abandon()
        raise
    return found[:DIFFERENCES_MAX] + directory.close()


def _differences(directory: LogDirectory, manifest: Manifest, progress: BytesDone) -> Iterator[str]:
    named = {(log.topic, log.partition) for log in manifest.logs}
    yield from (f"{topic}-{number} is not in the backup" for topic, number in directory.logs.keys() - named)
    for entry in manifest.logs:
        name = filenames.partition_directory_name(entry.topic, entry.partition)
        is_as_it_was = any(problem.startswith(f"{name} ") for problem in manifest.problems)
        if (entry.topic, entry.partition) not in directory.logs:
            if not is_as_it_was:
                reason = directory.report.offline.get((entry.topic, entry.partition), "it is not there")
                yield f"{name} could not be opened: {reason}"
            continue
        is_as_it_was |= manifest.is_cut  # whose logs all are
        if directory.report.opened[entry.topic, entry.partition].recovery is not None and not is_as_it_was:
            yield f"{name} had to be recovered"
        found = _log_differences(directory, entry, progress, is_counted=not manifest.is_cut)
        yield from (f"{name}: {difference}" for difference in found)


def _log_differences(
    directory: LogDirectory, entry: LogEntry, progress: BytesDone, *, is_counted: bool
) -> Iterator[str]:
    """Sentences on what a restored log has otherwise than the backup counted, or that cannot be read."""
    log = directory.logs[entry.topic, entry.partition]
    for what, counted, there in (
        ("begins", entry.log_start, log.log_start_offset),
        ("ends", entry.log_end, log.log_end_offset),
    ):
        if counted is not None and counted != there:
            yield f"the log {what} at offset {there}, in the backup at {counted}"
    bases = list(log.segments.bases)
    counted_facts = {facts.base_offset: facts for facts in entry.segments}
    if is_counted and bases != list(counted_facts):
        yield f"it has {len(bases)} segments, the backup {len(counted_facts)}"
        return
    for number, base in enumerate(bases):
        segment = log.segments[number]
        known = [damage for damage in log.state.damaged if damage.segment == base]
        following = bases[number + 1] if number + 1 < len(bases) else None
        try:
            facts = count_segment(
                segment.log, following, compacted_before=log.state.compacted_before, known=known, with_records=True
            )
        except CorruptRecordError as error:
            yield error.message
            continue
        was = counted_facts.get(base)
        if was is not None and facts != was:
            yield (
                f"segment {base} has {facts.records:,} records from offset {facts.first_offset} to "
                f"{facts.next_offset - 1} in {facts.size:,} bytes, the backup counted {was.records:,} from "
                f"{was.first_offset} to {was.next_offset - 1} in {was.size:,}"
            )
        lost = sum(damage.end_position - damage.position for damage in known if damage.reason != "missing")
        if was is None and facts.invalid_bytes > lost:
            yield f"segment {base} has {facts.invalid_bytes:,} bytes that are no record batch"
        progress(facts.size)


def _refuse_unless_empty(fs: FileSystem, path: str) -> None:
    if not fs.exists(path):
        if not fs.exists(parent(path)):
            raise BackupError(f"{parent(path)} does not exist: make it, or name another place")
        return
    if not fs.stat(path).is_directory:
        raise BackupError(f"{path} is a file: name a directory that is empty or not there yet")
    found = root_names(fs, path)
    if found not in ([], [f"{filenames.FORMAT_FILE}{TEMPORARY_SUFFIX}"]):  # what a killed restore left at its beginning
        raise BackupError(
            f"{path} is not empty ({found[0]} is there), and nothing is overwritten: name a directory that is empty or "
            "not there yet"
        )


_Piece = tuple[Part, str, int]
"""A part, the path of its file, and its position in that."""


def write_files(
    fs: FileSystem,
    destination: Destination,
    path: str,
    files: Sequence[FileEntry],
    progress: BytesDone,
    first: Mapping[str, int] | None = None,
) -> None:
    """Write files below ``path``, each from its part with the number in ``first`` on, by path; without, all of it.

    All of it is durable then. Raises BackupError for bytes that are not those that were backed up, DestinationError,
    OSError.
    """
    pieces: dict[str, list[_Piece]] = {}
    for directory in sorted({parent(file.path) for file in files if "/" in file.path}):
        if not fs.exists(f"{path}/{directory}"):
            fs.make_directory(f"{path}/{directory}")
    for file in files:
        kept, position = 0 if first is None else first[file.path], 0
        for number, part in enumerate(file.parts):
            if number >= kept:
                pieces.setdefault(part.name, []).append((part, file.path, position))
            position += part.size
        with fs.open(f"{path}/{file.path}", create=True) as opened:
            opened.truncate(sum(part.size for part in file.parts[:kept]))
    for name, found in pieces.items():
        _write_pieces(fs, destination, name, sorted(found, key=lambda piece: piece[0].position), path, progress)
    _make_durable(fs, path, files)


def _write_pieces(
    fs: FileSystem, destination: Destination, name: str, pieces: list[_Piece], path: str, progress: BytesDone
) -> None:
    """Write what the file ``name`` of the destination has into files below ``path``, which are there."""
    stream, end = _Stream(iter(()), 0), -1
    for number, (part, target, position) in enumerate(pieces):
        if part.position >= end:
            end = _end_of_run(pieces, number)
            stream = _Stream(destination.read(name, part.position, end), part.position)
        crc = written = 0
        with fs.open(f"{path}/{target}", writable=True) as file:
            syncs = PieceSync(file)
            for chunk in stream.take(part.position, part.size):
                crc = crc32c(chunk, crc)
                written += write_all(file, [chunk], position + written)
                syncs.note(len(chunk))
        if written != part.size or crc != part.crc:
            raise BackupError(
                f"{destination.place}/{name} is damaged: what it has of {target} has another checksum than was "
                "written; restore another one by --until or --backup"
            )
        progress(part.size)


def _end_of_run(pieces: list[_Piece], first: int) -> int:
    """Where the pieces end that are read at once, from the one with that number on: before the first larger gap."""
    end = pieces[first][0].position
    for number in range(first, len(pieces)):
        part = pieces[number][0]
        if part.position > end + GAP_BYTES:
            break
        end = max(end, part.position + part.size)
    return end


@dataclass(slots=True)
class _Stream:
    """Chunks one after the other, of which pieces are taken."""

    _chunks: Iterator[bytes]
    _start: int
    _chunk: bytes = b""

    def take(self, position: int, size: int) -> Iterator[bytes]:
        """``size`` bytes from ``position`` on, which is not before the end of the last piece; fewer at the end."""
        end = position + size
        while position < end:
            while position >= self._start + len(self._chunk):
                self._start += len(self._chunk)
                self._chunk = next(self._chunks, b"")
                if not self._chunk:
                    return
            piece = self._chunk[position - self._start : end - self._start]
            yield piece
            position += len(piece)


def _make_durable(fs: FileSystem, path: str, files: Sequence[FileEntry]) -> None:
    """Sync these files, give them their times, and sync the directories they are in. Raises OSError."""
    for begin in range(0, len(files), FILES_A_SYNC):
        some = files[begin : begin + FILES_A_SYNC]
        with ExitStack() as opened:
            found = [opened.enter_context(fs.open(f"{path}/{file.path}", writable=True)) for file in some]
            for error in filter(None, fs.sync_files(found)):
                raise error
        for file in some:  # after that: a standby believes it
            fs.set_mtime(f"{path}/{file.path}", file.mtime_ms)
    for directory in sorted({parent(f"{path}/{file.path}") for file in files}):
        fs.sync_directory(directory)
    fs.sync_directory(path)
