"""One native connection from its first bytes to its last: hello, requests, replies, close.

Requests are served in turns by plain functions (``ReadySockets``). What has to wait is left to tasks in the
connection's own nursery: one serves the request that the others have to wait for; one replies to appends that wait for
their ack, in order; and one for each fetch that waits for something other than records. A failure of any of them ends
the connection and nothing else.
"""

import contextlib
import math
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from seglog_broker.listeners.acks import AckQueue
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.broker_api import Acknowledged, BrokerApi, Pending
from seglog_broker.listeners.fetches import Fetches
from seglog_broker.listeners.first_bytes import hint_for
from seglog_broker.listeners.replies import (
    AppendOutcome,
    append_errors,
    as_seglog_error,
    count_errors,
    encode_append_replies,
    encode_last_error,
    encode_long_reply,
    encode_reply,
    is_long,
)
from seglog_broker.listeners.serving.graceful_close import CLOSE_SECONDS_MAX, close_gracefully
from seglog_broker.listeners.serving.intake import Intake
from seglog_broker.listeners.serving.peer_left import wait_until_left
from seglog_broker.listeners.serving.ready_sockets import Next, ReadySockets
from seglog_broker.listeners.serving.sender import FileShrankError, Sender
from seglog_broker.runtime.slow_readers import CutError
from seglog_protocol.errors import (
    InconsistentTopicIdError,
    InvalidRequestError,
    RemoteProtocolError,
    RequestCancelledError,
    SeglogError,
)
from seglog_protocol.frame_receiver import RECEIVE_BYTES, has_own_buffer
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

EFFORT_A_TURN: Final = 64
"""The work of one turn, in the unit of ``Pending.effort``: one to three milliseconds. A request that fails ends the
turn, unless it is a plain append: such requests are seldom pipelined, and may cost far more."""

EFFORT_OF_APPEND: Final = 0.25
"""The work for an append of one batch that is written together with others."""

EFFORT_OF_OTHERS: Final = 2
"""The work for any other request that is answered at once, without that for its partitions."""

HEADER_BYTES_AT_ONCE: Final = 32 * 1024
"""A larger header, of a thousand partitions or so, is decoded in a turn of its own: 10,000 of them take milliseconds,
and some hundredths of a second where one of them is wrong and has to be named."""

log = structlog.get_logger()


class Connection:
    """Serves ``sock``, a connected non-blocking socket, and closes it."""

    def __init__(self, broker: BrokerApi, sock: socket.socket, peer: str, ready: ReadySockets, run: AppendRun) -> None:
        """``ready`` gives it its turns, with those that share ``run``."""
        self._broker = broker
        self._sock = sock
        self._ready = ready
        self._run = run
        self._memory = broker.request_memory
        self._reader = FrameReader(HELLO_BYTES_MAX, receive_buffer=run.buffer, pool=self._memory.pool, asks=True)
        self._intake = Intake(sock, self._reader, self._memory)
        stall_seconds = broker.config.seglog_connections_max_stall_ms / 1000
        self._sender = Sender(sock, broker.offload, broker.transfers, stall_seconds)
        self._acks = AckQueue(self._sender, broker.metrics.request_errors, encode_append_replies, broker.turn)
        self._acks_running = False
        self._fetches = Fetches(broker, self._sender)
        self._nursery: trio.Nursery | None = None
        self._has_frames = True  # perhaps: none was found incomplete since bytes came
        self._effort = 0.0  # of this turn
        self._gathered = 0  # appends of this turn in the run
        self._gathered_size = 0  # bytes of their payloads
        self._in_hand: tuple[OpenedRequest | None, Frame] | None = None  # to be served before any other frame
        self._failure: BaseException | None = None  # raised when all before it is served
        self._job: Callable[[], Awaitable[None]] | None = None  # what the task has to do before the next turn
        self._is_over = False  # nothing more is read or served
        self._stopping = False
        self._last_frame: bytes | None = None  # sent before closing: why the connection ends
        self._host = "/" + peer.rpartition(":")[0].strip("[]")  # as Kafka shows it
        self._log = log.bind(peer=peer)

    async def run(self) -> None:
        """Serve until the peer leaves, breaks the protocol, or ``stop`` is called. Raises nothing but Cancelled."""
        try:
            if await self._greet():
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    try:
                        await self._serve_requests()
                        self._fetches.end(is_stopping=False)
                        self._acks.finish()
                    finally:
                        self._fetches.drop()
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
            self._failure = None  # its traceback holds this connection: a cycle
            self._intake.end()
            self._sock.close()

    def stop(self) -> None:
        """Begin to end the connection: read nothing more, answer waiting fetches at once, finish other requests."""
        self._stopping = True
        self._fetches.end(is_stopping=True)
        self._intake.stop()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)  # wakes whatever waits to read

    def stop_if_quiet(self, idle_seconds: float, stall_seconds: float) -> None:
        """Begin to end the connection if it is idle, or stalled in the middle of a request.

        Idle: nothing received for ``idle_seconds``, and no request open. Stalled: nothing received for
        ``stall_seconds``, or a large request that arrives too slowly while others wait for its memory.
        """
        if self._stopping:
            return
        reason = self._intake.why_stalled(stall_seconds)
        if reason is not None:
            self._broker.metrics.connections_cut += 1
            self._log.warning("connection_cut", reason=reason)
            self.stop()
        elif self._intake.quiet_seconds >= idle_seconds and not (len(self._fetches) or len(self._acks)):
            self._broker.metrics.connections_idle += 1
            self._log.info("connection_idle", seconds=round(self._intake.quiet_seconds))
            self.stop()

    # --- Hello --------------------------------------------------------------------------------------------------------

    async def _greet(self) -> bool:
        """Read up to the first valid hello and answer it; False when the connection is to end instead."""
        first = b""
        try:
            with trio.move_on_after(HELLO_SECONDS):
                for _ in range(HELLO_TRIES_MAX):
                    while (frame := self._reader.next_frame()) is None:
                        self._settle()
                        self._intake.quiet_since = trio.current_time()
                        await trio.lowlevel.wait_readable(self._sock)
                        self._intake.quiet_since = math.inf
                        received = self._intake.receive()
                        if received is None:
                            continue
                        if not received or self._stopping:
                            return False
                        first += bytes(received[: FIRST_BYTES - len(first)])
                    frame = self._kept(frame)
                    self._settle()
                    await self._broker.turn()  # the answer looks at every partition, and many may connect at once
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

    # --- Turns --------------------------------------------------------------------------------------------------------

    async def _serve_requests(self) -> None:
        """Serve requests in order of arrival; return when the peer sends no more."""
        try:
            while not self._is_over:
                has_work = self._has_work
                self._intake.quiet_since = math.inf if has_work else trio.current_time()
                begin = Next.TURN if has_work else Next.READABLE
                await self._ready.serve(self._sock, self, self._run, begin=begin)
                self._intake.quiet_since = math.inf
                while self._job is not None:
                    job, self._job = self._job, None
                    await job()
                self._free_unused()
                await self._sender.flush()
                if self._acks.is_full:
                    await self._acks.wait_shortened()
            if self._failure is not None:
                raise self._failure
        except MemoryError as error:
            self._last_frame = encode_last_error(as_seglog_error(error, "receive"))
        except RemoteProtocolError as error:
            self._log.warning("connection_refused", reason=error.message)
            count_errors(self._broker.metrics.request_errors, error)
            self._last_frame = encode_last_error(error)

    def begin_turn(self) -> None:
        """Receive once and serve what came, or go on with what the last turn left: a bounded amount of work.

        Appends are gathered, to be written together with those of other connections. Raises RemoteProtocolError for
        invalid bytes, once the requests before them are served.
        """
        if self._failure is not None:
            raise self._failure
        if self._has_work or self._receive_more():
            self._serve_frames()

    @property
    def _has_work(self) -> bool:
        """Whether there is something to be done before more is received."""
        return self._has_frames or self._in_hand is not None or self._failure is not None

    def end_turn(self) -> Next:
        """Send the replies, and keep what is left of what was received. Raises MemoryError."""
        self._gathered = self._gathered_size = 0
        try:
            if self._job is None and not self._intake.keep_large_part():
                self._job = self._wait_for_memory
        finally:
            self._intake.settle(self._kept_bytes)
        is_sent = self._sender.flush_now()
        if self._job is not None or self._is_over or not is_sent or self._acks.is_full:
            return Next.TASK
        self._free_unused()
        if self._has_work:
            return Next.TURN
        self._intake.quiet_since = self._ready.now
        return Next.READABLE

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task that the connection's end waits for."""
        self._tasks.start_soon(task)

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the connection's task."""
        self._failure = error

    def _settle(self) -> None:
        """Keep what is left of what was received outside of a turn."""
        self._reader.settle()
        self._run.buffer.clear()

    def _receive_more(self) -> bool:
        """Receive what has come; False if there is nothing to be served."""
        if self._stopping:
            self._is_over = True
            return False
        if self._reader.wanted and not self._intake.take_memory():  # only now: it costs none until its bytes come
            self._job = self._wait_for_memory
            return False
        received = self._intake.receive()
        if received is None:
            return False
        self._intake.quiet_since = math.inf  # until it waits for bytes again
        self._is_over = not received
        self._has_frames = not self._is_over
        return self._has_frames

    def _serve_frames(self) -> None:
        """Serve whole frames in their order, up to a turn's work, or until the task has to do something."""
        self._effort = 0.0
        room, room_size = self._acks.room
        while (
            self._effort < EFFORT_A_TURN
            and self._gathered < room
            and self._gathered_size < room_size
            and self._failure is None
            and not self._is_blocked
        ):
            opened: OpenedRequest | None = None
            if self._in_hand is not None:
                (opened, frame), self._in_hand = self._in_hand, None
            else:
                try:
                    following = self._reader.next_frame()
                except RemoteProtocolError as error:
                    self._failure = error
                    break
                if following is None:
                    self._has_frames = False
                    break
                frame = following
            self._serve_frame(opened, frame)

    @property
    def _is_blocked(self) -> bool:
        """Whether no other request may be served in this turn."""
        return self._job is not None or self._is_over or self._acks.is_full

    def _serve_frame(self, opened: OpenedRequest | None, frame: Frame) -> None:
        if opened is None and len(frame.packed) <= HEADER_BYTES_AT_ONCE:
            try:
                opened = open_request(frame.packed)
            except RemoteProtocolError as error:
                self._failure = error
                return
        if opened is not None and isinstance(opened.request, AppendRequest):
            is_large = self._intake.has_share and has_own_buffer(frame.payload)
            if not is_large and self._broker.is_plain(opened.request, frame.payload):
                self._run.add(self, opened.request_id, opened.request, frame.payload)
                self._gathered += 1
                self._gathered_size += len(frame.payload)
                count = len(opened.request.partitions)
                self._effort += EFFORT_OF_APPEND if count == 1 else count
                return
        if self._gathered:  # they come first
            self._run.write()
            self._gathered = self._gathered_size = 0
        if self._is_blocked:
            self._in_hand = opened, self._kept(frame)
        elif opened is None:
            self._job = partial(self._open_slowly, self._kept(frame))
        elif isinstance(opened.request, AppendRequest):
            if self._broker.missing_topics(opened.request):
                self._job = partial(self._append_creating, opened.request_id, opened.request, self._kept(frame))
            else:
                self._append(opened.request_id, opened.request, frame)
        elif opened.api == AppendRequest.api:
            self._effort = EFFORT_A_TURN
            assert isinstance(opened.request, SeglogError)
            self.answer_appends([opened.request_id], opened.ack, [opened.request], len(frame.payload))
        else:
            self._serve(opened, frame)

    def _kept(self, frame: Frame) -> Frame:
        """The frame in memory that stays as it is when the turn is over."""
        if not self._run.buffer.has(frame.payload):
            return frame
        return Frame(memoryview(bytes(frame.packed)), memoryview(bytearray(frame.payload)))

    async def _open_slowly(self, frame: Frame) -> None:
        """Decode a large header, in a turn of its own."""
        await self._sender.flush()
        await self._broker.turn()
        self._in_hand = open_request(frame.packed), frame

    # --- Memory -------------------------------------------------------------------------------------------------------

    async def _wait_for_memory(self) -> None:
        await self._sender.flush()
        await self._intake.wait_for_memory()

    @property
    def _kept_bytes(self) -> int:
        """Bytes of a request that is to be served later, in memory that is in no share."""
        if self._in_hand is None or has_own_buffer(self._in_hand[1].payload):
            return 0
        return len(self._in_hand[1].packed) + len(self._in_hand[1].payload)

    def _free_unused(self) -> None:
        """Give the memory back, if no request needs it any more."""
        if self._in_hand is None:
            self._intake.free_unused()

    # --- Appends ------------------------------------------------------------------------------------------------------

    def _append(
        self,
        request_id: int,
        request: AppendRequest,
        frame: Frame,
        refused: Mapping[str, SeglogError] | None = None,
    ) -> None:
        """Serve an append alone; ``refused`` holds the errors of topics that could not be created."""
        size = len(frame.payload)
        self._broker.metrics.requests[AppendRequest.api] += 1
        try:
            pending = self._broker.append([request], [frame.payload], refused)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self._effort = EFFORT_A_TURN
            self.answer_appends([request_id], request.ack, [as_seglog_error(error, AppendRequest.api)], size)
        else:
            self._effort += pending.effort
            if not pending.is_written:
                if self._run.buffer.has(frame.payload):
                    pending.keep_payloads()
                self._job = partial(self._finish_append, request_id, request, frame, pending)
                return
            self.answer_appends([request_id], request.ack, pending, size)
        self._intake.give_back(frame.payload)

    async def _append_creating(self, request_id: int, request: AppendRequest, frame: Frame) -> None:
        """Serve an append for which topics have to be created first."""
        if not has_own_buffer(frame.payload) and len(frame.payload) > RECEIVE_BYTES:
            await self._intake.take(len(frame.payload))
        await self._sender.flush()
        try:
            refused = await self._broker.create_missing(request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            refused = dict.fromkeys(self._broker.missing_topics(request), as_seglog_error(error, AppendRequest.api))
        self._append(request_id, request, frame, refused)

    async def _finish_append(self, request_id: int, request: AppendRequest, frame: Frame, pending: Pending) -> None:
        """Write the rest of an append that takes several turns of the loop, or a worker process.

        Nothing else is read meanwhile, so that appends keep their order.
        """
        if not self._intake.has_share and len(frame.payload) > RECEIVE_BYTES:
            await self._intake.take(len(frame.payload))
        await self._sender.flush()
        outcome: Acknowledged | list[AppendOutcome] = pending
        try:
            await pending.write_rest()
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            outcome = [as_seglog_error(error, AppendRequest.api)]
        self.answer_appends([request_id], request.ack, outcome, len(frame.payload))
        self._intake.give_back(frame.payload)

    def answer_appends(
        self, request_ids: Sequence[int], ack: object, outcome: Acknowledged | list[AppendOutcome], size: int
    ) -> None:
        """Answer appends now, or queue them. One with ack ``none`` that failed ends the connection."""
        replies = outcome if isinstance(outcome, list) else outcome.replies
        if ack == "none":
            assert replies is not None, "an ack that is not sent is not waited for"
            self._is_over |= self._failed_unanswered(replies)
        elif replies is not None and not len(self._acks) and not any(map(is_long, replies)):
            self._sender.queue(encode_append_replies(request_ids, replies, self._broker.metrics.request_errors))
        else:
            if not self._acks_running:
                self._acks_running = True
                self._tasks.start_soon(self._acks.run)
            self._acks.add(request_ids, outcome if replies is None else replies, size)

    def _failed_unanswered(self, replies: Sequence[AppendOutcome]) -> bool:
        """Whether an append with ack ``none`` failed: its sender can only be informed by ending the connection."""
        errors = append_errors(replies)
        if errors:
            self._broker.metrics.request_errors.update(error.code for error in errors)
            self._log.warning("append_failed", ack="none", error=str(errors[0]), errors=len(errors))
            another = next((error for error in errors if isinstance(error, InconsistentTopicIdError)), None)
            if another is not None:  # else the sender reconnects and fails again
                self._last_frame = encode_last_error(another)
        return bool(errors)

    # --- Other requests -----------------------------------------------------------------------------------------------

    @property
    def _tasks(self) -> trio.Nursery:
        assert self._nursery is not None
        return self._nursery

    def _serve(self, opened: OpenedRequest, frame: Frame) -> None:
        """Serve anything but an append: at once if possible, else it is a job of the task."""
        try:
            request = _without_payload(opened, frame)
            self._broker.metrics.requests[request.api] += 1
            if isinstance(request, FetchRequest):
                reply = None
            else:
                reply = self._answer_now(request)
                self._effort += EFFORT_A_TURN if reply is None else EFFORT_OF_OTHERS
                if isinstance(request, OffsetsRequest):
                    self._effort += len(request.partitions)
                elif isinstance(request, HelloRequest):  # it looks at every partition
                    self._effort = EFFORT_A_TURN
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self._effort = EFFORT_A_TURN
            self._queue_reply(opened.request_id, as_seglog_error(error, str(opened.api)))
            return
        if isinstance(request, FetchRequest):
            self._sender.flush_now()
            self._effort += EFFORT_OF_OTHERS + len(request.partitions)
            outcome = self._fetches.answer(opened.request_id, request, self._tasks)
            if outcome.has_errors:
                self._effort = EFFORT_A_TURN
            self._job = outcome.rest
        elif reply is None:
            self._job = partial(self._serve_slowly, opened.request_id, request)
        else:
            self._queue_reply(opened.request_id, reply)

    async def _serve_slowly(self, request_id: int, request: Request) -> None:
        await self._sender.flush()
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
            self._sender.queue(long + payload)

    async def _answer(self, request: Request) -> tuple[Message, bytes]:
        """The reply and its payload. A wait for other members of a group ends when the peer leaves."""
        if not isinstance(request, (JoinGroupRequest, SyncGroupRequest)):
            return await self._broker.answer(request, self._host)
        waiting, watching = trio.CancelScope(), trio.CancelScope()
        self.start_soon(partial(self._watch_peer, waiting, watching))
        try:
            with waiting:
                return await self._broker.answer(request, self._host)
        finally:
            watching.cancel()
        self._is_over = True
        raise RequestCancelledError("the peer has left")

    async def _watch_peer(self, waiting: trio.CancelScope, watching: trio.CancelScope) -> None:
        """Cancel ``waiting`` when the peer leaves, until ``watching`` is cancelled."""
        with watching:
            await wait_until_left(self._sock)
            waiting.cancel()

    def _answer_now(self, request: Request) -> Message | None:
        """The reply, if it waits for nothing."""
        if isinstance(request, HelloRequest):
            return self._hello(request)
        if isinstance(request, CancelRequest):
            return CancelReply(self._fetches.cancel(request.target))
        return self._broker.answer_now(request)

    def _queue_reply(self, request_id: int, reply: Message | SeglogError, payload: bytes = b"") -> None:
        count_errors(self._broker.metrics.request_errors, reply)
        self._sender.queue(encode_reply(request_id, reply, payload))

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
