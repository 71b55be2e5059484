"""Points: what a broker that backs up continuously adds to its place, so that each moment of it can be restored.

A place of version 2 has, beside what ``store.py`` says, where a manifest is called a base:

    points/<base id>/<id>.json   a point: what has changed since the point before, or since the base
    files/<id>-begun             as a point, of what is there already for one to come
    files/<id>-<n>               what bases and points name; the id is above that of the base or point before
    seglog-backup-writer         random, of the writer that claimed the place last: no other one adds anything

A base or a point is there when its object is, which is put last, and is then the newest moment there is. A new base
follows where points have become as long as it, and after an hour. Ids rise, whatever the clock does, so that a name
that a base knows, or one above it, is all that later points and bases can name: what is older than the oldest base
and not named by it can be removed: also what was put for a point, and replaced before that came.

Another log directory that takes the place over writes into ``seglog-backup.json`` a higher epoch and which base or
point it continues, in one step. What the writer before adds after that one counts for nothing.

A point is sealed JSON, on one line:

    version    1
    id         rising, see ``id_at``: the time of the moment it has
    base       the id of its base
    previous   the id of the point before, or the base
    files      of each file that is new or has changed: path, size, mtime_ms, inode, and what it consists of: the first
               ``kept`` parts that it had, then these parts
    removed    paths of files that are gone; they count before ``files``
    logs       of each partition that has changed: as in a manifest, without segments; start and end are known
    gone       topic and number of each partition that is gone; they count before ``logs``
"""

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import chain, takewhile
from typing import Final, NamedTuple

from seglog_broker.backup.destination import MARKER, Destination, DestinationError, MissingFileError
from seglog_broker.backup.store import (
    FILES,
    MANIFESTS,
    SUFFIX,
    VERSION_OF_POINTS,
    BackupError,
    FileEntry,
    LogEntry,
    Manifest,
    Marker,
    OtherOwnerError,
    check_path,
    decode_versioned,
    epoch_of,
    id_at,
    ids_in,
    impossible,
    ms_of,
    no_backup,
    other_directory,
    owner_for,
    read_manifest,
    read_marker,
    time_of,
)
from seglog_broker.storage.io.small_files import seal
from seglog_broker.storage.segment.awaited import Part
from seglog_protocol.checkpoint_files import TopicPartition
from seglog_protocol.version import VERSION

POINTS: Final = "points/"

POINTS_BYTES_MIN: Final = 1024 * 1024
"""Of points since a base, before there is another one for their size."""

BASE_MS: Final = 3_600_000
"""Between two bases at most, where there are points."""

AHEAD_MS_MAX: Final = 86_400_000
"""By which the newest moment may be later than the clock says, before it is told that it was set back."""

_VERSION: Final = 1

WRITER: Final = "seglog-backup-writer"
"""The object that says which writer has claimed the place last."""

_READERS: Final = 8
"""Points that are read at a time."""

_OTHERWISE: Final = (
    "restore anew with --take-over, which leaves out what was written here since; if it serves now let this machine "
    "follow it (seglogd --standby --from PLACE, with an empty log directory)"
)


class FileChange(NamedTuple):
    """A file that is new or has changed: it has the first ``kept`` parts that it had, and then ``parts``."""

    path: str
    size: int
    mtime_ms: int
    inode: int
    kept: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """Changes since the point ``previous``, or since the base."""

    id: str
    base: str
    previous: str
    files: tuple[FileChange, ...] = ()
    removed: tuple[str, ...] = ()
    logs: tuple[LogEntry, ...] = ()
    gone: tuple[TopicPartition, ...] = ()

    def encode(self) -> bytes:
        """The content of the file."""
        return seal({"version": _VERSION, **{field.name: getattr(self, field.name) for field in fields(self)}})


def decode_point(content: bytes, name: str) -> Point:
    """The point in the file ``name``. Raises BackupError."""
    point = decode_versioned(content, name, Point, _VERSION)
    for path in (*point.removed, *(change.path for change in point.files)):
        check_path(path, name)
    return point


_BEGUN_SUFFIX: Final = "-begun"


@dataclass(slots=True)
class State:
    """All files and logs at one moment, which the next point changes."""

    cluster_id: str
    directory_id: str
    id: str = ""
    """Of the last point, or of the base; empty before the first."""
    base: str = ""
    files: dict[str, FileEntry] = field(default_factory=dict)
    """By path."""
    logs: dict[TopicPartition, LogEntry] = field(default_factory=dict)
    _found: Manifest | None = field(default=None, compare=False, repr=False)
    """The base that it still is, which may be a single backup, with more in it."""

    @classmethod
    def of(cls, manifest: Manifest) -> "State":
        """The state that a base has."""
        return cls(
            manifest.cluster_id,
            manifest.directory_id,
            manifest.id,
            manifest.id,
            {entry.path: entry for entry in manifest.files},
            {(log.topic, log.partition): log for log in manifest.logs},
            manifest,
        )

    def copy(self) -> "State":
        """Another one with the same, to be changed."""
        return replace(self, files=dict(self.files), logs=dict(self.logs), _found=None)

    def apply(self, point: Point) -> None:
        """Make this the state with ``point``. Raises BackupError for one of another state, and has not changed then."""
        entries, removed = [], set(point.removed)
        for path, size, mtime_ms, inode, kept, parts in point.files:
            before = self.files[path].parts if path in self.files and path not in removed else ()
            entry = FileEntry(path, size, mtime_ms, inode, (*before[:kept], *parts))
            if not 0 <= kept <= len(before) or size != sum(part.size for part in entry.parts):
                raise impossible(f"the point {point.id}")
            entries.append(entry)
        for path in point.removed:
            self.files.pop(path, None)
        self.files.update((entry.path, entry) for entry in entries)
        for key in point.gone:
            self.logs.pop(key, None)
        for log in point.logs:
            self.logs[log.topic, log.partition] = log
        self.id, self.base, self._found = point.id, point.base, None

    def manifest(self) -> Manifest:
        """The state as a base."""
        return self._found or Manifest(
            self.id,
            ms_of(self.id),
            self.cluster_id,
            self.directory_id,
            VERSION,
            tuple(self.files.values()),
            tuple(self.logs.values()),
            is_cut=True,
        )


def count_common(before: FileEntry | None, after: FileEntry) -> int:
    """How many parts a file begins with that it began with ``before``."""
    pairs = zip(before.parts if before is not None else (), after.parts, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def difference(before: State, after: State) -> Point:
    """The point that leads from one state to another, which has the base of that."""
    changes = []
    for entry in after.files.values():
        had = before.files.get(entry.path)
        if had != entry:
            kept = count_common(had, entry)
            changes.append(FileChange(*entry[:4], kept, entry.parts[kept:]))
    return Point(
        after.id,
        after.base,
        before.id,
        tuple(changes),
        tuple(path for path in before.files if path not in after.files),
        tuple(log for key, log in after.logs.items() if before.logs.get(key) != log),
        tuple(key for key in before.logs if key not in after.logs),
    )


class PointStore:
    """The bases and points in one destination, for whoever reads them; also those of a place of version 1."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination

    def marker(self) -> Marker:
        """The owner of the place. Raises BackupError, also where it is nobody's."""
        marker = read_marker(self.destination)
        if marker is None:
            raise no_backup(self.destination)
        return marker

    def bases(self, marker: Marker | None = None) -> list[str]:
        """The ids of the bases that count, the oldest first; there is at least one. Raises BackupError."""
        marker = marker or self.marker()
        bases = sorted(filter(marker.counts, ids_in(self.destination, MANIFESTS)), key=time_of)
        if not bases:
            raise BackupError(f"{self.destination.place} has no finished backup yet")
        return bases

    def at(self, until_ms: int | None = None) -> State:
        """The newest state, or the newest that is not after ``until_ms``.

        Raises BackupError, also for a moment before the first one that is there.
        """
        marker = self.marker()
        bases = self.bases(marker)
        known = [base for base in bases if until_ms is None or ms_of(base) <= until_ms]
        if not known:
            raise BackupError(
                f"{self.destination.place} has nothing of that time: the first moment that it has is {bases[0]}"
            )
        state = State.of(read_manifest(self.destination, known[-1]))
        for point in self._points(marker, state.base, state.id, until_ms):
            state.apply(point)
        return state

    def points_of(self, marker: Marker, base: str) -> list[str]:
        """The ids of the points of a base that count, the oldest first."""
        return sorted(filter(marker.counts, ids_in(self.destination, f"{POINTS}{base}/")), key=time_of)

    def since(self, state: State) -> Iterator[Point]:
        """Points that lead from ``state`` to the newest one, each to be applied before the next is asked for.

        One that leads to another base has what is different in that. Raises BackupError.
        """
        marker = self.marker()
        newest = self.bases(marker)[-1]
        if newest != state.base:
            yield difference(state, State.of(read_manifest(self.destination, newest)))
        yield from self._points(marker, newest, state.id, None)

    def marker_to_take_over(self) -> Marker:
        """The owner of the place. Raises BackupError for one that ``take_over`` is not for."""
        marker = self.marker()
        if marker.version != VERSION_OF_POINTS:
            raise BackupError(
                f"{self.destination.place} has single backups, and no broker backs up into it: `seglogd backup` of the "
                "restored directory takes it over, with --take-over"
            )
        return marker

    def take_over(self, directory_id: str, follows: str) -> Marker:
        """Have the place belong to another log directory, which continues the base or point ``follows``, in one step.

        What the directory before adds from then on counts for nothing, as what it has added since. Raises BackupError.
        """
        marker = self.marker_to_take_over()
        oldest = time_of(min(ids_in(self.destination, MANIFESTS), default="", key=time_of))
        kept = [(epoch, limit) for epoch, limit in marker.follows if time_of(limit) >= oldest]
        epoch = marker.epoch + 1
        marker = replace(marker, directory_id=directory_id, epoch=epoch, follows=(*kept, (epoch, follows)))
        self.destination.put(MARKER, [marker.encode()])
        return marker

    def _points(self, marker: Marker, base: str, after: str, until_ms: int | None) -> Iterator[Point]:
        """The points of a base that count, in their order, from the one that follows ``after`` on."""
        is_listed_again = False
        while True:
            wanted = [
                point
                for point in self.points_of(marker, base)
                if time_of(point) > time_of(after) and (until_ms is None or ms_of(point) <= until_ms)
            ]
            for point in self._read_points(base, wanted):
                if point.previous != after:
                    break
                yield point
                after = point.id
            else:
                return
            if is_listed_again:
                raise BackupError(
                    f"{self.destination.place} lacks the point between {after} and {point.id}: the last moment before "
                    "that is restored by --until"
                )
            is_listed_again = True  # one that was put during a listing may not have been in it

    def _read_points(self, base: str, points: list[str]) -> Iterator[Point]:
        """Points in their order; some at a time, because an object store takes its time for each."""

        def read(point: str) -> Point:
            name = f"{POINTS}{base}/{point}{SUFFIX}"
            try:
                return decode_point(b"".join(self.destination.read(name)), f"{self.destination.place}/{name}")
            except MissingFileError as error:
                raise BackupError(f"{error}: it was removed meanwhile, or lost; run the same again") from error

        with ThreadPoolExecutor(_READERS) as threads:
            yield from threads.map(read, points)


class PointWriter:
    """Adds bases and points to a place, for the one log directory that it belongs to, and removes old ones.

    What it publishes first is a base, so that no point is beside one that a killed writer has had under way.
    """

    def __init__(self, destination: Destination, cluster_id: str, directory_id: str) -> None:
        """Claim the place, which is made if it is empty, and raised to version 2 if it has backups of this directory.

        Raises BackupError where it is another one's, DestinationError.
        """
        owner = owner_for(destination, cluster_id)
        if owner is not None and owner.directory_id != directory_id:
            raise other_directory(destination.place, owner, directory_id, _OTHERWISE)
        self._marker = replace(owner or Marker(cluster_id, directory_id), version=VERSION_OF_POINTS)
        if owner != self._marker:
            destination.put(MARKER, [self._marker.encode()])
        destination.discard_unfinished()
        self.destination, self._store = destination, PointStore(destination)
        self.state = State(cluster_id, directory_id)
        """What the place has, which may be nothing yet."""
        if any(map(self._marker.counts, ids_in(self.destination, MANIFESTS))):
            try:
                self.state = replace(self._store.at(), directory_id=directory_id)
            except BackupError as error:
                raise BackupError(
                    f"{error}. Nothing is added behind that: move it away, and what is newer, or name another place"
                ) from error
        self._base_bytes = self._points_bytes = 0
        self._last = self.state.id
        self._has_base = False
        self.begun = self.state.copy()
        """With what a writer before this one has put for a state to come."""
        self._writer = uuid.uuid4().bytes
        destination.put(WRITER, [self._writer])
        self._remove_orphans()

    @property
    def epoch(self) -> int:
        """How often the place was taken over."""
        return self._marker.epoch

    def next_id(self, now_ms: int) -> str:
        """An id for a point, or for names of files that it will have; above all that were given before."""
        if self._last:
            now_ms = max(now_ms, ms_of(self._last) + 1)
        self._last = id_at(now_ms, self._marker.epoch)
        return self._last

    def note_begun(self, new: State) -> None:
        """Have the next writer know what was put for a state that takes long to come."""
        self.destination.put(f"{FILES}{new.id}{_BEGUN_SUFFIX}", [difference(self.state, new).encode()])

    def publish(self, new: State) -> Point:
        """Add a state whose files are there, by its own id as a base, or as a point: what is returned says it.

        Its id has to be from ``next_id``, and names of new files to have ids from there since the state before. May be
        called again with the same one after DestinationError. Raises TakenOverError.
        """
        self._check_owner()
        state, new = self.state, new.copy()
        new.base = state.base
        point = difference(state, new)
        content = point.encode()
        if (
            not self._has_base
            or self._points_bytes + len(content) > max(self._base_bytes, POINTS_BYTES_MIN)
            or ms_of(new.id) - ms_of(state.base) >= BASE_MS
        ):
            new.base = new.id
            content = new.manifest().encode()
            self.destination.put(f"{MANIFESTS}{new.id}{SUFFIX}", [content])
            self._has_base, self._base_bytes, self._points_bytes = True, len(content), 0
        else:
            self.destination.put(f"{POINTS}{new.base}/{new.id}{SUFFIX}", [content])
            self._points_bytes += len(content)
        self.state = new
        return replace(point, base=new.base)

    def collect(self, now_ms: int, keep_ms: int) -> Iterator[None]:
        """Remove what no moment since ``now_ms - keep_ms`` needs, or has ever needed, one object for each item.

        There may be thousands, with points to be published meanwhile. Raises BackupError, LostFilesError among them,
        DestinationError.
        """
        self._check_owner()
        lost = self._lost()
        if lost:
            raise LostFilesError(
                f"somebody has removed {min(lost)} from {self.destination.place}, and {len(lost) - 1:,} more that the "
                "newest state needs: what was in them is put again"
            )
        bases = self._store.bases()
        if ms_of(bases[-1]) - now_ms > AHEAD_MS_MAX:
            raise BackupError(
                f"{self.destination.place} has moments of a clock that was ahead ({bases[-1]}), after which none gets "
                "old: nothing is removed until then; name another place, and keep this one as long as you need it"
            )
        old = [base for base in bases if ms_of(base) <= now_ms - keep_ms]
        if not old:
            return
        oldest = old[-1]
        names = set(read_manifest(self.destination, oldest).names)
        for base in sorted(ids_in(self.destination, MANIFESTS), key=time_of):
            if time_of(base) < time_of(oldest):
                # Without its manifest nothing would say that there are points.
                for point in sorted(ids_in(self.destination, f"{POINTS}{base}/"), reverse=True):
                    self.destination.delete(f"{POINTS}{base}/{point}{SUFFIX}")
                    yield
                self.destination.delete(f"{MANIFESTS}{base}{SUFFIX}")
                yield
        yield from self._remove_files(names, lambda time: time <= time_of(oldest))

    def _check_owner(self) -> None:
        marker = read_marker(self.destination)
        if marker is None:  # as where a disk is not mounted
            raise DestinationError(
                f"{self.destination.place} has lost its {MARKER}: bring it back, or name another place"
            )
        if marker != self._marker:
            raise TakenOverError(
                f"{self.destination.place} was taken over by another log directory: this broker backs up no more; end "
                "it, if the other one serves, else name another place"
            )
        if b"".join(self.destination.read(WRITER)) != self._writer:
            raise TakenOverError(
                f"another broker backs up into {self.destination.place} since this one began, with a copy of this "
                "log directory: end one of them, and start the other anew"
            )

    def _read_begun(self) -> str:
        """Find what ``note_begun`` has written last, unless a point came after it; the name of that object, or none."""
        found = (file.name for file in self.destination.names(FILES) if file.name.endswith(_BEGUN_SUFFIX))
        ids = (name[len(FILES) : -len(_BEGUN_SUFFIX)] for name in found)
        newest = max((text for text in ids if epoch_of(text) == self.epoch), key=time_of, default="")
        name = f"{FILES}{newest}{_BEGUN_SUFFIX}"
        if time_of(newest) > time_of(self.state.id):
            with suppress(BackupError):  # one that is damaged costs that all is put again
                self.begun.apply(decode_point(b"".join(self.destination.read(name)), name))
                self._last = newest
        return name

    def _named(self) -> set[str]:
        """Names of objects that the state, or what is begun of the next one, is made of."""
        entries = chain(self.state.files.values(), self.begun.files.values())
        return {part.name for entry in entries for part in entry.parts}

    def _lost(self) -> set[str]:
        """Those of them that are not there."""
        return self._named() - {file.name for file in self.destination.names(FILES)}

    def _remove_orphans(self) -> None:
        """Remove what was put for a point that never came, and is not noted; forget files that have lost objects."""
        begun, lost = self._read_begun(), self._lost()
        for files in (self.state.files, self.begun.files):
            for entry in [entry for entry in files.values() if not lost.isdisjoint(part.name for part in entry.parts)]:
                del files[entry.path]  # the next point, which is a base, has it anew
        names = {begun, *self._named()}
        for _ in self._remove_files(names, lambda time: time > time_of(self.state.id)):
            pass

    def _remove_files(self, names: set[str], is_wanted: Callable[[str], bool]) -> Iterator[None]:
        for name in [file.name for file in self.destination.names(FILES)]:
            if name not in names and is_wanted(time_of(name[len(FILES) :])):
                self.destination.delete(name)
                yield


class TakenOverError(OtherOwnerError):
    """The place belongs to another log directory now."""


class LostFilesError(BackupError):
    """Objects of the place are not there any more; the next writer has what was in them put again."""
