"""Whole batches of a ``.log`` by their checksums, at a place or after damage, for any reader of bytes at a position.

Headers alone are walked by ``header_scan``. Neither skips bytes silently.
"""

from struct import Struct
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from seglog_protocol import record_batch
from seglog_protocol.header_scan import LocatedBatch, Readable, ReadBytes
from seglog_protocol.segment_files import OFFSET_MAX

SCAN_WINDOW: Final = 1024 * 1024
"""Bytes read at a time, where no other window is asked for."""

PLACES_A_TURN: Final = 1_000
"""Places where a batch could begin that a search looks at before it may stop for others: a few milliseconds."""

SEARCHED_A_TURN: Final = 2 * 1024 * 1024
"""Bytes that a search goes through, as above."""

_MAGIC: Final = bytes([record_batch.MAGIC])

_OLD_HEADER: Final = Struct(">qiIb")
"""Offset, size of what follows, CRC-32 of everything from the magic on, magic: then attributes, timestamp and so on."""


class OldMessage(NamedTuple):
    """A message of magic 0 or 1, as Kafka wrote them before 0.11; ``offset`` is that of the last record in it."""

    end: int
    offset: int


class Pausing(Protocol):
    """Stops searches that are longer than one turn, and knows where each goes on, by what was asked."""

    def resume(self, question: tuple[Any, ...], start: Any) -> Any:
        """Where the search for ``question`` stopped; ``start`` if it did not."""
        ...

    def pause(self, question: tuple[Any, ...], state: Any) -> None:
        """Raise, if others wait for their turn."""
        ...


class BatchScan:
    """Reads whole batches of one file: plausible, within its first ``size`` bytes, checksum right."""

    def __init__(
        self, file: Readable, size: int, pauses: Pausing | None = None, *, window_bytes: int = SCAN_WINDOW
    ) -> None:
        """With ``pauses`` long searches may stop by an exception of it, and go on when they are called again."""
        self._file = file
        self.size = size
        self._pauses = pauses
        self._window_bytes = window_bytes
        self._window: ReadBytes = b""
        self._window_start = 0

    def batch_at(self, position: int, offset_min: int = 0, offset_max: int = OFFSET_MAX) -> LocatedBatch | None:
        """The valid batch that begins at ``position`` with all its offsets in that range, or None.

        The offset is checked first: if the bytes are not a header, their length would often require a checksum over the
        rest of the file.
        """
        head = self._bytes(position, record_batch.HEADER_SIZE)
        if head is None:
            return None
        header = record_batch.parse_header(head)
        if record_batch.why_implausible(header) is not None:
            return None
        if header.base_offset < offset_min or header.last_offset > offset_max:
            return None
        body = self._bytes(position, header.size)
        if body is None or not record_batch.verify_crc(body, 0, header):
            return None
        return LocatedBatch(position, header)

    def old_message_at(self, position: int) -> OldMessage | None:
        """The message of magic 0 or 1 that begins at ``position``, by its checksum, or None."""
        head = self._bytes(position, _OLD_HEADER.size)
        if head is None:
            return None
        offset, size, crc, magic = _OLD_HEADER.unpack(head)
        if magic not in {0, 1} or size < record_batch.OLDEST_BATCH_LENGTH_MIN:
            return None
        whole = self._bytes(position, record_batch.LOG_OVERHEAD + size)
        if whole is None or crc32(whole[record_batch.MAGIC_POSITION :]) != crc:
            return None
        return OldMessage(position + len(whole), offset)

    def next_batch(self, position: int, offset_min: int = 0, offset_max: int = OFFSET_MAX) -> LocatedBatch | None:
        """The first valid batch at or after ``position`` with all its offsets in [offset_min, offset_max].

        If the length in the header at ``position`` leads to a valid batch, that one is returned, so that a batch inside
        a value of the damaged batch is not mistaken for one of the log.
        """
        head = self._bytes(position, record_batch.HEADER_SIZE)
        if head is not None:
            header = record_batch.parse_header(head)
            if record_batch.why_implausible(header) is None:
                found = self.batch_at(position + header.size, offset_min, offset_max)
                if found is not None:
                    return found
        question = "next batch", position, offset_min, offset_max
        position = self._resume(question, position)
        while position + record_batch.HEADER_SIZE <= self.size:
            stop = position + SEARCHED_A_TURN
            for _ in range(PLACES_A_TURN):
                candidate = self._next_magic(position, stop)
                if candidate is None:
                    position = stop
                    break
                found = self.batch_at(candidate, offset_min, offset_max)
                if found is not None:
                    return found
                position = candidate + 1
            self._pause(question, position)
        return None

    def at_or_after(self, position: int, offset_min: int = 0, offset_max: int = OFFSET_MAX) -> LocatedBatch | None:
        """The valid batch at ``position``, else the first after it, as ``next_batch``."""
        return self.batch_at(position, offset_min, offset_max) or self.next_batch(position, offset_min, offset_max)

    def _resume(self, question: tuple[Any, ...], start: Any) -> Any:
        return start if self._pauses is None else self._pauses.resume(question, start)

    def _pause(self, question: tuple[Any, ...], state: Any) -> None:
        if self._pauses is not None:
            self._pauses.pause(question, state)

    def _next_magic(self, position: int, stop: int) -> int | None:
        """Where a batch could begin in [position, stop): sixteen bytes before a byte of value 2."""
        while position < stop and position + record_batch.HEADER_SIZE <= self.size:
            size = min(self._window_bytes // 2, self.size - position)
            if self._bytes(position, size) is None:
                return None
            start = position - self._window_start
            found = self._window.find(_MAGIC, start + record_batch.MAGIC_POSITION, start + size)
            if found >= 0:
                candidate = self._window_start + found - record_batch.MAGIC_POSITION
                return candidate if candidate < stop else None
            position += size - record_batch.MAGIC_POSITION
        return None

    def _bytes(self, position: int, size: int) -> memoryview | None:
        """``size`` bytes at ``position``, or None if the file has fewer."""
        if position + size > self.size:
            return None
        start = position - self._window_start
        if start < 0 or start + size > len(self._window):
            wanted = min(max(size, self._window_bytes), self.size - position)
            self._window, self._window_start, start = self._file.pread(wanted, position), position, 0
            if len(self._window) < size:
                return None
        return memoryview(self._window)[start : start + size]
