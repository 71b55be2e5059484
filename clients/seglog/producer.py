"""The blocking producer: a lock, a link and at most one daemon thread around the batching core.

Whoever has a reason to wait does the work: sends what is ready, reads answers, reconnects. The daemon thread exists
only when records linger, because then something has to happen although nobody calls. Two locks, always taken in this
order: ``_sending`` makes taking batches and writing them one step, so that they go out in order; ``_changed`` guards
the batches and is never held while anything blocks.
"""

import atexit
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from seglog.batching import Accumulator, BatchLimits, ProducerBatch, record_bytes_max
from seglog.connection import Reply
from seglog.delivery import Delivery
from seglog.dialer import Dialer, backoff_seconds
from seglog.link import Link
from seglog.moments import to_epoch_ms
from seglog.partitioner import Partitioner
from seglog.words import count_of
from seglog_protocol.batch_builder import NewRecord
from seglog_protocol.compression import LEVELS, Codec
from seglog_protocol.errors import (
    ClientClosedError,
    ClientError,
    ClientTimeoutError,
    ConnectionLostError,
    DeliveryFailed,
    MessageTooLargeError,
    RemoteProtocolError,
    SeglogError,
    UnknownPartitionError,
)
from seglog_protocol.messages import Ack, AppendPartition, AppendReply, AppendRequest, TopicDescription, decode_reply
from seglog_protocol.records import Headers

Content = bytes | bytearray | memoryview | str | None
HeaderInput = Mapping[str, Content] | Iterable[tuple[str, Content]]

IN_FLIGHT_MAX: Final = 5
"""Requests on the way at once, Kafka's ``max.in.flight.requests.per.connection``."""
REQUEST_TIMEOUT_SECONDS: Final = 30.0
"""A request unanswered for so long means a dead connection, Kafka's ``request.timeout.ms``."""
ABORT_WAIT_SECONDS: Final = 1.0
EXIT_WAIT_SECONDS: Final = 30.0
FOREVER_SECONDS: Final = 1e9

_CODECS: Final = {codec.name.lower(): codec for codec in Codec}


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """What ``Client.producer`` takes; sizes in bytes."""

    ack: Ack = "disk"
    linger_ms: float = 5
    batch_bytes: int = 256 * 1024
    compression: str = "none"
    compression_level: int | None = None
    buffer_bytes: int = 32 * 1024 * 1024
    delivery_timeout: float = 120.0

    def __post_init__(self) -> None:
        if self.ack not in {"none", "os", "disk"}:
            raise ValueError(f"ack is 'none', 'os' or 'disk', not {self.ack!r}")
        if self.compression not in _CODECS:
            raise ValueError(f"compression is one of {', '.join(_CODECS)}, not {self.compression!r}")
        if self.compression_level is not None and self.compression_level not in LEVELS.get(self.codec, ()):
            raise ValueError(f"{self.compression} has no level {self.compression_level}")
        for name in ("batch_bytes", "buffer_bytes", "delivery_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)!r}")
        if not self.linger_ms >= 0:
            raise ValueError(f"linger_ms must be 0 or more, not {self.linger_ms!r}")

    @property
    def codec(self) -> Codec:
        """The codec by its name."""
        return _CODECS[self.compression]


@dataclass(slots=True, eq=False)
class _Sent:
    """A request on the way."""

    batches: list[ProducerBatch]
    at: float


class Producer:
    """Sends records to one topic. Any thread may use it; close it, or use it as a context manager.

    Made by ``Client.producer``. It has a connection of its own, so acknowledgements never stand behind anything else.
    """

    def __init__(self, dialer: Dialer, link: Link, topic: TopicDescription, options: ProducerOptions) -> None:
        self.topic = topic.name
        self.partitions = topic.partitions
        self.options = options
        self._dialer = dialer
        self._link: Link | None = link
        self._pid = os.getpid()
        self._message_bytes_max = min(topic.max_message_bytes, topic.segment_bytes)
        self._accumulator = Accumulator(
            topic.name,
            BatchLimits(
                batch_bytes=min(options.batch_bytes, self._message_bytes_max),
                buffer_bytes=options.buffer_bytes,
                linger_seconds=options.linger_ms / 1000,
                delivery_seconds=options.delivery_timeout,
            ),
            options.codec,
            options.compression_level,
        )
        self._partitioner = Partitioner(topic.partitions)
        self._sending = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._in_flight: list[_Sent] = []
        self._answers = 0  # rises with everything that may let the next batch go or a waiting call return
        self._connect_at = 0.0
        self._connect_attempts = 0
        self._connect_error: SeglogError | None = None
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
        """
        value_bytes, key_bytes = _to_bytes(value, "value"), _to_bytes(key, "key")
        header_pairs = _to_headers(headers) if headers else ()
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        elif isinstance(timestamp, datetime):
            timestamp = to_epoch_ms(timestamp)
        elif timestamp < -1:
            raise ValueError(f"a timestamp is milliseconds since 1970, or -1 for none, not {timestamp}")
        size = record_bytes_max(key_bytes, value_bytes, header_pairs)
        self._check_size((len(value_bytes) if value_bytes else 0) + (len(key_bytes) if key_bytes else 0))
        if partition is not None and not 0 <= partition < self.partitions:
            raise UnknownPartitionError(
                f"{self.topic} has no partition {partition}; it has {self.partitions}, numbered from 0",
                topic=self.topic,
                partition=partition,
                partitions=self.partitions,
            )
        record = (timestamp, key_bytes, value_bytes, header_pairs)
        added = self._append(partition, record, size)
        while added is None:
            self._wait_for_room(size)
            added = self._append(partition, record, size)
        batch, index, has_full = added
        if self._thread is None:
            self._drive(lambda: batch.is_sent or batch.is_resolved, FOREVER_SECONDS)
        elif has_full:
            self._pump()
        return Delivery(batch, index, timestamp, self)

    def _append(self, partition: int | None, record: NewRecord, size: int) -> tuple[ProducerBatch, int, bool] | None:
        """Put a record into its batch, or None when there is no room; as ``Accumulator.append``."""
        self._check_open()
        with self._changed:
            accumulator = self._accumulator
            if not accumulator.has_room(size):
                accumulator.flush()
                return None
            target = self._partitioner.place(record[1]) if partition is None else partition
            added = accumulator.append(target, record, time.monotonic())
            if added[2]:
                self._partitioner.batch_closed(target)
            if added[1] == 0:
                self._changed.notify_all()  # the thread may have had nothing to do
            return added

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far has been acknowledged or has failed.

        Raises DeliveryFailed for what failed since the last flush and was not looked at, ClientTimeoutError when
        ``timeout`` seconds pass first.
        """
        self._check_process()
        with self._changed:
            self._accumulator.flush()
            pending = self._accumulator.kept() + [batch for sent in self._in_flight for batch in sent.batches]
            self._changed.notify_all()

        def is_done() -> bool:
            while pending and pending[-1].is_resolved:
                pending.pop()
            return not pending

        if not self._drive(is_done, FOREVER_SECONDS if timeout is None else timeout):
            raise ClientTimeoutError(f"not everything was acknowledged within {timeout:g} s; it is still on its way")
        self._raise_failures()

    def wait_for(self, batch: ProducerBatch, timeout: float | None) -> bool:
        """Do the producer's work until the batch is resolved; False when ``timeout`` seconds pass first."""
        self._check_process()
        return self._drive(lambda: batch.is_resolved, FOREVER_SECONDS if timeout is None else timeout)

    @property
    def unacknowledged(self) -> int:
        """Records sent to this producer of which it is not known what became."""
        with self._changed:
            pending = self._accumulator.kept() + [batch for sent in self._in_flight for batch in sent.batches]
        return sum(batch.record_count for batch in pending if not batch.is_resolved)

    # --- Ending -------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Flush, then let go of the connection. Raises what ``flush`` raises, closed all the same; twice is fine."""
        if self._is_closed:
            return
        try:
            self.flush(timeout)
        finally:
            self._shut()

    def abort(self, timeout: float = ABORT_WAIT_SECONDS) -> int:
        """Send nothing new, wait ``timeout`` seconds for what is on the way; how many records were not acknowledged."""
        if self._is_closed:
            return 0
        try:
            with self._changed:
                waiting = [batch for sent in self._in_flight for batch in sent.batches]
                self._accumulator.abandon(ClientClosedError("the producer was closed before this record was sent"))
            link = self._link
            if link is not None:
                link.wait(lambda: all(batch.is_resolved for batch in waiting), timeout)
        except SeglogError:
            pass  # the connection is gone: nothing more can be learnt
        finally:
            self._shut()
        return self._accumulator.take_failures()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._is_closed:
            lost = self.abort()
            if lost:
                error.add_note(f"seglog: not acknowledged: {count_of(lost, 'record')} to {self.topic}")

    def _shut(self) -> None:
        self._is_closed = True
        _open_producers.discard(self)
        with self._changed:
            self._changed.notify_all()
        link = self._link
        if link is not None:
            link.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(ABORT_WAIT_SECONDS)
        if self._link is not None:
            self._link.close()  # one that was being opened meanwhile
        with self._changed:
            gone = ClientClosedError("the producer was closed before this record was acknowledged")
            for sent in self._in_flight:
                for batch in sent.batches:
                    self._accumulator.resolve(batch, error=gone)
            self._in_flight.clear()
            self._accumulator.abandon(gone)

    def _raise_failures(self) -> None:
        with self._changed:
            failures, count = self._accumulator.take_failures()
        if not count:
            return
        cause = failures[-1][3] if failures else None
        raise DeliveryFailed(
            f"not acknowledged: {count_of(count, 'record')} to {self.topic}; the last cause: {cause}", failures=failures
        ) from cause

    # --- The work -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """The daemon thread: there as long as records may linger."""
        while True:
            with self._changed:
                while not self._is_closed and not self._accumulator.unresolved:
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
        answers = self._answers
        link = self._pump()
        now = time.monotonic()
        pause = min(timeout, self._seconds_to_next_event(now))
        if link is None:
            with self._changed:
                if self._answers == answers and not self._is_closed:
                    self._changed.wait(max(0.0, min(pause, self._connect_at - now)))
            return
        try:
            link.wait(lambda: is_done() or self._answers != answers, pause)
        except SeglogError as error:
            self._lost(link, error)

    def _seconds_to_next_event(self, now: float) -> float:
        with self._changed:
            on_the_way = [batch for sent in self._in_flight for batch in sent.batches]
            self._accumulator.expire(now, on_the_way, self._connect_error)
            events = [self._accumulator.next_expiry()]
            events += [batch.deadline for batch in on_the_way if not batch.is_resolved]
            if len(self._in_flight) < IN_FLIGHT_MAX:
                events.append(self._accumulator.next_event())
            if self._in_flight:
                events.append(self._in_flight[0].at + REQUEST_TIMEOUT_SECONDS)
            if self._thread is not None:
                # A batch opened from now on is due after this, so nobody has to wake whoever is in poll.
                events.append(now + max(0.001, self._accumulator.limits.linger_seconds))
        return max(0.0, min((event for event in events if event is not None), default=FOREVER_SECONDS) - now)

    def _pump(self) -> Link | None:
        """Send all that may be sent now; the link, or None while there is none."""
        with self._sending:
            link = self._connected()
            while link is not None:
                now = time.monotonic()
                with self._changed:
                    if self._is_closed or len(self._in_flight) >= IN_FLIGHT_MAX:
                        break
                    batches = self._accumulator.take(now)
                    if not batches:
                        break
                    for batch in batches:
                        self._partitioner.batch_closed(batch.partition)
                    sent = _Sent(batches, now)
                    self._in_flight.append(sent)
                try:
                    self._write(link, sent)
                except SeglogError as error:
                    self._lost(link, error)
                    link = None
                except BaseException:
                    self._lost(link, ConnectionLostError("the call that was sending was interrupted"))
                    raise
            return link

    def _write(self, link: Link, sent: _Sent) -> None:
        payload: list[bytes] = []
        for batch in list(sent.batches):
            data = self._accumulator.build(batch)
            if len(data) <= self._message_bytes_max:
                payload.append(data)
                continue
            with self._changed:  # known to be refused: spare the wire
                sent.batches.remove(batch)
                self._accumulator.refuse(batch, self._too_large(len(data)), sent.at)
                self._answers += 1
        if payload:
            request = AppendRequest(
                [AppendPartition(self.topic, b.partition, len(d)) for b, d in zip(sent.batches, payload, strict=True)],
                ack=self.options.ack,
            )
            is_answered = self.options.ack != "none"
            link.send(
                request,
                payload,
                on_reply=(lambda reply: self._answered(sent, reply)) if is_answered else None,
                timeout=REQUEST_TIMEOUT_SECONDS,
            )
            if is_answered:
                return
        with self._changed:
            for batch in sent.batches:
                self._accumulator.written(batch)
            self._in_flight.remove(sent)
            self._answers += 1

    def _answered(self, sent: _Sent, reply: Reply) -> None:
        now = time.monotonic()
        with self._changed:
            if sent not in self._in_flight:
                return
            self._in_flight.remove(sent)
            try:
                results = decode_reply(reply.header, AppendReply).partitions
                if len(results) != len(sent.batches):
                    raise RemoteProtocolError("the broker answered for another number of batches than were sent")
            except SeglogError as error:
                for batch in sent.batches:
                    self._accumulator.refuse(batch, error, now)
            else:
                for batch, result in zip(sent.batches, results, strict=True):
                    self._accumulator.answer(batch, result, now)
            self._answers += 1
            self._changed.notify_all()

    # --- The connection -----------------------------------------------------------------------------------------------

    def _connected(self) -> Link | None:
        """The link, or a new one when it is time to try; called with ``_sending`` held."""
        link = self._link
        if link is not None or self._is_closed or time.monotonic() < self._connect_at:
            if link is not None and self._thread is None and self._in_flight:
                try:
                    link.wait(lambda: False, 0)  # nobody else takes in answers while no call waits
                except SeglogError as error:
                    self._lost(link, error)
                    return None
            return link
        try:
            link = self._dialer.dial_once(REQUEST_TIMEOUT_SECONDS)
        except SeglogError as error:  # also of a stranger on our port: records are kept until their time is over
            self._connect_error = error
            self._connect_at = time.monotonic() + backoff_seconds(self._connect_attempts)
            self._connect_attempts += 1
            return None
        if self._is_closed:
            link.close()
            return None
        self._connect_attempts, self._connect_error = 0, None
        self._link = link
        return link

    def _lost(self, link: Link, error: SeglogError) -> None:
        """The link broke: what was on the way goes first on the next one."""
        link.fail(error)
        link.close()
        with self._changed:
            if self._link is not link:
                return
            self._link = None
            self._connect_at = time.monotonic()
            batches = [batch for sent in self._in_flight for batch in sent.batches]
            self._in_flight.clear()
            self._accumulator.unsent(batches)
            self._answers += 1
            self._changed.notify_all()

    # --- Checks -------------------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClientError(
                f"this producer belongs to process {self._pid} and cannot be used after a fork in process "
                f"{os.getpid()}; call seglog.connect() again in the child"
            )

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise ClientClosedError("the producer is closed")

    def _check_size(self, size_min: int) -> None:
        """Refuse at once what can only be refused; the exact size is checked when the batch is built."""
        if self.options.codec is Codec.NONE and size_min > self._message_bytes_max:
            raise self._too_large(size_min)

    def _too_large(self, size: int) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"{size:,} bytes are more than a batch of {self.topic} may have ({self._message_bytes_max:,}, the smaller "
            "of max.message.bytes and segment.bytes)",
            size=size,
            limit=self._message_bytes_max,
        )

    def _wait_for_room(self, size: int) -> None:
        timeout = self.options.delivery_timeout
        if not self._drive(lambda: self._accumulator.has_room(size), timeout):
            raise ClientTimeoutError(f"the buffer of {self.options.buffer_bytes:,} bytes stayed full for {timeout:g} s")


def _to_bytes(content: Content, what: str) -> bytes | None:
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"a record's {what} is bytes, str or None, not {type(content).__name__}")


def _to_headers(headers: HeaderInput) -> Headers:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((name, _to_bytes(content, "header value")) for name, content in pairs)


_open_producers: set[Producer] = set()


@atexit.register
def _flush_at_exit() -> None:
    """A producer that nobody closed still gets its records out, with a word about it."""
    for producer in list(_open_producers):
        if producer._pid != os.getpid():  # noqa: SLF001 - of this module
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
