"""The one rule for a file of a log directory that is not understood: it is never overwritten in silence.

- Without a file that nothing else replaces, the start is refused, and the file stays as it is: ``seglog-topics.json``,
  ``seglog-producer-ids.json``, ``seglog-format``, and ``meta.properties`` of an unknown version.
- A file that the start can do without is copied before it is replaced, and the copy is named as a problem: checkpoints,
  ``partition.metadata``, ``seglog-partition.json``, ``seglog-creation.json``, ``seglog-clock.json``, snapshots of
  producers in an unknown version.
- What the records give again in full is rebuilt: indexes, checksums, snapshots of producers that a crash has torn.
"""

from typing import Final

from seglog_broker.storage.io.filesystem import FileSystem, parent, read_file, write_file_atomically
from seglog_broker.storage.io.os_errors import is_no_room
from seglog_protocol.checksum import crc32c

UNREADABLE_MARK: Final = ".unreadable-"
"""``<name>.unreadable-<CRC-32C of its content>``: so the same content is copied once, and no copy replaces another."""


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
