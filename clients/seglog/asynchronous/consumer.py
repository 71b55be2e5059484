"""The consumer of the async faces: a link and one pipelined fetch around the consuming core.

There is no background task: while the program processes one reply's records, the next fetch is already sent. A
cancelled wait loses nothing; the next wait continues with the same fetch.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from seglog.asynchronous.link import Answer, Dialer, Link
from seglog.core.consumer import ANSWER_SECONDS, ConsumerBase, PendingFetch, poll_seconds
from seglog.core.consumer_options import ConsumerOptions
from seglog.core.conversations import Conversation, ResultT
from seglog.core.fetcher import PartitionPosition
from seglog.core.offsets import PartitionLag, Place
from seglog.core.records import FetchedBatch, Record
from seglog.core.retries import Retries
from seglog.core.wrong_face import refuse_with
from seglog_protocol.errors import ConnectionLostError, SeglogError

ItemT = TypeVar("ItemT")

ITEMS_PER_TURN: Final = 256
"""Records returned in a row before other tasks may run; a task switch costs more than a record."""

TURN_SECONDS: Final = 0.1
"""Time after which they may run whatever the number: a program that computes for each record would starve them."""

_TURNS_OF_SLOW_PROGRAM: Final = 8
"""Turns in a row then: a task that sends a heartbeat and takes its answer has some steps, and no time between them."""


class Consumer(ConsumerBase):
    """Reads one topic; ``async for`` over it for records, over ``batches()`` for verified batches.

    Made by ``Client.consumer``, with a connection of its own. One task at a time: a second one
    gets an error, on trio BusyResourceError, on asyncio ClientError. Close it, or use it in ``async with``. A new loop
    continues with the next record.
    """

    def __init__(
        self,
        dialer: Dialer,
        link: Link,
        topic: str,
        options: ConsumerOptions,
        states: list[PartitionPosition],
        *,
        seconds: float,
    ) -> None:
        super().__init__(topic, options, states)
        self._dialer = dialer.bound_to(link)
        self.loop = dialer.loop
        self._link: Link | None = link
        self._seconds = seconds
        self._dialing = self.loop.lock()
        self._answer: Answer | None = None
        self._moves = 0  # rises with every event that makes a fetch being sent obsolete
        self._is_busy = False
        self.on_closed: Callable[[], None] = lambda: None

    # --- Reading ------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> "Items[Record]":
        """Records in order within each partition; ends and raises as iteration over ``seglog.Consumer`` does."""
        return Items(self, self._records)

    def batches(self) -> "Items[FetchedBatch]":
        """Verified batches with their header fields and raw bytes, as ``seglog.Consumer.batches``."""
        return Items(self, lambda batch: iter([self._whole(batch)]))

    async def poll(self, timeout: float) -> list[Record]:  # noqa: ASYNC109 - as the blocking one; it returns
        """The records of the next batch, or none, as ``seglog.Consumer.poll``. A cancelled call loses none."""
        await self.loop.turn()
        self._wait_until = self.loop.now() + poll_seconds(timeout)
        try:
            while (batch := await self.next_batch()) is not None:
                if records := self._listed(batch):
                    return records
        finally:
            self._wait_until = math.inf
        return []

    async def next_batch(self) -> FetchedBatch | None:
        """The next batch with records to return, None at the end."""
        if self._is_busy:
            raise self.loop.busy("another task is waiting for this consumer's records")
        self._is_busy = True
        try:
            return await self._next_batch()
        finally:
            self._is_busy = False

    async def _next_batch(self) -> FetchedBatch | None:
        retries = Retries(self.options.reconnect_timeout)
        is_last = False
        while True:
            batch = self._queued()
            if batch is not None or self._fetcher.is_finished or is_last:
                return batch
            await self._fetch_or_reconnect(retries)
            is_last = self.loop.now() >= self._wait_until

    async def _fetch_or_reconnect(self, retries: Retries) -> None:
        """Fetch; after a failure wait and connect again. Raises the failure when there is no other attempt."""
        try:
            await self._fetch()
            retries.worked()
        except SeglogError as error:
            pause, seconds = retries.failed(error, self.loop.now())
        else:
            return
        self._disconnect()
        await self.loop.sleep(pause)
        await self._connected(seconds)

    async def _fetch(self) -> None:
        """Take the reply to the pending fetch, and send the next fetch before its records are processed."""
        link = await self._connected(self.options.reconnect_timeout)
        if self._pending is None and not await self._ask(link):
            await self.loop.sleep(self._pause_seconds(self.loop.now()))
            return
        asked, answer = self._pending, self._answer
        if asked is None or answer is None:
            return
        try:
            if not await self._is_answered(answer, asked):
                return
        except SeglogError:
            if self._pending is asked:
                raise
        if self._pending is not asked:
            return  # another task has called seek, resume or close meanwhile
        asked.reply = answer.reply
        link.forget(answer)
        self._take(asked, self.loop.now(), self._dialer.server)
        added = self._added_states()
        if added is not None:
            self._fetcher.add_partitions(await link.converse(added, seconds=self._seconds))
        try:
            await self._ask(link)
        except SeglogError:
            self._disconnect()  # records already received are returned first

    async def _is_answered(self, answer: Answer, asked: PendingFetch) -> bool:
        """Wait for the reply; false if there may be something else to do before it comes."""
        until = min(asked.deadline, self._wait_until)
        return await answer.wait(until) or until == asked.deadline

    async def _ask(self, link: Link) -> bool:
        """Send the next fetch; False when there is nothing to fetch at this time."""
        moves = self._moves
        asked = self._next_fetch(self.loop.now())
        if asked is None:
            return False
        while self._cancellations:
            unwanted = self._cancellations[0]
            await link.send(unwanted, on_reply=None, seconds=ANSWER_SECONDS)
            if unwanted in self._cancellations:
                self._cancellations.remove(unwanted)
        answer = await link.start(asked.request, seconds=ANSWER_SECONDS)
        if self._moves == moves:
            self._pending, self._answer = asked, answer
        else:  # another task has called seek or resume meanwhile
            link.forget(answer)
            asked.request_id = answer.request_id
            self._cancel_at_broker(asked)
        return True

    async def lag(self) -> dict[int, PartitionLag]:
        """How far every partition is behind, as ``seglog.Consumer.lag``."""
        await self.loop.turn()
        self._check_open()
        return await self._conversed(self._lag)

    # --- Moving -------------------------------------------------------------------------------------------------------

    async def seek(self, place: Place) -> None:
        """Continue elsewhere, as ``seglog.Consumer.seek``. A cancelled call changes nothing."""
        await self.loop.turn()
        if not isinstance(place, Mapping):
            place = {state.partition: state.position for state in await self._conversed(lambda: self._places(place))}
        self._go_to(place)

    async def _conversed(self, begin: Callable[[], Conversation[ResultT]]) -> ResultT:
        """The result of a conversation, which is begun once more if the connection was lost."""
        try:
            link = await self._connected(self.options.reconnect_timeout)
            return await link.converse(begin(), seconds=self._seconds)
        except ConnectionLostError:
            self._disconnect()
            link = await self._connected(self.options.reconnect_timeout)
            return await link.converse(begin(), seconds=self._seconds)

    def _drop_pending(self) -> None:
        self._moves += 1
        asked, answer, self._pending, self._answer = self._pending, self._answer, None, None
        if asked is None or answer is None or self._link is None:
            return
        self._link.forget(answer)
        answer.settle()
        asked.request_id, asked.reply = answer.request_id, answer.reply
        self._cancel_at_broker(asked)

    # --- The connection -----------------------------------------------------------------------------------------------

    async def _connected(self, seconds: float) -> Link:
        async with self._dialing:
            if self._link is not None and self._link.failure is not None:
                self._disconnect()
            if self._link is None:
                link = await self._dialer.dial(seconds)
                if self._is_closed:
                    link.close()
                    raise self._closed()
                self._link = link
            return self._link

    def _disconnect(self) -> None:
        self._moves += 1
        link, self._link, self._pending, self._answer = self._link, None, None, None
        self._cancellations.clear()
        if link is not None:
            link.close()

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self.let_go()
        await self.loop.turn()

    async def leave(self) -> None:
        """``close`` without a checkpoint."""
        self.let_go()

    def let_go(self) -> None:
        """Close the connection at once."""
        self._is_closed = self._is_interrupted = True
        self._disconnect()
        self.on_closed()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = __iter__ = refuse_with

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.let_go()


class Items(Generic[ItemT]):
    """The async iterator over records or batches.

    Not an async generator, which a caller that leaves the loop early would have to close. Every record is a
    cancellation point; other tasks may run at least every ITEMS_PER_TURN records, and, where the program computes
    between them, after TURN_SECONDS.
    """

    def __init__(self, consumer: Consumer, items_of: Callable[[FetchedBatch], Iterator[ItemT]]) -> None:
        self._consumer = consumer
        self._loop = consumer.loop
        self._items_of = items_of
        self._items: Iterator[ItemT] = iter(())
        self._count = 0
        self._turn_at = self._loop.now() + TURN_SECONDS

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        if self._loop.now() > self._turn_at:
            for _ in range(_TURNS_OF_SLOW_PROGRAM):
                await self._loop.turn()
            self._turn_at = self._loop.now() + TURN_SECONDS
        elif self._count % ITEMS_PER_TURN:
            await self._loop.cancel_point()
        else:
            await self._loop.turn()
        self._count += 1
        while True:
            for item in self._items:
                return item
            batch = await self._consumer.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._items = self._items_of(batch)
