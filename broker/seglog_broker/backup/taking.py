"""Takes a backup of a source: what the last one has is not copied again.

A file with the inode, the size and the time of change that it had then is the same file. A ``.log`` that has only grown
since, by the checksum of what was there, gets a further part. Short files come into one file of the destination
together, which is written anew for each backup; so no old one is kept for the sake of a few bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

from seglog_broker.backup.counting import BytesDone, CutLog, count_segment
from seglog_broker.backup.source import Source, SourceFile
from seglog_broker.backup.store import (
    FILES,
    BackupError,
    BackupStore,
    FileEntry,
    LogEntry,
    Manifest,
    SegmentFacts,
    id_at,
)
from seglog_broker.backup.uploading import Piece, count_sound, upload
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.copying import SourceTooShortError
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.log.partition_state import PartitionState
from seglog_broker.storage.segment.awaited import Part
from seglog_protocol import segment_files as names
from seglog_protocol.version import VERSION

SHORT_BYTES: Final = 16 * 1024
"""A shorter file is put together with others."""

PARTS_MAX: Final = 32
"""Of a ``.log``; with more it is copied anew, as one."""

PROBLEMS_MAX: Final = 100


def take_backup(
    fs: FileSystem,
    source: Source,
    store: BackupStore,
    now_ms: int,
    *,
    link: bool = False,
    take_over: bool = False,
    keep: int | None = None,
    progress: BytesDone = lambda _size: None,
) -> tuple[Manifest, int]:
    """Take a backup; when it is there remove all but the latest ``keep``. Returns it, and how many were removed.

    ``link``: the destination may keep closed segments as second names of the broker's files, where it can. Raises
    BackupError, DestinationError, and OSError where the source cannot be read; then this backup does not exist, or it
    does and not all older ones are removed, which the next one does.
    """
    store.claim(source.cluster_id, source.directory_id, take_over=take_over)
    older = store.tidy(keep)
    previous = older.latest
    if previous is not None:
        now_ms = max(now_ms, previous.created_ms + 1)  # ids rise, whatever the clock does
    taking = _Taking(fs, source, store, id_at(now_ms), now_ms, link, progress, list(source.problems))
    if previous is not None:
        taking.continue_from(previous)
    try:
        manifest = taking.run()
    except SourceTooShortError as error:
        raise BackupError(f"{error}: it became shorter meanwhile, run the backup again") from error
    store.write(manifest)
    store.remove(older, manifest)
    return manifest, len(older.going)


@dataclass(slots=True)
class _Taking:
    _fs: FileSystem
    _source: Source
    _store: BackupStore
    _id: str
    _now_ms: int
    _link: bool
    _progress: BytesDone
    _problems: list[str]
    _count: int = 0
    _entries: list[FileEntry] = field(default_factory=list)
    _short: list[SourceFile] = field(default_factory=list)
    _before: dict[str, FileEntry] = field(default_factory=dict)  # only of topics that were not made anew since
    _counted: dict[str, SegmentFacts] = field(default_factory=dict)  # by the path of the ``.log``

    def continue_from(self, previous: Manifest) -> None:
        """Take what has not changed since ``previous`` from there."""
        topic_ids = {(log.topic, log.partition): log.topic_id for log in previous.logs}
        same = {
            filenames.partition_directory_name(topic.name, number)
            for topic in self._source.topics
            for number in range(topic.partitions)
            if topic_ids.get((topic.name, number)) == topic.id
        }
        self._before = {file.path: file for file in previous.files if file.path.partition("/")[0] in same}
        for log in previous.logs:
            directory = filenames.partition_directory_name(log.topic, log.partition)
            for facts in log.segments:
                name = names.segment_file_name(facts.base_offset, names.LOG_SUFFIX)
                self._counted[f"{directory}/{name}"] = facts

    def run(self) -> Manifest:
        files: dict[str, list[SourceFile]] = {}
        for file in self._source.files:
            files.setdefault(file.path.rpartition("/")[0], []).append(file)
        logs = [
            self._log(
                topic.name, number, topic.id, files.get(filenames.partition_directory_name(topic.name, number), [])
            )
            for topic in self._source.topics
            for number in range(topic.partitions)
        ]
        done = {entry.path for entry in self._entries} | {file.path for file in self._short}
        for file in self._source.files:
            if file.path not in done:
                self._other_file(file)
        self._put_short_files()
        order = {file.path: number for number, file in enumerate(self._source.files)}
        return Manifest(
            self._id,
            self._now_ms,
            self._source.cluster_id,
            self._source.directory_id,
            VERSION,
            tuple(sorted(self._entries, key=lambda entry: order[entry.path])),
            tuple(logs),
            tuple(self._problems[:PROBLEMS_MAX]),
        )

    def _log(self, topic: str, number: int, topic_id: str, files: Iterable[SourceFile]) -> LogEntry:
        directory = filenames.partition_directory_name(topic, number)
        logs: dict[int, SourceFile] = {}
        for file in files:
            parsed = names.parse_segment_file_name(file.path.rpartition("/")[2])
            if parsed is not None and parsed[1] == names.LOG_SUFFIX:
                logs[parsed[0]] = file
        state = PartitionState.load(self._fs, f"{self._source.path}/{directory}")
        bases = sorted(logs)
        following = dict(zip(bases, [*bases[1:], None], strict=False))
        segments = tuple(self._segment(logs[base], base, following[base], state) for base in bases)
        start, end = (None, None) if state.stopped is None else state.stopped
        return LogEntry(topic, number, topic_id, start, end, segments)

    def _segment(self, file: SourceFile, base: int, following: int | None, state: PartitionState) -> SegmentFacts:
        before, facts = self._before.get(file.path), self._counted.get(file.path)
        if before is not None and facts is not None and _is_same(before, file) and file.size >= SHORT_BYTES:
            self._add(file, before.parts)
            return facts
        log = CutLog(self._fs, f"{self._source.path}/{file.path}", base, file.size)
        known = [damage for damage in state.damaged if damage.segment == base]
        facts = count_segment(log, following, compacted_before=state.compacted_before, known=known)
        lost = sum(damage.end_position - damage.position for damage in known if damage.reason != "missing")
        if facts.invalid_bytes > lost:
            self._problems.append(
                f"{file.path} has {facts.invalid_bytes} bytes that are no record batch: they are in the backup as they "
                "are; `seglogd check` says more"
            )
        if file.size < SHORT_BYTES:
            self._short.append(file)
        else:
            self._put_log(file, before, log, link=self._link and following is not None)
        return facts

    def _put_log(self, file: SourceFile, before: FileEntry | None, log: CutLog, *, link: bool) -> None:
        if before is not None and self._has_grown(file, before):
            self._put([Piece(file, before.parts)])
            return
        name = self._name()
        self._store.destination.put_file(name, f"{self._source.path}/{file.path}", size=file.size, link=link)
        self._add(file, (Part(name, 0, file.size, log.checksum()),))

    def _has_grown(self, file: SourceFile, before: FileEntry) -> bool:
        """Whether the first bytes of the file are those of the last backup, and worth keeping."""
        if before.inode != file.inode or not SHORT_BYTES <= before.size < file.size or len(before.parts) >= PARTS_MAX:
            return False
        file = file._replace(inode=-1)  # all parts are looked at
        return count_sound(self._fs, self._source.path, file, before) == len(before.parts)

    def _other_file(self, file: SourceFile) -> None:
        before = self._before.get(file.path)
        if file.size < SHORT_BYTES:
            self._short.append(file)
        elif before is not None and _is_same(before, file):
            self._add(file, before.parts)
        elif self._fs.stat(f"{self._source.path}/{file.path}").size >= file.size:
            self._put([Piece(file, ())])
        # Else an index that was rebuilt meanwhile, in place: a start makes one.

    def _put_short_files(self) -> None:
        if not any(file.size for file in self._short):
            for file in self._short:
                self._add(file, ())
            return
        self._put([Piece(file, ()) for file in self._short])

    def _put(self, pieces: list[Piece]) -> None:
        """Put bytes of files, as one object."""
        entries = upload(self._fs, self._source.path, self._store.destination, self._name(), pieces)
        for piece, entry in zip_longest(pieces, entries):
            if entry is None or entry.path != piece.file.path:
                raise SourceTooShortError(f"{piece.file.path} is not as it was")
            self._add(piece.file, entry.parts)

    def _name(self) -> str:
        self._count += 1
        return f"{FILES}{self._id}-{self._count:06d}"

    def _add(self, file: SourceFile, parts: tuple[Part, ...]) -> None:
        self._entries.append(FileEntry(*file, parts))
        self._progress(file.size)


def _is_same(before: FileEntry, file: SourceFile) -> bool:
    """Whether nothing was written into it since; an inode of 0 is none."""
    return bool(file.inode) and before[1:4] == file[1:4]
