"""One native connection, from its first bytes to its last: hello, requests, replies, parting.

Three kinds of task, all in the connection's own nursery: one reads and serves; one answers appends that wait for
their ack, in their order; and one for each fetch that waits for more than records. Fetches that wait for records alone
need none (``waiting``). A failure of any of them ends the connection and nothing else.
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
from seglog_broker.listeners.broker_api import Answer, BrokerFace, Pending
from seglog_broker.listeners.first_bytes import hint_for
from seglog_broker.listeners.graceful_close import PART_SECONDS, part
from seglog_broker.listeners.replies import (
    as_seglog_error,
    count_errors,
    encode_fetch_prefix,
    encode_long_reply,
    encode_parting,
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
    Request,
    decode_request,
    request_id_of,
)

HELLO_SECONDS: Final = 10
"""A connection that has not said hello by then is closed."""

HELLO_BYTES_MAX: Final = 64 * 1024
"""Largest frame before hello: nobody is waited for who announces more, most likely in another protocol."""

HELLO_TRIES_MAX: Final = 10
"""A hello that was refused may be corrected, but not for ever."""

FIRST_BYTES: Final = 16
"""Kept of the very beginning, to tell who is calling when it is not a seglog client."""

FETCHES_IN_FLIGHT_MAX: Final = 100
"""Fetches of one connection that wait, for records or for their turn to be sent. One more is refused: to stop reading
would keep everything else behind a long poll."""

PARTITIONS_WAITING_MAX: Final = 20_000
"""In all fetches of one connection that wait: each takes memory for as long as it does."""

FRAMES_A_TURN: Final = 32
"""Small pipelined appends and fetches served before others get their turn. Any other request ends the turn, and so does
one that fails or takes much more than a small batch: they are seldom pipelined, and may cost far more."""

PARTITIONS_AT_ONCE: Final = 1_000
"""A request that names more is decoded in a turn of its own: 10,000 take some hundredths of a second."""

log = structlog.get_logger()

_receive_buffer = bytearray(RECEIVE_BYTES)
"""Shared by all connections: the loop receives into it and takes the bytes out before it turns to anything else."""


class Connection:
    """Serves ``sock``, a connected non-blocking socket, and closes it."""

    def __init__(self, broker: BrokerFace, sock: socket.socket, peer: str) -> None:
        self._broker = broker
        self._sock = sock
        self._memory = broker.request_memory
        self._share: Share | None = None  # of it, for the large request that is received or served
        self._admission: trio.CancelScope | None = None  # while it waits for them
        self._reader = FrameReader(HELLO_BYTES_MAX, receive_buffer=_receive_buffer, pool=self._memory.pool, asks=True)
        stall_seconds = broker.config.seglog_connections_max_stall_ms / 1000
        self._sender = Sender(sock, broker.offload, broker.transfers, stall_seconds)
        self._quiet_since = math.inf  # when it began to wait for bytes, if it does
        self._acks = AckQueue(self._sender, broker.metrics.request_errors, broker.turn)
        self._acks_running = False
        self._fetches = 0
        self._partitions_waiting = 0  # in these fetches
        self._unwritten: Pending | None = None  # an append that is to be written on before anything else is read
        self._served = 0  # requests, in this turn
        self._waiting: dict[int, Waiter] = {}  # of each fetch that waits for records, by request id
        self._cancelled: set[int] = set()  # ids of fetches that their asker ended
        self._stopping = False
        self._parting: bytes | None = None  # the last thing to say
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
                        self._forget_waiting()
            await self._part()
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
        """Begin to end: read nothing more, answer what is under way, waiting fetches at once."""
        self._stopping = True
        self._end_waiting()
        if self._admission is not None:
            self._admission.cancel()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)  # wakes the reading task

    def stop_if_quiet(self, idle_seconds: float, stall_seconds: float) -> None:
        """Begin to end if the peer has sent nothing for so long, while nothing or the rest of a request is due.

        Or if the rest of a request comes too slowly for those who wait for its memory.
        """
        quiet = trio.current_time() - self._quiet_since  # below 0 while it does not wait
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
        """Receive something into the reader; a view of it for whoever is curious, or None at the end."""
        while True:
            self._quiet_since = trio.current_time()
            await trio.lowlevel.wait_readable(self._sock)
            self._quiet_since = math.inf
            if self._reader.wanted and not self._stopping:  # not before: what has been announced only costs nothing
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
        """Read up to the first good hello and answer it; False when the connection is to end instead."""
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
        self._parting = hint.answer
        return False

    def _answer_hello(self, frame: Frame) -> bool | None:
        """Answer what should be a hello. True: it is; False: hang up; None: try again, it can be corrected."""
        request_id = request_id_of(frame.header)
        reply: HelloReply | SeglogError
        good: bool | None = True
        try:
            reply = self._hello(_first_request(frame))
            self._broker.metrics.requests[HelloRequest.api] += 1
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            reply = as_seglog_error(error, HelloRequest.api)
            good = False if getattr(error, "field", "") in {"api", "protocol"} else None
        self._queue_reply(request_id, reply)
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
        """Serve requests as they come; return when there are no more to serve."""
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
                if _is_long(frame):
                    await self._sender.flush()
                    await self._broker.turn()
                if frame.header.get("api") == AppendRequest.api:
                    goes_on = self._append(frame, nursery)
                    if goes_on is None:
                        await self._sender.flush()
                        goes_on = await self._append_slowly(frame, nursery)
                    self._memory.pool.give_back(frame)
                    self._free_memory()
                    if not goes_on:
                        return
                    if self._acks.is_full:
                        await self._sender.flush()
                        await self._acks.wait_shortened()
                else:
                    await self._serve(frame, nursery)
                    self._free_memory()
                if self._served >= FRAMES_A_TURN:
                    self._served = 0
                    await self._sender.flush()
                    await trio.lowlevel.checkpoint()
        except MemoryError as error:
            self._parting = encode_parting(as_seglog_error(error, "receive"))
        except RemoteProtocolError as error:
            self._log.warning("connection_refused", reason=error.message)
            count_errors(self._broker.metrics.request_errors, error)
            self._parting = encode_parting(error)

    async def _get_memory(self) -> None:
        """Wait until there is memory for more of the large request that comes; nothing is read meanwhile."""
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

    async def _append_slowly(self, frame: Frame, nursery: trio.Nursery) -> bool:
        """Apply an append that does not go at once; nothing else is read meanwhile, so that appends keep their order.

        Either topics have to be created for it first, or it takes others' turns, or a process, to write it.
        """
        goes_on: bool | None = None
        if self._unwritten is None:
            request = decode_request(frame.header)
            assert isinstance(request, AppendRequest)
            try:
                refused = await self._broker.create_missing(request)
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                refused = dict.fromkeys(self._broker.missing_topics(request), as_seglog_error(error, AppendRequest.api))
            goes_on = self._append(frame, nursery, refused)
        if self._unwritten is not None:
            pending, self._unwritten = self._unwritten, None
            outcome: Pending | AppendReply | SeglogError
            try:
                await pending.write_rest()
                outcome = pending if pending.reply is None else pending.reply
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                outcome = as_seglog_error(error, AppendRequest.api)
            goes_on = self._answer_append(frame, outcome, nursery)
        return bool(goes_on)

    def _append(
        self, frame: Frame, nursery: trio.Nursery, refused: Mapping[str, SeglogError] | None = None
    ) -> bool | None:
        """Apply an append, and answer it now or in its turn; ``refused`` says which topics cannot be created, and why.

        None: it does not go at once, ``_append_slowly`` must follow. False: an unanswered one failed, hang up.
        """
        try:
            request = decode_request(frame.header)
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
        return self._answer_append(frame, outcome, nursery)

    def _answer_append(self, frame: Frame, outcome: Pending | AppendReply | SeglogError, nursery: trio.Nursery) -> bool:
        """Answer an append, now or in its turn. False: an unanswered one failed, hang up."""
        request_id = request_id_of(frame.header)
        if frame.header.get("ack") == "none":
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
        """Whether an append with ack ``none`` failed: ending the connection is the only way to tell its sender."""
        errors: list[SeglogError] = []
        if isinstance(outcome, SeglogError):
            errors = [outcome]
        elif isinstance(outcome, AppendReply):
            errors = [result.error for result in outcome.partitions if result.error is not None]
        if errors:
            self._broker.metrics.request_errors.update(error.code for error in errors)
            self._log.warning("append_failed", ack="none", error=str(errors[0]), errors=len(errors))
            another = next((error for error in errors if isinstance(error, InconsistentTopicIdError)), None)
            if another is not None:  # else its sender connects again and goes on, with the same end
                self._parting = encode_parting(another)
        return bool(errors)

    async def _serve(self, frame: Frame, nursery: trio.Nursery) -> None:
        """Serve anything but an append."""
        request_id = request_id_of(frame.header)
        try:
            request = _request_without_payload(frame)
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
            self._queue_reply(request_id, as_seglog_error(error, str(frame.header.get("api"))))
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
        # Known here, because `stop` may come before a task has run.
        waiter = Waiter(partial(self._look_again, request_id, request, nursery))
        self._waiting[request_id] = waiter
        if self._stopping:
            waiter.end()
        if waiter.is_ended or not self._broker.wait_for(request, waiter):
            nursery.start_soon(self._fetch, request_id, request, waiter)

    def _look_again(self, request_id: int, request: FetchRequest, nursery: trio.Nursery, waiter: Waiter) -> None:
        """Answer a fetch that has waited, or have a task do it, which knows what to do whatever goes wrong here."""
        if not waiter.is_ended and self._answer_waiting(request_id, request, nursery, waiter):
            del self._waiting[request_id]
            self._end_fetch(request)
        else:
            nursery.start_soon(self._fetch, request_id, request, waiter)

    def _answer_waiting(self, request_id: int, request: FetchRequest, nursery: trio.Nursery, waiter: Waiter) -> bool:
        """Whether there was an answer and it is sent, or about to be."""
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
            if request_id in self._cancelled:  # also when an answer came in the same moment: it was said to be ended
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
        """Send the answer to a fetch; its leases end with the last byte."""
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
        """The frame of an answer up to what lies in files, counted; ``prefix`` is what is encoded of it already."""
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

    def _forget_waiting(self) -> None:
        """From now on nobody answers who has no task."""
        for waiter in self._waiting.values():
            waiter.leave()
        self._waiting.clear()

    # --- Parting ------------------------------------------------------------------------------------------------------

    async def _part(self) -> None:
        """Say the last thing, and close in such a way that it arrives."""
        if self._parting is None and not self._stopping:
            await self._sender.flush()
            return
        if self._parting is not None:
            self._sender.queue(self._parting)
            with trio.move_on_after(PART_SECONDS):
                await self._sender.flush()
        await part(self._sock)


def _is_long(frame: Frame) -> bool:
    """Whether the request names so many partitions that to decode it takes much of a turn of the loop."""
    partitions = frame.header.get("partitions")
    return isinstance(partitions, list) and len(partitions) > PARTITIONS_AT_ONCE


def _first_request(frame: Frame) -> HelloRequest:
    api = frame.header.get("api")
    if api != HelloRequest.api:
        raise InvalidRequestError(f"the first request of a connection must be hello, not {api!r}", field="api")
    request = _request_without_payload(frame)
    assert isinstance(request, HelloRequest)
    return request


def _request_without_payload(frame: Frame) -> Request:
    request = decode_request(frame.header)
    if len(frame.payload):
        raise InvalidRequestError(f"a request to {request.api} carries no payload", field="")
    return request
