"""Backups in a destination: whose they are, which there are, what each consists of, and which are removed.

    seglog-backup.json   version, cluster_id, directory_id: written first, and never changed but by --take-over
    backups/<id>.json    a manifest for each backup, written last: a backup is there when its manifest is
    files/<name>         what the manifests name; never changed

Of version 1 are places of `seglogd backup`. What a killed backup left in ``files`` is named by no manifest, and removed
by the next one. Where a broker backs up continuously the version is 2; ``points.py`` has what is more there, and
``seglog-backup.json`` two keys more:

    epoch         how often the place was taken over by another log directory; an id of an epoch above 0 ends with it
    follows       pairs of an epoch and the id that it began after: what epochs below have after that counts for nothing

A manifest is sealed JSON (``storage/io/small_files.py``), on one line:

    version       1
    id            the backup's name: the time at which it was begun, as 20261127T051500.123Z, or 20261127T051500.123Z-1
    created_ms    the same, ms since 1970
    cluster_id, directory_id   of the log directory
    written_by    the version of seglogd
    files         of each file of the log directory: path, size, mtime_ms, inode, and its parts, whose bytes in
                  their order are its own: file in the destination, position in that, size, CRC-32C
    logs          of each partition: topic, number, topic id, log start, log end (both null where not known), and its
                  segments: base offset, size, records, batches, the first and the next offset, a CRC-32C over the
                  offsets, counts and checksums of all batches, and the bytes that are in no batch
    problems      a sentence for each thing that is not as it should be
    is_cut        true of what a running broker has at one moment, which opens as after a kill at that moment: without
                  counts of segments, and without checkpoints and markers of a clean stop
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from seglog_broker.backup.destination import MARKER, Destination, MissingFileError
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal
from seglog_broker.storage.segment.awaited import Part

_MANIFEST_VERSION: Final = 1

_T = TypeVar("_T")


class BackupError(Exception):
    """A backup cannot be made, read or restored; the message says why, and what to do."""


class OtherOwnerError(BackupError):
    """The place is another log directory's, or no place of backups: this one can never write there."""


class FileEntry(NamedTuple):
    """A file of a log directory, by its path in that; ``inode`` and ``mtime_ms`` are those it had there."""

    path: str
    size: int
    mtime_ms: int
    inode: int
    parts: tuple[Part, ...]


class SegmentFacts(NamedTuple):
    """What the batches of a segment are, by their headers; ``digest`` is over those of all of them."""

    base_offset: int
    size: int
    records: int
    batches: int
    first_offset: int
    next_offset: int
    digest: int
    invalid_bytes: int


class LogEntry(NamedTuple):
    """A partition. ``log_start`` and ``log_end`` are None where a start has to find them out."""

    topic: str
    partition: int
    topic_id: str
    log_start: int | None
    log_end: int | None
    segments: tuple[SegmentFacts, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup."""

    id: str
    created_ms: int
    cluster_id: str
    directory_id: str
    written_by: str
    files: tuple[FileEntry, ...]
    logs: tuple[LogEntry, ...]
    problems: tuple[str, ...] = ()
    is_cut: bool = False

    @property
    def names(self) -> Iterator[str]:
        """The files of the destination that it needs; one may come more than once."""
        return (part.name for file in self.files for part in file.parts)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def records(self) -> int:
        """Records in all segments, those below the log start included; of a cut, which counts none, all offsets."""
        if self.is_cut:
            return sum((log.log_end or 0) - (log.log_start or 0) for log in self.logs)
        return sum(segment.records for log in self.logs for segment in log.segments)

    def encode(self) -> bytes:
        """The content of the file."""
        return seal({"version": _MANIFEST_VERSION, **{field.name: getattr(self, field.name) for field in fields(self)}})


def decode_manifest(content: bytes, name: str) -> Manifest:
    """The backup in the file ``name``. Raises BackupError."""
    manifest = decode_versioned(content, name, Manifest, _MANIFEST_VERSION)
    for entry in manifest.files:
        check_path(entry.path, name)
        if entry.size != sum(part.size for part in entry.parts):
            raise impossible(name)
    return manifest


def decode_versioned(content: bytes, name: str, kind: type[_T], version: int) -> _T:
    """The ``kind`` in the file ``name``, which is sealed JSON of this version. Raises BackupError."""
    try:
        found: dict[str, Any] = unseal(content, ())
        if found.get("version") != version:
            raise BackupError(
                f"{name} has version {found.get('version')!r}: use the seglogd that wrote it, or a newer one"
            )
        return msgspec.convert(found, kind)
    except MalformedJsonError as error:
        raise BackupError(f"{name} is damaged: {error}") from error
    except ValueError as error:
        raise impossible(name) from error


def check_path(path: str, name: str) -> None:
    """Raise BackupError for a path in the file ``name`` that could lead out of a directory."""
    if not all(part and part not in {".", ".."} for part in path.split("/")):
        raise impossible(name)


def impossible(name: str) -> BackupError:
    """The error for a file of the destination that is whole, and makes no sense."""
    return BackupError(f"{name} is not understood: an entry in it is not possible")


_ID: Final = re.compile(r"(\d{8}T\d{6}\.\d{3}Z)(?:-([1-9]\d*))?")


def id_at(now_ms: int, epoch: int = 0) -> str:
    """The id of a backup that is begun at this time."""
    time = f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z"
    return f"{time}-{epoch}" if epoch else time


def is_id(text: str) -> bool:
    """True of what ``id_at`` makes."""
    return _ID.fullmatch(text) is not None


def time_of(backup: str) -> str:
    """The part of an id that says when: such parts sort as the times do. Also of what begins with an id."""
    found = _ID.match(backup)
    return "" if found is None else found[1]


def ms_of(backup: str) -> int:
    """The time in an id, ms since 1970. Raises ValueError for what is none."""
    return round(datetime.strptime(f"{time_of(backup)[:-1]}000+0000", "%Y%m%dT%H%M%S.%f%z").timestamp() * 1000)


def epoch_of(backup: str) -> int:
    """The epoch in an id."""
    found = _ID.fullmatch(backup)
    return int(found[2] or 0) if found is not None else 0


MANIFESTS: Final = "backups/"
FILES: Final = "files/"
SUFFIX: Final = ".json"

_VERSION: Final = 1
VERSION_OF_POINTS: Final = 2
"""Of a place where a broker backs up continuously."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The owner of a place: the content of ``seglog-backup.json``."""

    cluster_id: str
    directory_id: str
    version: int = _VERSION
    epoch: int = 0
    follows: tuple[tuple[int, str], ...] = ()

    def counts(self, backup: str) -> bool:
        """True of a base or point, by its id, that was not written after another directory had taken the place over."""
        limits = (time_of(limit) for epoch, limit in self.follows if epoch > epoch_of(backup))
        return epoch_of(backup) <= self.epoch and all(time_of(backup) <= limit for limit in limits)

    def encode(self) -> bytes:
        """The content of the file."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.version == _VERSION:
            del facts["epoch"], facts["follows"]
        return seal(facts)


def read_marker(destination: Destination) -> Marker | None:
    """The owner of a place; None where it is nobody's. Raises BackupError."""
    where = f"{destination.place}/{MARKER}"
    try:
        found = unseal(b"".join(destination.read(MARKER)), ())
        if found.get("version") not in {_VERSION, VERSION_OF_POINTS}:
            raise BackupError(f"{destination.place} is of version {found.get('version')!r}: use a newer seglogd")
        return msgspec.convert(found, Marker)
    except MissingFileError:
        return None
    except MalformedJsonError as error:
        raise BackupError(f"{where} is damaged: {error}") from error
    except msgspec.ValidationError as error:
        raise impossible(where) from error


def owner_for(destination: Destination, cluster_id: str) -> Marker | None:
    """The owner of a place, for who writes backups of this cluster; None where it is empty.

    Raises BackupError, OtherOwnerError among them.
    """
    place, owner = destination.place, read_marker(destination)
    if owner is None:
        strange = next(iter(destination.names()), None)
        if strange is not None:
            raise OtherOwnerError(
                f"{place} is not empty, and has no backup of seglog ({strange.name} is there): name another place"
            )
    elif owner.cluster_id != cluster_id:
        raise OtherOwnerError(
            f"{place} has backups of another broker, of cluster {owner.cluster_id}, where this one has {cluster_id}: "
            "name another place"
        )
    return owner


def other_directory(place: str, owner: Marker, directory_id: str, otherwise: str) -> OtherOwnerError:
    """The error for a place of another log directory; ``otherwise`` is what to do if that is not used any more."""
    return OtherOwnerError(
        f"{place} has backups of another log directory of the same cluster, {owner.directory_id}, where this one is "
        f"{directory_id}: one of them is a restored copy. If the other one is not used any more {otherwise}, else name "
        "another place"
    )


def ids_in(destination: Destination, prefix: str) -> list[str]:
    """The ids in the names of all objects with this prefix, whether they count or not."""
    names = (file.name for file in destination.names(prefix))
    found = (name[len(prefix) : -len(SUFFIX)] for name in names if name.endswith(SUFFIX))
    return [text for text in found if is_id(text)]


def read_manifest(destination: Destination, backup: str) -> Manifest:
    """The manifest of a backup. Raises BackupError."""
    name = f"{MANIFESTS}{backup}{SUFFIX}"
    try:
        return decode_manifest(b"".join(destination.read(name)), f"{destination.place}/{name}")
    except (MissingFileError, ValueError) as error:
        raise BackupError(f"{destination.place} has no backup {backup!r}; --list shows those there are") from error


class BackupStore:
    """The backups in one destination."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination

    def claim(self, cluster_id: str, directory_id: str, *, take_over: bool) -> None:
        """Begin to write backups of this log directory. Raises BackupError where others are there."""
        place, owner = self.destination.place, owner_for(self.destination, cluster_id)
        if owner is not None and owner.version != _VERSION:
            raise BackupError(
                f"a broker backs up continuously into {place} (seglog.backup.to): name another place for single backups"
            )
        if owner is not None and owner.directory_id != directory_id and not take_over:
            raise other_directory(place, owner, directory_id, "continue with --take-over")
        marker = Marker(cluster_id, directory_id)
        if owner != marker:
            self.destination.put(MARKER, [marker.encode()])
        self.destination.discard_unfinished()

    def ids(self) -> list[str]:
        """Of all backups, the latest first. Raises BackupError where there can be none."""
        if read_marker(self.destination) is None:
            raise no_backup(self.destination)
        return sorted(ids_in(self.destination, MANIFESTS), reverse=True)

    def write(self, manifest: Manifest) -> None:
        """Add a backup, all files of which are there."""
        self.destination.put(f"{MANIFESTS}{manifest.id}{SUFFIX}", [manifest.encode()])

    def tidy(self, keep: int | None) -> "Older":
        """Remove files that no backup names, which killed backups leave; and see what one more backup makes too many.

        ``keep`` is how many are to be there then, None for all. Raises BackupError, with no file removed, for a
        manifest that is not understood.
        """
        ids = self.ids()
        kept = len(ids) if keep is None else keep - 1
        latest: Manifest | None = None
        names_kept, names_going = set[str](), set[str]()
        for number, backup in enumerate(ids):
            try:
                manifest = read_manifest(self.destination, backup)
            except BackupError as error:
                raise BackupError(
                    f"{error}; nothing is added or removed while it is there: move that file away, and with it the "
                    "backup, or name another place"
                ) from error
            latest = latest or manifest
            (names_kept if number < kept else names_going).update(manifest.names)
        for name in [file.name for file in self.destination.names(FILES)]:
            if name not in names_kept and name not in names_going:
                self.destination.delete(name)
        return Older(latest, ids[kept:], names_going - names_kept)

    def remove(self, older: "Older", newest: Manifest) -> None:
        """Remove the backups that are too many since ``newest`` is there, then the files that they alone name."""
        for backup in reversed(older.going):
            self.destination.delete(f"{MANIFESTS}{backup}{SUFFIX}")
        for name in sorted(older.names_going.difference(newest.names)):
            self.destination.delete(name)


def no_backup(destination: Destination) -> BackupError:
    """The error for a place without any backup."""
    return BackupError(f"{destination.place} is no backup of seglog: it has no {MARKER}")


class Older(NamedTuple):
    """What is there before a backup: the latest one, the ids of those to be removed after it, and files of them alone.

    The next backup may use such a file all the same.
    """

    latest: Manifest | None
    going: list[str]
    names_going: set[str]
