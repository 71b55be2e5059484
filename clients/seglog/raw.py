"""Access to whole batches: append built ones, flush partitions, fetch a range of offsets as batch bytes.

For programs that encode or decode batches themselves: a vectorised decoder, a Spark source, a copy from one topic to
another. Batches are neither compressed nor decompressed here.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from seglog.core.conversations import Conversation, ask, check
from seglog.core.delivery import Receipt
from seglog.core.fetcher import FETCH_BYTES
from seglog.core.records import FetchedBatch
from seglog.core.timestamps import TimestampWatch
from seglog_protocol import messages
from seglog_protocol.errors import SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.isolation import READ_UNCOMMITTED, Isolation
from seglog_protocol.record_batch import parse_header

if TYPE_CHECKING:
    from seglog.client import Client


class RawBatch(NamedTuple):
    """A whole record batch with base offset 0, as ``encode_batch`` makes it, and its destination."""

    topic: str
    partition: int
    data: Buffer


def append(client: "Client", batches: Sequence[RawBatch], *, ack: messages.Ack = "disk") -> list[Receipt | SeglogError]:
    """Append in one request; returns for each batch, in order, its receipt or its error.

    A receipt's offset is that of the batch's first record, its timestamp the append time or -1; a batch counts as
    expired on arrival if its first or newest record is, with one TimestampWarning per topic. One bad batch does not
    affect the others. Ack "none" gets no answer. Never retries: raises ConnectionLostError when the outcome is unknown.
    The caller keeps a request within the broker's frame limit.
    """
    if ack == "none":
        client.post(append_request(batches, ack), [batch.data for batch in batches])
        return unanswered(batches)
    return client.converse(appending(batches, ack, client.timestamps))


def append_request(batches: Sequence[RawBatch], ack: messages.Ack) -> messages.AppendRequest:
    """The request whose payload are the batches' bytes."""
    return messages.AppendRequest(
        [messages.AppendPartition(b.topic, b.partition, len(b.data)) for b in batches], ack=ack
    )


def unanswered(batches: Sequence[RawBatch]) -> list[Receipt | SeglogError]:
    """The receipts at ack "none"."""
    return [Receipt(batch.topic, batch.partition, -1, -1, "none") for batch in batches]


def appending(
    batches: Sequence[RawBatch], ack: messages.Ack, timestamps: Callable[[str], TimestampWatch]
) -> Conversation[list[Receipt | SeglogError]]:
    """As ``append`` at an ack with an answer; ``timestamps`` returns the timestamp checks of a topic."""
    reply, _ = yield from ask(append_request(batches, ack), messages.AppendReply, [batch.data for batch in batches])
    return [
        result.error
        if result.error is not None
        else Receipt(
            result.topic,
            result.partition,
            -1 if result.base_offset is None else result.base_offset,
            -1 if result.timestamp is None else result.timestamp,
            result.ack or "",
            _has_expired(batch, result, timestamps(batch.topic)),
        )
        for batch, result in zip(batches, reply.partitions, strict=False)
    ]


def _has_expired(batch: RawBatch, result: messages.AppendResult, watch: TimestampWatch) -> bool:
    """Whether the first or the newest record of a batch expired on arrival; may issue a TimestampWarning."""
    watch.learn(result)
    header = parse_header(batch.data)
    known = [timestamp for timestamp in (header.base_timestamp, header.max_timestamp) if timestamp >= 0]
    return min(known) < watch.suspicious_below and watch.check(min(known)) if known else False


def flush(client: "Client", topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Flush partitions to disk, with the records of all producers at any ack.

    Returns for each the offset below which every record survives power loss, at least the end at the time of the
    request. Raises the first partition's error, PartitionReadOnlyError where the disk failed.
    """
    return client.converse(flushing(topic, partitions))


def flushing(topic: str, partitions: Iterable[int]) -> Conversation[dict[int, int]]:
    """As ``flush``."""
    asked = [messages.FlushPartition(topic, partition) for partition in partitions]
    reply, _ = yield from ask(messages.FlushRequest(asked), messages.FlushReply, is_repeatable=True)
    check(reply.partitions)
    return {result.partition: result.durable or 0 for result in reply.partitions}


def fetch(
    client: "Client",
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    partition_bytes: int = FETCH_BYTES,
    durable_only: bool = False,
    isolation: Isolation = READ_UNCOMMITTED,
) -> Iterator[FetchedBatch]:
    """The verified batches of offsets ``start`` to ``end`` (exclusive) of one partition, over a connection of its own.

    The first and the last may hold records outside the range; see ``start_offset`` and ``end_offset`` of each batch.
    Ends early at the end of the log. ``isolation`` "read_committed" leaves out aborted transactions, and ends
    where the first open one begins. Raises OffsetOutOfRangeError, CorruptRecordError.
    """
    with client.consumer(
        topic,
        partitions=[partition],
        start={partition: start},
        until={partition: end},
        durable_only=durable_only,
        isolation=isolation,
        partition_bytes=partition_bytes,
    ) as consumer:
        yield from consumer.batches()


def join(batches: Iterable[FetchedBatch]) -> bytes:
    """The concatenated bytes of ``batches``, the same as on the broker's disk."""
    return b"".join(batch.data for batch in batches)
