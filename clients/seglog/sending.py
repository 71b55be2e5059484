"""What a producer knows and decides, without socket, thread or clock; the blocking face and the trio face stand on it.

The Accumulator has the records that are not on the way; ``Sender`` has the requests that are, and what follows from
answers, silence and lost connections. A face takes a request with ``take``, has its batches made with ``build`` and
writes what ``request`` gives; it hands in every answer, says when a connection was lost, and asks ``tick`` when to look
again.

All times are seconds of one monotonic clock, handed in. Not thread-safe, but for ``prepare`` and ``build``.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from seglog.batching import IN_FLIGHT_MAX, Accumulator, BatchLimits, ProducerBatch, ProducerEpoch, record_bytes_max
from seglog.connection import Reply
from seglog.dialing import ATTEMPT_FIRST_SECONDS, backoff_seconds
from seglog.failures import copied
from seglog.moments import TIMESTAMP_MAX, to_partition, to_timestamp
from seglog.partitioner import Partitioner
from seglog.timestamps import TimestampWatch
from seglog.words import count_of, seconds_of
from seglog_protocol.batch_builder import NewRecord
from seglog_protocol.compression import LEVELS, Codec
from seglog_protocol.errors import (
    ClientClosedError,
    ClientTimeoutError,
    ConnectionLostError,
    DeliveryFailed,
    InconsistentClusterIdError,
    InconsistentTopicIdError,
    MessageTooLargeError,
    RemoteProtocolError,
    SeglogError,
    UnknownPartitionError,
)
from seglog_protocol.messages import (
    Ack,
    AppendPartition,
    AppendReply,
    AppendRequest,
    HelloReply,
    TopicDescription,
    TopicsReply,
    TopicsRequest,
    decode_descriptions,
    decode_reply,
)
from seglog_protocol.records import Headers

Content = bytes | bytearray | memoryview | str | None
HeaderInput = Mapping[str, Content] | Iterable[tuple[str, Content]]

REQUEST_TIMEOUT_SECONDS: Final = 30.0
"""A request unanswered for so long means a dead connection, Kafka's ``request.timeout.ms``."""
SILENCE_SECONDS: Final = 3.0
"""A request unanswered for so long is logged."""
ABORT_WAIT_SECONDS: Final = 1.0
"""How long to wait for what is on the way when a block is left by an exception."""

LOOK_UP_SECONDS: Final = 5.0
"""How often a producer at ack "none" asks whether the topic has more partitions by now."""
TOPIC_IDS_VERSION: Final = 2
"""From this version of ``append`` on a broker takes ``topic_ids`` and ``partition_counts``."""

_log = logging.getLogger(__name__)

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
    idempotent: bool = True
    stop_at_failure: bool = False
    """Whether nothing more is sent once something has failed; only ``write_arrow`` wants that."""
    may_create: bool = True
    """Whether a topic that does not exist is created where the broker does that; only ``write_arrow`` asks."""

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
    def needs_producer_id(self) -> bool:
        """Whether the broker is asked for one: at ack "none" nothing is sent again that could be recognised."""
        return self.idempotent and self.ack != "none"

    @property
    def codec(self) -> Codec:
        """The codec by its name."""
        return _CODECS[self.compression]


@dataclass(slots=True, eq=False)
class Sent:
    """A request on the way, since ``at``."""

    batches: list[ProducerBatch]
    at: float
    is_silence_told: bool = False


class Sender:
    """The records of one producer on their way to being acknowledged."""

    def __init__(
        self,
        topic: TopicDescription,
        options: ProducerOptions,
        producer: ProducerEpoch | None = None,
        timestamps: TimestampWatch | None = None,
    ) -> None:
        self.topic = topic.name
        self.timestamps = timestamps or TimestampWatch(topic.name)
        self.timestamps.learn_config(topic.config)
        self.expired_on_arrival = 0
        """Records taken in so far that were older than the topic keeps."""
        self.topic_id = topic.id
        self.partitions = topic.partitions
        self.options = options
        self.message_bytes_max = min(topic.max_message_bytes, topic.segment_bytes)
        self.accumulator = Accumulator(
            topic.name,
            BatchLimits(
                batch_bytes=min(options.batch_bytes, self.message_bytes_max),
                buffer_bytes=options.buffer_bytes,
                linger_seconds=options.linger_ms / 1000,
                delivery_seconds=options.delivery_timeout,
            ),
            options.codec,
            options.compression_level,
            producer=producer,
        )
        self.accumulator.passed_ack = options.ack
        self.in_flight: list[Sent] = []
        self.answers = 0
        """Rises with everything that may let the next request go or a waiting call return."""
        self.connect_at = 0.0
        """When to try for a new connection, if there is none."""
        self._connect_attempts = 0
        self._connect_error: SeglogError | None = None
        self._partitioner = Partitioner(topic.partitions)
        self._ending: SeglogError | None = None
        self._look_up_at: float | None = None  # not before the first request

    # --- Taking in ----------------------------------------------------------------------------------------------------

    def prepare(
        self, value: Content, key: Content, timestamp: int | datetime, partition: int | None, headers: HeaderInput
    ) -> tuple[NewRecord, int]:
        """A record as it is kept, and an upper bound of its size; raises for what can only be refused."""
        value_bytes, key_bytes = _to_bytes(value, "value"), _to_bytes(key, "key")
        header_pairs = _to_headers(headers) if headers else ()
        if type(timestamp) is not int or not self.timestamps.suspicious_below <= timestamp <= TIMESTAMP_MAX:
            timestamp = to_timestamp(timestamp)
            self.expired_on_arrival += self.timestamps.check(timestamp)
        size_min = (len(value_bytes) if value_bytes else 0) + (len(key_bytes) if key_bytes else 0)
        if size_min > self.message_bytes_max and self.options.codec is Codec.NONE:
            raise self._too_large(size_min)  # the exact size is checked when the batch has been built
        if partition is not None and type(partition) is not int:
            partition = to_partition(partition)
        if partition is not None and not 0 <= partition < self.partitions:
            raise UnknownPartitionError(
                f"{self.topic} has no partition {partition}; it has {self.partitions}, numbered from 0",
                topic=self.topic,
                partition=partition,
                partitions=self.partitions,
            )
        return (timestamp, key_bytes, value_bytes, header_pairs), record_bytes_max(key_bytes, value_bytes, header_pairs)

    def append(
        self, partition: int | None, record: NewRecord, size: int, now: float
    ) -> tuple[ProducerBatch, int, bool] | None:
        """Put a prepared record into its batch; as ``Accumulator.append``, or None when there is no room.

        Then nothing lingers any more, because room comes only from answers.
        """
        self._check_going_on()
        accumulator = self.accumulator
        if not accumulator.has_room(size):
            accumulator.flush()
            return None
        target = self._partitioner.place(record[1]) if partition is None else partition
        added = accumulator.append(target, record, now)
        if added[2]:
            self._partitioner.batch_closed(target)
        return added

    def append_batch(self, partition: int, data: bytes, record_count: int, now: float) -> ProducerBatch | None:
        """Take in a batch that is built already; None when there is no room."""
        self._check_going_on()
        if not self.accumulator.has_room(len(data)):
            return None
        return self.accumulator.append_batch(partition, data, record_count, now)

    def _check_going_on(self) -> None:
        if self._ending is not None:
            raise copied(self._ending) from self._ending

    def flush(self) -> list[ProducerBatch]:
        """Let nothing linger any more; the batches to wait for."""
        self.accumulator.flush()
        pending = self.pending()
        if not pending:
            self.accumulator.nothing_left()
        return pending

    def pending(self) -> list[ProducerBatch]:
        """Every batch of which it is not known what became."""
        return [batch for batch in [*self.accumulator.kept(), *self._on_the_way()] if not batch.is_resolved]

    @property
    def unacknowledged(self) -> int:
        """Records of which it is not known what became."""
        return sum(batch.record_count for batch in self.pending())

    def _on_the_way(self) -> list[ProducerBatch]:
        return [batch for sent in self.in_flight for batch in sent.batches]

    # --- Giving out ---------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Sent | None:
        """The batches of the next request, or None when nothing may be sent now. ``build`` it, then ``request``."""
        self._stop_if_failed()
        if self._ending is not None or len(self.in_flight) >= IN_FLIGHT_MAX:
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
        """Make the bytes of a request; touches nothing else, so other threads may go on meanwhile."""
        for batch in sent.batches:
            self.accumulator.build(batch)

    def request(
        self, sent: Sent, now: float, *, version: int = AppendRequest.version
    ) -> tuple[AppendRequest, list[bytes]] | None:
        """What to write; None when nothing is left to be sent, which then is no request on the way either.

        ``version`` is the newest that the broker speaks: it says which topic is meant, and how many partitions are
        known here, as far as that goes.
        """
        if sent not in self.in_flight:
            return None  # the connection was lost meanwhile
        payload: list[bytes] = []
        for batch in list(sent.batches):
            data = batch.data
            if data is not None and len(data) <= self.message_bytes_max:
                payload.append(data)
                continue
            sent.batches.remove(batch)
            if data is None:
                self.accumulator.landed(batch)  # given up while it was made
            else:
                self.accumulator.refuse(batch, self._too_large(len(data)), now)  # known to be refused: spare the wire
        if not payload:
            self._settle(sent)
            return None
        parts = [
            AppendPartition(self.topic, batch.partition, len(data))
            for batch, data in zip(sent.batches, payload, strict=True)
        ]
        if version < TOPIC_IDS_VERSION:
            return AppendRequest(parts, ack=self.options.ack), payload
        ids = {self.topic: self.topic_id} if self.topic_id else None
        counts = {self.topic: self.partitions}
        return AppendRequest(parts, ack=self.options.ack, topic_ids=ids, partition_counts=counts), payload

    @staticmethod
    def write_seconds(sent: Sent, now: float) -> float:
        """How long writing a request may take: behind its last deadline nobody wants it any more."""
        return min(REQUEST_TIMEOUT_SECONDS, max(0.0, max(batch.deadline for batch in sent.batches) - now))

    # --- Answers ------------------------------------------------------------------------------------------------------

    def written(self, sent: Sent) -> None:
        """A request went out at ack "none", and that is all that will be known."""
        if sent in self.in_flight:
            for batch in sent.batches:
                batch.expired_before = self.timestamps.expired_before
                self.accumulator.written(batch)
            self._settle(sent)

    def answered(self, sent: Sent, header: Mapping[str, Any], now: float) -> None:
        """A reply came; one to a request that counts as lost changes nothing."""
        if sent not in self.in_flight:
            return
        try:
            reply = decode_reply(header, AppendReply)
            results = reply.partitions
            if len(results) != len(sent.batches):
                raise RemoteProtocolError("the broker answered for another number of batches than were sent")
        except SeglogError as error:
            for batch in sent.batches:
                self.accumulator.refuse(batch, error, now)
        else:
            for batch, result in zip(sent.batches, results, strict=True):
                batch.expired_before = self.timestamps.learn(result)
                self.accumulator.answer(batch, result, now)
                if isinstance(result.error, InconsistentTopicIdError):
                    self.end(result.error)  # neither what was sent to ours nor its sequences are there
            self.note_partitions((reply.partition_counts or {}).get(self.topic))
        self._settle(sent)

    def note_partitions(self, count: int | None) -> None:
        """The topic has so many partitions by now; None: as many as are known here.

        From the next record on keys are spread over them, as Kafka's producers do.
        """
        if count is not None and count > self.partitions:
            self.partitions = count
            self._partitioner = Partitioner(count)

    def look_up(self, now: float) -> TopicsRequest | None:
        """What to ask every few seconds at ack "none", where appends are not answered; None: nothing now."""
        if self.options.ack != "none":
            return None
        is_time = self._look_up_at is not None and now >= self._look_up_at
        if is_time or self._look_up_at is None:
            self._look_up_at = now + LOOK_UP_SECONDS
        return TopicsRequest(names=[self.topic]) if is_time else None

    def looked_up(self, reply: Reply) -> None:
        """The answer to ``look_up``; that the topic is another one by now, the end of the connection tells."""
        with suppress(SeglogError):
            decode_reply(reply.header, TopicsReply)
            for found in decode_descriptions(reply.payload):
                if found.id == self.topic_id:
                    self.note_partitions(found.partitions)

    def _settle(self, sent: Sent) -> None:
        self.in_flight.remove(sent)
        self._moved()

    def _moved(self) -> None:
        self.answers += 1
        self._stop_if_failed()
        if self._ending is not None:
            self.accumulator.abandon(self._ending)  # what would be sent again otherwise

    def _stop_if_failed(self) -> None:
        if self.options.stop_at_failure and self._ending is None and self.accumulator.failed:
            self.end(ClientClosedError("not sent, because a record before it was not acknowledged"))

    # --- The connection -----------------------------------------------------------------------------------------------

    def overdue(self, now: float, server: str) -> ConnectionLostError | None:
        """Why the connection counts as dead, if the oldest request has waited too long for its answer."""
        if self.in_flight and now >= self.in_flight[0].at + REQUEST_TIMEOUT_SECONDS:
            return ConnectionLostError(
                f"{server} did not answer an append within {seconds_of(REQUEST_TIMEOUT_SECONDS)}", server=server
            )
        return None

    def lost(self, now: float, error: SeglogError | None = None) -> None:
        """The connection is gone: what was on the way goes first on the next one, which may be tried for at once.

        Unless ``error``, for which it broke, says that the topic is another one: at ack "none" nothing else tells.
        """
        self.connect_at = now
        if isinstance(error, InconsistentTopicIdError):
            self.end(error)
        self.accumulator.unsent(self._on_the_way())
        self.in_flight.clear()
        self._moved()

    def not_connected(self, error: SeglogError, now: float) -> None:
        """There is no connection yet; records are kept until their time is over, also if a stranger has our port.

        Unless the stranger is a broker with another log: neither what was sent to ours nor its sequences are there.
        """
        if isinstance(error, InconsistentClusterIdError):
            self.end(error)
        self._connect_error = error
        self.connect_at = now + backoff_seconds(self._connect_attempts)
        self._connect_attempts += 1

    def dial_seconds(self, now: float) -> float:
        """How long an attempt to connect may take: little longer than the first batch may still wait.

        But never so short that none succeeds while one batch after the other is given up.
        """
        expiry = self.accumulator.next_expiry()
        seconds = REQUEST_TIMEOUT_SECONDS if expiry is None else expiry - now
        return min(REQUEST_TIMEOUT_SECONDS, max(ATTEMPT_FIRST_SECONDS, seconds))

    def connected(self) -> None:
        """There is a connection."""
        self._connect_attempts, self._connect_error = 0, None

    # --- Time ---------------------------------------------------------------------------------------------------------

    def tick(self, now: float, *, is_connected: bool) -> float | None:
        """Give up what has been here too long; when to look again even though nothing arrives, None for never."""
        on_the_way = self._on_the_way()
        unresolved = self.accumulator.unresolved
        self.accumulator.expire(now, on_the_way, self._connect_error or self._silence(now))
        if self.accumulator.unresolved != unresolved:
            self._moved()
        events = [self.accumulator.next_expiry()]
        events += [batch.deadline for batch in on_the_way if not batch.is_resolved]
        if not is_connected:
            if self.accumulator.unresolved:
                events.append(self.connect_at)
        else:
            if len(self.in_flight) < IN_FLIGHT_MAX:
                events.append(self.accumulator.next_event())
            if self.in_flight:
                events.append(self._tell_silence(now))
                events.append(self.in_flight[0].at + REQUEST_TIMEOUT_SECONDS)
        return min((event for event in events if event is not None), default=None)

    def _silence(self, now: float) -> ClientTimeoutError | None:
        """What keeps records waiting if it is the broker, which has not answered the oldest request for a while."""
        seconds = now - self.in_flight[0].at if self.in_flight else 0.0
        if seconds < SILENCE_SECONDS:
            return None
        return ClientTimeoutError(f"the broker has not answered an append to {self.topic} for {seconds:.0f} s")

    def _tell_silence(self, now: float) -> float | None:
        """Log that the broker is silent, once a request; when to look again, None when it has been logged."""
        oldest = self.in_flight[0]
        silence = self._silence(now)
        if oldest.is_silence_told:
            return None
        if silence is None:
            return oldest.at + SILENCE_SECONDS
        oldest.is_silence_told = True
        _log.warning("%s", silence.message)
        return None

    # --- Ending -------------------------------------------------------------------------------------------------------

    def end(self, error: SeglogError) -> list[ProducerBatch]:
        """Send nothing new: fail with ``error`` what is not on the way; the batches that are."""
        self._ending = error
        self.accumulator.abandon(error)
        self.answers += 1
        return self.pending()

    def forget(self, error: SeglogError) -> None:
        """The end: fail with ``error`` whatever is left."""
        self.end(error)
        for batch in self._on_the_way():
            self.accumulator.landed(batch)
            self.accumulator.resolve(batch, error=error)
        self.in_flight.clear()

    def failure(self) -> DeliveryFailed | None:
        """What failed unseen since the last call."""
        failures, count = self.accumulator.take_failures()
        if not count:
            return None
        cause = failures[-1][3] if failures else None
        failed = DeliveryFailed(
            f"not acknowledged: {count_of(count, 'record')} to {self.topic}; the last cause: {cause}",
            failures=failures,
            records=count,
        )
        failed.__cause__ = cause
        return failed

    def loss(self) -> str | None:
        """The note for an exception that ended a block: how many records were not acknowledged, if any."""
        _, count = self.accumulator.take_failures()
        return f"seglog: not acknowledged: {count_of(count, 'record')} to {self.topic}" if count else None

    # --- Sentences ----------------------------------------------------------------------------------------------------

    def _too_large(self, size: int) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"{size:,} bytes are more than a batch of {self.topic} can hold ({self.message_bytes_max:,}, the smaller "
            "of max.message.bytes and segment.bytes)",
            size=size,
            limit=self.message_bytes_max,
        )

    def stayed_full(self) -> ClientTimeoutError:
        """No room came within the delivery timeout."""
        options = self.options
        return ClientTimeoutError(
            f"the buffer of {options.buffer_bytes:,} bytes stayed full for {seconds_of(options.delivery_timeout)}"
        )


def append_version(hello: HelloReply) -> int:
    """The newest version of ``append`` that a broker speaks."""
    return max(hello.apis.get(AppendRequest.api, ()), default=1)


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
