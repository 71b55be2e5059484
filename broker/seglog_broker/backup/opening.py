"""From what a person names as destination to the ``Destination``: a directory or an object store, encrypted or not."""

import os
import re
from typing import Final

from seglog_broker.backup.destination import MARKER, Destination, DestinationError, MissingFileError
from seglog_broker.backup.directory_destination import DirectoryDestination
from seglog_broker.backup.encrypted_destination import (
    BackupKey,
    EncryptedDestination,
    key_id_of,
    read_key_file,
    wrong_key,
)
from seglog_broker.storage.io.clock import Throttle
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_protocol.extras import missing
from seglog_protocol.object_stores import place_at

_SLIP: Final = re.compile(r"(s3|gs|az):(?!//)")


def open_destination(
    fs: FileSystem, where: str, *, key_file: str | None = None, throttle: Throttle | None = None
) -> Destination:
    """The destination ``where``: a path, or an address such as ``s3://bucket/path``, see ``object_store``.

    Asks the destination whether a backup that is there already is encrypted, and by which key. Raises DestinationError,
    also where that does not fit the key in ``key_file``; without a file, or an empty name, there is none.
    """
    key = read_key_file(key_file) if key_file else None
    inner = _destination(fs, where, throttle)
    try:
        _check_key(inner, key)
    except BaseException:
        inner.close()
        raise
    return inner if key is None else EncryptedDestination(fs, inner, key)


def why_no_place(where: str) -> str | None:
    """The reason why ``where`` names no destination; None if it names one, which is not asked."""
    if not where:
        return "the destination is empty: name a directory, or an address such as s3://BUCKET/PATH"
    if _SLIP.match(where):
        return (
            f"{where} is no address: that has two slashes, as s3://BUCKET/PATH. A directory of this name is ./{where}"
        )
    if "://" not in where:
        return None
    try:
        place_at(where, os.environ)
    except ValueError as error:
        return str(error)
    lacking = missing("A backup in an object store", "backup", beside="broker")
    return None if lacking is None else str(lacking)


def _destination(fs: FileSystem, where: str, throttle: Throttle | None) -> Destination:
    why = why_no_place(where)
    if why is not None:
        raise DestinationError(why)
    if "://" not in where:
        return DirectoryDestination(fs, where, throttle=throttle)
    from seglog_broker.backup.object_store import open_object_store  # noqa: PLC0415 - only an extra has what it needs

    return open_object_store(fs, where, throttle=throttle)


def _check_key(destination: Destination, key: BackupKey | None) -> None:
    try:
        beginning = next(destination.read(MARKER), b"")
    except MissingFileError:
        return  # a new one, or no backup at all: the caller finds out
    found = key_id_of(beginning)
    if found is None and key is not None:
        raise DestinationError(
            f"the backup in {destination.place} is not encrypted: leave out the key file, or begin an encrypted one "
            "elsewhere"
        )
    if found is not None and key is None:
        raise DestinationError(
            f"the backup in {destination.place} is encrypted: name the file with its key, whose id is {found.hex()}, "
            "by --key-file, or a broker by seglog.backup.key.file"
        )
    if key is not None and found != key.id:
        raise wrong_key(destination.place, beginning, key)
