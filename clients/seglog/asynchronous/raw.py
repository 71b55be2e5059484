"""Access to whole batches, of the async faces: append, flush, fetch a range of offsets as batch bytes.

As ``seglog.raw``, with the same ``RawBatch``.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from seglog.asynchronous.client import Client
from seglog.core.delivery import Receipt
from seglog.core.fetcher import FETCH_BYTES
from seglog.core.records import FetchedBatch
from seglog.raw import RawBatch, append_request, appending, flushing, unanswered
from seglog_protocol.errors import SeglogError
from seglog_protocol.isolation import READ_UNCOMMITTED, Isolation
from seglog_protocol.messages import Ack


async def append(client: Client, batches: Sequence[RawBatch], *, ack: Ack = "disk") -> list[Receipt | SeglogError]:
    """Append in one request; returns for each batch, in order, its receipt or its error.

    As ``seglog.raw.append``. A cancelled append may or may not have happened.
    """
    if ack == "none":
        await client.post(append_request(batches, ack), [batch.data for batch in batches])
        return unanswered(batches)
    return await client.converse(appending(batches, ack, client.timestamps))


async def flush(client: Client, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Flush partitions to disk, as ``seglog.raw.flush``."""
    return await client.converse(flushing(topic, partitions))


@asynccontextmanager
async def fetch(
    client: Client,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    partition_bytes: int = FETCH_BYTES,
    durable_only: bool = False,
    isolation: Isolation = READ_UNCOMMITTED,
) -> AsyncGenerator[AsyncIterator[FetchedBatch], None]:
    """The verified batches of a range of offsets, as ``seglog.raw.fetch``, over a connection of its own.

    async with raw.fetch(client, "commits", 0, 1000, 2000) as batches:
        async for batch in batches:
            ...
    """
    async with client.consumer(
        topic,
        partitions=[partition],
        start={partition: start},
        until={partition: end},
        durable_only=durable_only,
        isolation=isolation,
        partition_bytes=partition_bytes,
    ) as consumer:
        yield consumer.batches()
