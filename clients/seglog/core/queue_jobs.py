"""Jobs of a queue: the records that a member of a share group has acquired, until it says what became of them."""

import logging
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple, Self

from seglog.core.records import FetchedBatch, Record
from seglog_protocol.errors import ClientError, CorruptRecordError, JobLost
from seglog_protocol.record_batch import INT64_MAX, BatchHeader, iter_batches, verify_crc

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""What an acknowledgement says of an offset: Kafka's types."""

Place = tuple[bytes, int]
"""A partition: the sixteen bytes of its topic's id, and its number."""

_log = logging.getLogger(__name__)


class Job(Record):
    """A record of a queue, which this member has until it says what became of it: in any thread, and once.

    In a ``with`` block the job is accepted when the block ends, and released when it raises: an error is logged, and
    goes no further. What is said is sent soon; ``flush`` of the queue waits until it is on the broker's disk.
    """

    queue: Any
    place: Place
    locked_at: float
    taken_at = 0.0
    word: int | None = None
    is_entered = False
    is_told = False
    attempt: int
    """How often the record was given to a member so far: 1 is the first time."""
    lost: JobLost | None = None
    """Why the record is no longer this member's, as after a broken connection; None while it is."""

    @classmethod
    def of(cls, record: Record, attempt: int, place: Place, queue: Any, locked_at: float) -> Self:
        """The job of a record that was acquired; ``queue.settle`` hears what became of it."""
        job = cls._make(record)
        job.attempt, job.place, job.queue, job.locked_at = attempt, place, queue, locked_at
        return job

    __eq__ = object.__eq__  # the same record may come again
    __hash__ = object.__hash__

    def accept(self) -> None:
        """The job is done. Raises ClientError where something else was said before; so do the others."""
        self.queue.settle(self, ACCEPT)

    def release(self) -> None:
        """Somebody is to do the job, or try it again; up to the group's limit of attempts."""
        self.queue.settle(self, RELEASE)

    def reject(self) -> None:
        """Nobody can do the job: it goes to the dead letters, where the group has some."""
        self.queue.settle(self, REJECT)

    def __enter__(self) -> Self:
        if self.word is not None:
            raise ClientError(
                "something was said of this job before: a loop that goes on releases a job without a block; take those "
                "for other threads or tasks by get()"
            )
        self.is_entered = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if self.word is None:
            self.queue.settle(self, ACCEPT if error is None else RELEASE)
        if not isinstance(error, Exception):
            return False
        where = self.topic, self.partition, self.offset
        _log.error("job %s-%d at offset %d failed, attempt %d", *where, self.attempt, exc_info=error)
        return True

    def lose(self, why: str) -> None:
        """The record is no longer this member's, or that is not known."""
        told = f"job {self.topic}-{self.partition} at offset {self.offset} may run again: {why}"
        self.is_told = True
        self.lost = self.lost or JobLost(told, topic=self.topic, partition=self.partition, offset=self.offset)


class Acknowledgement(NamedTuple):
    """A word about the offsets ``first`` to ``last``, both included: of one ``job``, or of offsets without."""

    first: int
    last: int
    word: int
    job: Job | None = None


Acknowledgements = dict[Place, list[Acknowledgement]]


def batches_of(acks: Iterable[Acknowledgement], kind: type[Any]) -> list[Any]:
    """Structs of ``kind`` for these, in the order of offsets: jobs that follow each other are in one batch."""
    batches: list[Any] = []
    following: int | None = None
    for ack in sorted(acks, key=itemgetter(0)):
        if ack.first == following and ack.job is not None:
            batches[-1].last_offset = ack.last
            batches[-1].acknowledge_types.append(ack.word)
        else:
            batches.append(kind(first_offset=ack.first, last_offset=ack.last, acknowledge_types=[ack.word]))
        following = None if ack.job is None else ack.last + 1
    for batch in batches:
        if len(set(batch.acknowledge_types)) == 1:  # which stands for all
            del batch.acknowledge_types[1:]
    return batches


def unpack(
    topic: str, partition: int, data: memoryview, acquired: Iterable[Any], size_limit: int
) -> tuple[list[tuple[Record, int]], list[Acknowledgement]]:
    """The records that were acquired with their attempts, and what is to be said of the other offsets at once.

    ``acquired`` has the ranges of a response. Offsets without a record are gaps; those of batches that cannot be read,
    or have not come, are released: somebody else may read them, up to the limit of attempts.
    """
    found: list[tuple[Record, int]] = []
    others: list[Acknowledgement] = []
    pieces = _pieces(topic, partition, data, size_limit)
    begin, end, record = next(pieces)
    for each in acquired:
        at, last = each.first_offset, each.last_offset
        while at <= last:
            while end < at:
                begin, end, record = next(pieces)
            if begin > at:
                others.append(Acknowledgement(at, min(begin - 1, last), GAP))
            elif record is None:
                others.append(Acknowledgement(at, min(end, last), RELEASE))
            else:
                found.append((record, each.delivery_count))
            at = min(begin - 1 if begin > at else end, last) + 1
    return found, others


def _pieces(topic: str, partition: int, data: memoryview, size_limit: int) -> Iterator[tuple[int, int, Record | None]]:
    """First and last offset of each record, and of each batch that cannot be read, up to the last offset there is."""
    begin = 0
    try:
        for header, batch in iter_batches(data):
            try:
                records = [] if header.is_control else _records(topic, partition, header, batch, size_limit)
            except CorruptRecordError as error:
                told = "jobs of %s-%d from offset %d on cannot be read and are released: %s"
                _log.error(told, topic, partition, header.base_offset, error)
                yield header.base_offset, header.next_offset - 1, None
            else:
                for record in records:
                    yield record.offset, record.offset, record
            begin = header.next_offset
    except CorruptRecordError as error:
        _log.error("jobs of %s-%d have come as no batches: %s", topic, partition, error)
    yield begin, INT64_MAX, None


def _records(topic: str, partition: int, header: BatchHeader, batch: memoryview, size_limit: int) -> list[Record]:
    if not verify_crc(batch, 0, header):
        raise CorruptRecordError("the checksum does not match")
    return list(FetchedBatch(topic, partition, header, batch, 0, INT64_MAX, size_limit).records())
