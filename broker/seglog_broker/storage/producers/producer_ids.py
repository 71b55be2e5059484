"""``seglog-producer-ids.json``: ids for idempotent producers, none of which is ever given twice.

The file says up to where ids have been taken, in blocks: one is written before the first id of it is given, so that a
crash costs what was left of a block and nothing else. Source: Kafka's ProducerIdsBlock.
"""

from dataclasses import dataclass
from typing import Final

from seglog_broker.storage.io.filesystem import FileSystem, read_file, write_file_atomically
from seglog_broker.storage.io.small_files import seal, unseal
from seglog_protocol.errors import LogDirectoryError, PolicyViolationError

BLOCK_SIZE: Final = 1_000
"""Ids that one write of the file makes ready: about twenty bytes for so many new producers."""

_VERSION: Final = 1
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True)
class IdBlock:
    """The next block, to be written; ``run`` may be called in a thread, and again after an error."""

    _fs: FileSystem
    _path: str
    start: int

    def run(self) -> None:
        """Write the block; returns when its ids cannot be given a second time, not even after a power cut."""
        write_file_atomically(self._fs, self._path, seal({"version": _VERSION, "next": self.start + BLOCK_SIZE}))


class ProducerIds:
    """The producer ids of one log directory. One owner; one block at a time is written."""

    def __init__(self, fs: FileSystem, path: str, *, highest_seen: int) -> None:
        """Reads the file, if there is one; ``highest_seen`` is the highest id in any log, -1 for none.

        Raises LogDirectoryError when the file makes no sense.
        """
        self._fs = fs
        self._path = path
        self.is_recorded = fs.exists(path)
        """Whether the file covers every id ever given, also those in logs that are not read yet."""
        start = self._read() if self.is_recorded else 0
        self.next_id = self._end = max(start, highest_seen + 1)
        """No id from here on was ever given; up to the end of the block they are ready to be."""

    def _read(self) -> int:
        try:
            found = unseal(read_file(self._fs, self._path), {"version", "next"})
            version, start = found["version"], found["next"]
        except (ValueError, TypeError, KeyError) as error:
            raise self._malformed(str(error)) from error
        if version != _VERSION or not isinstance(start, int) or not 0 <= start <= _LONG_MAX:
            raise self._malformed(f"version {version!r}, next {start!r}")
        return start

    def _malformed(self, problem: str) -> LogDirectoryError:
        return LogDirectoryError(
            f"{self._path} cannot be understood ({problem}); restore it from a backup, or move it away to have ids "
            "begin above those in the logs",
            path=self._path,
        )

    def note_seen(self, producer_id: int) -> None:
        """An id was met in a log that could not be read before: none up to it is given from now on."""
        if producer_id >= self.next_id:
            self.next_id = self._end = max(self._end, producer_id + 1)

    def take(self) -> int | None:
        """An id that was never given before; None: a block must be written first, see ``next_block``."""
        if self.next_id == self._end:
            return None
        self.next_id += 1
        return self.next_id - 1

    def next_block(self) -> IdBlock:
        """The block to be written, then handed to ``add``. PolicyViolationError: there are no more."""
        if self._end > _LONG_MAX - BLOCK_SIZE:
            raise PolicyViolationError("every producer id has been given")
        return IdBlock(self._fs, self._path, self._end)

    def add(self, block: IdBlock) -> None:
        """The block is on the disk."""
        self.next_id, self._end = block.start, block.start + BLOCK_SIZE


def raise_next_id(fs: FileSystem, path: str, count: int) -> None:
    """Skip ``count`` ids in the file, for those of an earlier life of the directory that it knows nothing of.

    Raises LogDirectoryError when the file makes no sense, OSError.
    """
    IdBlock(fs, path, ProducerIds(fs, path, highest_seen=-1).next_id + count - BLOCK_SIZE).run()
