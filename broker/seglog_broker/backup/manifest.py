"""``backups/<id>.json``: what one backup consists of. A backup is there when its manifest is.

Sealed JSON (``storage/io/small_files.py``), on one line:

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

from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal

_VERSION: Final = 1


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
        return seal({"version": _VERSION, **{field.name: getattr(self, field.name) for field in fields(self)}})


def decode_manifest(content: bytes, name: str) -> Manifest:
    """The backup in the file ``name``. Raises BackupError."""
    try:
        found: dict[str, Any] = unseal(content, ())
        if found.get("version") != _VERSION:
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
