"""Records of a topic, read for a page: batches, and rows in place of records that are not there or cannot be read.

The pure ``Fetcher`` of the client decides and checks, as in any consumer; its fetches go over the client's own
connection, so that a page opens none.
"""

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from seglog.asyncio import Client
from seglog.core.fetcher import GO_ON, Fetcher, FetchOptions, PartitionPosition
from seglog.core.moments import AtTime, Edge, Moment
from seglog.core.records import FetchedBatch, Record
from seglog_protocol.errors import CorruptRecordError, PartitionRecoveringError
from seglog_protocol.isolation import READ_COMMITTED, Isolation
from seglog_protocol.messages import FetchReply
from seglog_protocol.record_batch import BatchHeader

STEP_SECONDS: Final = 1.0
"""About how long one request of a browser reads; what it has found by then is shown."""

Place = Moment | Mapping[int, int]
"""A place in a topic: an offset or a time in each partition, an end, or offsets by partition."""


class Extent(NamedTuple):
    """The offsets that a partition has, [``earliest``, ``end``), and ``at``, which was asked for, perhaps outside."""

    partition: int
    earliest: int
    end: int
    at: int

    @property
    def place(self) -> int:
        """The nearest offset to ``at`` that there is, or the end."""
        return min(max(self.at, self.earliest), self.end)


async def extents(
    client: Client, topic: str, partitions: Sequence[int], place: Place, isolation: Isolation
) -> list[Extent]:
    """The extents of these partitions, asked at once. Raises what ``Client.offsets`` raises."""
    at = place if isinstance(place, AtTime) else None
    found = []
    for each in await client.offsets(topic, at, partitions=partitions, isolation=isolation):
        offset = each.offset
        if isinstance(place, Mapping):
            offset = place.get(each.partition)
        elif not isinstance(place, AtTime | Edge):
            offset = place.offset
        elif place is Edge.EARLIEST:
            offset = each.earliest
        found.append(Extent(each.partition, each.earliest, each.latest, each.latest if offset is None else offset))
    return found


class Row(NamedTuple):
    """A record, or offsets from ``start_offset`` to ``end_offset`` (exclusive) without one, and ``why``."""

    partition: int
    start_offset: int
    end_offset: int
    record: Record | None = None
    header: BatchHeader | None = None
    why: str = ""
    is_damage: bool = False


def damage(error: CorruptRecordError) -> Row:
    """The offsets that cannot be read. Raises the error where it does not say how far that goes."""
    if error.partition < 0 or not 0 <= error.start_offset < error.next_offset:
        raise error
    why = error.message.partition(GO_ON)[0]
    return Row(error.partition, error.start_offset, error.next_offset, why=why, is_damage=True)


def rows_of_batch(batch: FetchedBatch) -> Iterator[Row]:
    """Its records, the offsets between them that compaction has emptied, and the damage that ends it."""
    expected = batch.start_offset
    try:
        for record in batch.records():
            if record.offset > expected:
                yield Row(batch.partition, expected, record.offset, why="compacted")
            expected = record.offset + 1
            yield Row(batch.partition, record.offset, expected, record, batch.header)
        if expected < batch.end_offset:
            yield Row(batch.partition, expected, batch.end_offset, why="compacted")
    except CorruptRecordError as error:
        yield damage(error)._replace(start_offset=expected)


async def read(
    client: Client, topic: str, ranges: Mapping[int, tuple[int, int]], isolation: Isolation, fetch_bytes: int
) -> AsyncGenerator[FetchedBatch | Row, None]:
    """The content of ranges of offsets, by partition, in order within each. Raises the broker's errors."""
    options = FetchOptions(
        on_out_of_range="earliest",
        reconnect_timeout=0.0,
        fetch_bytes=fetch_bytes,
        partition_bytes=fetch_bytes,
        isolation=isolation,
    )
    states = {number: PartitionPosition(number, start, end) for number, (start, end) in ranges.items() if start < end}
    told = {state.partition: state.position for state in states.values()}
    left_out = "the end of a transaction" + (", or records of one that was aborted" * (isolation == READ_COMMITTED))
    fetcher = Fetcher(topic, list(states.values()), options)
    while not fetcher.is_finished:
        request = fetcher.request(time.monotonic())
        if request is None:  # an error that is waited out, without end
            raise PartitionRecoveringError(f"{topic} is being recovered: try again in a moment")
        asked = fetcher.generations()
        reply, payload = await client.call(request, FetchReply, is_repeatable=True)
        fetcher.take(reply, payload, request, asked, time.monotonic())
        while True:
            item: FetchedBatch | Row | None
            try:
                item = fetcher.next_batch()
            except CorruptRecordError as error:
                item = damage(error)
                states[item.partition].go_to(item.end_offset)
            gaps = [Row(gap.partition, gap.start, gap.end, why=gap.reason) for gap in fetcher.new_gaps]
            fetcher.new_gaps.clear()
            ends = [Row(number, state.position, state.position) for number, state in states.items()]
            for each in chain(gaps, ends if item is None else [item]):
                if told[each.partition] < each.start_offset:
                    yield Row(each.partition, told[each.partition], each.start_offset, why=left_out)
                told[each.partition] = each.end_offset
                if each.start_offset < each.end_offset:
                    yield each
            if isinstance(item, FetchedBatch):
                states[item.partition].position = states[item.partition].read_to = item.end_offset
            elif item is None:
                break
