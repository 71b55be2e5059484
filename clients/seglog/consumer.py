"""The blocking consumer: a link and one pipelined fetch around the consuming core.

There is no thread: while the program processes one reply's records, the next fetch is already sent, and its reply waits
in the socket.
"""

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from seglog.core.consumer import ANSWER_SECONDS, FetchingConsumer, PendingFetch
from seglog.core.consumer_options import ConsumerOptions
from seglog.core.conversations import Conversation, ResultT, at_once
from seglog.core.offsets import PartitionLag, Place
from seglog.core.records import FetchedBatch, Record
from seglog.core.wrong_face import refuse_async, refuse_async_block
from seglog.link import Dialer, Link, OwnerProcess


class Consumer(FetchingConsumer):
    """Reads one topic; iterate over it for records, over ``batches()`` for verified batches.

    Made by ``Client.consumer``, with a connection of its own. One thread at a time; close it, or use it as a context
    manager. Another thread may close it, which ends a wait for records with ClientClosedError. A new loop continues
    with the next record.
    """

    _now = staticmethod(time.monotonic)

    def __init__(self, dialer: Dialer, link: Link, topic: str, options: ConsumerOptions, *, timeout: float) -> None:
        super().__init__(topic, options, link.converse(options.begin(topic), timeout=timeout))
        self._dialer = dialer.bound_to(link)
        self._link: Link | None = link
        self._seconds = timeout
        self._owner = OwnerProcess("consumer")
        self._closing = threading.Event()

    def __iter__(self) -> Iterator[Record]:
        """Records in order within each partition.

        Ends at the end seen at start, at ``until``, when all partitions are paused, or with ``follow`` never. With
        ``follow`` partitions added to the topic are read too, from their earliest record, unless ``partitions`` is
        given.

        Raises CorruptRecordError with the unreadable offsets (``seek({partition: error.next_offset})`` continues after
        them); OffsetOutOfRangeError; NotReachableError when the broker is away for ``reconnect_timeout``;
        InconsistentClusterIdError when it returns with another log directory; UnknownTopicError when the topic was
        deleted, and InconsistentTopicIdError when it was recreated.
        """
        while (batch := self._next_batch()) is not None:
            yield from self._records(batch)

    def batches(self) -> Iterator[FetchedBatch]:
        """Verified batches with their header fields and raw bytes; ends and raises as iteration over records does.

        Gaps inside a batch are not reported, because it is not decoded; ``record_count <= last_offset_delta`` shows
        them.
        """
        yield from map(self._whole, iter(self._next_batch, None))  # a batch is not held while the next one is fetched

    def poll(self, timeout: float) -> list[Record]:
        """The records of the next batch; none if none came within ``timeout`` seconds, or at the end.

        For a loop with something else to do where there are few records. Raises what iteration raises. Joining a group,
        and a broker that is away, are waited for as by iteration, however long that takes.
        """
        self._owner.check()
        return at_once(self._polled(timeout))

    def _next_batch(self) -> FetchedBatch | None:
        self._owner.check()
        return self._queued() or at_once(self.next_batch())

    async def _is_answered(self, link: Link, asked: PendingFetch, until: float) -> bool:
        return link.wait(lambda: asked.reply is not None, until - time.monotonic()) or until == asked.deadline

    async def _ask(self, link: Link) -> bool:
        """Send the next fetch; False when there is nothing to fetch at this time."""
        asked = self._next_fetch(time.monotonic())
        if asked is None:
            return False
        while self._cancellations:
            link.send(self._cancellations.pop(), on_reply=None, timeout=ANSWER_SECONDS)
        asked.request_id = link.send(asked.request, on_reply=asked.take, timeout=ANSWER_SECONDS)
        self._pending = asked
        return True

    def lag(self) -> dict[int, PartitionLag]:
        """How far every partition is behind, in records and seconds, and when retention reaches its position.

        Asks the broker; ``records_behind`` does not. Raises what a fetch raises.
        """
        self._owner.check()
        self._check_open()
        return at_once(self._conversed(self._lag))

    def seek(self, place: Place) -> None:
        """Continue at ``{partition: offset}``, leaving other partitions as they are; or at any ``start``, for all.

        Takes effect with the next record. The ends to stop at do not change.
        """
        self._owner.check()
        at_once(self._sought(place))

    async def _converse(self, link: Link, conversation: Conversation[ResultT]) -> ResultT:
        return link.converse(conversation, timeout=self._seconds)

    def _drop_pending(self) -> None:
        asked, self._pending = self._pending, None
        if asked is not None and self._link is not None and self._owner.is_here:
            self._link.abandon(asked.request_id)
            self._cancel_at_broker(asked)

    async def _usable(self) -> Link:
        """The link, or another one where it is known to be broken."""
        if self._link is not None and not self._link.is_usable():
            self._disconnect()
        return await self._connected(self.options.reconnect_timeout)

    async def _connected(self, seconds: float) -> Link:
        if self._link is not None:
            return self._link
        self._sleep(0)
        link: Link = self._dialer.dial(seconds, self._sleep)
        self._link = link
        if self._closing.is_set():
            self._disconnect()
            raise self._closed()
        return link

    async def _rest(self, seconds: float) -> None:
        self._sleep(seconds)

    def _sleep(self, seconds: float) -> None:
        """Sleep for ``seconds``. Raises ClientClosedError when another thread closes the consumer meanwhile."""
        if self._closing.wait(seconds):
            raise self._closed()

    def _disconnect(self) -> None:
        link, self._link, self._pending = self._link, None, None
        self._cancellations.clear()
        if link is not None:
            link.close()

    def close(self) -> None:
        """Close the connection. Idempotent; may be called while another thread waits for records."""
        self._is_closed = self._is_interrupted = True
        if self._owner.is_here:
            self._closing.set()
        self._disconnect()

    def abort_now(self) -> None:
        """Close without waiting for anything."""
        self.close()

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refuse_async_block
        __aiter__ = refuse_async

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
