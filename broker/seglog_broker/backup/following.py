"""Follows a running broker: asks for a cut, puts what the place lacks of it, and publishes it as a point.

A cut says how many bytes of each partition belong to it. They are read from the files of the log directory while the
broker goes on. It may replace or remove some of these meanwhile, so it is asked for that before the point is published;
if a file of the point was concerned, or one is missing, the next cut is taken and what differs is put. What was put is
not put again: it belongs to a file by its path, inode, size and time of change, or by its checksum.

Nothing is kept on the disk, and in memory what the place has, a line for each file, and what the next point changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final

from seglog_broker.backup.agent_messages import Changes, Cut, PartitionCut, Published
from seglog_broker.backup.destination import Destination, DestinationError
from seglog_broker.backup.parts import count_kept, grouped
from seglog_broker.backup.points import LostFilesError, PointWriter
from seglog_broker.backup.source import SourceFile
from seglog_broker.backup.store import FILES, BackupError, FileEntry, LogEntry
from seglog_broker.backup.uploading import Piece, ReadContent, count_sound, upload
from seglog_broker.storage.directory.kafka_metadata import METADATA_DIRECTORY
from seglog_broker.storage.directory.snapshot import LINKED_LAST
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.copying import SourceTooShortError
from seglog_broker.storage.io.filesystem import FileSystem, read_file
from seglog_broker.storage.log.partition_state import PARTITION_STATE_FILE
from seglog_protocol import segment_files as names
from seglog_protocol.checkpoint_files import LEADER_EPOCH_CHECKPOINT, TopicPartition
from seglog_protocol.checksum import crc32c

REMOVED_A_ROUND: Final = 20
"""Objects that are removed after a round, at most: an object store takes a tenth of a second for one."""

NOTED_BYTES: Final = 256 * 1024 * 1024
"""Bytes put for a point that has not come, before those are noted for the next process; later an eighth of all."""

_SMALL_FILES: Final = (filenames.PARTITION_METADATA_FILE, LEADER_EPOCH_CHECKPOINT, PARTITION_STATE_FILE)
_KEPT_SUFFIXES: Final = frozenset(names.SEGMENT_SUFFIXES) - {names.AWAITED_SUFFIX}


class Follower:
    """Makes points of one log directory, one after the other, in the place of ``writer``, which is ``destination``.

    ``ask_cut`` is called with True for a cut of all partitions; ``ask_changes`` is about the last one.
    ``sent`` returns how many bytes were sent to the place so far. After an error ``run_round`` is called again.
    """

    def __init__(
        self,
        fs: FileSystem,
        log_dir: str,
        destination: Destination,
        writer: PointWriter,
        *,
        ask_cut: Callable[[bool], Cut],
        ask_changes: Callable[[], Changes],
        sent: Callable[[], int],
        keep_ms: int,
    ) -> None:
        self.lacking: str | None = None
        """The path of a file that the last round did not find, or not as it was in the cut."""
        self.untidy: str | None = None
        self.noted_bytes = NOTED_BYTES
        self._fs = fs
        self._log_dir = log_dir
        self._destination, self._writer = destination, writer
        self._ask_cut, self._ask_changes = ask_cut, ask_changes
        self._sent, self._keep_ms = sent, keep_ms
        self._told_sent = 0
        self._has_all = False
        self._registry: bytes | None = None
        self._bases: dict[TopicPartition, tuple[int, ...]] = {}
        self._next = writer.begun  # of which the place has the bytes already
        self._pending: dict[TopicPartition, PartitionCut] = {}  # not in a point yet
        self._to_list: set[TopicPartition] = set()  # of those, where files may have been replaced
        self._removing: Iterator[None] = iter(())
        self._moment_ms = 0
        self._is_unfinished = False  # it is not known whether the place has it
        self._names: dict[str, set[str]] = {}  # by directory: of the files that the place has
        for path in self._next.files:
            self._note_name(path)

    def run_round(self) -> Published | None:
        """Take a cut and publish it; None if it could not be as a whole, and the next one is to be taken.

        Raises DestinationError, OSError, and BackupError, TakenOverError among them.
        """
        self.lacking = None
        if self._is_unfinished:
            self._publish()
        cut = self._ask_cut(not self._has_all)
        self._moment_ms = cut.moment_ms
        self._note(cut)
        self._next.id = self._writer.next_id(cut.moment_ms)
        pieces = list(self._pieces())
        if pieces or self._differs():
            pieces += self._of_root([filenames.CLOCK_FILE])  # no reason for a point by itself
            self._upload(pieces)
        if self.lacking is not None:
            return None
        if self._differs():
            # Of other partitions only what was appended was read, which nothing replaces.
            changed = self._ask_changes().changed
            if not self._to_list.isdisjoint(changed):
                self._to_list.intersection_update(changed)  # the others are read: a first point has to list them all
                return None
            self._is_unfinished = True
            self._publish()
        self._settle()
        before, self._told_sent = self._told_sent, self._sent()
        return Published(cut.number, self._writer.state.id, self._told_sent - before)

    def _publish(self) -> None:
        point = self._writer.publish(self._next)
        if point.base == point.id:
            self._removing = self._writer.collect(self._moment_ms, self._keep_ms)
        self._is_unfinished = False
        self._settle()

    def tidy(self) -> None:
        """Remove some of what no moment that is kept needs. ``untidy`` is why that failed the last time, or None.

        Raises LostFilesError: begin anew, with another writer.
        """
        try:
            for _ in islice(self._removing, REMOVED_A_ROUND):
                self.untidy = None
        except LostFilesError:
            raise
        except (BackupError, DestinationError) as error:
            self._removing = iter(())  # until the next base
            self.untidy = f"what is not needed any more could not be removed: {error}"

    def _settle(self) -> None:
        """Forget what the place has now."""
        self._pending.clear()
        self._to_list.clear()

    # The cut.

    def _note(self, cut: Cut) -> None:
        gone = list(cut.gone)
        if cut.is_whole:
            named = {*cut.kept, *((found.topic, found.partition) for found in cut.partitions)}
            gone += [key for key in self._next.logs if key not in named]
            self._has_all = True
        for key in gone:
            self._forget_files(key)
            self._next.logs.pop(key, None)
            self._bases.pop(key, None)
            self._pending.pop(key, None)
            self._to_list.discard(key)
        for found in cut.partitions:
            key = found.topic, found.partition
            if found.bases is not None:
                self._bases[key] = found.bases
                self._to_list.add(key)
            self._pending[key] = found
            self._next.logs[key] = LogEntry(*key, found.topic_id, found.log_start, found.log_end, ())
        if cut.registry is not None:
            self._registry = cut.registry.encode()

    def _forget_files(self, key: TopicPartition) -> None:
        directory = filenames.partition_directory_name(*key)
        for name in list(self._names.get(directory, ())):
            self._set(f"{directory}/{name}", None)

    def _pieces(self) -> Iterator[Piece]:
        """Pieces that the place lacks of the cut. Entries of files of which it lacks nothing are brought up to date."""
        for key, cut in self._pending.items():
            try:
                yield from self._of_partition(key, cut)
            except (FileNotFoundError, SourceTooShortError):
                self.lacking = self.lacking or filenames.partition_directory_name(*key)
        if self._registry is not None:
            file = SourceFile(filenames.REGISTRY_FILE, len(self._registry), self._moment_ms, 0)
            yield from self._short_file(file, partial(bytes, self._registry))
        yield from self._of_root(name for name in LINKED_LAST if name != filenames.CLOCK_FILE)
        of_kafka = set(self._names.get(METADATA_DIRECTORY, ()))
        if self._fs.exists(f"{self._log_dir}/{METADATA_DIRECTORY}"):
            of_kafka.update(self._fs.list_directory(f"{self._log_dir}/{METADATA_DIRECTORY}"))
        yield from self._of_root(f"{METADATA_DIRECTORY}/{name}" for name in sorted(of_kafka))

    def _of_partition(self, key: TopicPartition, cut: PartitionCut) -> Iterator[Piece]:
        directory, bases = filenames.partition_directory_name(*key), self._bases[key]
        active = names.segment_file_name(bases[-1], names.LOG_SUFFIX)
        is_listed = key in self._to_list
        before = self._writer.state.logs.get(key)
        if is_listed or before is None or before.log_start != cut.log_start:
            yield from self._small_files(directory)
        if is_listed:
            found = self._fs.list_directory(f"{self._log_dir}/{directory}")
            closed = _of_closed_segments(found, bases)
            awaited = {name.removesuffix(names.AWAITED_SUFFIX) for name in found if name.endswith(names.AWAITED_SUFFIX)}
            for name in self._names.get(directory, set()) - {*closed, active, *_SMALL_FILES}:
                self._set(f"{directory}/{name}", None)
            for base in bases[:-1]:
                if (log := names.segment_file_name(base, names.LOG_SUFFIX)) not in closed:
                    self.lacking = self.lacking or f"{directory}/{log}"
            for name in closed:
                if name.endswith(names.LOG_SUFFIX) and name.removesuffix(names.LOG_SUFFIX) in awaited:
                    self._awaited_log(f"{directory}/{name}")
                    continue
                yield from self._file(f"{directory}/{name}", None, is_checked=True)
        yield from self._file(f"{directory}/{active}", cut.active_size, is_checked=is_listed)

    def _awaited_log(self, path: str) -> None:
        """Take over what the place has of a segment that is a hole yet; without that the next round has to wait."""
        before = self._next.files.get(path)
        if before is None or before.size != self._fs.stat(f"{self._log_dir}/{path}").size:
            self.lacking = self.lacking or path

    def _small_files(self, directory: str) -> Iterator[Piece]:
        for name in _SMALL_FILES:
            path = f"{self._log_dir}/{directory}/{name}"
            if self._fs.exists(path):
                found = self._fs.stat(path)
                file = SourceFile(f"{directory}/{name}", found.size, found.mtime_ms, found.inode)
                yield from self._short_file(file, partial(read_file, self._fs, path))

    def _of_root(self, paths: Iterable[str]) -> Iterator[Piece]:
        """Files that are replaced as a whole, of which there need not be any."""
        for path in paths:
            if not self._fs.exists(f"{self._log_dir}/{path}"):
                if path in self._next.files:
                    self._set(path, None)
            elif not self._fs.stat(f"{self._log_dir}/{path}").is_directory:
                yield from self._file(path, None, is_checked=True)

    def _file(self, path: str, size: int | None, *, is_checked: bool) -> Iterator[Piece]:
        """A file as a whole, or, if it only grows, its first ``size`` bytes.

        Unless it ``is_checked``, what the place has is what it begins with, if it is the same file.
        """
        found = self._fs.stat(f"{self._log_dir}/{path}")
        file = SourceFile(path, found.size if size is None else size, found.mtime_ms, found.inode)
        if found.size < file.size:
            self.lacking = self.lacking or path
            return
        before = self._next.files.get(path)
        parts = () if before is None else before.parts
        if before is not None:
            if not is_checked and found.inode != before.inode:  # rolled and replaced since the cut
                self.lacking = self.lacking or path
                return
            is_same = bool(found.inode) and found.inode == before.inode
            is_known = is_same and (before.size, before.mtime_ms) == (file.size, file.mtime_ms)
            if not is_known and (is_checked or not is_same or before.size > file.size):
                parts = parts[: count_sound(self._fs, self._log_dir, file, before)]
        added = file.size - sum(part.size for part in parts)
        parts = parts[: count_kept(parts, added, is_last=size is None)]
        piece, entry = Piece(file, parts), FileEntry(*file, parts)
        if piece.size:
            yield piece
        elif size is None or before is None or before._replace(mtime_ms=entry.mtime_ms) != entry:
            self._set(path, entry)

    def _short_file(self, file: SourceFile, content: ReadContent) -> Iterator[Piece]:
        """A file that is known by its content, which takes little to read."""
        data, before = content(), self._next.files.get(file.path)
        if before is None or before.size != len(data) or (data and before.parts[0].crc != crc32c(data)):
            yield Piece(file._replace(size=len(data)), (), content)

    # The place.

    def _upload(self, pieces: Iterable[Piece]) -> None:
        """Put the pieces into objects whose names have the id of the point."""
        groups = grouped(pieces, lambda piece: piece.size, (_segment_of, _topic_of))
        noted = put = 0
        for number, group in enumerate(groups):
            name = f"{FILES}{self._next.id}-{number:06d}"
            entries = upload(self._fs, self._log_dir, self._destination, name, group)
            for entry in entries:
                self._set(entry.path, entry)
            put += sum(piece.size for piece in group)
            if put - noted >= max(self.noted_bytes, put // 8):
                noted = put
                self._writer.note_begun(self._next)
            if len(entries) < len(group):
                there = {entry.path for entry in entries}
                self.lacking = next(piece.file.path for piece in group if piece.file.path not in there)

    def _differs(self) -> bool:
        """True if there is anything for a point."""
        state, new = self._writer.state, self._next
        return not state.id or new.files != state.files or new.logs != state.logs

    def _set(self, path: str, entry: FileEntry | None) -> None:
        """Note what the place has of a file; None: it is gone."""
        if entry is None:
            del self._next.files[path]
            directory, _, name = path.rpartition("/")
            self._names[directory].discard(name)
        else:
            self._next.files[path] = entry
            self._note_name(path)

    def _note_name(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        self._names.setdefault(directory, set()).add(name)


def _segment_of(piece: Piece) -> str:
    directory, _, name = piece.file.path.rpartition("/")
    return f"{directory}/{name.partition('.')[0]}"


def _topic_of(piece: Piece) -> str:
    return piece.file.path.rpartition("/")[0].rpartition("-")[0]


def _of_closed_segments(found: Iterable[str], bases: Sequence[int]) -> list[str]:
    """Names of files of closed segments, and of the producers' states at the beginnings of segments."""
    closed, every = {*bases[:-1]}, {*bases}

    def is_wanted(name: str) -> bool:
        parsed = names.parse_segment_file_name(name)
        if parsed is None:
            return False
        base, suffix = parsed
        return base in every if suffix == names.SNAPSHOT_SUFFIX else base in closed and suffix in _KEPT_SUFFIXES

    return [name for name in found if is_wanted(name)]
