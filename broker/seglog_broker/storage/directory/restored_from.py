"""``seglog-restore.json``: from which backup a log directory comes whose older segments are still to be fetched.

Sealed JSON: ``version``, 1; ``place``, the destination of the backup, absolute where it is a path; ``key_file``, empty
where it is not encrypted; ``id`` of the backup. It stays when all is there, and then nobody asks for it.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

import msgspec

from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import MalformedJsonError, seal, unseal_version

_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RestoredFrom:
    """The content of the file."""

    place: str
    key_file: str
    id: str

    def write(self, fs: FileSystem, path: str) -> None:
        """Write it into the log directory ``path``. Raises OSError."""
        write_file_atomically(fs, f"{path}/{filenames.RESTORE_FILE}", seal({"version": _VERSION, **asdict(self)}))


def read_restored_from(fs: FileSystem, path: str) -> RestoredFrom:
    """The one of the log directory ``path``. Raises OSError; ValueError, of which the message ends a sentence."""
    known = {"version", *RestoredFrom.__dataclass_fields__}
    found: dict[str, Any] = unseal_version(read_file(fs, f"{path}/{filenames.RESTORE_FILE}"), known, _VERSION)
    try:
        return msgspec.convert({name: found.get(name) for name in known - {"version"}}, RestoredFrom)
    except msgspec.ValidationError as error:
        raise MalformedJsonError(f"it is not understood: {error}") from error
