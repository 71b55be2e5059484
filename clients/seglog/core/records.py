"""What a consumer gives: records, verified batches, and gaps, the offsets without a record."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from seglog.core.errors import copied
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import BatchHeader
from seglog_protocol.records import Record as StoredRecord
from seglog_protocol.records import RecordReader, RecordT, record_bytes

GAPS_KEPT_MAX: Final = 1_000


class Record(NamedTuple):
    """One record of a topic. ``timestamp`` is epoch ms, -1 for none; ``value`` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, eq=False)
class FetchedBatch:
    """A verified batch: its header and its raw bytes, the same as on the broker's disk.

    Its records in [``start_offset``, ``end_offset``) were requested; ``records`` yields only these.
    """

    topic: str
    partition: int
    header: BatchHeader
    data: memoryview
    start_offset: int
    end_offset: int
    size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX

    def content(self) -> bytes:
        """The bytes of all its records as they are stored, but uncompressed. Raises CorruptRecordError."""
        try:
            return record_bytes(self.header, self.data, self.size_limit)
        except CorruptRecordError as error:
            raise located(error, self.topic, self.partition, self.header) from error

    def stored(self) -> Iterator[StoredRecord]:
        """The requested records, without topic and partition, decompressed to at most ``size_limit`` bytes.

        Raises CorruptRecordError.
        """
        return chain.from_iterable(self._lists(StoredRecord, ()))

    def records(self) -> Iterator[Record]:
        """The requested records. Raises CorruptRecordError."""
        return chain.from_iterable(self.record_lists())

    def record_lists(self) -> Iterator[list[Record]]:
        """As ``records``, several at a time."""
        return self._lists(Record, (self.topic, self.partition))

    def _lists(self, kind: type[RecordT], prefix: tuple[object, ...]) -> Iterator[list[RecordT]]:
        start, end, header = self.start_offset, self.end_offset, self.header
        at = len(prefix)  # the place of a record's offset
        is_whole = start <= header.base_offset and end >= header.next_offset
        try:
            reader = RecordReader(header, self.data, kind, prefix, size_limit=self.size_limit)
            while not reader.is_finished:
                records = reader.read()
                yield records if is_whole else [record for record in records if start <= record[at] < end]
        except CorruptRecordError as error:
            raise located(error, self.topic, self.partition, header) from error


def located(
    error: CorruptRecordError, topic: str, partition: int, header: BatchHeader | None, start_offset: int = -1
) -> CorruptRecordError:
    """A copy of the error with the topic, partition and offsets known here."""
    facts = {"topic": topic, "partition": partition, "start_offset": start_offset}
    if header is not None:
        facts |= {"start_offset": header.base_offset, "next_offset": header.next_offset}
    known = {name: value for name, value in error.facts.items() if value not in (-1, "", None)}
    return copied(error, facts | known)


class ConsumerGap(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of a partition without a record.

    ``reason`` is one of compacted, expired, truncated, damaged, missing.
    """

    topic: str
    partition: int
    start: int
    end: int
    reason: str


class GapLog:
    """The gaps of a consumer: the last 1,000 (adjacent ones with one reason are merged) and totals of all.

    Iterates from the oldest kept to the newest.
    """

    def __init__(self) -> None:
        self.total = 0
        """Number of gaps, after merging."""
        self.offsets_total = 0
        """Number of offsets in all gaps."""
        self._kept: deque[list[ConsumerGap]] = deque(maxlen=GAPS_KEPT_MAX)
        self._last: dict[int, list[ConsumerGap]] = {}  # the newest of each partition, in a box that merging replaces in

    def add(self, gap: ConsumerGap) -> None:
        """Add a gap, which must begin at or after the end of its partition's last one."""
        self.offsets_total += gap.end - gap.start
        box = self._last.get(gap.partition)
        if box is not None and box[0].end == gap.start and box[0].reason == gap.reason:
            box[0] = box[0]._replace(end=gap.end)
            return
        self.total += 1
        self._last[gap.partition] = box = [gap]
        self._kept.append(box)

    def __iter__(self) -> Iterator[ConsumerGap]:
        return iter([box[0] for box in self._kept])

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<GapLog of {self.total} gaps, {self.offsets_total} offsets>"
