"""The blocking producer: a lock, a link and at most one daemon thread around ``ProducerCore``.

A thread that waits does the work: it sends ready batches, reads answers, reconnects. The daemon thread exists only when
records linger, because lingering batches must be sent without a call. Two locks, always taken in this order:
``_sending`` makes taking and writing batches one step, so that they are sent in order; ``_lock`` guards the core and is
never held during blocking calls.
"""

import atexit
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from seglog.core.accumulator import ProducerBatch, ProducerEpoch
from seglog.core.connection import Reply
from seglog.core.delivery import ProducerFacts, Promise, Receipt
from seglog.core.errors import seconds_of
from seglog.core.producer import ABORT_WAIT_SECONDS, REQUEST_TIMEOUT_SECONDS, ProducerCore, Sent
from seglog.core.producer_options import Content, HeaderInput, ProducerOptions
from seglog.core.timestamps import TimestampWatch
from seglog.core.topics import describe_topic
from seglog.core.wrong_face import refuse_async, refuse_async_block
from seglog.link import Dialer, Link, OwnerProcess
from seglog_protocol import errors
from seglog_protocol.messages import TopicDescription

if TYPE_CHECKING:
    from seglog.core.transactions import OpenTransaction

EXIT_WAIT_SECONDS: Final = 30.0
FOREVER_SECONDS: Final = 1e9


class Delivery(Promise):
    """A record being sent. It may be ignored: a failure not seen here is raised by the next ``flush``."""

    __slots__ = ()
    _producer: "Producer"

    if not TYPE_CHECKING:
        __await__ = refuse_async

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt, at most ``timeout`` seconds.

        Raises the record's error, or ClientTimeoutError after ``timeout``, when the record is still being sent.
        """
        batch = self._batch
        if not batch.is_resolved and not self._producer.wait_for(batch, timeout):
            raise errors.ClientTimeoutError(
                f"the record was not acknowledged within {seconds_of(timeout or 0)}; it is still on its way"
            )
        return self._receipt()

    def exception(self, timeout: float | None = None) -> errors.SeglogError | None:
        """The error of a failed record, or None; waits like ``result``."""
        try:
            self.result(timeout)
        except errors.SeglogError as error:
            if not self.done():
                raise
            return error
        return None


class Producer(ProducerFacts):
    """Sends records to one topic. Any thread may use it; close it, or use it as a context manager.

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
        transaction: "OpenTransaction | None" = None,
        admit: "Callable[[OpenTransaction, str, list[int]], None] | None" = None,
    ) -> None:
        """With ``transaction`` its records are part of that one, and its producer id and epoch are those of it.

        Then ``admit`` is called with it, the topic and partitions of batches before they are written, and may wait.
        Where it raises a SeglogError, they fail by it, or are tried again, as when the broker refuses them.
        """
        self.topic = topic.name
        self.options = options
        self._dialer = dialer.bound_to(link)
        self._link: Link | None = link
        self._owner = OwnerProcess("producer")
        self._core = ProducerCore(topic, options, producer if transaction is None else transaction.epoch, timestamps)
        self.transaction = transaction
        self._admit = admit
        self._sending = threading.Lock()
        # The lock is used directly: an interrupt may leave the condition's own methods with the lock held.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._is_closed = False
        self._thread: threading.Thread | None = None
        if options.linger_ms > 0:
            self._thread = threading.Thread(target=self._run, name=f"seglog-producer-{topic.name}", daemon=True)
            self._thread.start()
        _open_producers.add(self)

    # --- Sending ------------------------------------------------------------------------------------------------------

    def send(
        self,
        value: Content,
        key: Content = None,
        *,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        headers: HeaderInput = (),
        part_of: "OpenTransaction | None" = None,
    ) -> Delivery:
        """Send a record and return a Delivery, the future of its receipt.

        ``value`` and ``key`` are bytes, text (sent as UTF-8) or None; ``timestamp`` is epoch ms or an aware datetime,
        by default now; ``partition`` overrides the partitioner. Waits while the buffer is full, and with
        ``linger_ms=0`` until the record has been sent. Raises ClientTimeoutError when the buffer stays full for the
        delivery timeout, MessageTooLargeError for a record larger than the topic's limit, ClientClosedError.

        ``part_of`` is given by ``Transaction.send``.

        Warns (TimestampWarning, once per topic) of a timestamp past the topic's retention, or that looks like seconds.
        """
        try:
            record = self._core.prepare(value, key, timestamp, partition, headers, time.time_ns)
        except errors.UnknownPartitionError:
            self._refresh_partitions()  # the partition may be new
            record = self._core.prepare(value, key, timestamp, partition, headers, time.time_ns)
        while True:
            if self._owner.process != OwnerProcess.running:
                self._owner.check()
            with self._lock:
                if part_of is not None:
                    part_of.check()
                if self._is_closed:
                    raise self._closed()
                batch = self._core.append(record, time.monotonic)
                number = 0 if batch is None else batch.record_count
                if number == 1:
                    self._changed.notify_all()  # wakes the daemon thread if it was idle
            if batch is not None:
                break
            self._wait_for_room(partial(self._core.has_room, record))
        if self._thread is None:
            self._drive(batch.is_under_way, FOREVER_SECONDS)
        elif number == 1 and batch.follows_full:
            self._pump()
        return Delivery(batch, number - 1, record[0], self)

    def _refresh_partitions(self) -> None:
        """Ask the broker for the number of partitions; without an answer the known number stays."""
        link = self._link
        if link is None:
            return
        self._owner.check()
        with suppress(errors.SeglogError):
            found = link.converse(describe_topic(self.topic), timeout=REQUEST_TIMEOUT_SECONDS)
            with self._lock:
                self._core.note_partitions(found.partitions)

    def send_batch(self, partition: int, data: bytes, record_count: int) -> ProducerBatch:
        """Send a whole record batch as ``encode_batch`` makes it, with base offset 0 and no producer id.

        After ``wait_for`` or ``flush`` its ``pieces`` have the results. Waits while the buffer is full. Raises what
        ``send`` raises.
        """
        self._owner.check()
        while True:
            with self._lock:
                if self._is_closed:
                    raise self._closed()
                batch = self._core.append_batch(partition, data, record_count, time.monotonic())
                self._changed.notify_all()  # wakes the daemon thread if it was idle
            if batch is not None:
                self._pump()
                return batch
            self._wait_for_room(partial(self._core.accumulator.has_room, len(data)))

    def _wait_for_room(self, has_room: Callable[[], bool]) -> None:
        """Send and read until there is room. Raises ClientTimeoutError after the delivery timeout."""
        if not self._drive(has_room, self.options.delivery_timeout):
            raise self._core.stayed_full()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent so far has been acknowledged or has failed.

        Raises DeliveryFailed for failures since the last flush that the program has not seen, ClientTimeoutError when
        ``timeout`` seconds pass first.
        """
        self._owner.check()
        with self._lock:
            pending = self._core.flush()
            self._changed.notify_all()

        def is_done() -> bool:
            while pending and pending[-1].is_resolved:
                pending.pop()
            return not pending

        if not self._drive(is_done, FOREVER_SECONDS if timeout is None else timeout):
            raise errors.ClientTimeoutError(
                f"not everything was acknowledged within {seconds_of(timeout or 0)}; it is still on its way"
            )
        with self._lock:
            failure = self._core.failure()
        if failure is not None:
            raise failure

    def begin(self, transaction: "OpenTransaction") -> bool:
        """Send in this transaction from now on, as ``ProducerFacts.begin``."""
        with self._lock:
            return super().begin(transaction)

    def wait_for(self, batch: ProducerBatch, timeout: float | None) -> bool:
        """Drive the producer until the batch is resolved; False when ``timeout`` seconds pass first."""
        self._owner.check()
        return self._drive(lambda: batch.is_resolved, FOREVER_SECONDS if timeout is None else timeout)

    @property
    def unacknowledged(self) -> int:
        """Number of records that have neither been acknowledged nor failed."""
        self._owner.check()
        with self._lock:
            return self._core.unacknowledged

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Flush, then close the connection, even when ``flush`` raises. Idempotent.

        In a forked child only its copy of the connection is closed.
        """
        if self._is_closed or self._close_in_child():
            return
        try:
            self.flush(timeout)
        finally:
            self._shut()

    def abort(self, timeout: float = ABORT_WAIT_SECONDS) -> int:
        """Close without sending more, after up to ``timeout`` seconds for requests in flight.

        Returns the number of unacknowledged records whose failure the program has not seen.
        """
        self._abort(time.monotonic() + timeout)
        return self._core.accumulator.take_failures()[1]

    def abort_now(self) -> None:
        """Close without waiting for anything."""
        self._abort(0)

    def _abort(self, deadline: float) -> None:
        if self._is_closed or self._close_in_child():
            return
        try:
            waiting = self._end()
            link = self._link
            if link is not None:
                link.wait(lambda: all(batch.is_resolved for batch in waiting), deadline - time.monotonic())
        except errors.SeglogError:
            pass  # the connection is lost: no more answers
        finally:
            self._shut()

    def _end(self) -> list[ProducerBatch]:
        with self._lock:
            return self._core.end(errors.ClientClosedError("the producer was closed before this record was sent"))

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refuse_async_block

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.close()
        elif not self._is_closed:
            self._abort(time.monotonic() + ABORT_WAIT_SECONDS)
            note = self._core.loss()
            if note is not None:
                error.add_note(note)

    def _close_in_child(self) -> bool:
        """In a forked child: close the copy of the connection and return True. Locks are not used there."""
        if self._owner.is_here:
            return False
        self._is_closed = True
        if self._link is not None:
            self._link.close()
        return True

    def _shut(self) -> None:
        self._is_closed = True
        _open_producers.discard(self)
        with self._lock:
            self._changed.notify_all()
        link = self._link
        if link is not None:
            link.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(ABORT_WAIT_SECONDS)
        if self._link is not None:
            self._link.close()  # a link that was opened meanwhile
        with self._lock:
            self._core.forget(errors.ClientClosedError("the producer was closed before this record was acknowledged"))
            self._changed.notify_all()

    # --- The work -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The daemon thread, which sends lingering batches."""
        while True:
            with self._lock:
                while not self._is_closed and not self._core.accumulator.unresolved:
                    self._changed.wait()
                if self._is_closed:
                    return
            self._step(lambda: False, FOREVER_SECONDS)

    def _drive(self, is_done: Callable[[], bool], timeout: float) -> bool:
        """Send and read until ``is_done()``; False when ``timeout`` seconds pass first. Makes at least one step."""
        deadline = time.monotonic() + timeout
        while not is_done():
            remaining = deadline - time.monotonic()
            if self._is_closed and not is_done():
                raise self._closed()
            self._step(is_done, max(0.0, remaining))
            if remaining <= 0:
                return is_done()
        return True

    def _step(self, is_done: Callable[[], bool], timeout: float) -> None:
        """Send ready batches; then wait for one answer, for the next event, or for ``timeout`` seconds."""
        answers = self._core.answers
        link = self._pump()
        now = time.monotonic()
        pause = min(timeout, self._seconds_to_next_event(now, is_connected=link is not None))
        if link is None:
            with self._lock:
                if self._core.answers == answers and not is_done() and not self._is_closed:
                    self._changed.wait(pause)
            return
        try:
            link.wait(lambda: is_done() or self._core.answers != answers, pause)
        except errors.SeglogError as error:
            self._lost(link, error)

    def _seconds_to_next_event(self, now: float, *, is_connected: bool) -> float:
        with self._lock:
            answers = self._core.answers
            event = self._core.tick(now, is_connected=is_connected)
            if self._core.answers != answers:
                self._changed.notify_all()
        next_event = now + FOREVER_SECONDS if event is None else event
        if self._thread is not None and is_connected:
            # A batch opened from now on is due after this, so the thread in poll need not be woken.
            next_event = min(next_event, now + max(0.001, self._core.accumulator.limits.linger_seconds))
        return max(0.0, next_event - now)

    def _pump(self) -> Link | None:
        """Send all ready batches; returns the link, or None without a connection."""
        link: Link | None = None
        with self._sending:
            try:
                link = self._connected()
                if link is not None:
                    self._send_ready(link)
            except errors.SeglogError as error:
                if link is not None:
                    self._lost(link, error)
                return None
            except BaseException:
                if link is not None:
                    self._lost(link, errors.ConnectionLostError("the call that was sending was interrupted"))
                raise
            return link

    def _send_ready(self, link: Link) -> None:
        # Not a part of ``_pump``, where an interrupt at the end of the loop could leave the lock held: see link.py.
        while True:
            with self._lock:
                sent = None if self._is_closed else self._core.take(time.monotonic())
            if sent is None:
                return
            self._write(link, sent)

    def _write(self, link: Link, sent: Sent) -> None:
        """Send a request over the link, and have its answer settle its batches."""
        core = self._core
        core.build(sent)
        if self._admit is not None and self.transaction is not None:
            try:
                self._admit(self.transaction, self.topic, [batch.partition for batch in sent.batches])
            except errors.SeglogError as error:
                with self._lock:
                    core.refused(sent, error, time.monotonic())
                    self._changed.notify_all()
                return
        now = time.monotonic()
        with self._lock:
            request = core.request(sent, now)
            look_up = core.look_up(now)
        if request is None:
            return
        timeout = core.write_seconds(sent, now)
        if look_up is not None:
            link.send(look_up, on_reply=self._looked_up, timeout=timeout)
        if self.options.ack != "none":
            link.send(
                *request,
                on_reply=lambda reply: self._answered(sent, reply),
                timeout=timeout,
                on_stalled=self._nothing_expires,
            )
            return
        link.send(*request, on_reply=None, timeout=timeout, on_stalled=self._nothing_expires)
        with self._lock:
            core.written(sent)

    def _nothing_expires(self) -> bool:
        """Fail expired batches while the broker takes no bytes; returns False when there were any."""
        with self._lock:
            answers = self._core.answers
            self._core.tick(time.monotonic(), is_connected=True)
            if self._core.answers == answers:
                return True
            self._changed.notify_all()
            return False

    def _answered(self, sent: Sent, reply: Reply) -> None:
        with self._lock:
            self._core.answered(sent, reply.header, time.monotonic())
            self._changed.notify_all()

    def _looked_up(self, reply: Reply) -> None:
        with self._lock:
            self._core.looked_up(reply)

    # --- The connection -----------------------------------------------------------------------------------------------

    def _connected(self) -> Link | None:
        """The link, or a new one when it is time to try; called with ``_sending`` held."""
        link = self._link
        now = time.monotonic()
        if link is not None:
            return link if self._is_alive(link, now) else None
        if self._is_closed or now < self._core.connect_at:
            return None
        with self._lock:
            seconds = self._core.dial_seconds(now)
        try:
            link = self._dialer.dial_once(seconds)
        except errors.SeglogError as error:
            with self._lock:
                self._core.not_connected(error, time.monotonic())
                self._changed.notify_all()  # an error may be final
            return None
        if self._is_closed:
            link.close()
            return None
        with self._lock:
            self._core.connected()
            self._link = link
        return link

    def _is_alive(self, link: Link, now: float) -> bool:
        try:
            if self._thread is None and (self._core.in_flight or self.options.ack == "none"):
                link.wait(lambda: False, 0)  # without a daemon thread, answers are read only during calls
            with self._lock:
                overdue = self._core.overdue(now, self._dialer.server)
            if overdue is not None:
                raise overdue
        except errors.SeglogError as error:
            self._lost(link, error)
            return False
        return True

    def _lost(self, link: Link, error: errors.SeglogError) -> None:
        """Handle a broken link: its unanswered batches are sent first on the next one."""
        link.fail(error)
        link.close()
        with self._lock:
            if self._link is not link:
                return
            self._core.lost(time.monotonic(), error)
            self._link = None
            self._changed.notify_all()

    @staticmethod
    def _closed() -> errors.ClientClosedError:
        return errors.ClientClosedError("the producer is closed")


_open_producers: set[Producer] = set()


@atexit.register
def _flush_at_exit() -> None:
    """Flush producers that were not closed, with a warning."""
    for producer in list(_open_producers):
        if not producer._owner.is_here:  # noqa: SLF001 - of this module
            continue
        warnings.warn(
            f"the producer of {producer.topic} was never closed; it is flushed at exit (use it in a with block)",
            ResourceWarning,
            stacklevel=1,
        )
        try:
            producer.close(EXIT_WAIT_SECONDS)
        except errors.SeglogError as error:
            warnings.warn(f"at exit: {error}", ResourceWarning, stacklevel=1)
