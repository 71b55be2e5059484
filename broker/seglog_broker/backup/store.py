"""Backups in a destination: whose they are, which there are, what each consists of, and which are removed.

    seglog-backup.json   version 1, cluster_id, directory_id: written first, and never changed but by --take-over
    backups/<id>.json    a manifest for each backup, written last: a backup is there when its manifest is
    files/<name>         what the manifests name; never changed

What a killed backup left in ``files`` is named by no manifest, and removed by the next one.

A manifest is sealed JSON (``storage/io/small_files.py``), on one line:

    version       1
    id            the backup's name: the time at which it was begun, as 20261127T051500.123Z
    created_ms    the same, ms since 1970
    cluster_id, directory_id   of the log directory
    written_by    the version of seglogd
    files         of each file of the log directory: path, size, mtime_ms, inode, and its parts, whose bytes in
                  their order are its own: file in the destination, position in that, size, CRC-32C
    logs          of each partition: topic, number, topic id, log start, log end (both null where not known), and its
                  segments: base offset, size, records, batches, the first and the next offset, a CRC-32C over the
                  offsets, counts and checksums of all batches, and the bytes that are in no batch
    problems      a sentence for each thing that is not as it should be
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from seglog_broker.backup.destination import MARKER, Destination, MissingFileError
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal

_MANIFEST_VERSION: Final = 1


class BackupError(Exception):
    """A backup cannot be made, read or restored; the message says why, and what to do."""


class Part(NamedTuple):
    """Bytes of a file: ``size`` bytes at ``position`` of the file ``name`` of the destination, with their CRC-32C."""

    name: str
    position: int
    size: int
    crc: int


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
        """Records in all segments, those below the log start included."""
        return sum(segment.records for log in self.logs for segment in log.segments)

    def encode(self) -> bytes:
        """The content of the file."""
        return seal({"version": _MANIFEST_VERSION, **{field.name: getattr(self, field.name) for field in fields(self)}})


def decode_manifest(content: bytes, name: str) -> Manifest:
    """The backup in the file ``name``. Raises BackupError."""
    try:
        found: dict[str, Any] = unseal(content, ())
        if found.get("version") != _MANIFEST_VERSION:
            raise BackupError(
                f"{name} has version {found.get('version')!r}: use the seglogd that wrote it, or a newer one"
            )
        manifest = msgspec.convert(found, Manifest)
        for entry in manifest.files:
            _check(entry)
    except MalformedJsonError as error:
        raise BackupError(f"{name} is damaged: {error}") from error
    except ValueError as error:
        raise BackupError(f"{name} is not understood: an entry in it is not possible") from error
    return manifest


def _check(entry: FileEntry) -> None:
    """Raise ValueError for a path that could lead out of a directory, and for parts of another size."""
    is_within = all(part and part not in {".", ".."} for part in entry.path.split("/"))
    if not is_within or entry.size != sum(part.size for part in entry.parts):
        raise ValueError(entry.path)


def id_at(now_ms: int) -> str:
    """The id of a backup that is begun at this time."""
    return f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z"


MANIFESTS: Final = "backups/"
FILES: Final = "files/"
_SUFFIX: Final = ".json"
_VERSION: Final = 1


class BackupStore:
    """The backups in one destination."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination

    def claim(self, cluster_id: str, directory_id: str, *, take_over: bool) -> None:
        """Begin to write backups of this log directory. Raises BackupError where others are there."""
        place = self.destination.place
        owner = self._owner()
        if owner is None:
            strange = next(iter(self.destination.names()), None)
            if strange is not None:
                raise BackupError(
                    f"{place} is not empty, and has no backup of seglog ({strange.name} is there): name another place"
                )
        elif owner[0] != cluster_id:
            raise BackupError(
                f"{place} has backups of another broker, of cluster {owner[0]}, where this one has {cluster_id}: name "
                "another place"
            )
        elif owner[1] != directory_id and not take_over:
            raise BackupError(
                f"{place} has backups of another log directory of the same cluster, {owner[1]}, where this one is "
                f"{directory_id}: one of them is a restored copy. If the other one is not used any more continue with "
                "--take-over, else name another place"
            )
        if owner != (cluster_id, directory_id):
            facts = {"version": _VERSION, "cluster_id": cluster_id, "directory_id": directory_id}
            self.destination.put(MARKER, [seal(facts)])
        self.destination.discard_unfinished()

    def ids(self) -> list[str]:
        """Of all backups, the latest first. Raises BackupError where there can be none."""
        if self._owner() is None:
            raise BackupError(f"{self.destination.place} is no backup of seglog: it has no {MARKER}")
        names = (file.name for file in self.destination.names(MANIFESTS))
        return sorted((name[len(MANIFESTS) : -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)), reverse=True)

    def finished_ids(self) -> list[str]:
        """As ``ids``. Raises BackupError, also where there are none."""
        ids = self.ids()
        if not ids:
            raise BackupError(f"{self.destination.place} has no finished backup yet")
        return ids

    def read(self, backup: str) -> Manifest:
        """The manifest of a backup. Raises BackupError."""
        name = f"{MANIFESTS}{backup}{_SUFFIX}"
        try:
            return decode_manifest(b"".join(self.destination.read(name)), f"{self.destination.place}/{name}")
        except (MissingFileError, ValueError) as error:
            raise BackupError(
                f"{self.destination.place} has no backup {backup!r}; --list shows those there are"
            ) from error

    def find(self, backup: str | None) -> Manifest:
        """That backup, or the latest one. Raises BackupError."""
        return self.read(self.finished_ids()[0] if backup is None else backup)

    def write(self, manifest: Manifest) -> None:
        """Add a backup, all files of which are there."""
        self.destination.put(f"{MANIFESTS}{manifest.id}{_SUFFIX}", [manifest.encode()])

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
                manifest = self.read(backup)
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
            self.destination.delete(f"{MANIFESTS}{backup}{_SUFFIX}")
        for name in sorted(older.names_going.difference(newest.names)):
            self.destination.delete(name)

    def _owner(self) -> tuple[str, str] | None:
        """(cluster id, directory id) of the log directory whose backups these are, None without any."""
        try:
            found = unseal(b"".join(self.destination.read(MARKER)), ())
        except MissingFileError:
            return None
        except MalformedJsonError as error:
            raise BackupError(f"{self.destination.place}/{MARKER} is damaged: {error}") from error
        if found.get("version") != _VERSION:
            raise BackupError(f"{self.destination.place} is of version {found.get('version')!r}: use a newer seglogd")
        return str(found["cluster_id"]), str(found["directory_id"])


class Older(NamedTuple):
    """What is there before a backup: the latest one, the ids of those to be removed after it, and files of them alone.

    The next backup may use such a file all the same.
    """

    latest: Manifest | None
    going: list[str]
    names_going: set[str]
