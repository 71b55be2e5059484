"""The core of a producer, without socket, thread or clock, shared by the blocking and the trio producer.

The Accumulator has the records that are not in flight. ``ProducerCore`` has the requests in flight, and handles
answers, timeouts and lost connections. A producer calls ``take`` for a request, ``build`` to encode its batches, and
writes what ``request`` returns; it passes in every answer and every lost connection, and calls ``tick`` for the time of
the next event.

All times are seconds of one monotonic clock, passed in. Not thread-safe, except ``prepare`` and ``build``.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, SupportsIndex, TypeAlias

from seglog.core import accumulator
from seglog.core.connection import Header, Reply
from seglog.core.errors import copied, count_of, seconds_of
from seglog.core.moments import TIMESTAMP_MAX, to_partition, to_timestamp
from seglog.core.partitioner import Partitioner
from seglog.core.producer_options import Content, HeaderInput, ProducerOptions, to_bytes, to_headers
from seglog.core.retries import ATTEMPT_FIRST_SECONDS, backoff_seconds
from seglog.core.timestamps import TimestampWatch
from seglog_protocol import errors, messages
from seglog_protocol.compression import Codec
from seglog_protocol.records import Headers

REQUEST_TIMEOUT_SECONDS: Final = 30.0
"""After this time without an answer the connection counts as broken, Kafka's ``request.timeout.ms``."""
SILENCE_SECONDS: Final = 3.0
"""After this time without an answer a warning is logged."""
ABORT_WAIT_SECONDS: Final = 1.0
"""How long to wait for requests in flight when a block is left by an exception."""

LOOK_UP_SECONDS: Final = 5.0
"""How often a producer at ack "none" asks for the topic's number of partitions."""

PreparedRecord: TypeAlias = tuple[int, bytes | None, bytes | None, Headers, int | None]
"""Timestamp (epoch ms), key, value, headers; and its partition, None where its key or none decides."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Sent:
    """A request in flight: written at ``at``, or taken then and not written yet."""

    batches: list[accumulator.ProducerBatch]
    at: float
    is_silence_logged: bool = False


class ProducerCore:
    """The unacknowledged records of one producer, and its requests in flight."""

    def __init__(
        self,
        topic: messages.TopicDescription,
        options: ProducerOptions,
        producer: accumulator.ProducerEpoch | None = None,
        timestamps: TimestampWatch | None = None,
    ) -> None:
        self.topic = topic.name
        self.timestamps = timestamps or TimestampWatch(topic.name)
        self.timestamps.learn_config(topic.config)
        self.expired_on_arrival = 0
        """Number of records so far whose timestamp was past the topic's retention."""
        self.topic_id = topic.id
        self.partitions = topic.partitions
        self.options = options
        self.message_bytes_max = min(topic.max_message_bytes, topic.segment_bytes)
        self.accumulator = accumulator.Accumulator(
            topic.name,
            options.limits(self.message_bytes_max),
            options.codec,
            options.level,
            producer=producer,
            transactional=options.transactional,
        )
        self.accumulator.passed_ack = options.ack
        self.request_seconds = REQUEST_TIMEOUT_SECONDS
        self.in_flight: list[Sent] = []
        self._read_at = 0.0  # when the broker reads again what this producer sends, which may be above a quota
        self.answers = 0
        """Rises with every event after which a request may be sent or a waiting call may return."""
        self.connect_at = 0.0
        """When to reconnect, if there is no connection."""
        self._connect_attempts = 0
        self._connect_error: errors.SeglogError | None = None
        self._partitioner = Partitioner(topic.partitions)
        self._ending: errors.SeglogError | None = None
        self._look_up_at: float | None = None  # not before the first request

    # --- Adding records -----------------------------------------------------------------------------------------------

    def prepare(
        self,
        value: Content,
        key: Content,
        timestamp: int | datetime | None,
        partition: SupportsIndex | None,
        headers: HeaderInput,
        time_ns: Callable[[], int],
    ) -> PreparedRecord:
        """A checked record, of now where it has no timestamp. Raises for an invalid record."""
        value_bytes = value if type(value) is bytes else to_bytes(value, "value")
        key_bytes = key if key is None or type(key) is bytes else to_bytes(key, "key")
        header_pairs = to_headers(headers) if headers else ()
        if timestamp is None:
            timestamp = time_ns() // 1_000_000
        if type(timestamp) is not int or not self.timestamps.suspicious_below <= timestamp <= TIMESTAMP_MAX:
            timestamp = to_timestamp(timestamp)
            self.expired_on_arrival += self.timestamps.check(timestamp)
        size_min = (len(value_bytes) if value_bytes else 0) + (len(key_bytes) if key_bytes else 0)
        if size_min > self.message_bytes_max and self.options.codec is Codec.NONE:
            raise self._too_large(size_min)  # the exact size is checked when the batch has been built
        if partition is not None and type(partition) is not int:
            partition = to_partition(partition)
        if partition is not None and not 0 <= partition < self.partitions:
            raise errors.UnknownPartitionError(
                f"{self.topic} has no partition {partition}; it has {self.partitions}, numbered from 0",
                topic=self.topic,
                partition=partition,
                partitions=self.partitions,
            )
        return timestamp, key_bytes, value_bytes, header_pairs, partition

    def has_room(self, record: PreparedRecord) -> bool:
        """Compare an upper bound of the record's size with the room in the buffer."""
        return self.accumulator.has_room(accumulator.record_bytes_max(record[1], record[2], record[3]))

    def append(self, record: PreparedRecord, clock: Callable[[], float]) -> accumulator.ProducerBatch | None:
        """Add a prepared record to its batch; returns as ``Accumulator.append``, or None when there is no room.

        Without room, open batches are sent without lingering, because only answers make room.
        """
        if self._ending is not None:
            raise copied(self._ending) from self._ending
        if not self.has_room(record):
            self.accumulator.flush()
            return None
        timestamp, key, value, headers, partition = record
        target = self._partitioner.place(key) if partition is None else partition
        batch = self.accumulator.append(target, (timestamp, key, value, headers), clock)
        if batch.follows_full and batch.record_count == 1:
            self._partitioner.batch_closed(target)
        return batch

    def append_batch(
        self, partition: int, data: bytes, record_count: int, now: float
    ) -> accumulator.ProducerBatch | None:
        """Add a batch that is already built; None when there is no room."""
        if self._ending is not None:
            raise copied(self._ending) from self._ending
        if not self.accumulator.has_room(len(data)):
            return None
        return self.accumulator.append_batch(partition, data, record_count, now)

    def flush(self) -> list[accumulator.ProducerBatch]:
        """Send without lingering; returns the batches to wait for."""
        self.accumulator.flush()
        pending = self.pending()
        if not pending:
            self.accumulator.reset_counts()
        return pending

    def pending(self) -> list[accumulator.ProducerBatch]:
        """Every batch that has neither been acknowledged nor failed."""
        return [batch for batch in [*self.accumulator.kept(), *self._on_the_way()] if not batch.is_resolved]

    @property
    def unacknowledged(self) -> int:
        """Number of records that have neither been acknowledged nor failed."""
        return sum(batch.record_count for batch in self.pending())

    def _on_the_way(self) -> list[accumulator.ProducerBatch]:
        return [batch for sent in self.in_flight for batch in sent.batches]

    # --- Requests -----------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Sent | None:
        """The next request, or None when nothing may be sent now. Call ``build``, then ``request`` with it."""
        self._stop_if_failed()
        if self._ending is not None or len(self.in_flight) >= accumulator.IN_FLIGHT_MAX:
            return None
        sent = Sent([], now)
        self.in_flight.append(sent)
        self.accumulator.take(now, sent.batches)
        if not sent.batches:
            self.in_flight.remove(sent)
            return None
        for batch in sent.batches:
            self._partitioner.batch_closed(batch.partition)
        return sent

    def build(self, sent: Sent) -> None:
        """Encode the batches of a request; changes nothing else, so that it needs no lock."""
        for batch in sent.batches:
            self.accumulator.build(batch)

    def request(self, sent: Sent, now: float) -> tuple[messages.AppendRequest, list[bytes]] | None:
        """The message and payload to write; None when no batch is left to send, and then ``sent`` is not in flight."""
        if sent not in self.in_flight:
            return None  # the connection was lost meanwhile
        sent.at = now
        payload: list[bytes] = []
        for batch in list(sent.batches):
            data = batch.data
            if data is not None and len(data) <= self.message_bytes_max:
                payload.append(data)
                continue
            sent.batches.remove(batch)
            if data is None:
                self.accumulator.completed(batch)  # it expired meanwhile
            else:
                self.accumulator.refuse(batch, self._too_large(len(data)), now)  # as the broker would
        if not payload:
            self._settle(sent)
            return None
        parts = [
            messages.AppendPartition(self.topic, batch.partition, len(data))
            for batch, data in zip(sent.batches, payload, strict=True)
        ]
        ids = {self.topic: self.topic_id} if self.topic_id else None
        counts = {self.topic: self.partitions}
        return messages.AppendRequest(parts, ack=self.options.ack, topic_ids=ids, partition_counts=counts), payload

    def write_seconds(self, sent: Sent, now: float) -> float:
        """How long writing a request may take, at most until the last deadline of its batches."""
        return min(self.request_seconds, max(0.0, max(batch.deadline for batch in sent.batches) - now))

    # --- Answers ------------------------------------------------------------------------------------------------------

    def written(self, sent: Sent) -> None:
        """Resolve a request written at ack "none", which gets no answer."""
        if sent in self.in_flight:
            for batch in sent.batches:
                batch.expired_before = self.timestamps.expired_before
                self.accumulator.written(batch)
            self._settle(sent)

    def answered(self, sent: Sent, header: Header, now: float) -> None:
        """Process a reply; ignored if its request was lost with a connection."""
        if sent not in self.in_flight:
            return
        try:
            reply = messages.decode_reply(header, messages.AppendReply)
            results = reply.partitions
            if len(results) != len(sent.batches):
                raise errors.RemoteProtocolError("the broker answered for another number of batches than were sent")
        except errors.SeglogError as error:
            for batch in sent.batches:
                self.accumulator.refuse(batch, error, now)
        else:
            for batch, result in zip(sent.batches, results, strict=True):
                batch.expired_before = self.timestamps.learn(result)
                self.accumulator.answer(batch, result, now)
                if isinstance(result.error, errors.InconsistentTopicIdError):
                    self.end(result.error)  # the new topic has neither the records nor the sequences
            self.note_partitions((reply.partition_counts or {}).get(self.topic))
            self._read_at = now + (reply.throttle_ms or 0) / 1000
        self._settle(sent)

    def note_partitions(self, count: int | None) -> None:
        """Update the topic's number of partitions; None: unchanged.

        From the next record on keys are spread over all of them, as by Kafka's producers.
        """
        if count is not None and count > self.partitions:
            self.partitions = count
            self._partitioner = Partitioner(count)

    def look_up(self, now: float) -> messages.TopicsRequest | None:
        """A request for the number of partitions, due every few seconds at ack "none"; None when it is not due."""
        if self.options.ack != "none":
            return None
        is_time = self._look_up_at is not None and now >= self._look_up_at
        if is_time or self._look_up_at is None:
            self._look_up_at = now + LOOK_UP_SECONDS
        return messages.TopicsRequest(names=[self.topic]) if is_time else None

    def looked_up(self, reply: Reply) -> None:
        """Process the reply to ``look_up``. A recreated topic is ignored: the broker closes the connection for it."""
        with suppress(errors.SeglogError):
            messages.decode_reply(reply.header, messages.TopicsReply)
            for found in messages.decode_descriptions(reply.payload):
                if found.id == self.topic_id:
                    self.note_partitions(found.partitions)

    def refused(self, sent: Sent, error: errors.SeglogError, now: float) -> None:
        """None of the batches of a request may be sent, because of ``error``."""
        if sent in self.in_flight:
            for batch in sent.batches:
                self.accumulator.refuse(batch, error, now)
            self._settle(sent)

    def _settle(self, sent: Sent) -> None:
        self.in_flight.remove(sent)
        self._progressed()

    def _progressed(self) -> None:
        self.answers += 1
        self._stop_if_failed()
        if self._ending is not None:
            self.accumulator.abandon(self._ending)  # batches waiting for a retry

    def _stop_if_failed(self) -> None:
        if self.options.stop_at_failure and self._ending is None and self.accumulator.failed:
            self.end(errors.ClientClosedError("not sent, because a record before it was not acknowledged"))

    # --- The connection -----------------------------------------------------------------------------------------------

    def overdue(self, now: float, server: str) -> errors.ConnectionLostError | None:
        """The error for a connection whose oldest request has timed out; None otherwise."""
        if self.in_flight and now >= self._asked_at + self.request_seconds:
            return errors.ConnectionLostError(
                f"{server} did not answer an append within {seconds_of(self.request_seconds)}", server=server
            )
        return None

    def lost(self, now: float, error: errors.SeglogError | None = None) -> None:
        """Handle a lost connection: requeue the batches in flight, and reconnect at once.

        If ``error``, the cause, says that the topic was recreated, the producer ends; at ack "none" that is the only
        report of it.
        """
        self.connect_at = now
        if isinstance(error, errors.InconsistentTopicIdError):
            self.end(error)
        self.accumulator.requeue(self._on_the_way())
        self.in_flight.clear()
        self._read_at = 0.0
        self._progressed()

    def not_connected(self, error: errors.SeglogError, now: float) -> None:
        """Handle a failed attempt to connect: records are kept until their deadlines.

        If the server is a broker with another log, the producer ends: the records and sequences are not there. So it
        does where the broker refuses whom the client claims to be, which no attempt changes.
        """
        if isinstance(error, errors.InconsistentClusterIdError | errors.AuthenticationError):
            self.end(error)
        self._connect_error = error
        self.connect_at = now + backoff_seconds(self._connect_attempts)
        self._connect_attempts += 1

    def dial_seconds(self, now: float) -> float:
        """How long an attempt to connect may take: until the earliest deadline, but at least ATTEMPT_FIRST_SECONDS.

        The minimum lets an attempt succeed even while one batch after the other expires.
        """
        expiry = self.accumulator.next_expiry()
        seconds = self.request_seconds if expiry is None else expiry - now
        return min(self.request_seconds, max(ATTEMPT_FIRST_SECONDS, seconds))

    def connected(self) -> None:
        """Reset the reconnect backoff: there is a connection."""
        self._connect_attempts, self._connect_error = 0, None

    # --- Time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float, *, is_connected: bool) -> float | None:
        """Fail expired batches; returns the time of the next event, None for never."""
        on_the_way = self._on_the_way()
        unresolved = self.accumulator.unresolved
        self.accumulator.expire(now, on_the_way, self._connect_error or self._silence(now))
        if self.accumulator.unresolved != unresolved:
            self._progressed()
        events = [self.accumulator.next_expiry()]
        events += [batch.deadline for batch in on_the_way if not batch.is_resolved]
        if not is_connected:
            if self.accumulator.unresolved:
                events.append(self.connect_at)
        else:
            if len(self.in_flight) < accumulator.IN_FLIGHT_MAX:
                events.append(self.accumulator.next_event())
            if self.in_flight:
                events.append(self._warn_of_silence(now))
                events.append(self._asked_at + self.request_seconds)
        return min((event for event in events if event is not None), default=None)

    @property
    def _asked_at(self) -> float:
        """Since when the broker may have answered the oldest request."""
        return max(self.in_flight[0].at, self._read_at)

    def _silence(self, now: float) -> errors.ClientTimeoutError | None:
        """The error for a broker that has not answered the oldest request for SILENCE_SECONDS; None otherwise."""
        seconds = now - self._asked_at if self.in_flight else 0.0
        if seconds < SILENCE_SECONDS:
            return None
        return errors.ClientTimeoutError(f"the broker has not answered an append to {self.topic} for {seconds:.0f} s")

    def _warn_of_silence(self, now: float) -> float | None:
        """Log that the broker does not answer, once per request; returns when to check again, None once logged."""
        oldest = self.in_flight[0]
        silence = self._silence(now)
        if oldest.is_silence_logged:
            return None
        if silence is None:
            return self._asked_at + SILENCE_SECONDS
        oldest.is_silence_logged = True
        _log.warning("%s", silence.message)
        return None

    # --- Ending -------------------------------------------------------------------------------------------------------

    def end(self, error: errors.SeglogError) -> list[accumulator.ProducerBatch]:
        """Stop sending: fail batches not in flight with ``error``; returns the batches in flight."""
        self._ending = error
        self.accumulator.abandon(error)
        self.answers += 1
        return self.pending()

    def forget(self, error: errors.SeglogError) -> None:
        """Fail all unresolved batches with ``error``."""
        self.end(error)
        for batch in self._on_the_way():
            self.accumulator.completed(batch)
            self.accumulator.resolve(batch, error=error)
        self.in_flight.clear()

    def failure(self) -> errors.DeliveryFailed | None:
        """The error for unseen failures since the last call; None without any."""
        failures, count = self.accumulator.take_failures()
        if not count:
            return None
        cause = failures[-1][3] if failures else None
        failed = errors.DeliveryFailed(
            f"not acknowledged: {count_of(count, 'record')} to {self.topic}; the last cause: {cause}",
            failures=failures,
            records=count,
        )
        failed.__cause__ = cause
        return failed

    def loss(self) -> str | None:
        """A note with the number of unacknowledged records, for the exception that ended a block; None if 0."""
        _, count = self.accumulator.take_failures()
        return f"seglog: not acknowledged: {count_of(count, 'record')} to {self.topic}" if count else None

    # --- Errors -------------------------------------------------------------------------------------------------------

    def _too_large(self, size: int) -> errors.MessageTooLargeError:
        return errors.MessageTooLargeError(
            f"{size:,} bytes are more than a batch of {self.topic} can hold ({self.message_bytes_max:,}, the smaller "
            "of max.message.bytes and segment.bytes)",
            size=size,
            limit=self.message_bytes_max,
        )

    def stayed_full(self) -> errors.ClientTimeoutError:
        """The error when the buffer stayed full for the delivery timeout."""
        limits = self.accumulator.limits
        return errors.ClientTimeoutError(
            f"the buffer of {limits.buffer_bytes:,} bytes stayed full for {seconds_of(limits.delivery_seconds)}"
        )
