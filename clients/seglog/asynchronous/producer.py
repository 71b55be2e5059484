"""The producer of the async faces: a background task around ``ProducerCore``.

``send`` only adds a record to its batch and waits for room; the task sends due batches, reconnects, and fails expired
batches. So a cancelled ``send`` has sent nothing, and a record whose ``send`` returned is sent whatever is cancelled
afterwards, unless the producer's own block is left by an exception.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from seglog.asynchronous.link import Dialer, Link
from seglog.asynchronous.loop import Event
from seglog.core.accumulator import ProducerBatch, ProducerEpoch
from seglog.core.connection import Reply
from seglog.core.delivery import ProducerFacts, Promise, Receipt
from seglog.core.errors import count_of
from seglog.core.producer import ABORT_WAIT_SECONDS, REQUEST_TIMEOUT_SECONDS, PreparedRecord, ProducerCore, Sent
from seglog.core.producer_options import Content, HeaderInput, ProducerOptions
from seglog.core.timestamps import TimestampWatch
from seglog.core.topics import describe_topic
from seglog.core.transactions import OpenTransaction
from seglog.core.wrong_face import refuse_with
from seglog_protocol.errors import ClientClosedError, SeglogError, UnknownPartitionError
from seglog_protocol.messages import TopicDescription

_log = logging.getLogger(__name__)

SENDS_PER_TURN: Final = 64
"""Records sent in a row before other tasks may run; a task switch costs more than a record."""


class Delivery(Promise):
    """A record being sent; await it for its receipt, any number of times, from any task.

    It may be ignored: a failure not seen here is raised by the next ``flush``. A cancelled wait does not cancel the
    record.
    """

    __slots__ = ()
    _producer: "Producer"

    def __await__(self) -> Generator[Any, Any, Receipt]:
        return self.result().__await__()

    async def result(self) -> Receipt:
        """Wait for the receipt, as awaiting the delivery does. Raises the error of a failed record."""
        await self._settled()
        return self._receipt()

    async def exception(self) -> SeglogError | None:
        """The error of a failed record, or None; waits like ``result``."""
        await self._settled()
        try:
            self._receipt()
        except SeglogError as error:
            return error
        return None

    async def _settled(self) -> None:
        while True:
            batch, _ = self._where()
            await self._producer.settled(batch)
            if self.done():
                return


class Producer(ProducerFacts):
    """Sends records to one topic. Any task may use it; close it, or use it in ``async with``.

    Made by ``Client.producer``. It has a connection of its own, so that other calls do not delay acknowledgements.
    """

    def __init__(
        self,
        dialer: Dialer,
        link: Link,
        topic: TopicDescription,
        options: ProducerOptions,
        producer: ProducerEpoch | None = None,
        timestamps: TimestampWatch | None = None,
        transaction: OpenTransaction | None = None,
        admit: Callable[[OpenTransaction, str, list[int]], Awaitable[None]] | None = None,
    ) -> None:
        """``transaction`` and ``admit`` as of ``seglog.producer.Producer``."""
        self.topic = topic.name
        self.options = options
        self._dialer = dialer.bound_to(link)
        self._loop = loop = dialer.loop
        self._link: Link | None = None
        self._core = ProducerCore(topic, options, producer if transaction is None else transaction.epoch, timestamps)
        self.transaction = transaction
        self._admit = admit
        self._core.accumulator.on_settled = self._on_settled
        self._settled: dict[ProducerBatch, Event] = {}
        self._line: deque[Event] = deque()
        """Tasks that wait for room in the buffer; the first alone looks, so that thousands of them cost no more."""
        self._work_to_do = self._loop.event()
        self._sends = 0
        self._is_ending = False
        self._is_closed = False
        self.on_closed: Callable[[], None] = lambda: None
        self._adopt(link)
        self._working = loop.start(self._work, f"seglog producer of {topic.name}")

    # --- Sending ------------------------------------------------------------------------------------------------------

    async def send(
        self,
        value: Content,
        key: Content = None,
        *,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        headers: HeaderInput = (),
        part_of: OpenTransaction | None = None,
    ) -> Delivery:
        """Send a record and return a Delivery, the future of its receipt: ``await`` that, now or later.

        Arguments, errors and warnings as of ``seglog.Producer.send``. Waits while the buffer is full. A cancelled call
        has sent nothing. With ``linger_ms=0`` the record has been sent on return, unless five requests are in flight.
        """
        await self._loop.cancel_point()
        try:
            record = self._core.prepare(value, key, timestamp, partition, headers, time.time_ns)
        except UnknownPartitionError:
            await self._refresh_partitions()  # the partition may be new
            record = self._core.prepare(value, key, timestamp, partition, headers, time.time_ns)
        batch = None if self._line else self._append(record, part_of)
        if batch is None:
            batch = await self._append_when_there_is_room(record, part_of)
        index = batch.record_count - 1
        self._sends += 1
        if index == 0 or self._sends >= SENDS_PER_TURN:
            self._sends = 0
            self._work_to_do.set()  # also for a first record, which sets the time when its batch is due
            await self._loop.give_way()
            if self.options.linger_ms == 0:
                # Tasks run in no fixed order within a turn; after a second one the record has been sent if possible.
                await self._loop.give_way()
        return Delivery(batch, index, record[0], self)

    async def _refresh_partitions(self) -> None:
        """Ask the broker for the number of partitions; without an answer the known number stays."""
        if self._link is not None:
            with suppress(SeglogError):
                found = await self._link.converse(describe_topic(self.topic), seconds=REQUEST_TIMEOUT_SECONDS)
                self._core.note_partitions(found.partitions)

    def _append(self, record: PreparedRecord, part_of: OpenTransaction | None) -> ProducerBatch | None:
        """As ``ProducerCore.append``."""
        if part_of is not None:
            part_of.check()
        if self._is_ending:
            raise ClientClosedError("the producer is closed")
        batch = self._core.append(record, self._loop.now)
        if batch is None:
            self._work_to_do.set()  # open batches are sent at once, because only answers make room
        return batch

    async def _append_when_there_is_room(
        self, record: PreparedRecord, part_of: OpenTransaction | None
    ) -> ProducerBatch:
        place = self._loop.event()
        self._line.append(place)
        try:
            with self._loop.until(self._loop.now() + self.options.delivery_timeout):
                while True:
                    await place.wait()
                    batch = self._append(record, part_of)
                    if batch is not None:
                        return batch
                    self._line[0] = place = self._loop.event()
        finally:
            self._line.remove(place)
            self._wake_sender()
        raise self._core.stayed_full()

    async def flush(self) -> None:
        """Wait until every record sent so far is resolved, as ``seglog.Producer.flush``."""
        await self._loop.turn()
        pending = self._core.flush()
        self._work_to_do.set()
        await self._resolved(pending)
        failure = self._core.failure()
        if failure is not None:
            raise failure

    async def settled(self, batch: ProducerBatch) -> None:
        """Wait until the batch has been resolved or split."""
        self._loop.check()
        if batch.is_resolved or batch.halves is not None:
            await self._loop.turn()
            return
        event = self._settled.get(batch)
        if event is None:
            event = self._settled[batch] = self._loop.event()
        await event.wait()

    @property
    def unacknowledged(self) -> int:
        """Number of records that have neither been acknowledged nor failed."""
        return self._core.unacknowledged

    async def _resolved(self, batches: list[ProducerBatch]) -> None:
        while batches:
            batch = batches[-1]
            if batch.is_resolved:
                batches.pop()
            elif batch.halves is not None:
                batches[-1:] = batch.halves
            else:
                await self.settled(batch)

    def _on_settled(self, batch: ProducerBatch) -> None:
        event = self._settled.pop(batch, None)
        if event is not None:
            event.set()
        self._wake_sender()

    def _wake_sender(self) -> None:
        """Let the first task that waits for room in the buffer look again; it lets the next one look."""
        if self._line:
            self._line[0].set()

    # --- Ending -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush, then close the connection, even when ``flush`` raises. Idempotent.

        A cancelled flush ends like a block that is left by an exception.
        """
        if self._is_closed:
            await self._loop.turn()
            return
        try:
            await self.flush()
        except SeglogError:
            raise
        except BaseException as error:
            await self.leave(error)
            raise
        finally:
            self._shut()

    async def abort(self, seconds: float = ABORT_WAIT_SECONDS) -> int:
        """Close without sending more, after up to ``seconds`` for requests in flight.

        Returns the number of unacknowledged records whose failure the program has not seen. A cancellation does not
        shorten the wait.
        """
        await self._abort(self._loop.now() + seconds)
        return self._core.accumulator.take_failures()[1]

    def abort_now(self) -> None:
        """Close without waiting for anything."""
        if not self._is_closed:
            self.end()
            self._shut()

    async def leave(self, error: BaseException, deadline: float | None = None) -> None:
        """Abort because the block was left by ``error``; adds a note with the number of unacknowledged records."""
        if self._is_closed:
            return
        await self._abort(self._loop.now() + ABORT_WAIT_SECONDS if deadline is None else deadline)
        note = self._core.loss()
        if note is not None:
            error.add_note(note)

    def end(self) -> list[ProducerBatch]:
        """Stop sending; returns the batches in flight."""
        self._is_ending = True
        self._wake_sender()
        return self._core.end(ClientClosedError("the producer was closed before this record was sent"))

    async def _abort(self, deadline: float) -> None:
        try:
            await self._loop.shielded(deadline, lambda: self._resolved(self.end()))
        finally:
            self._shut()

    if not TYPE_CHECKING:
        __enter__ = __exit__ = refuse_with

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            await self.close()
        else:
            await self.leave(error)

    def _shut(self) -> None:
        self._is_ending = self._is_closed = True
        self._working.cancel()
        if self._link is not None:
            self._link.close()
        self._core.forget(ClientClosedError("the producer was closed before this record was acknowledged"))
        self._wake_sender()
        self.on_closed()

    # --- The work -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """The background task, until the producer is closed."""
        try:
            while True:
                self._work_to_do = self._loop.event()  # later events are handled in the next round
                await self._connect()
                if self._link is not None:
                    await self._pump(self._link)
                event = self._core.tick(self._loop.now(), is_connected=self._link is not None)
                with self._loop.until(math.inf if event is None else event):
                    await self._work_to_do.wait()
        finally:
            if not self._is_closed:  # it ends before, because its loop ends, or by a bug
                self._is_ending = True
                if count := self._core.unacknowledged:
                    _log.warning(
                        "not acknowledged: %s to %s, because the loop of its producer has ended",
                        count_of(count, "record"),
                        self.topic,
                    )
                with suppress(RuntimeError):  # of asyncio: a loop that is closed wakes no task
                    self._core.forget(ClientClosedError("the loop ended before this record was acknowledged"))
                    self._wake_sender()

    async def _pump(self, link: Link) -> None:
        """Send all ready batches; other tasks may run between two of them, of which each takes time to compress."""
        while (sent := self._core.take(self._loop.now())) is not None:
            try:
                await self._write(link, sent)
                await self._loop.turn()
            except SeglogError as error:
                link.fail(error)
                self._lost(link)
                return

    async def _write(self, link: Link, sent: Sent) -> None:
        core = self._core
        core.build(sent)
        if self._admit is not None and self.transaction is not None:
            try:
                await self._admit(self.transaction, self.topic, [batch.partition for batch in sent.batches])
            except SeglogError as error:
                core.refused(sent, error, self._loop.now())
                return
        now = self._loop.now()
        request = core.request(sent, now)
        if request is None:
            return
        seconds = core.write_seconds(sent, now)
        look_up = core.look_up(now)
        if look_up is not None:
            await link.send(look_up, on_reply=core.looked_up, seconds=seconds)
        if self.options.ack == "none":
            await link.send(*request, on_reply=None, seconds=seconds, on_stalled=self._nothing_expires)
            core.written(sent)
            return

        def take(reply: Reply) -> None:
            core.answered(sent, reply.header, self._loop.now())
            self._work_to_do.set()

        await link.send(*request, on_reply=take, seconds=seconds, on_stalled=self._nothing_expires)

    def _nothing_expires(self) -> bool:
        """Fail expired batches while the broker takes no bytes; returns False when there were any."""
        answers = self._core.answers
        self._core.tick(self._loop.now(), is_connected=True)
        return self._core.answers == answers

    # --- The connection -----------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Connect if there is no link and it is time to."""
        core = self._core
        if self._link is not None:
            overdue = core.overdue(self._loop.now(), self._dialer.server)
            if overdue is not None:
                self._link.fail(overdue)
            if self._link.failure is not None:
                self._lost(self._link)
        if self._link is not None or not core.accumulator.unresolved or self._loop.now() < core.connect_at:
            return
        try:
            self._adopt(await self._dialer.dial_once(core.dial_seconds(self._loop.now())))
            core.connected()
        except SeglogError as error:
            core.not_connected(error, self._loop.now())

    def _adopt(self, link: Link) -> None:
        self._link = link
        link.on_failed = lambda: self._work_to_do.set()  # noqa: PLW0108 - there is another one in each round

    def _lost(self, link: Link) -> None:
        """Handle a broken link: its unanswered batches are sent first on the next one."""
        if self._link is link:
            self._link = None
            self._core.lost(self._loop.now(), link.failure)
