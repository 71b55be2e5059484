"""The native protocol on one connection: hello, requests, replies.

Requests overtake each other, but for appends, which are answered in their order. A fetch that waits for records does so
without a task (``Fetches``); what else takes long is a job of the connection's task (``slow_requests``).
"""

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.begun_request import BEGUN_BYTES_MAX, BegunRequest
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.kafka.carried import Carried
from seglog_broker.listeners.native import hello, slow_requests
from seglog_broker.listeners.native.permissions import Refused, admitted, refused_appends
from seglog_broker.listeners.native.replies import Fetches, encode_append_replies, encode_last_error, queue_reply
from seglog_broker.listeners.native.slow_requests import encode_long_append_replies
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error
from seglog_broker.listeners.sending import end_answer
from seglog_broker.listeners.transport import shown_host
from seglog_broker.listeners.wire import Wire
from seglog_broker.runtime import budget
from seglog_broker.runtime.begun import Begun
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_protocol import messages
from seglog_protocol.errors import AuthenticationRequiredError, SeglogError
from seglog_protocol.frame_receiver import Buffer, has_own_buffer
from seglog_protocol.frames import Frame, FrameReader
from seglog_protocol.record_batch import is_transactional

REQUEST_COST: Final = 60.0
"""Microseconds for a request other than append that is answered at once, without that for its partitions."""

HEADER_BYTES_AT_ONCE: Final = 32 * 1024
"""A larger header, of a thousand partitions or so, is decoded in a turn of its own: 10,000 of them take milliseconds,
and some hundredths of a second where one of them is wrong and has to be named."""

WRITABLE_MAX: Final = 100
"""Topics of appends that a connection remembers, because rules let its client write to them."""


class NativeWire(Wire):
    """Serves the requests of one connection."""

    __deletable__ = ("_begun", "_carried", "_connection")  # by ``detach``, for mypyc

    def __init__(self, broker: Broker, kafka: Sequence[str], connection: Connection) -> None:
        """``kafka`` are the addresses for Kafka's clients."""
        self._broker = broker
        self._kafka = kafka
        self._connection = connection
        self._begun = BegunRequest(broker, connection)
        self._carried = Carried(broker, connection)
        self._usage = connection.usage
        self._authority = broker.authority
        self._epoch = -1  # of the rules by which the client may write to these topics
        self._is_enforced = False
        self._writable: set[str] = set()
        self._counts = connection.counts
        self._appends = connection.counts.of(messages.AppendRequest.api)
        fetches = connection.counts.of(messages.FetchRequest.api)
        self._fetches = Fetches(broker, connection.sender, fetches, connection.usage, slow_requests.answer)
        memory = broker.request_memory
        self._frames = FrameReader(
            hello.BYTES_MAX, receive_buffer=connection.run_of_appends.buffer, pool=memory.pool, asks=True
        )
        self.reader = self._frames
        self._client_host = shown_host(connection.transport.host)

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits without a task."""
        return len(self._fetches) > 0 or self._begun.is_waiting or bool(self._carried.waiting)

    def stop(self, reason: str) -> None:
        """Answer at once what waits."""
        self._fetches.stop(reason)
        self._carried.stop(reason)

    def finish(self) -> Awaitable[None]:
        """Wait for the request that has begun."""
        return self._begun.finish()

    def drop(self) -> None:
        """Drop what waits."""
        self._fetches.drop()
        self._carried.drop()
        self._begun.drop()

    def detach(self) -> None:
        """Forget the connection."""
        del self._begun, self._carried, self._connection

    def greet(self) -> Awaitable[bool]:
        """The exchange of hello."""
        return hello.greet(self._broker, self._connection, self._frames, self._kafka)

    def last_frame(self, error: SeglogError) -> bytes:
        """An error without a request id."""
        return encode_last_error(error)

    # --- Requests -----------------------------------------------------------------------------------------------------

    def serve_next(self) -> bool:
        """Serve the next request."""
        if self._connection.waiting_request is not None:
            self._serve_frame(*self._connection.take_waiting())
            return True
        frame = self._frames.next_frame()
        if frame is None:
            return False
        self._connection.began = self._connection.ready.began
        if self._connection.faults is not None and self._connection.meets_fault(frame):
            return True
        self._serve_frame(None, frame)
        return True

    def _serve_frame(self, opened: messages.OpenedRequest | None, frame: Frame) -> None:
        """Serve a frame now, gather it with the appends of the turn, or leave it to the connection's task."""
        connection = self._connection
        if self._usage.is_timed:
            self._usage.note_time()
        if connection.ready.now >= connection.session.ends_at and self._is_barred(frame):
            return
        if opened is None and len(frame.packed) <= HEADER_BYTES_AT_ONCE:
            opened = messages.open_request(frame.packed)
        barred: Mapping[str, SeglogError] | None = None
        request = None if opened is None else opened.request
        if opened is not None and isinstance(request, messages.AppendRequest):
            payload = frame.payload
            if not self._is_writable(request, payload):
                if not connection.may_serve():
                    slow_requests.serve_later(connection, opened, self.kept(frame))
                    return
                barred = self._refused(request, payload) or None
            is_large = connection.intake.has_share and has_own_buffer(payload)
            if not is_large and barred is None and self._broker.is_plain(request, payload):
                self._note_append(frame.size)
                connection.run_of_appends.add(connection, opened.request_id, request, payload)
                connection.note_gathered(1, len(request.partitions), len(payload))
                return
        if not connection.may_serve():
            slow_requests.serve_later(connection, opened, self.kept(frame))
        elif opened is None:
            connection.job = partial(slow_requests.open_slowly, self._broker, connection, self.kept(frame))
        elif isinstance(request, messages.AppendRequest):
            self._note_append(frame.size)
            if self._broker.missing_topics(request):
                create = partial(slow_requests.append_creating, self._broker, connection, opened.request_id, request)
                connection.job = partial(create, self.kept(frame), barred or {})
            else:
                connection.append([opened.request_id], [request], [frame.payload], frame.payload, barred)
        elif opened.api == messages.AppendRequest.api:
            self._note_append(frame.size)
            connection.spent = budget.TURN
            assert isinstance(opened.request, SeglogError)
            connection.answer_appends([opened.request_id], opened.ack, [opened.request], len(frame.payload))
        else:
            self._serve(opened, frame)

    def _is_writable(self, request: messages.AppendRequest, payload: memoryview) -> bool:
        """True if the client was found to be able to write to all topics of an append, and rules are still the same.

        With rules in force a batch of a transaction is looked at each time: another one may be open.
        """
        if self._epoch != self._authority.epoch:
            return False
        position = 0
        for item in request.partitions:
            if item.topic not in self._writable:
                return False
            if self._is_enforced:
                if is_transactional(payload, position):
                    return False
                position += item.size
        return True

    def _refused(self, request: messages.AppendRequest, payload: memoryview) -> Mapping[str, SeglogError]:
        """The errors of topics to which nothing of an append is written; the others are remembered."""
        topics = {item.topic for item in request.partitions}
        if self._epoch != self._authority.epoch or len(self._writable) + len(topics) > WRITABLE_MAX:
            self._epoch, self._is_enforced = self._authority.epoch, self._authority.is_enforced
            self._writable.clear()
        refused = refused_appends(self._broker, self._connection.session, request, payload)
        if not refused and len(topics) <= WRITABLE_MAX:
            self._writable |= topics
        return refused

    def _note_append(self, size: int) -> None:
        self._appends.note_request(size)
        if self._usage.is_counted:
            self._usage.note_produced(size)

    def _is_barred(self, frame: Frame) -> bool:
        """Answer a request with an error, unless it authenticates the client again, as it has to."""
        opened = messages.open_request(frame.packed)
        if opened.api == messages.AuthenticateRequest.api:
            return False
        connection = self._connection
        connection.write_gathered()
        connection.spent = budget.TURN
        counts = self._counts.of(hello.api_label(opened))
        counts.note_request(frame.size)
        error = AuthenticationRequiredError(
            "the session has ended: authenticate again", mechanisms=list(connection.session.mechanisms)
        )
        if opened.api == messages.AppendRequest.api:
            connection.answer_appends([opened.request_id], opened.ack, [error], len(frame.payload))
        else:
            self._queue_reply(counts, opened.request_id, error)
        return True

    def kept(self, frame: Frame) -> Frame:
        """The frame in memory that stays as it is when the turn is over."""
        if not self._connection.run_of_appends.buffer.has(frame.payload):
            return frame
        return Frame(memoryview(bytes(frame.packed)), memoryview(bytearray(frame.payload)))

    def serve_later(self, frame: Frame) -> None:
        """Keep a request, to be served before all others."""
        slow_requests.serve_later(self._connection, None, frame)

    def encode_appended(
        self, request_ids: Sequence[int], outcomes: Sequence[AppendOutcome], began: float
    ) -> Buffer | None:
        """Replies in the order of their appends."""
        return encode_append_replies(request_ids, self._told(outcomes), self._appends, began)

    def encode_long_appended(
        self, request_ids: Sequence[int], outcomes: Sequence[AppendOutcome], began: float
    ) -> Awaitable[Buffer]:
        """As above, in turns."""
        return encode_long_append_replies(request_ids, self._told(outcomes), self._appends, began, self._broker.turn)

    def _told(self, outcomes: Sequence[AppendOutcome]) -> Sequence[AppendOutcome]:
        """The outcomes, with how long the connection is not read, so that its client misses no answer meanwhile."""
        throttle_ms = self._connection.usage.throttle_ms
        if not throttle_ms:
            return outcomes
        return [
            outcome if isinstance(outcome, SeglogError) else msgspec.structs.replace(outcome, throttle_ms=throttle_ms)
            for outcome in outcomes
        ]

    def note_unanswered(self, request_ids: Sequence[int], errors: Sequence[SeglogError], began: float) -> None:
        """Count appends without an answer."""
        self._appends.errors.update([error.code for error in errors])
        self._appends.note_answers(len(request_ids), 0, began)

    def _serve(self, opened: messages.OpenedRequest, frame: Frame) -> None:
        """Serve anything but an append: at once if possible, else it is a job of the task."""
        connection = self._connection
        if isinstance(opened.request, messages.KafkaRequest):
            self._carry(opened.request_id, frame)
            return
        counts = self._counts.of(hello.api_label(opened))
        counts.note_request(frame.size)
        try:
            request, refused = admitted(self._broker, connection.session, hello.without_payload(opened, frame))
            if isinstance(request, messages.FetchRequest):
                reply = None
            else:
                reply = self._answer_now(request)
                if reply is not None and refused is not None:
                    reply = refused.whole(reply)
                connection.spent += budget.TURN if reply is None else REQUEST_COST
                if isinstance(request, messages.OffsetsRequest):
                    connection.spent += len(request.partitions) * budget.BATCH
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            connection.spent = budget.TURN
            self._queue_reply(counts, opened.request_id, as_seglog_error(error, str(opened.api)))
            return
        if isinstance(request, messages.FetchRequest):
            connection.sender.flush_now()
            if self._usage.is_counted:
                most = min(request.max_bytes, self._usage.fetched_bytes_max())
                request = msgspec.structs.replace(request, max_bytes=most)
            connection.spent += REQUEST_COST + len(request.partitions) * budget.BATCH
            outcome = self._fetches.answer(opened.request_id, request, connection.nursery, connection.began, refused)
            if outcome.has_errors:
                connection.spent = budget.TURN
            if outcome.rest is not None:
                connection.job = partial(end_answer, connection.sender, outcome.rest)
        elif (
            isinstance(
                request,
                messages.CommitOffsetsRequest | messages.ExtendTransactionRequest | messages.EndTransactionRequest,
            )
            and frame.size <= BEGUN_BYTES_MAX
        ):
            work = self._broker.answer(request)
            self._begun.begin(work, partial(self._queue_answer, counts, opened.request_id, request.api, refused))
        elif reply is None:
            connection.job = partial(
                slow_requests.serve_slowly,
                self._broker,
                connection,
                self._client_host,
                opened.request_id,
                request,
                refused,
                frame.size,
            )
        else:
            self._queue_reply(counts, opened.request_id, reply)

    def _carry(self, request_id: int, frame: Frame) -> None:
        """Serve a request of Kafka's wire."""
        try:
            self._carried.serve(request_id, self.kept(frame).payload, frame.size)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self._connection.spent = budget.TURN
            counts = self._counts.of(messages.KafkaRequest.api)
            counts.note_request(frame.size)
            self._queue_reply(counts, request_id, as_seglog_error(error, messages.KafkaRequest.api))

    def _answer_now(self, request: messages.Request) -> messages.Message | None:
        """The reply, if it waits for nothing."""
        if isinstance(request, messages.CancelRequest):
            return messages.CancelReply(self._fetches.cancel(request.target))
        return self._broker.answer_now(request)

    def _queue_answer(
        self,
        counts: ApiMetrics,
        request_id: int,
        api: str,
        refused: Refused | None,
        begun: Begun[tuple[messages.Message, bytes]],
    ) -> None:
        """Queue the reply to a request that began in its turn."""
        try:
            reply: messages.Message | SeglogError = begun.result()[0]
            reply = reply if refused is None else refused.whole(reply)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            reply = as_seglog_error(error, api)
        self._queue_reply(counts, request_id, reply)

    def _queue_reply(self, counts: ApiMetrics, request_id: int, reply: messages.Message | SeglogError) -> None:
        queue_reply(self._connection.sender, counts, self._connection.began, request_id, reply)
