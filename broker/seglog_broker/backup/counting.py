"""Counts what a segment holds, batch by batch, with each checksum verified: of a source, and of its restored copy."""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from seglog_broker.backup.store import SegmentFacts
from seglog_broker.storage.io.copying import read_chunks
from seglog_broker.storage.io.filesystem import FileSystem
from seglog_broker.storage.segment.damage import DamagedRange
from seglog_broker.storage.segment.log_verifier import LogFile, LogVerifier
from seglog_protocol.checksum import crc32c
from seglog_protocol.header_scan import Readable, ReadBytes
from seglog_protocol.records import decode_records

_BATCH: Final = struct.Struct(">qqiI")
"""Of a batch in the digest: base offset, last offset, number of records, CRC-32C."""


BytesDone = Callable[[int], None]
"""Called with the number of bytes of a file that is done."""


class CutLog:
    """The first ``size`` bytes of a ``.log``, which may have grown since; see ``LogFile``.

    What is read of it from its beginning on goes into its checksum at once, so that no second pass is needed for that.
    """

    def __init__(self, fs: FileSystem, path: str, base_offset: int, size: int) -> None:
        self.base_offset = base_offset
        self.size = size
        self._fs = fs
        self._path = path
        self._summed = 0
        self._crc = 0

    @contextmanager
    def lease(self) -> Iterator[Readable]:
        """The open file, of which each read goes into the checksum."""
        with self._fs.open(self._path) as self._file:
            yield self

    def pread(self, size: int, position: int) -> ReadBytes:
        """As ``Readable.pread``, while a lease lasts."""
        data = self._file.pread(size, position)
        self._sum(data, position)
        return data

    def checksum(self) -> int:
        """The CRC-32C of all bytes; those that were not read before are read for it.

        Raises OSError, SourceTooShortError among them.
        """
        for chunk in read_chunks(self._fs, self._path, self.size, start=self._summed):
            self._sum(chunk, self._summed)
        return self._crc

    def _sum(self, data: ReadBytes, position: int) -> None:
        end = min(position + len(data), self.size)
        if position <= self._summed < end:
            self._crc = crc32c(memoryview(data)[self._summed - position : end - position], self._crc)
            self._summed = end


def count_segment(
    log: LogFile,
    following: int | None,
    *,
    compacted_before: int,
    known: Sequence[DamagedRange],
    with_records: bool = False,
) -> SegmentFacts:
    """The facts of one segment; ``following`` is where the next one begins, ``known`` is recorded damage.

    ``with_records`` decodes every record, and counts those. Raises OSError, and CorruptRecordError for a batch with a
    right checksum whose records cannot be read.
    """
    verifier = LogVerifier(compacted_before=compacted_before, known=known)
    records = batches = valid = digest = 0
    first = next_offset = log.base_offset
    with log.lease() as file:
        for position, header in verifier.batches(log, following):
            if not batches:
                first = header.base_offset
            batches += 1
            valid += header.size
            next_offset = header.next_offset
            if with_records:
                records += len(decode_records(header, file.pread(header.size, position)))
            else:
                records += header.record_count
            entry = _BATCH.pack(header.base_offset, header.last_offset, header.record_count, header.crc)
            digest = crc32c(entry, digest)
    return SegmentFacts(log.base_offset, log.size, records, batches, first, next_offset, digest, log.size - valid)
