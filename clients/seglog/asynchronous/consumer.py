"""The consumer of the async faces: a link and one pipelined fetch around the consuming core.

There is no background task: while the program processes one reply's records, the next fetch is already sent. A
cancelled wait loses nothing; the next wait continues with the same fetch.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

from seglog.asynchronous.link import Answer, Dialer, Link
from seglog.core.consumer import ANSWER_SECONDS, FetchingConsumer, PendingFetch
from seglog.core.consumer_options import ConsumerOptions
from seglog.core.conversations import Conversation, ResultT
from seglog.core.fetcher import PartitionPosition
from seglog.core.offsets import PartitionLag, Place
from seglog.core.records import FetchedBatch, Record
from seglog.core.wrong_face import refuse_with
from seglog_protocol.errors import SeglogError

ItemT = TypeVar("ItemT")

ITEMS_PER_TURN: Final = 256
"""Records returned in a row before other tasks may run; a task switch costs more than a record."""

TURN_SECONDS: Final = 0.1
"""Time after which they may run whatever the number: a program that computes for each record would starve them."""

_TURNS_OF_SLOW_PROGRAM: Final = 8
"""Turns in a row then: a task that sends a heartbeat and takes its answer has some steps, and no time between them."""


class Consumer(FetchingConsumer):
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
        self._now, self._rest = self.loop.now, self.loop.sleep
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
        return await self._polled(timeout)

    async def next_batch(self) -> FetchedBatch | None:
        """The next batch with records to return, None at the end."""
        if self._is_busy:
            raise self.loop.busy("another task is waiting for this consumer's records")
        self._is_busy = True
        try:
            return await self._next()
        finally:
            self._is_busy = False

    async def _is_answered(self, link: Link, asked: PendingFetch, until: float) -> bool:
        answer = self._answer
        if answer is None:
            return False
        try:
            if not await answer.wait(until) and until != asked.deadline:
                return False
        except SeglogError:
            if self._pending is asked:
                raise
        if self._pending is not asked:
            return False  # another task has called seek, resume or close meanwhile
        asked.reply = answer.reply
        link.forget(answer)
        return True

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
        await self._sought(place)

    async def _converse(self, link: Link, conversation: Conversation[ResultT]) -> ResultT:
        return await link.converse(conversation, seconds=self._seconds)

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

    async def _usable(self) -> Link:
        return await self._connected(self.options.reconnect_timeout)

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
