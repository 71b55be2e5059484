"""Small files of a log directory: JSON with its own checksum, Kafka's checkpoints, and files that are not understood.

Sealed JSON has as its last key ``crc``: the CRC-32C, in 8 hex digits, of every byte before its value, so that a flipped
bit is noticed. A file without one was written by an earlier version. Such a file may have no unknown key: that could be
``crc`` with a flipped bit.

A file that is not understood is never overwritten in silence:

- Without a file that nothing else replaces, the start is refused, and the file stays as it is: ``seglog-topics.json``,
  ``seglog-configs.json``, ``seglog-accounts.json``, ``seglog-acls.json``, ``seglog-producer-ids.json``,
  ``seglog-format``, and ``meta.properties`` of an unknown version.
- A file that the start can do without is copied before it is replaced, and the copy is named as a problem: checkpoints,
  ``partition.metadata``, ``seglog-partition.json``, ``seglog-creation.json``, ``seglog-clock.json``, snapshots of
  producers in an unknown version.
- What the records give again in full is rebuilt: indexes, checksums, snapshots of producers that a crash has torn.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from seglog_broker.storage.io.filesystem import FileSystem, parent, read_file, write_file_atomically
from seglog_broker.storage.io.os_errors import is_no_room
from seglog_protocol.checkpoint_files import TopicPartition, decode_offsets
from seglog_protocol.checksum import crc32c
from seglog_protocol.errors import LogDirectoryError

UNREADABLE_MARK: Final = ".unreadable-"
"""``<name>.unreadable-<CRC-32C of its content>``: so the same content is copied once, and no copy replaces another."""

_CRC_KEY: Final = "crc"
_DIGITS: Final = "00000000"
_END = re.compile(rb'[0-9a-f]{8}"\n?\}\n')


class MalformedJsonError(ValueError):
    """The content is not a file of this form, or was changed; the message is the end of a sentence."""


def seal(facts: Mapping[str, Any]) -> bytes:
    """The content of a file with the keys of ``facts``, none of which is ``crc``, and the checksum."""
    return _sealed(json.dumps({**facts, _CRC_KEY: _DIGITS}))


def seal_members(members: Iterable[str]) -> bytes:
    """As ``seal``, from members that are JSON text already (``"key": value``); each gets a line of its own."""
    lines = ",\n ".join((*members, f'"{_CRC_KEY}": "{_DIGITS}"'))
    return _sealed(f"{{\n {lines}\n}}")


def _sealed(text: str) -> bytes:
    content = text.encode() + b"\n"
    start = content.rindex(_DIGITS.encode())
    return content[:start] + f"{crc32c(content[:start]):08x}".encode() + content[start + len(_DIGITS) :]


def unseal(content: bytes, known: Collection[str]) -> dict[str, Any]:
    """The keys and values of a file, without its checksum. Raises MalformedJsonError.

    ``known`` are the keys that a file without a checksum may have.
    """
    try:
        found = json.loads(content)
    except ValueError as error:
        raise MalformedJsonError(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise MalformedJsonError("it is not a JSON object")
    if _CRC_KEY not in found:
        unknown = next((name for name in found if name not in known), None)
        if unknown is not None:
            raise MalformedJsonError(f"it has a key {unknown!r}, which is not known")
        return found
    crc = found.pop(_CRC_KEY)
    start = content.rindex(b'"', 0, content.rindex(b'"')) + 1
    if _END.fullmatch(content, start) is None or crc != f"{crc32c(content[:start]):08x}":
        raise MalformedJsonError("its own checksum, the value of crc, does not match")
    return found


def unseal_version(content: bytes, known: Collection[str], version: int) -> dict[str, Any]:
    """As ``unseal``, of a file of this version, which has no key but those that are ``known``."""
    found = unseal(content, known)
    if found.get("version") != version:
        why = f"version {found['version']!r} is not known" if "version" in found else "it has no version"
        raise MalformedJsonError(why)
    if unknown := found.keys() - set(known):
        raise MalformedJsonError(f"it has a key {min(unknown)!r}, which is not known")
    return found


def not_understood(path: str, problem: str, without: str) -> LogDirectoryError:
    """The error of a file that nothing replaces; ``without``: what becomes of it if the file is moved away."""
    return LogDirectoryError(
        f"{path} cannot be understood ({problem.rstrip('.')}); restore it from a backup, or move it away to {without}; "
        "if you edited it yourself, remove the key crc",
        path=path,
    )


def keep_copy(fs: FileSystem, path: str) -> str:
    """Copy a file that is about to be replaced; return the end of a sentence that says where the copy is.

    On a full disk there is none, and the sentence says so. Raises OSError for any other failure.
    """
    content = read_file(fs, path)
    copy = f"{path}{UNREADABLE_MARK}{crc32c(content):08x}"
    try:
        if not fs.exists(copy):
            write_file_atomically(fs, copy, content)
    except OSError as error:
        if not is_no_room(error):
            raise
        return "the disk has no room for a copy of it"
    return f"a copy of it stays as {copy.removeprefix(f'{parent(path)}/')}"


def read_offsets(fs: FileSystem, path: str) -> dict[TopicPartition, int]:
    """The offsets in an offset checkpoint; empty when there is no file. Raises MalformedCheckpointError, OSError."""
    return decode_offsets(read_file(fs, path)) if fs.exists(path) else {}
