"""The part of a consumer that does no I/O, around ``Fetcher``.

One fetch is pending while the program processes the records of the previous one; ``PendingFetch`` is that fetch.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from seglog.core.connection import Reply
from seglog.core.consumer_options import ConsumerOptions
from seglog.core.conversations import Conversation, ResultT
from seglog.core.fetcher import Fetcher, PartitionPosition
from seglog.core.moments import to_positions
from seglog.core.offsets import PartitionLag, Place, look_up_lag
from seglog.core.records import FetchedBatch, GapLog, Record
from seglog.core.retries import Retries
from seglog_protocol import errors
from seglog_protocol.messages import CancelRequest, FetchReply, FetchRequest, decode_reply

ANSWER_SECONDS: Final = 30.0
"""Time for a reply beyond the fetch's own ``max_wait_ms``; after it the connection counts as broken."""


def poll_seconds(timeout: float) -> float:
    """The timeout of ``poll``. Raises ValueError for what is none."""
    number: object = timeout
    if not isinstance(number, int | float) or not number >= 0:
        raise ValueError(f"timeout is a number of seconds, 0 or more, not {timeout!r}")
    return float(number)


@dataclass(slots=True, eq=False)
class PendingFetch:
    """A pending fetch, and its reply once received; after ``deadline`` the connection counts as broken."""

    request: FetchRequest
    generations: dict[int, int]
    deadline: float
    request_id: int = -1
    reply: Reply | None = None

    def take(self, reply: Reply) -> None:
        """Store the reply."""
        self.reply = reply


class ConsumerBase:
    """The part of a consumer that never waits. Subclasses add reading, ``seek`` and ``_drop_pending``."""

    _slice_seconds = math.inf
    """How long it waits for records at a time, before it looks whether there is something else to do."""

    def __init__(self, topic: str, options: ConsumerOptions, states: Sequence[PartitionPosition]) -> None:
        self.topic = topic
        self.options = options
        self._pending: PendingFetch | None = None
        self._cancellations: list[CancelRequest] = []
        """For dropped fetches that still wait at the broker; sent before the next fetch, their replies ignored."""
        self._wait_until = math.inf
        """When ``poll`` waits no longer, by the clock of the face."""
        self._is_closed = False
        self._is_interrupted = False
        """Whether a loop over records has to come back before the next one: set by ``close``, at the latest."""
        self._fetcher = Fetcher(self.topic, states, self.options)
        if options.follow and options.partitions is None:
            self._fetcher.partition_count = len(states)  # all there are now, and those that are added

    def _queued(self) -> FetchedBatch | None:
        """The next received batch, after its gaps are reported; None when there is none."""
        if self._is_closed:
            raise self._closed()
        try:
            batch = self._fetcher.next_batch()
        finally:
            self._report_gaps()
        if self._fetcher.is_pending_stale:
            self._fetcher.is_pending_stale = False
            if self._pending is not None:
                self._drop_pending()  # it may wait long at the broker for later records
        return batch

    @property
    def has_received(self) -> bool:
        """Whether anything has been received that lies behind the batch returned last."""
        return self._fetcher.has_queued

    def _check_open(self) -> None:
        if self._is_closed:
            raise self._closed()

    @staticmethod
    def _closed() -> errors.ClientClosedError:
        return errors.ClientClosedError("the consumer is closed")

    def _records(self, batch: FetchedBatch) -> Iterator[Record]:
        """The records of a batch, until its end or a seek, pause or close."""
        state = self._fetcher.states[batch.partition]
        generation = state.generation
        for records in batch.record_lists():
            for record in records:
                offset = record[2]
                if offset != state.position:
                    self._fetcher.skipped(state, offset)
                    self._report_gaps()
                state.position = state.read_to = offset + 1
                yield record
                if state.generation != generation or state.is_paused or self._is_interrupted:
                    return
        self._fetcher.finish(batch)
        self._report_gaps()

    def _listed(self, batch: FetchedBatch) -> list[Record]:
        """The records of a batch, which count as read when they are returned."""
        found: list[Record] = []
        try:
            for record in self._records(batch):
                found.append(record)  # noqa: PERF402 - what came before an error is to be returned
        except errors.SeglogError:
            if not found:
                raise  # else the next call meets it
        return found

    def _whole(self, batch: FetchedBatch) -> FetchedBatch:
        """The batch itself, which counts as read when it is returned."""
        state = self._fetcher.states[batch.partition]
        state.position = state.read_to = batch.end_offset
        return batch

    def _next_fetch(self, now: float) -> PendingFetch | None:
        """The next fetch, or None when there is nothing to fetch at this time."""
        request = self._fetcher.request(now)
        if request is None:
            return None
        deadline = now + request.max_wait_ms / 1000 + ANSWER_SECONDS
        return PendingFetch(request, self._fetcher.generations(), deadline)

    def _take(self, asked: PendingFetch, now: float, server: str) -> None:
        """Process the reply to the pending fetch. Raises ConnectionLostError when there is none."""
        if asked.reply is None:
            raise errors.ConnectionLostError(f"{server} does not answer a fetch", server=server)
        self._pending = None
        reply = decode_reply(asked.reply.header, FetchReply)
        self._fetcher.take(reply, asked.reply.payload, asked.request, asked.generations, now)

    def _added_states(self) -> Conversation[list[PartitionPosition]] | None:
        """States of partitions added to the topic, which start at their earliest offset."""
        added = self._fetcher.added
        return self._look_up(added) if added else None

    def _look_up(self, added: list[int]) -> Conversation[list[PartitionPosition]]:
        """States of ``added``; empty if the topic or a partition is gone, which the next fetch will report."""
        with suppress(errors.UnknownTopicError, errors.UnknownPartitionError):
            return (yield from self.options.places(self.topic, added, "earliest"))
        return []

    def _pause_seconds(self, now: float) -> float:
        """Seconds until there is something to fetch."""
        next_fetch_at = self._fetcher.next_fetch_at()
        assert next_fetch_at is not None, "nothing to ask, nothing queued, and not finished"
        return min(self._slice_seconds, max(0.0, min(next_fetch_at, self._wait_until) - now))

    def _report_gaps(self) -> None:
        met = self._fetcher.new_gaps
        while met:
            gap = met.popleft()
            if self.options.on_gap is not None:
                self.options.on_gap(gap)

    def _places(self, place: Place) -> Conversation[list[PartitionPosition]]:
        return self.options.places(self.topic, list(self._fetcher.states), place)

    def _lag(self) -> Conversation[dict[int, PartitionLag]]:
        options = self.options
        return look_up_lag(self.topic, self.positions(), durable_only=options.durable_only, isolation=options.isolation)

    def _replace_states(self, states: Sequence[PartitionPosition]) -> None:
        """Read these partitions instead; those that were read before go on at their positions.

        A loop over records that goes on comes to what is to be read now, and gets no more of the batch that it has.
        """
        self._drop_pending()
        before = self._fetcher
        for state in (*before.states.values(), *states):
            state.go_to(state.position)
        self._fetcher = Fetcher(self.topic, states, self.options)
        self._fetcher.gaps, self._fetcher.new_gaps = before.gaps, before.new_gaps

    def positions(self) -> dict[int, int]:
        """The offset of the next record of every partition. ``start`` takes it back, also after a JSON round trip."""
        return {state.partition: state.position for state in self._fetcher.states.values()}

    def records_behind(self) -> dict[int, int]:
        """How many offsets every partition is behind the last end that the broker sent; no request is made."""
        isolation, durable_only = self.options.isolation, self.options.durable_only
        return {
            state.partition: max(0, state.readable_end(isolation, durable_only=durable_only) - state.position)
            for state in self._fetcher.states.values()
        }

    @property
    def gaps(self) -> GapLog:
        """Offsets without a record encountered so far."""
        return self._fetcher.gaps

    def _go_to(self, places: Mapping[int, int] | Mapping[str, int]) -> None:
        positions = to_positions(places)
        for partition in positions:
            self._state(partition)
        for partition, offset in positions.items():
            self._fetcher.states[partition].go_to(offset)
        self._drop_pending()

    def pause(self, partitions: Iterable[int] | None = None) -> None:
        """Return no records of these partitions (None: all) until ``resume``. With all paused, iteration ends."""
        for state in self._chosen(partitions):
            state.is_paused = True
        if self._fetcher.is_finished:
            self._drop_pending()  # a fetch that waits at the broker would keep iteration from ending

    def resume(self, partitions: Iterable[int] | None = None) -> None:
        """Resume reading these partitions (None: all)."""
        paused = [state for state in self._chosen(partitions) if state.is_paused]
        for state in paused:
            state.is_paused = False
        if paused:
            self._drop_pending()

    def _chosen(self, partitions: Iterable[int] | None) -> list[PartitionPosition]:
        if partitions is None:
            return list(self._fetcher.states.values())
        return [self._state(partition) for partition in partitions]

    def _state(self, partition: int) -> PartitionPosition:
        state = self._fetcher.states.get(partition)
        if state is None:
            raise ValueError(f"this consumer does not read partition {partition} of {self.topic}")
        return state

    def _drop_pending(self) -> None:
        """Drop the pending fetch, which may wait long at the broker for the wrong records."""
        raise NotImplementedError

    def _cancel_at_broker(self, asked: PendingFetch) -> None:
        """Cancel a dropped fetch at the broker, before the next fetch is sent."""
        if asked.reply is None and asked.request.max_wait_ms:
            self._cancellations.append(CancelRequest(asked.request_id))


class FetchingConsumer(ConsumerBase):
    """The reading of a face, which has a link, time and waits: what it awaits blocks in the blocking one."""

    _dialer: Any
    _seconds: float
    """The time of a request."""
    _now: Callable[[], float]
    _rest: Callable[[float], Awaitable[object]]
    _connected: Callable[[float], Awaitable[Any]]
    """A link, an old one or another, for which so many seconds may be waited."""
    _usable: Callable[[], Awaitable[Any]]
    """A link that is not known to be broken."""
    _disconnect: Callable[[], None]
    _converse: Callable[[Any, Conversation[Any]], Awaitable[Any]]
    _ask: Callable[[Any], Awaitable[bool]]
    """Sends the next fetch over a link; False when there is nothing to fetch at this time."""
    _is_answered: Callable[[Any, PendingFetch, float], Awaitable[bool]]
    """Waits for the reply until then; False if it is another fetch's turn."""

    async def next_batch(self) -> FetchedBatch | None:
        """The next batch with records to return, None at the end."""
        return await self._next()

    async def _next(self) -> FetchedBatch | None:
        """Fetch until there is a batch, the end, or no more time."""
        retries = Retries(self.options.reconnect_timeout)
        is_last = False
        while True:
            batch = self._queued()
            if batch is not None or self._fetcher.is_finished or is_last:
                return batch
            await self._fetch_or_reconnect(retries)
            is_last = self._now() >= self._wait_until

    async def _polled(self, seconds: float) -> list[Record]:
        """The records of the next batch; none if none came within so many seconds, or at the end."""
        self._wait_until = self._now() + poll_seconds(seconds)
        try:
            while (batch := await self.next_batch()) is not None:
                if records := self._listed(batch):
                    return records
        finally:
            self._wait_until = math.inf
        return []

    async def _fetch_or_reconnect(self, retries: Retries) -> None:
        """Fetch; after a failure wait and connect again. Raises the failure when there is no other attempt."""
        try:
            await self._fetch()
            retries.worked()
        except errors.SeglogError as error:
            pause, seconds = retries.failed(error, self._now())
        else:
            return
        self._disconnect()
        await self._rest(pause)
        await self._connected(seconds)

    async def _fetch(self) -> None:
        """Take the reply to the pending fetch, and send the next fetch before its records are processed."""
        link = await self._connected(self.options.reconnect_timeout)
        if self._pending is None and not await self._ask(link):
            await self._rest(self._pause_seconds(self._now()))
            return
        asked = self._pending
        if asked is None:
            return
        until = min(asked.deadline, self._wait_until, self._now() + self._slice_seconds)
        if not await self._is_answered(link, asked, until):
            return
        self._take(asked, self._now(), self._dialer.server)
        added = self._added_states()
        if added is not None:
            self._fetcher.add_partitions(await self._converse(link, added))
        try:
            await self._ask(link)
        except errors.SeglogError:
            self._disconnect()  # records already received are returned first

    async def _conversed(self, begin: Callable[[], Conversation[ResultT]]) -> ResultT:
        """The result of a conversation, which is begun once more if the connection was lost."""
        try:
            found: ResultT = await self._converse(await self._usable(), begin())
        except errors.ConnectionLostError:
            self._disconnect()
            found = await self._converse(await self._usable(), begin())
        return found

    async def _sought(self, place: Place) -> None:
        """Continue at ``place``."""
        if not isinstance(place, Mapping):
            place = {state.partition: state.position for state in await self._conversed(lambda: self._places(place))}
        self._go_to(place)
