"""The blocking producer: a lock, a link and at most one daemon thread around the sending core.

Whoever has a reason to wait does the work: sends what is ready, reads answers, reconnects. The daemon thread exists
only when records linger, because then something has to happen although nobody calls. Two locks, always taken in this
order: ``_sending`` makes taking batches and writing them one step, so that they go out in order; ``_lock`` guards
the core and is never held while anything blocks.
"""

import atexit
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from seglog.batching import ProducerBatch, ProducerEpoch
from seglog.connection import Reply
from seglog.delivery import Delivery
from seglog.dialer import Dialer
from seglog.link import Link
from seglog.process import Owner
from seglog.sending import (
    ABORT_WAIT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    Content,
    HeaderInput,
    ProducerOptions,
    Sender,
    Sent,
    append_version,
)
from seglog.timestamps import TimestampWatch
from seglog.topics import describe_topic
from seglog.words import seconds_of
from seglog_protocol.batch_builder import NewRecord
from seglog_protocol.errors import (
    ClientClosedError,
    ClientTimeoutError,
    ConnectionLostError,
    SeglogError,
    UnknownPartitionError,
)
from seglog_protocol.messages import TopicDescription

EXIT_WAIT_SECONDS: Final = 30.0
FOREVER_SECONDS: Final = 1e9


class Producer:
    """Sends records to one topic. Any thread may use it; close it, or use it as a context manager.

    Made by ``Client.producer``. It has a connection of its own, so acknowledgements never stand behind anything else.
    """

    def __init__(
        self,
        dialer: Dialer,
        link: Link,
        topic: TopicDescription,
        options: ProducerOptions,
        producer: ProducerEpoch | None = None,
        timestamps: TimestampWatch | None = None,
    ) -> None:
        self.topic = topic.name
        self.options = options
        self._dialer = dialer.bound_to(link)
        self._link: Link | None = link
        self._owner = Owner("producer")
        self._sender = Sender(topic, options, producer, timestamps)
        self._sending = threading.Lock()
        # The lock itself is taken, not the condition, whose own methods an interrupt may leave with the lock held.
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
    ) -> Delivery:
        """Hand over a record and return the promise of its receipt.

        ``value`` and ``key`` are bytes, text (sent as UTF-8) or None; ``timestamp`` is epoch ms or an aware datetime,
        and now if left out; ``partition`` overrides the partitioner. Waits while ``buffer_bytes`` are full, and with
        ``linger_ms=0`` until the record is on its way. Raises ClientTimeoutError when the buffer stays full for the
        delivery timeout, MessageTooLargeError for a record that no batch of this topic can hold, ClientClosedError.

        Warns (TimestampWarning, once a topic) of a timestamp that is older than the topic keeps, or looks like seconds.
        """
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        try:
            record, size = self._sender.prepare(value, key, timestamp, partition, headers)
        except UnknownPartitionError:
            self._learn_partitions()  # it may have been added a moment ago
            record, size = self._sender.prepare(value, key, timestamp, partition, headers)
        added = self._append(partition, record, size)
        while added is None:
            self._wait_for_room(size)
            added = self._append(partition, record, size)
        batch, index, has_full = added
        if self._thread is None:
            self._drive(lambda: batch.is_sent or batch.is_resolved, FOREVER_SECONDS)
        elif has_full:
            self._pump()
        return Delivery(batch, index, record[0], self)

    def _learn_partitions(self) -> None:
        """Ask the broker how many partitions there are; without an answer it stays at what is known."""
        link = self._link
        if link is None:
            return
        self._owner.check()
        with suppress(SeglogError):
            found = link.converse(describe_topic(self.topic), timeout=REQUEST_TIMEOUT_SECONDS)
            with self._lock:
                self._sender.note_partitions(found.partitions)

    def _append(self, partition: int | None, record: NewRecord, size: int) -> tuple[ProducerBatch, int, bool] | None:
        """As ``Sender.append``."""
        self._owner.check()
        with self._lock:
            self._check_open()
            added = self._sender.append(partition, record, size, time.monotonic())
            if added is not None and added[1] == 0:
                self._changed.notify_all()  # the thread may have had nothing to do
            return added

    def send_batch(self, partition: int, data: bytes, record_count: int) -> ProducerBatch:
        """Hand over a whole record batch as ``encode_batch`` makes it, base offset 0 and no producer in its header.

        ``wait_for`` it, or ``flush``; then its ``pieces`` tell what became of it. Waits while ``buffer_bytes`` are
        full. Raises what ``send`` does.
        """
        batch = self._append_batch(partition, data, record_count)
        while batch is None:
            self._wait_for_room(len(data))
            batch = self._append_batch(partition, data, record_count)
        self._pump()
        return batch

    def _append_batch(self, partition: int, data: bytes, record_count: int) -> ProducerBatch | None:
        """As ``Sender.append_batch``."""
        self._owner.check()
        with self._lock:
            self._check_open()
            batch = self._sender.append_batch(partition, data, record_count, time.monotonic())
            self._changed.notify_all()  # the thread may have had nothing to do
            return batch

    def _wait_for_room(self, size: int) -> None:
        if not self._drive(lambda: self._sender.accumulator.has_room(size), self.options.delivery_timeout):
            raise self._sender.stayed_full()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far has been acknowledged or has failed.

        Raises DeliveryFailed for what failed since the last flush and was not looked at, ClientTimeoutError when
        ``timeout`` seconds pass first.
        """
        self._owner.check()
        with self._lock:
            pending = self._sender.flush()
            self._changed.notify_all()

        def is_done() -> bool:
            while pending and pending[-1].is_resolved:
                pending.pop()
            return not pending

        if not self._drive(is_done, FOREVER_SECONDS if timeout is None else timeout):
            raise ClientTimeoutError(
                f"not everything was acknowledged within {seconds_of(timeout or 0)}; it is still on its way"
            )
        with self._lock:
            failure = self._sender.failure()
        if failure is not None:
            raise failure

    def wait_for(self, batch: ProducerBatch, timeout: float | None) -> bool:
        """Do the producer's work until the batch is resolved; False when ``timeout`` seconds pass first."""
        self._owner.check()
        return self._drive(lambda: batch.is_resolved, FOREVER_SECONDS if timeout is None else timeout)

    @property
    def partitions(self) -> int:
        """How many partitions the topic has, as far as is known here."""
        return self._sender.partitions

    @property
    def batch_bytes_max(self) -> int:
        """How large a batch the topic takes."""
        return self._sender.message_bytes_max

    @property
    def timestamps(self) -> TimestampWatch:
        """What is known of the timestamps that the topic keeps."""
        return self._sender.timestamps

    @property
    def expired_on_arrival(self) -> int:
        """Records sent with a timestamp older than the topic keeps, which retention deletes soon."""
        return self._sender.expired_on_arrival

    @property
    def has_expired(self) -> bool:
        """Whether any record was not acknowledged within the delivery timeout."""
        return self._sender.accumulator.has_expired

    @property
    def unacknowledged(self) -> int:
        """Records sent to this producer of which it is not known what became."""
        self._owner.check()
        with self._lock:
            return self._sender.unacknowledged

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Raises what ``flush`` raises, closed all the same; twice is fine.

        In a forked child, which can have sent nothing, only the child's copy of the connection is let go.
        """
        if self._is_closed or self._has_let_go():
            return
        try:
            self.flush(timeout)
        finally:
            self._shut()

    def abort(self, timeout: float = ABORT_WAIT_SECONDS) -> int:
        """Send nothing new, wait ``timeout`` seconds for what is on the way; how many records were not acknowledged.

        Counted are those that the program did not look at.
        """
        self._abort(time.monotonic() + timeout)
        return self._sender.accumulator.take_failures()[1]

    def _abort(self, deadline: float) -> None:
        if self._is_closed or self._has_let_go():
            return
        try:
            waiting = self._end()
            link = self._link
            if link is not None:
                link.wait(lambda: all(batch.is_resolved for batch in waiting), deadline - time.monotonic())
        except SeglogError:
            pass  # the connection is gone: nothing more can be learnt
        finally:
            self._shut()

    def _end(self) -> list[ProducerBatch]:
        with self._lock:
            return self._sender.end(ClientClosedError("the producer was closed before this record was sent"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._is_closed:
            self._abort(time.monotonic() + ABORT_WAIT_SECONDS)
            note = self._sender.loss()
            if note is not None:
                error.add_note(note)

    def _has_let_go(self) -> bool:
        """Whether this is a forked child: locks are not touched there, since no thread may be left to release them."""
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
            self._link.close()  # one that was being opened meanwhile
        with self._lock:
            self._sender.forget(ClientClosedError("the producer was closed before this record was acknowledged"))
            self._changed.notify_all()

    # --- The work -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The daemon thread: there as long as records may linger."""
        while True:
            with self._lock:
                while not self._is_closed and not self._sender.accumulator.unresolved:
                    self._changed.wait()
                if self._is_closed:
                    return
            self._step(lambda: False, FOREVER_SECONDS)

    def _drive(self, is_done: Callable[[], bool], timeout: float) -> bool:
        """Work until ``is_done()``; False when ``timeout`` seconds pass first. Takes in what has arrived anyway."""
        deadline = time.monotonic() + timeout
        while not is_done():
            remaining = deadline - time.monotonic()
            if self._is_closed and not is_done():
                raise ClientClosedError("the producer is closed")
            self._step(is_done, max(0.0, remaining))
            if remaining <= 0:
                return is_done()
        return True

    def _step(self, is_done: Callable[[], bool], timeout: float) -> None:
        """Send what can be sent; then wait for one answer, for the next thing to do, or for ``timeout`` seconds."""
        answers = self._sender.answers
        link = self._pump()
        now = time.monotonic()
        pause = min(timeout, self._seconds_to_next_event(now, is_connected=link is not None))
        if link is None:
            with self._lock:
                if self._sender.answers == answers and not is_done() and not self._is_closed:
                    self._changed.wait(pause)
            return
        try:
            link.wait(lambda: is_done() or self._sender.answers != answers, pause)
        except SeglogError as error:
            self._lost(link, error)

    def _seconds_to_next_event(self, now: float, *, is_connected: bool) -> float:
        with self._lock:
            answers = self._sender.answers
            event = self._sender.tick(now, is_connected=is_connected)
            if self._sender.answers != answers:
                self._changed.notify_all()
        next_event = now + FOREVER_SECONDS if event is None else event
        if self._thread is not None and is_connected:
            # A batch opened from now on is due after this, so nobody has to wake whoever is in poll.
            next_event = min(next_event, now + max(0.001, self._sender.accumulator.limits.linger_seconds))
        return max(0.0, next_event - now)

    def _pump(self) -> Link | None:
        """Send all that may be sent now; the link, or None while there is none."""
        link: Link | None = None
        with self._sending:
            try:
                link = self._connected()
                while link is not None:
                    with self._lock:
                        sent = None if self._is_closed else self._sender.take(time.monotonic())
                    if sent is None:
                        break
                    self._write(link, sent)
            except SeglogError as error:
                if link is not None:
                    self._lost(link, error)
                return None
            except BaseException:
                if link is not None:
                    self._lost(link, ConnectionLostError("the call that was sending was interrupted"))
                raise
            return link

    def _write(self, link: Link, sent: Sent) -> None:
        sender = self._sender
        sender.build(sent)
        now = time.monotonic()
        with self._lock:
            request = sender.request(sent, now, version=append_version(link.hello))
            look_up = sender.look_up(now)
        if request is None:
            return
        timeout = sender.write_seconds(sent, now)
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
            sender.written(sent)

    def _nothing_expires(self) -> bool:
        """Give up what has been here too long, while the broker takes no bytes; False when that was anything."""
        with self._lock:
            answers = self._sender.answers
            self._sender.tick(time.monotonic(), is_connected=True)
            if self._sender.answers == answers:
                return True
            self._changed.notify_all()
            return False

    def _answered(self, sent: Sent, reply: Reply) -> None:
        with self._lock:
            self._sender.answered(sent, reply.header, time.monotonic())
            self._changed.notify_all()

    def _looked_up(self, reply: Reply) -> None:
        with self._lock:
            self._sender.looked_up(reply)

    # --- The connection -----------------------------------------------------------------------------------------------

    def _connected(self) -> Link | None:
        """The link, or a new one when it is time to try; called with ``_sending`` held."""
        link = self._link
        now = time.monotonic()
        if link is not None:
            return link if self._is_alive(link, now) else None
        if self._is_closed or now < self._sender.connect_at:
            return None
        with self._lock:
            seconds = self._sender.dial_seconds(now)
        try:
            link = self._dialer.dial_once(seconds)
        except SeglogError as error:
            with self._lock:
                self._sender.not_connected(error, time.monotonic())
            return None
        if self._is_closed:
            link.close()
            return None
        with self._lock:
            self._sender.connected()
            self._link = link
        return link

    def _is_alive(self, link: Link, now: float) -> bool:
        try:
            if self._thread is None and (self._sender.in_flight or self.options.ack == "none"):
                link.wait(lambda: False, 0)  # nobody else takes in answers while no call waits
            with self._lock:
                overdue = self._sender.overdue(now, self._dialer.server)
            if overdue is not None:
                raise overdue
        except SeglogError as error:
            self._lost(link, error)
            return False
        return True

    def _lost(self, link: Link, error: SeglogError) -> None:
        """The link broke: what was on the way goes first on the next one."""
        link.fail(error)
        link.close()
        with self._lock:
            if self._link is not link:
                return
            self._sender.lost(time.monotonic(), error)
            self._link = None
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosedError("the producer is closed")


_open_producers: set[Producer] = set()


@atexit.register
def _flush_at_exit() -> None:
    """A producer that nobody closed still gets its records out, with a word about it."""
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
        except SeglogError as error:
            warnings.warn(f"at exit: {error}", ResourceWarning, stacklevel=1)
