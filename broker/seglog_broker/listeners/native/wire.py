"""The native protocol on one connection: hello, requests, replies.

Requests overtake each other, but for appends, which are answered in their order. A fetch that waits for records does so
without a task (``Fetches``); what else takes long is a job of the connection's task.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.native.fetches import Fetches
from seglog_broker.listeners.native.first_bytes import hint_for
from seglog_broker.listeners.native.replies import (
    encode_append_replies,
    encode_last_error,
    encode_long_append_replies,
    encode_long_reply,
    encode_reply,
)
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error, count_errors
from seglog_broker.listeners.transport import shown_host
from seglog_broker.listeners.wire import Wire
from seglog_broker.runtime import budget
from seglog_protocol.errors import InvalidRequestError, RemoteProtocolError, RequestCancelledError, SeglogError
from seglog_protocol.frame_receiver import Buffer, has_own_buffer
from seglog_protocol.frames import Frame, FrameReader
from seglog_protocol.messages import (
    PROTOCOL_NAME,
    AppendRequest,
    CancelReply,
    CancelRequest,
    FetchRequest,
    HelloReply,
    HelloRequest,
    JoinGroupRequest,
    Message,
    OffsetsRequest,
    OpenedRequest,
    Request,
    SyncGroupRequest,
    open_request,
)

HELLO_SECONDS: Final = 10
"""A connection without a valid hello after this time is closed."""

HELLO_BYTES_MAX: Final = 64 * 1024
"""Largest frame before hello. A larger size most likely comes from another protocol, and closes the connection."""

HELLO_TRIES_MAX: Final = 10
"""Hellos that may be refused before the connection is closed."""

FIRST_BYTES: Final = 16
"""First bytes that are kept, to recognise the protocol of a peer that is not a seglog client."""

REQUEST_COST: Final = 60
"""Microseconds for a request other than append that is answered at once, without that for its partitions."""

HEADER_BYTES_AT_ONCE: Final = 32 * 1024
"""A larger header, of a thousand partitions or so, is decoded in a turn of its own: 10,000 of them take milliseconds,
and some hundredths of a second where one of them is wrong and has to be named."""


class NativeWire(Wire):
    """Serves the requests of one connection."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self._broker = broker
        self._connection = connection
        self._fetches = Fetches(broker, connection.sender)
        memory = broker.request_memory
        self._frames = FrameReader(
            HELLO_BYTES_MAX, receive_buffer=connection.run_of_appends.buffer, pool=memory.pool, asks=True
        )
        self.reader = self._frames
        self._client_host = shown_host(connection.transport.host)

    @property
    def is_waiting(self) -> bool:
        """Whether a fetch waits."""
        return len(self._fetches) > 0

    def stop(self, reason: str) -> None:
        """Answer waiting fetches at once."""
        self._fetches.stop(reason)

    def drop(self) -> None:
        """Drop waiting fetches."""
        self._fetches.drop()

    def detach(self) -> None:
        """Forget the connection."""
        del self._connection

    def last_frame(self, error: SeglogError) -> bytes:
        """An error without a request id."""
        return encode_last_error(error)

    # --- Hello --------------------------------------------------------------------------------------------------------

    async def greet(self) -> bool:
        """Read up to the first valid hello and answer it; False when the connection is to end instead."""
        first = b""
        connection = self._connection
        try:
            with trio.move_on_after(HELLO_SECONDS):
                for _ in range(HELLO_TRIES_MAX):
                    while (frame := self._frames.next_frame()) is None:
                        received = await connection.receive_first()
                        if received is None:
                            continue
                        if not received:
                            return False
                        first += bytes(received[: FIRST_BYTES - len(first)])
                    frame = self._kept(frame)
                    connection.settle()
                    await self._broker.turn()  # the answer looks at every partition, and many may connect at once
                    good = self._answer_hello(frame)
                    await connection.sender.flush()
                    if good is not None:
                        return good
                return False
        except RemoteProtocolError:
            pass
        hint = hint_for(first)
        reason = "not the seglog protocol" if first else f"it sent nothing for {HELLO_SECONDS} s"
        connection.log.info("connection_refused", reason=reason, kind=hint.kind, first=first.hex(" "))
        connection.end(hint.answer)
        return False

    def _answer_hello(self, frame: Frame) -> bool | None:
        """Answer what should be a hello. True: it is valid; False: end the connection; None: the peer may try again."""
        opened = open_request(frame.packed)
        reply: HelloReply | SeglogError
        good: bool | None = True
        try:
            reply = self._hello(_first_request(opened, frame))
            self._broker.metrics.requests[HelloRequest.api] += 1
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            reply = as_seglog_error(error, HelloRequest.api)
            good = False if getattr(error, "field", "") in {"api", "protocol"} else None
        self._queue_reply(opened.request_id, reply)
        if good:
            self._frames.frame_bytes_max = self._broker.request_memory.request_bytes_max
        return good

    def _hello(self, request: HelloRequest) -> HelloReply:
        if request.protocol != PROTOCOL_NAME:
            raise InvalidRequestError(
                f"this broker speaks the protocol {PROTOCOL_NAME!r}, not {request.protocol!r}", field="protocol"
            )
        return self._broker.hello()

    # --- Requests -----------------------------------------------------------------------------------------------------

    def serve_next(self) -> bool:
        """Serve the next request."""
        if self._connection.waiting_request is not None:
            self._serve_frame(*self._connection.take_waiting())
            return True
        frame = self._frames.next_frame()
        if frame is None:
            return False
        self._serve_frame(None, frame)
        return True

    def _serve_frame(self, opened: OpenedRequest | None, frame: Frame) -> None:
        connection = self._connection
        if opened is None and len(frame.packed) <= HEADER_BYTES_AT_ONCE:
            opened = open_request(frame.packed)
        if opened is not None and isinstance(opened.request, AppendRequest):
            is_large = connection.intake.has_share and has_own_buffer(frame.payload)
            if not is_large and self._broker.is_plain(opened.request, frame.payload):
                connection.run_of_appends.add(connection, opened.request_id, opened.request, frame.payload)
                connection.note_gathered(1, len(opened.request.partitions), len(frame.payload))
                return
        if not connection.may_serve():
            self._serve_later(opened, self._kept(frame))
        elif opened is None:
            connection.job = partial(self._open_slowly, self._kept(frame))
        elif isinstance(opened.request, AppendRequest):
            if self._broker.missing_topics(opened.request):
                connection.job = partial(self._append_creating, opened.request_id, opened.request, self._kept(frame))
            else:
                connection.append([opened.request_id], [opened.request], [frame.payload], frame.payload)
        elif opened.api == AppendRequest.api:
            connection.spent = budget.TURN
            assert isinstance(opened.request, SeglogError)
            connection.answer_appends([opened.request_id], opened.ack, [opened.request], len(frame.payload))
        else:
            self._serve(opened, frame)

    def _kept(self, frame: Frame) -> Frame:
        """The frame in memory that stays as it is when the turn is over."""
        if not self._connection.run_of_appends.buffer.has(frame.payload):
            return frame
        return Frame(memoryview(bytes(frame.packed)), memoryview(bytearray(frame.payload)))

    def _serve_later(self, opened: OpenedRequest | None, frame: Frame) -> None:
        self._connection.serve_later((opened, frame), frame.payload, len(frame.packed) + len(frame.payload))

    async def _open_slowly(self, frame: Frame) -> None:
        """Decode a large header, in a turn of its own."""
        await self._connection.sender.flush()
        await self._broker.turn()
        self._serve_later(open_request(frame.packed), frame)

    async def _append_creating(self, request_id: int, request: AppendRequest, frame: Frame) -> None:
        """Serve an append for which topics have to be created first."""
        connection = self._connection
        await connection.take_memory_for(frame.payload)
        await connection.sender.flush()
        try:
            refused = await self._broker.create_missing(request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            refused = dict.fromkeys(self._broker.missing_topics(request), as_seglog_error(error, AppendRequest.api))
        connection.append([request_id], [request], [frame.payload], frame.payload, refused)

    def encode_appended(self, request_ids: Sequence[int], outcomes: Sequence[AppendOutcome]) -> Buffer | None:
        """Replies in the order of their appends."""
        return encode_append_replies(request_ids, outcomes, self._broker.metrics.request_errors)

    async def encode_long_appended(self, request_ids: Sequence[int], outcomes: Sequence[AppendOutcome]) -> Buffer:
        """As above, in turns."""
        return await encode_long_append_replies(
            request_ids, outcomes, self._broker.metrics.request_errors, self._broker.turn
        )

    def _serve(self, opened: OpenedRequest, frame: Frame) -> None:
        """Serve anything but an append: at once if possible, else it is a job of the task."""
        connection = self._connection
        try:
            request = _without_payload(opened, frame)
            self._broker.metrics.requests[request.api] += 1
            if isinstance(request, FetchRequest):
                reply = None
            else:
                reply = self._answer_now(request)
                connection.spent += budget.TURN if reply is None else REQUEST_COST
                if isinstance(request, OffsetsRequest):
                    connection.spent += len(request.partitions) * budget.BATCH
                elif isinstance(request, HelloRequest):  # it looks at every partition
                    connection.spent = budget.TURN
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            connection.spent = budget.TURN
            self._queue_reply(opened.request_id, as_seglog_error(error, str(opened.api)))
            return
        if isinstance(request, FetchRequest):
            connection.sender.flush_now()
            connection.spent += REQUEST_COST + len(request.partitions) * budget.BATCH
            outcome = self._fetches.answer(opened.request_id, request, connection.nursery)
            if outcome.has_errors:
                connection.spent = budget.TURN
            connection.job = outcome.rest
        elif reply is None:
            connection.job = partial(self._serve_slowly, opened.request_id, request)
        else:
            self._queue_reply(opened.request_id, reply)

    async def _serve_slowly(self, request_id: int, request: Request) -> None:
        await self._connection.sender.flush()
        try:
            reply, payload = await self._answer(request)
            long = await encode_long_reply(request_id, reply, len(payload), self._broker.turn)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self._queue_reply(request_id, as_seglog_error(error, request.api))
            return
        if long is None:
            self._queue_reply(request_id, reply, payload)
        else:
            count_errors(self._broker.metrics.request_errors, reply)
            self._connection.sender.queue(long + payload)

    async def _answer(self, request: Request) -> tuple[Message, bytes]:
        """The reply and its payload. A wait for other members of a group ends when the peer leaves."""
        answering = partial(self._broker.answer, request, self._client_host)
        if not isinstance(request, (JoinGroupRequest, SyncGroupRequest)):
            return await answering()
        answered = await self._connection.wait_for(answering)
        if answered is None:
            raise RequestCancelledError("the peer has left")
        return answered

    def _answer_now(self, request: Request) -> Message | None:
        """The reply, if it waits for nothing."""
        if isinstance(request, HelloRequest):
            return self._hello(request)
        if isinstance(request, CancelRequest):
            return CancelReply(self._fetches.cancel(request.target))
        return self._broker.answer_now(request)

    def _queue_reply(self, request_id: int, reply: Message | SeglogError, payload: bytes = b"") -> None:
        count_errors(self._broker.metrics.request_errors, reply)
        self._connection.sender.queue(encode_reply(request_id, reply, payload))


def _first_request(opened: OpenedRequest, frame: Frame) -> HelloRequest:
    if opened.api != HelloRequest.api:
        raise InvalidRequestError(f"the first request of a connection must be hello, not {opened.api!r}", field="api")
    request = _without_payload(opened, frame)
    assert isinstance(request, HelloRequest)
    return request


def _without_payload(opened: OpenedRequest, frame: Frame) -> Request:
    request = opened.accepted()
    if len(frame.payload):
        raise InvalidRequestError(f"a request to {request.api} carries no payload", field="")
    return request
