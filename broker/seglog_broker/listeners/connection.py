"""One native connection from its first bytes to its last: hello, requests, replies, close.

Its tasks run in the connection's own nursery: one reads and serves requests; one replies to appends that wait for
their ack, in order; and one for each fetch that waits for something other than records. Fetches that only wait for
records need no task (``fetch_purgatory``). A failure of any of them ends the connection and nothing else.
"""

import contextlib
import math
import socket
from collections.abc import Mapping
from functools import partial
from typing import Final

import structlog
import trio

from seglog_broker.listeners.acks import AckQueue
from seglog_broker.listeners.broker_api import Answer, BrokerApi, Pending
from seglog_broker.listeners.first_bytes import hint_for
from seglog_broker.listeners.graceful_close import CLOSE_SECONDS_MAX, close_gracefully
from seglog_broker.listeners.replies import (
    as_seglog_error,
    count_errors,
    encode_fetch_prefix,
    encode_last_error,
    encode_long_reply,
    encode_reply,
    is_long,
)
from seglog_broker.listeners.sender import FileShrankError, Sender
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.runtime.request_memory import Share
from seglog_broker.runtime.slow_readers import CutError
from seglog_protocol.errors import (
    BrokerStoppingError,
    InconsistentTopicIdError,
    InvalidRequestError,
    RemoteProtocolError,
    RequestCancelledError,
    SeglogError,
)
from seglog_protocol.frames import RECEIVE_BYTES, Frame, FrameReader
from seglog_protocol.messages import (
    PROTOCOL_NAME,
    AppendReply,
    AppendRequest,
    CancelReply,
    CancelRequest,
    FetchRequest,
    HelloReply,
    HelloRequest,
    Message,
    OpenedRequest,
    Request,
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

FETCHES_IN_FLIGHT_MAX: Final = 100
"""Fetches of one connection that wait for records or to be sent. One more is refused: not reading the connection would
hold up all other requests behind a long poll."""

PARTITIONS_WAITING_MAX: Final = 20_000
"""Partitions in all waiting fetches of one connection; each takes memory while it waits."""

FRAMES_A_TURN: Final = 32
"""Small pipelined appends and fetches served before other tasks run. Any other request ends the turn, and so does one
that fails or is much larger than a small batch: these are seldom pipelined, and may cost far more."""

HEADER_BYTES_AT_ONCE: Final = 32 * 1024
"""A larger header, of a thousand partitions or so, is decoded in a turn of its own: 10,000 of them take milliseconds,
and some hundredths of a second where one of them is wrong and has to be named."""

log = structlog.get_logger()

_receive_buffer = bytearray(RECEIVE_BYTES)
"""Shared by all connections: no other task runs between receiving into it and taking the bytes out."""


class Connection:
    """Serves ``sock``, a connected non-blocking socket, and closes it."""

    def __init__(self, broker: BrokerApi, sock: socket.socket, peer: str) -> None:
        self._broker = broker
        self._sock = sock
        self._memory = broker.request_memory
        self._share: Share | None = None  # of the memory, for the large request being received or served
        self._admission: trio.CancelScope | None = None  # while it waits for memory
        self._reader = FrameReader(HELLO_BYTES_MAX, receive_buffer=_receive_buffer, pool=self._memory.pool, asks=True)
        stall_seconds = broker.config.seglog_connections_max_stall_ms / 1000
        self._sender = Sender(sock, broker.offload, broker.transfers, stall_seconds)
        self._quiet_since = math.inf  # when it began to wait for bytes; inf while it does not wait
        self._acks = AckQueue(self._sender, broker.metrics.request_errors, broker.turn)
        self._acks_running = False
        self._fetches = 0
        self._partitions_waiting = 0  # in these fetches
        self._unwritten: Pending | None = None  # an append to be finished before anything else is read
        self._served = 0  # requests in this turn
        self._waiting: dict[int, Waiter] = {}  # of each fetch that waits for records, by request id
        self._cancelled: set[int] = set()  # ids of fetches that the client cancelled
        self._stopping = False
        self._last_frame: bytes | None = None  # sent before closing: why the connection ends
        self._log = log.bind(peer=peer)

    async def run(self) -> None:
        """Serve until the peer leaves, breaks the protocol, or ``stop`` is called. Raises nothing but Cancelled."""
        try:
            if await self._greet():
                async with trio.open_nursery() as nursery:
                    try:
                        await self._read_requests(nursery)
                        self._end_waiting()
                        self._acks.finish()
                    finally:
                        self._drop_waiting()
            await self._close()
        except* OSError as lost:
            self._log.debug("connection_lost", error=str(lost.exceptions[0]))
        except* CutError as cut:
            self._broker.metrics.connections_cut += 1
            self._log.warning("connection_cut", reason=str(cut.exceptions[0]))
        except* FileShrankError as shrank:
            self._log.error("fetch_cut_short", error=str(shrank.exceptions[0]))
        except* Exception as bug:  # noqa: BLE001 - one connection must not end the others
            self._log.error("connection_crashed", exc_info=bug)
        finally:
            self._free_memory()
            self._sock.close()

    def stop(self) -> None:
        """Begin to end the connection: read nothing more, answer waiting fetches at once, finish other requests."""
        self._stopping = True
        self._end_waiting()
        if self._admission is not None:
            self._admission.cancel()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)  # wakes the reading task

    def stop_if_quiet(self, idle_seconds: float, stall_seconds: float) -> None:
        """Begin to end the connection if it is idle, or stalled in the middle of a request.

        Idle: nothing received for ``idle_seconds``, and no request open. Stalled: nothing received for
        ``stall_seconds``, or a large request that arrives too slowly while others wait for its memory.
        """
        quiet = trio.current_time() - self._quiet_since  # negative while it does not wait
        if self._stopping:
            return
        if quiet >= stall_seconds and not self._reader.is_idle:
            self._broker.metrics.connections_cut += 1
            self._log.warning("connection_cut", reason=f"it sent half a request and then nothing for {quiet:.0f} s")
            self.stop()
        elif self._share is not None and quiet >= 0 and self._share.is_too_slow(self._reader.large_size):
            self._broker.metrics.connections_cut += 1
            self._log.warning("connection_cut", reason="others wait for the memory of a request that comes too slowly")
            self.stop()
        elif quiet >= idle_seconds and not (self._fetches or len(self._acks)):
            self._broker.metrics.connections_idle += 1
            self._log.info("connection_idle", seconds=round(quiet))
            self.stop()

    # --- Reading ------------------------------------------------------------------------------------------------------

    async def _receive(self) -> memoryview | None:
        """Receive into the reader. Returns a view of the new bytes, or None at the end of the connection."""
        while True:
            self._quiet_since = trio.current_time()
            await trio.lowlevel.wait_readable(self._sock)
            self._quiet_since = math.inf
            if self._reader.wanted and not self._stopping:  # only now: a request costs no memory until its bytes come
                await self._get_memory()
            if self._stopping:
                return None
            buffer = self._reader.get_buffer()
            try:
                size = self._sock.recv_into(buffer)
            except BlockingIOError:
                continue
            if size == 0:
                return None
            self._reader.received(size)
            return buffer[:size]

    async def _greet(self) -> bool:
        """Read up to the first valid hello and answer it; False when the connection is to end instead."""
        first = b""
        try:
            with trio.move_on_after(HELLO_SECONDS):
                for _ in range(HELLO_TRIES_MAX):
                    while (frame := self._reader.next_frame()) is None:
                        received = await self._receive()
                        if received is None:
                            return False
                        if len(first) < FIRST_BYTES:
                            first += bytes(received[: FIRST_BYTES - len(first)])
                    good = self._answer_hello(frame)
                    await self._sender.flush()
                    if good is not None:
                        return good
                return False
        except RemoteProtocolError:
            pass
        hint = hint_for(first)
        self._log.info("connection_refused", reason="not the seglog protocol", kind=hint.kind, first=first.hex(" "))
        self._last_frame = hint.answer
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
            self._reader.frame_bytes_max = self._memory.request_bytes_max
        return good

    def _hello(self, request: HelloRequest) -> HelloReply:
        if request.protocol != PROTOCOL_NAME:
            raise InvalidRequestError(
                f"this broker speaks the protocol {PROTOCOL_NAME!r}, not {request.protocol!r}", field="protocol"
            )
        return self._broker.hello()

    async def _read_requests(self, nursery: trio.Nursery) -> None:
        """Serve requests in order of arrival; return when the peer sends no more."""
        try:
            while True:
                frame = self._reader.next_frame()
                if frame is None:
                    await self._sender.flush()
                    if await self._receive() is None:
                        return
                    self._served = 0
                    continue
                self._served += 1
                if len(frame.packed) > HEADER_BYTES_AT_ONCE:
                    await self._sender.flush()
                    await self._broker.turn()
                opened = open_request(frame.packed)
                if opened.api == AppendRequest.api:
                    goes_on = self._append(opened, frame, nursery)
                    if goes_on is None:
                        await self._sender.flush()
                        goes_on = await self._append_slowly(opened, frame, nursery)
                    self._memory.pool.give_back(frame)
                    self._free_memory()
                    if not goes_on:
                        return
                    if self._acks.is_full:
                        await self._sender.flush()
                        await self._acks.wait_shortened()
                else:
                    await self._serve(opened, frame, nursery)
                    self._free_memory()
                if self._served >= FRAMES_A_TURN:
                    self._served = 0
                    await self._sender.flush()
                    await trio.lowlevel.checkpoint()
        except MemoryError as error:
            self._last_frame = encode_last_error(as_seglog_error(error, "receive"))
        except RemoteProtocolError as error:
            self._log.warning("connection_refused", reason=error.message)
            count_errors(self._broker.metrics.request_errors, error)
            self._last_frame = encode_last_error(error)

    async def _get_memory(self) -> None:
        """Wait until there is memory for the next part of a large request; nothing is read meanwhile."""
        reader = self._reader
        if self._share is None:
            self._share = self._memory.begin()
            spare = self._share.take_spare(reader.announced)
            if spare is not None:
                reader.grant_spare(spare)
                return
        size = reader.wanted
        with trio.CancelScope() as self._admission:
            await self._share.take(size)
            reader.grant(size)
        self._admission = None

    def _free_memory(self) -> None:
        if self._share is not None:
            self._share.close()
            self._share = None

    # --- Serving ------------------------------------------------------------------------------------------------------

    async def _append_slowly(self, opened: OpenedRequest, frame: Frame, nursery: trio.Nursery) -> bool:
        """Apply an append that has to wait; nothing else is read meanwhile, so that appends keep their order.

        Either topics have to be created for it first, or writing it takes several turns or a worker process.
        """
        goes_on: bool | None = None
        if self._unwritten is None:
            request = opened.accepted()
            assert isinstance(request, AppendRequest)
            try:
                refused = await self._broker.create_missing(request)
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                refused = dict.fromkeys(self._broker.missing_topics(request), as_seglog_error(error, AppendRequest.api))
            goes_on = self._append(opened, frame, nursery, refused)
        if self._unwritten is not None:
            pending, self._unwritten = self._unwritten, None
            outcome: Pending | AppendReply | SeglogError
            try:
                await pending.write_rest()
                outcome = pending if pending.reply is None else pending.reply
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                outcome = as_seglog_error(error, AppendRequest.api)
            goes_on = self._answer_append(opened, outcome, frame, nursery)
        return bool(goes_on)

    def _append(
        self,
        opened: OpenedRequest,
        frame: Frame,
        nursery: trio.Nursery,
        refused: Mapping[str, SeglogError] | None = None,
    ) -> bool | None:
        """Apply an append and answer or queue it; ``refused`` holds the errors of topics that cannot be created.

        None: it has to wait, call ``_append_slowly``. False: an append with ack ``none`` failed, end the connection.
        """
        try:
            request = opened.accepted()
            assert isinstance(request, AppendRequest)
            if refused is None and self._broker.missing_topics(request):
                return None
            self._broker.metrics.requests[AppendRequest.api] += 1
            pending = self._broker.append(request, frame.payload, refused)
            if pending.effort > 1:
                self._served += pending.effort // 2
            if not pending.is_written:
                self._unwritten = pending
                return None
            outcome: Pending | AppendReply | SeglogError = pending if pending.reply is None else pending.reply
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            outcome = as_seglog_error(error, AppendRequest.api)
        return self._answer_append(opened, outcome, frame, nursery)

    def _answer_append(
        self,
        opened: OpenedRequest,
        outcome: Pending | AppendReply | SeglogError,
        frame: Frame,
        nursery: trio.Nursery,
    ) -> bool:
        """Answer an append now, or queue it. False: an append with ack ``none`` failed, end the connection."""
        request_id = opened.request_id
        if opened.ack == "none":
            return not self._failed_unanswered(outcome)
        if not len(self._acks) and isinstance(outcome, (AppendReply, SeglogError)) and not is_long(outcome):
            self._queue_reply(request_id, outcome)
            return True
        if not self._acks_running:
            self._acks_running = True
            nursery.start_soon(self._acks.run)
        self._acks.add(request_id, outcome, len(frame.payload))
        return True

    def _failed_unanswered(self, outcome: Pending | AppendReply | SeglogError) -> bool:
        """Whether an append with ack ``none`` failed: its sender can only be informed by ending the connection."""
        errors: list[SeglogError] = []
        if isinstance(outcome, SeglogError):
            errors = [outcome]
        elif isinstance(outcome, AppendReply):
            errors = [result.error for result in outcome.partitions if result.error is not None]
        if errors:
            self._broker.metrics.request_errors.update(error.code for error in errors)
            self._log.warning("append_failed", ack="none", error=str(errors[0]), errors=len(errors))
            another = next((error for error in errors if isinstance(error, InconsistentTopicIdError)), None)
            if another is not None:  # else the sender reconnects and fails again
                self._last_frame = encode_last_error(another)
        return bool(errors)

    async def _serve(self, opened: OpenedRequest, frame: Frame, nursery: trio.Nursery) -> None:
        """Serve anything but an append."""
        request_id = opened.request_id
        try:
            request = _without_payload(opened, frame)
            self._broker.metrics.requests[request.api] += 1
            if isinstance(request, FetchRequest):
                answer = self._broker.fetch_now(request)
                self._served += len(request.partitions) // 2
                if answer is not None and any(result.error is not None for result in answer.reply.partitions):
                    self._served = FRAMES_A_TURN
                if answer is None:
                    self._start_waiting(request_id, request, nursery)
            else:
                answer = None
                self._served = FRAMES_A_TURN
                reply, payload = await self._result(request)
                long = await encode_long_reply(request_id, reply, len(payload), self._broker.turn)
                if long is None:
                    self._queue_reply(request_id, reply, payload)
                else:
                    count_errors(self._broker.metrics.request_errors, reply)
                    self._sender.queue(long + payload)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            answer = None
            self._served = FRAMES_A_TURN
            self._queue_reply(request_id, as_seglog_error(error, str(opened.api)))
        if answer is not None:
            await self._send_answer(request_id, answer)

    async def _result(self, request: Request) -> tuple[Message, bytes]:
        """The reply to a request, and its payload."""
        if isinstance(request, HelloRequest):
            return self._hello(request), b""
        if isinstance(request, CancelRequest):
            return CancelReply(self._cancel(request.target)), b""
        return await self._broker.answer(request)

    def _queue_reply(self, request_id: int, reply: Message | SeglogError, payload: bytes = b"") -> None:
        count_errors(self._broker.metrics.request_errors, reply)
        self._sender.queue(encode_reply(request_id, reply, payload))

    # --- Fetching -----------------------------------------------------------------------------------------------------

    def _start_waiting(self, request_id: int, request: FetchRequest, nursery: trio.Nursery) -> None:
        if self._fetches >= FETCHES_IN_FLIGHT_MAX:
            raise InvalidRequestError(
                f"{self._fetches} fetches are waiting on this connection already, which is the limit", field=""
            )
        if self._fetches and self._partitions_waiting + len(request.partitions) > PARTITIONS_WAITING_MAX:
            raise InvalidRequestError(
                f"fetches for {self._partitions_waiting} partitions are waiting on this connection already, with more "
                f"they would be above the limit of {PARTITIONS_WAITING_MAX}",
                field="partitions",
            )
        if request_id in self._waiting:
            raise InvalidRequestError(f"a fetch with id {request_id} is waiting already", field="id")
        self._fetches += 1
        self._partitions_waiting += len(request.partitions)
        # Registered here, because `stop` may come before a task has run.
        waiter = Waiter(partial(self._retry_fetch, request_id, request, nursery))
        self._waiting[request_id] = waiter
        if self._stopping:
            waiter.end()
        if waiter.is_ended or not self._broker.wait_for(request, waiter):
            nursery.start_soon(self._fetch, request_id, request, waiter)

    def _retry_fetch(self, request_id: int, request: FetchRequest, nursery: trio.Nursery, waiter: Waiter) -> None:
        """Answer a fetch that has waited; if that fails here, a task does it, which also handles the errors."""
        if not waiter.is_ended and self._answer_waiting(request_id, request, nursery, waiter):
            del self._waiting[request_id]
            self._end_fetch(request)
        else:
            nursery.start_soon(self._fetch, request_id, request, waiter)

    def _answer_waiting(self, request_id: int, request: FetchRequest, nursery: trio.Nursery, waiter: Waiter) -> bool:
        """Send the answer to a waiting fetch, if it is known; whether it is sent or being sent."""
        if not self._sender.is_free:
            return False
        try:
            answer = self._broker.fetch_now(request, waiter)
        except Exception:  # noqa: BLE001 - see above
            return False
        if answer is None:
            return False
        try:
            prefix = self._encode_answer(request_id, answer)
            left = self._sender.begin_frame(prefix, answer.slices)
        except Exception:  # noqa: BLE001 - see above
            answer.close()
            return False
        if left:
            nursery.start_soon(self._end_answer, answer, prefix, left)
        else:
            answer.close()
        return True

    async def _end_answer(self, answer: Answer, prefix: bytes, left: int) -> None:
        with answer:
            await self._sender.end_frame(prefix, answer.slices, left)

    async def _fetch(self, request_id: int, request: FetchRequest, waiter: Waiter) -> None:
        """Wait for the answer to a fetch and send it."""
        answer: Answer | None = None
        failure: SeglogError | None = None
        try:
            try:
                answer = await self._broker.fetch(request, waiter)
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                if not (waiter.is_ended and isinstance(error, RequestCancelledError)):
                    failure = as_seglog_error(error, FetchRequest.api)
            self._waiting.pop(request_id, None)
            if request_id in self._cancelled:  # even if an answer came just now: the cancel reply says it is ended
                self._cancelled.discard(request_id)
                failure = RequestCancelledError("the fetch was cancelled, as asked")
                if answer is not None:
                    with answer:
                        answer = None
            if answer is not None:
                await self._send_answer(request_id, answer)
                return
            if failure is None and self._stopping:
                failure = BrokerStoppingError("the broker is stopping; connect again")
            if failure is not None:  # else the peer has left
                self._queue_reply(request_id, failure)
                await self._sender.flush()
        finally:
            self._end_fetch(request)

    def _end_fetch(self, request: FetchRequest) -> None:
        self._fetches -= 1
        self._partitions_waiting -= len(request.partitions)

    async def _send_answer(self, request_id: int, answer: Answer) -> None:
        """Send the answer to a fetch and close it."""
        with answer:
            try:
                prefix = await encode_long_reply(request_id, answer.reply, answer.size, self._broker.turn)
                prefix = self._encode_answer(request_id, answer, prefix)
            except Exception as error:  # noqa: BLE001 - nothing is sent yet, so it can be answered
                self._queue_reply(request_id, as_seglog_error(error, FetchRequest.api))
                await self._sender.flush()
            else:
                await self._sender.send_frame(prefix, answer.slices)

    def _encode_answer(self, request_id: int, answer: Answer, prefix: bytes | None = None) -> bytes:
        """The frame of an answer without its slices of files, added to the metrics.

        ``prefix`` is the frame up to the payload, where it is encoded already.
        """
        self._broker.metrics.fetch_bytes += answer.size
        count_errors(self._broker.metrics.request_errors, answer.reply)
        return (prefix or encode_fetch_prefix(request_id, answer.reply, answer.size)) + answer.payload

    def _cancel(self, target: int) -> bool:
        waiter = self._waiting.get(target)
        if waiter is None:
            return False
        self._cancelled.add(target)
        waiter.end()
        return True

    def _end_waiting(self) -> None:
        for waiter in self._waiting.values():
            waiter.end()

    def _drop_waiting(self) -> None:
        """Drop all fetches that wait without a task; they get no reply."""
        for waiter in self._waiting.values():
            waiter.unwatch()
        self._waiting.clear()

    # --- Closing ------------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Send what is left and the last frame, and close so that they arrive."""
        if self._last_frame is None and not self._stopping:
            await self._sender.flush()
            return
        if self._last_frame is not None:
            self._sender.queue(self._last_frame)
            with trio.move_on_after(CLOSE_SECONDS_MAX):
                await self._sender.flush()
        await close_gracefully(self._sock)


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
