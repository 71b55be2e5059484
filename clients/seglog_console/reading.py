"""Records of a topic, read for a page: batches, and what there is in place of records, bounded in bytes and time.

The pure ``Fetcher`` of the client decides and checks, as in any consumer; its fetches go over the client's own
connection, so that a page opens none.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from seglog.asyncio import Client
from seglog.core.fetcher import GO_ON, Fetcher, FetchOptions, PartitionPosition
from seglog.core.moments import AtTime, Edge, Moment
from seglog.core.records import FetchedBatch
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.isolation import READ_COMMITTED, Isolation
from seglog_protocol.messages import FetchReply, FetchRequest
from seglog_protocol.record_batch import BatchHeader, iter_batches
from seglog_protocol.records import iter_records
from seglog_protocol.transaction_files import decode_end_marker

STEP_SECONDS: Final = 1.0
"""About how long one request of a browser reads; what it has found by then is shown."""
WAIT_SECONDS: Final = 10.0
"""The longest wait for a broker that recovers a partition."""
_PAUSE_SECONDS: Final = 0.05

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
        if isinstance(place, Mapping):
            offset = place.get(each.partition, each.latest)
        elif isinstance(place, Edge):
            offset = each.earliest if place is Edge.EARLIEST else each.latest
        elif isinstance(place, AtTime):
            offset = each.latest if each.offset is None else each.offset
        else:
            offset = place.offset
        found.append(Extent(each.partition, each.earliest, each.latest, offset))
    return found


class Absent(NamedTuple):
    """Offsets ``start`` to ``end`` (exclusive) of a partition that are no records to show, and why."""

    partition: int
    start: int
    end: int
    why: str
    is_damage: bool = False


def damage(error: CorruptRecordError) -> Absent:
    """The offsets that cannot be read. Raises the error where it does not say how far that goes."""
    if error.partition < 0 or not 0 <= error.start_offset < error.next_offset:
        raise error
    why = error.message.partition(GO_ON)[0]
    return Absent(error.partition, error.start_offset, error.next_offset, why, is_damage=True)


async def read(
    client: Client, topic: str, ranges: Mapping[int, tuple[int, int]], isolation: Isolation, fetch_bytes: int
) -> AsyncGenerator[FetchedBatch | Absent, None]:
    """The content of ranges of offsets, by partition, in order within each; the next fetch runs while one is looked at.

    Close the iterator. Raises the broker's errors, and TimeoutError after WAIT_SECONDS without an answer.
    """
    reader = _Reader(topic, ranges, isolation, fetch_bytes)
    ahead = reader.ask(client)
    try:
        while ahead is not None or not reader.is_finished:
            if ahead is None:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                async with asyncio.timeout(WAIT_SECONDS):
                    await ahead
                reader.take(ahead.result())
            ahead = reader.ask(client)
            for item in reader.items():
                yield item
    finally:
        if ahead is not None:
            ahead.cancel()


_Answer = tuple[FetchRequest, Mapping[int, int], FetchReply, memoryview]


class _Reader:
    """A fetcher, and the batches of transactions that it leaves out."""

    def __init__(
        self, topic: str, ranges: Mapping[int, tuple[int, int]], isolation: Isolation, fetch_bytes: int
    ) -> None:
        states = [PartitionPosition(partition, start, end) for partition, (start, end) in ranges.items() if start < end]
        self._options = FetchOptions(
            on_out_of_range="earliest",
            reconnect_timeout=0.0,
            fetch_bytes=fetch_bytes,
            partition_bytes=fetch_bytes,
            isolation=isolation,
        )
        self._fetcher = Fetcher(topic, states, self._options)
        self._told = {state.partition: state.position for state in states}
        self._unseen: dict[int, deque[tuple[BatchHeader, memoryview]]] = defaultdict(deque)
        self._waits_until = time.monotonic() + WAIT_SECONDS

    @property
    def is_finished(self) -> bool:
        """True when all has been told."""
        return self._fetcher.is_finished

    def ask(self, client: Client) -> "asyncio.Task[_Answer] | None":
        """The next fetch; None where there is nothing to ask now. Raises TimeoutError if that lasts."""
        now = time.monotonic()
        request = self._fetcher.request(now)
        if request is None:
            if now > self._waits_until:
                raise TimeoutError
            return None
        asked = self._fetcher.generations()

        async def answer() -> _Answer:
            reply, payload = await client.call(request, FetchReply, is_repeatable=True)
            return request, asked, reply, payload

        task = asyncio.create_task(answer())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may not be waited for
        return task

    def take(self, answer: _Answer) -> None:
        """Queue what a reply holds."""
        request, asked, reply, payload = answer
        self._fetcher.take(reply, payload, request, asked, time.monotonic())
        self._fetcher.is_pending_stale = False  # the generations of its request say so, too
        position = 0
        for result in reply.partitions:
            data, position = payload[position : position + result.size], position + result.size
            with suppress(CorruptRecordError):  # of which the fetcher tells
                for header, batch in iter_batches(data):
                    if header.is_control or (header.is_transactional and self._options.isolation == READ_COMMITTED):
                        self._unseen[result.partition].append((header, batch))

    def items(self) -> Iterator[FetchedBatch | Absent]:
        """The batches that are queued, and what there is between them."""
        fetcher = self._fetcher
        while True:
            batch = problem = None
            try:
                batch = fetcher.next_batch()
            except CorruptRecordError as error:
                problem = damage(error)
            while fetcher.new_gaps:
                gap = fetcher.new_gaps.popleft()
                yield from self._tell(Absent(gap.partition, gap.start, gap.end, gap.reason))
            if problem is not None:
                yield from self._tell(problem)
                fetcher.states[problem.partition].go_to(problem.end)
            elif batch is not None:
                yield from self._left_out(batch.partition, batch.start_offset)
                self._told[batch.partition] = batch.end_offset
                yield batch
                state = fetcher.states[batch.partition]
                state.position = state.read_to = batch.end_offset
            else:
                for state in fetcher.states.values():
                    yield from self._left_out(state.partition, state.position)
                return

    def _tell(self, absent: Absent) -> Iterator[Absent]:
        yield from self._left_out(absent.partition, absent.start)
        self._told[absent.partition] = absent.end
        yield absent

    def _left_out(self, partition: int, end: int) -> Iterator[Absent]:
        """Markers, and batches of aborted transactions, between what was told last and ``end``."""
        unseen = self._unseen[partition]
        while unseen and unseen[0][0].base_offset < end:
            header, batch = unseen.popleft()
            if header.base_offset >= self._told[partition]:
                self._told[partition] = header.next_offset
                yield Absent(partition, header.base_offset, header.next_offset, _why_left_out(header, batch))


def _why_left_out(header: BatchHeader, batch: memoryview) -> str:
    if not header.is_control:
        return f"records of a transaction of producer {header.producer_id} that was aborted"
    marker = None
    with suppress(CorruptRecordError):
        for record in iter_records(header, batch):
            marker = decode_end_marker(record.key, record.value)
    kind = "a control batch" if marker is None else f"{marker.type} of a transaction"
    return f"{kind} of producer {header.producer_id}"
