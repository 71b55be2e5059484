"""The blocking consumer: a link and one pipelined fetch around the consuming core.

There is no thread: while the program processes one reply's records, the next fetch is already sent, and its reply waits
in the socket.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Self

from seglog.core.consumer import ANSWER_SECONDS, ConsumerBase, PendingFetch, poll_seconds
from seglog.core.consumer_options import ConsumerOptions
from seglog.core.conversations import Conversation, ResultT
from seglog.core.offsets import PartitionLag, Place
from seglog.core.records import FetchedBatch, Record
from seglog.core.retries import Retries
from seglog.core.wrong_face import refuse_async, refuse_async_block
from seglog.link import Dialer, Link, OwnerProcess
from seglog_protocol.errors import ConnectionLostError, SeglogError


class Consumer(ConsumerBase):
    """Reads one topic; iterate over it for records, over ``batches()`` for verified batches.

    Made by ``Client.consumer``, with a connection of its own. One thread at a time; close it, or use it as a context
    manager. Another thread may close it, which ends a wait for records with ClientClosedError. A new loop continues
    with the next record.
    """

    def __init__(self, dialer: Dialer, link: Link, topic: str, options: ConsumerOptions, *, timeout: float) -> None:
        super().__init__(topic, options, link.converse(options.begin(topic), timeout=timeout))
        self._dialer = dialer.bound_to(link)
        self._link: Link | None = link
        self._timeout = timeout
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
        while (batch := self._next_batch()) is not None:
            yield self._whole(batch)

    def poll(self, timeout: float) -> list[Record]:
        """The records of the next batch; none if none came within ``timeout`` seconds, or at the end.

        For a loop with something else to do where there are few records. Raises what iteration raises. Joining a group,
        and a broker that is away, are waited for as by iteration, however long that takes.
        """
        self._wait_until = time.monotonic() + poll_seconds(timeout)
        try:
            while (batch := self._next_batch()) is not None:
                if records := self._listed(batch):
                    return records
        finally:
            self._wait_until = math.inf
        return []

    def _next_batch(self) -> FetchedBatch | None:
        self._owner.check()
        retries = Retries(self.options.reconnect_timeout)
        is_last = False
        while True:
            batch = self._queued()
            if batch is not None or self._fetcher.is_finished or is_last:
                return batch
            self._fetch_or_reconnect(retries)
            is_last = time.monotonic() >= self._wait_until

    def _fetch_or_reconnect(self, retries: Retries) -> None:
        """Fetch; after a failure wait and connect again. Raises the failure when there is no other attempt."""
        try:
            self._fetch()
            retries.worked()
        except SeglogError as error:
            pause, timeout = retries.failed(error, time.monotonic())
        else:
            return
        self._disconnect()
        self._sleep(pause)
        self._connect(timeout)

    def _fetch(self) -> None:
        """Take the reply to the pending fetch, and send the next fetch before its records are processed."""
        link = self._connected()
        if self._pending is None and not self._ask(link):
            self._sleep(self._pause_seconds(time.monotonic()))
            return
        asked = self._pending
        assert asked is not None
        if not self._is_answered(link, asked):
            return
        self._take(asked, time.monotonic(), self._dialer.server)
        added = self._added_states()
        if added is not None:
            self._fetcher.add_partitions(link.converse(added, timeout=self._timeout))
        try:
            self._ask(link)
        except SeglogError:
            self._disconnect()  # records already received are returned first

    def _is_answered(self, link: Link, asked: PendingFetch) -> bool:
        """Wait for the reply; false if there may be something else to do before it comes."""
        until = min(asked.deadline, self._wait_until)
        return link.wait(lambda: asked.reply is not None, until - time.monotonic()) or until == asked.deadline

    def _ask(self, link: Link) -> bool:
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
        return self._conversed(self._lag)

    def seek(self, place: Place) -> None:
        """Continue at ``{partition: offset}``, leaving other partitions as they are; or at any ``start``, for all.

        Takes effect with the next record. The ends to stop at do not change.
        """
        self._owner.check()
        if not isinstance(place, Mapping):
            place = {state.partition: state.position for state in self._conversed(lambda: self._places(place))}
        self._go_to(place)

    def _conversed(self, begin: Callable[[], Conversation[ResultT]]) -> ResultT:
        """The result of a conversation, which is begun once more if the connection was lost."""
        try:
            return self._usable().converse(begin(), timeout=self._timeout)
        except ConnectionLostError:
            self._disconnect()
            return self._usable().converse(begin(), timeout=self._timeout)

    def _drop_pending(self) -> None:
        asked, self._pending = self._pending, None
        if asked is not None and self._link is not None and self._owner.is_here:
            self._link.abandon(asked.request_id)
            self._cancel_at_broker(asked)

    def _connected(self) -> Link:
        return self._link or self._connect(self.options.reconnect_timeout)

    def _usable(self) -> Link:
        """The link, or a new one where the old one is known to be broken."""
        link = self._connected()
        if not link.is_usable():
            self._disconnect()
            link = self._connected()
        return link

    def _connect(self, timeout: float) -> Link:
        self._sleep(0)
        link = self._dialer.dial(timeout, self._sleep)
        self._link = link
        if self._closing.is_set():
            self._disconnect()
            raise self._closed()
        return link

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
