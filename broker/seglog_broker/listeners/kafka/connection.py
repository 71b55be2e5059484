"""One Kafka connection: requests in their order, responses in the same order, close.

Requests are served in turns by plain functions (``ReadySockets``), Produce requests together with those of other
connections. As in Kafka, a request is served when those before it are: one that waits, such as a long poll, holds up
what follows on its connection. Only Produce requests overtake: each is written in its turn, and answered in order when
its ack is reached.
"""

import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.config import split_address
from seglog_broker.listeners.acks import AckQueue
from seglog_broker.listeners.append_run import AppendRun
from seglog_broker.listeners.broker_api import Acknowledged, Answer, Pending
from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.context import Api, Endpoint, RequestContext, shown_address
from seglog_broker.listeners.kafka.handlers import fetch
from seglog_broker.listeners.kafka.handlers.produce import (
    PARTITIONS_MAX,
    Append,
    Part,
    Produce,
    encode_responses,
    partitions_of,
)
from seglog_broker.listeners.kafka.turns import in_turns_of, run_out
from seglog_broker.listeners.replies import AppendOutcome, append_errors, as_seglog_error, count_errors
from seglog_broker.listeners.serving.graceful_close import close_gracefully
from seglog_broker.listeners.serving.intake import Intake
from seglog_broker.listeners.serving.peer_left import wait_until_left
from seglog_broker.listeners.serving.ready_sockets import Next, ReadySockets
from seglog_broker.listeners.serving.sender import Chunk, FileShrankError, Sender
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.runtime.slow_readers import CutError
from seglog_protocol.errors import CoordinatorNotAvailableError, RemoteProtocolError, RequestCancelledError
from seglog_protocol.frame_receiver import RECEIVE_BYTES, has_own_buffer
from seglog_protocol.kafka import (
    RequestHeader,
    RequestHeaderReader,
    UnsupportedVersion,
    WireError,
    messages,
    read_request,
    read_request_in_pieces,
    write_response,
    write_response_in_pieces,
)
from seglog_protocol.kafka.frames import PRODUCE, KafkaFrameReader
from seglog_protocol.kafka.structs import Request, Response
from seglog_protocol.messages import AppendReply, AppendRequest

EFFORT_A_TURN: Final = 32
"""Small requests, or partitions of larger ones, that are served in a row before other connections have their turn."""

EFFORT_OF_APPEND: Final = 0.25
EFFORT_OF_OTHERS: Final = 4

READ_AT_ONCE_BYTES: Final = 16 * 1024
"""A larger request, if it is not to produce, is read in turns."""

APART_BYTES: Final = 1024 * 1024
"""Of a response that are freed before other tasks run."""

APPENDS_AT_ONCE: Final = 64
"""Partitions of a Produce request that are written before other connections have their turn."""

REFUSED_AT_ONCE: Final = 500
"""Partitions of a Produce request that are looked at, and perhaps refused, before other connections have their turn."""

log = structlog.get_logger()


class KafkaConnection:
    """Serves one Kafka connection, and closes its socket."""

    def __init__(
        self,
        engine: Broker,
        sock: socket.socket,
        peer: str,
        ready: ReadySockets,
        run: AppendRun,
        advertised: Endpoint | None,
    ) -> None:
        """``ready`` gives it its turns, with those that share ``run``.

        ``advertised`` is the address that clients are told to use; None: the one that they have used.
        """
        self._engine = engine
        self._sock = sock
        self._ready = ready
        self._run = run
        memory = engine.request_memory
        self._reader = KafkaFrameReader(
            memory.request_bytes_max, receive_buffer=run.buffer, pool=memory.pool, asks=True
        )
        self._intake = Intake(sock, self._reader, memory)
        self._headers = RequestHeaderReader()
        self._room = engine.response_memory.room(_host(peer))
        self._latest_context: RequestContext | None = None
        self._client_address = shown_address(_host(peer))
        stall_seconds = engine.config.seglog_connections_max_stall_ms / 1000
        self._sender = Sender(sock, engine.offload, engine.transfers, stall_seconds)
        self._acks: AckQueue[Part] = AckQueue(
            self._sender, engine.metrics.request_errors, encode_responses, engine.turn
        )
        self._acks_running = False
        self._nursery: trio.Nursery | None = None
        self._endpoint = advertised
        self._has_frames = False  # perhaps: none was found incomplete since bytes came
        self._effort = 0.0  # of this turn
        self._gathered = 0  # appends of this turn in the run
        self._gathered_size = 0  # bytes of their payloads
        self._in_hand: memoryview | None = None  # a frame to be served before any other
        self._failure: BaseException | None = None  # raised when all before it is served
        self._job: Callable[[], Awaitable[None]] | None = None  # what the task has to do before the next turn
        self._waiter: Waiter | None = None  # of the fetch that waits for records
        self._waiting: trio.CancelScope | None = None  # of the request that waits for other members of its group
        self._is_over = False  # nothing more is read or served
        self._has_left = False  # the peer
        self._stopping = False
        self._log = log.bind(peer=peer, listener="kafka")

    async def run(self) -> None:
        """Serve until the peer leaves, breaks the protocol, or ``stop`` is called. Raises nothing but Cancelled."""
        try:
            if self._endpoint is None:
                host, port = self._sock.getsockname()[:2]
                self._endpoint = Endpoint(host, port)
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._serve_requests()
                self._acks.finish()
            await self._sender.flush()
            if not self._has_left:
                await close_gracefully(self._sock)
        except* OSError as lost:
            self._log.debug("connection_lost", error=str(lost.exceptions[0]))
        except* CutError as cut:
            self._engine.metrics.connections_cut += 1
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
        """Begin to end the connection: read nothing more, answer what waits at once, finish other requests."""
        self._stopping = True
        if self._waiter is not None:
            self._waiter.end()
        if self._waiting is not None:
            self._waiting.cancel()
        self._intake.stop()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)  # wakes whatever waits to read

    def stop_if_quiet(self, idle_seconds: float, stall_seconds: float) -> None:
        """Begin to end the connection if it is idle, or stalled in the middle of a request, as on the native port."""
        if self._stopping:
            return
        reason = self._intake.why_stalled(stall_seconds)
        if reason is not None:
            self._engine.metrics.connections_cut += 1
            self._log.warning("connection_cut", reason=reason)
            self.stop()
        elif self._intake.quiet_seconds >= idle_seconds and not len(self._acks):
            self._engine.metrics.connections_idle += 1
            self._log.info("connection_idle", seconds=round(self._intake.quiet_seconds))
            self.stop()

    # --- Turns --------------------------------------------------------------------------------------------------------

    async def _serve_requests(self) -> None:
        """Serve requests in order of arrival; return when the peer sends no more."""
        try:
            while not self._is_over:
                has_work = self._has_work
                begin = Next.TURN if has_work else Next.READABLE
                self._intake.quiet_since = float("inf") if has_work else trio.current_time()
                await self._ready.serve(self._sock, self, self._run, begin=begin)
                self._intake.quiet_since = float("inf")
                while self._job is not None:
                    job, self._job = self._job, None
                    await job()
                self._free_unused()
                await self._sender.flush()
                if self._acks.is_full:
                    await self._acks.wait_shortened()
            if self._failure is not None:
                raise self._failure
        except MemoryError:
            self._log.error("connection_refused", reason="out of memory")
        except (RemoteProtocolError, WireError) as error:
            # As Kafka does: there is no answer to what cannot be understood.
            self._log.warning("connection_refused", reason=str(error))
            self._engine.metrics.request_errors["INVALID_REQUEST"] += 1

    def begin_turn(self) -> None:
        """Receive once and serve what came, or go on with what the last turn left: a bounded amount of work.

        Appends are gathered, to be written together with those of other connections. Raises RemoteProtocolError or
        WireError for invalid bytes, once the requests before them are served.
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
        """Send the responses, and keep what is left of what was received. Raises MemoryError."""
        self._gathered = self._gathered_size = 0
        try:
            if self._job is None and not self._intake.keep_large_part():
                self._job = self._wait_for_memory
        finally:
            kept = self._in_hand
            self._intake.settle(0 if kept is None or has_own_buffer(kept) else len(kept))
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
        assert self._nursery is not None
        self._nursery.start_soon(task)

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the connection's task."""
        self._failure = error

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
        self._intake.quiet_since = float("inf")  # until it waits for bytes again
        self._has_left = self._is_over = not received
        self._has_frames = not self._is_over
        return self._has_frames

    async def _wait_for_memory(self) -> None:
        await self._sender.flush()
        await self._intake.wait_for_memory()

    def _free_unused(self) -> None:
        """Give the memory back, if no request needs it any more."""
        if self._in_hand is None:
            self._intake.free_unused()

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
            frame, self._in_hand = self._in_hand, None
            try:
                if frame is None:
                    frame = self._reader.next_frame()
                if frame is None:
                    self._has_frames = False
                    break
                header = self._headers.read(frame)
                if header.api_key == PRODUCE:
                    self._produce(header, frame)
                else:
                    self._serve(header, frame)
            except UnsupportedVersion as error:
                if error.api_key != apis.API_VERSIONS:
                    self._failure = error
                elif frame is not None and not self._is_behind_acks(frame):
                    response = apis.unsupported_api_versions()
                    self._sender.queue(b"".join(write_response(error.correlation_id, response, 0)))
            except (RemoteProtocolError, WireError) as error:
                self._failure = error
            except OSError:
                raise  # the connection is lost
            except Exception as error:  # noqa: BLE001 - logged; those before it are answered
                self._give_up("Kafka request", error)

    @property
    def _is_blocked(self) -> bool:
        """Whether no other request may be served in this turn."""
        return self._job is not None or self._is_over or self._acks.is_full

    def _kept(self, frame: memoryview) -> memoryview:
        """The frame in memory that stays as it is when the turn is over."""
        return memoryview(bytearray(frame)) if self._run.buffer.has(frame) else frame

    def _context(self, header: RequestHeader) -> RequestContext:
        latest = self._latest_context
        if latest is None or latest.client_id != header.client_id or latest.version != header.version:
            assert self._endpoint is not None
            latest = self._latest_context = RequestContext(
                self._engine, self._endpoint, header.version, header.client_id, self._client_address, self._room
            )
        return latest

    # --- Produce ------------------------------------------------------------------------------------------------------

    def _produce(self, header: RequestHeader, frame: memoryview) -> None:
        if len(frame) > READ_AT_ONCE_BYTES and (count := partitions_of(header, frame)) > APPENDS_AT_ONCE:
            if count > PARTITIONS_MAX:
                raise RemoteProtocolError(f"a Produce request for more than {PARTITIONS_MAX} partitions")
            self._begin_produce_in_turns(header, frame)
            return
        request = read_request(header, frame)
        assert isinstance(request, messages.ProduceRequest)
        if sum([len(topic.partition_data) for topic in request.topic_data]) > APPENDS_AT_ONCE:
            self._begin_produce_in_turns(header, frame)
            return
        produce = Produce(self._context(header), header.correlation_id, request.acks)
        for topic in request.topic_data:
            produce.add_topic(topic)
            produce.add(topic.partition_data)
        appends = produce.take_appends()
        is_large = self._intake.has_share and has_own_buffer(frame)
        if appends and not is_large and all(self._engine.is_plain(append, data) for _, append, data in appends):
            for part, append, records in appends:
                self._run.add(self, part, append, records)
            self._gathered += len(appends)
            self._gathered_size += len(frame)
            self._effort += EFFORT_OF_APPEND if len(appends) == 1 else len(appends)
            return
        self._write_gathered()
        self._note_refused(produce)
        if appends:
            self._append(produce, appends, frame)
        else:
            self._effort += EFFORT_OF_OTHERS
            self._answer_refused(produce)

    def _begin_produce_in_turns(self, header: RequestHeader, frame: memoryview) -> None:
        self._write_gathered()
        self._effort = EFFORT_A_TURN
        self._job = partial(self._produce_in_turns, header, self._kept(frame))

    async def _produce_in_turns(self, header: RequestHeader, frame: memoryview) -> None:
        """Serve a Produce request for many partitions, some of them at a time."""
        request = await self._read_in_turns(header, frame)
        if request is None:
            return
        assert isinstance(request, messages.ProduceRequest)
        produce = Produce(self._context(header), header.correlation_id, request.acks)
        looked_at = 0
        for topic in request.topic_data:
            produce.add_topic(topic)
            looked_at += 1
            for first in range(0, len(topic.partition_data), REFUSED_AT_ONCE):
                items = topic.partition_data[first : first + REFUSED_AT_ONCE]
                produce.add(items)
                looked_at += len(items)
                if looked_at >= REFUSED_AT_ONCE:
                    looked_at = 0
                    await self._engine.turn()
        appends = produce.take_appends()
        self._note_refused(produce)
        if not appends:
            self._answer_refused(produce)
        while appends:
            await self._engine.turn()
            some, appends = appends[:APPENDS_AT_ONCE], appends[APPENDS_AT_ONCE:]
            parts = [part for part, _, _ in some]
            outcome: Acknowledged | list[AppendOutcome]
            self._engine.metrics.requests[AppendRequest.api] += 1
            try:
                outcome = pending = self._engine.append([asked for _, asked, _ in some], [data for _, _, data in some])
                await pending.write_rest()
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                outcome = [as_seglog_error(error, AppendRequest.api)] * len(parts)
            self.answer_appends(parts, produce.ack, outcome, sum([len(data) for _, _, data in some]))
        self._intake.give_back(frame)

    def _note_refused(self, produce: Produce) -> None:
        """End the connection if a batch was refused that gets no response: that is how its sender learns of it."""
        if produce.is_silent and produce.problem is not None:
            self._log.warning("append_failed", ack="none", error=produce.problem)
            self._is_over = True

    def _answer_refused(self, produce: Produce) -> None:
        """Answer a request of which nothing is to be appended."""
        self.answer_appends([Part(produce, None)], produce.ack, [AppendReply([])], 0)

    def _write_gathered(self) -> None:
        """Write what was gathered: it comes first."""
        if self._gathered:
            self._run.write()
            self._gathered = self._gathered_size = 0

    def _append(self, produce: Produce, appends: list[Append], frame: memoryview) -> None:
        """Serve a Produce request alone."""
        self._engine.metrics.requests[AppendRequest.api] += 1
        parts = [part for part, _, _ in appends]
        try:
            pending = self._engine.append([asked for _, asked, _ in appends], [data for _, _, data in appends])
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self._effort = EFFORT_A_TURN
            failed: list[AppendOutcome] = [as_seglog_error(error, AppendRequest.api)] * len(parts)
            self.answer_appends(parts, produce.ack, failed, len(frame))
        else:
            self._effort += pending.effort
            if not pending.is_written:
                if self._run.buffer.has(frame):
                    pending.keep_payloads()
                self._job = partial(self._finish_append, parts, produce, frame, pending)
                return
            self.answer_appends(parts, produce.ack, pending, len(frame))
        self._intake.give_back(frame)

    async def _finish_append(self, parts: list[Part], produce: Produce, frame: memoryview, pending: Pending) -> None:
        """Write the rest of a request that takes several turns of the loop, or a worker process.

        Nothing else is read meanwhile, so that appends keep their order.
        """
        if not self._intake.has_share and len(frame) > RECEIVE_BYTES:
            await self._intake.take(len(frame))
        await self._sender.flush()
        outcome: Acknowledged | list[AppendOutcome] = pending
        try:
            await pending.write_rest()
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            outcome = [as_seglog_error(error, AppendRequest.api)] * len(parts)
        self.answer_appends(parts, produce.ack, outcome, len(frame))
        self._intake.give_back(frame)

    def answer_appends(
        self, request_ids: Sequence[Part], ack: object, outcome: Acknowledged | list[AppendOutcome], size: int
    ) -> None:
        """Answer appends now, or queue their responses. A failed one with acks=0 ends the connection."""
        replies = outcome if isinstance(outcome, list) else outcome.replies
        if ack == "none":
            assert replies is not None, "an ack that is not sent is not waited for"
            self._is_over |= self._failed_unanswered(replies)
        elif replies is not None and not len(self._acks):
            self._sender.queue(encode_responses(request_ids, replies, self._engine.metrics.request_errors))
        else:
            if not self._acks_running:
                self._acks_running = True
                self.start_soon(self._acks.run)
            self._acks.add(request_ids, outcome if replies is None else replies, size)

    def _failed_unanswered(self, replies: Sequence[AppendOutcome]) -> bool:
        """Whether an append with acks=0 failed: its sender can only be informed by ending the connection."""
        errors = append_errors(replies)
        if errors:
            self._engine.metrics.request_errors.update(error.code for error in errors)
            self._log.warning("append_failed", ack="none", error=str(errors[0]), errors=len(errors))
        return bool(errors)

    # --- Other requests -----------------------------------------------------------------------------------------------

    def _serve(self, header: RequestHeader, frame: memoryview) -> None:
        """Serve anything but Produce: at once if possible, else it is a job of the task."""
        if self._is_behind_acks(frame):
            return
        api = apis.accepted(header)
        if len(frame) > READ_AT_ONCE_BYTES:
            self._job = partial(self._read_slowly, api, header, self._kept(frame))
            return
        self._serve_request(api, header, read_request(header, frame))

    async def _read_slowly(self, api: Api, header: RequestHeader, frame: memoryview) -> None:
        """Read a large request in turns, and serve it."""
        request = await self._read_in_turns(header, frame)
        if request is not None:
            self._serve_request(api, header, request)

    async def _read_in_turns(self, header: RequestHeader, frame: memoryview) -> Request | None:
        """Read a request, some of it in a turn of the loop. None if that fails, which ends the connection."""
        if not self._intake.has_share and len(frame) > RECEIVE_BYTES:
            await self._intake.take(len(frame))
        await self._sender.flush()
        reading = read_request_in_pieces(header, frame)
        while True:
            try:
                next(reading)
            except StopIteration as done:
                request: Request = done.value
                return request
            except WireError as error:
                self._failure = error
                return None
            await self._engine.turn()

    def _serve_request(self, api: Api, header: RequestHeader, request: Request) -> None:
        self._engine.metrics.requests[apis.counter_name(api.name)] += 1
        self._effort += EFFORT_OF_OTHERS
        if isinstance(request, messages.FetchRequest):
            self._fetch(header, request)
            return
        if api.handle_now is not None:
            try:
                response = api.handle_now(self._context(header), request)
                if response is not None:
                    self._queue_response(header, response)
                    return
            except Exception as error:  # noqa: BLE001 - logged; those before it are answered
                self._give_up(api.name, error)
                return
        self._effort = EFFORT_A_TURN
        self._job = partial(self._serve_slowly if api.refuse is None else self._serve_waiting, api, header, request)

    def _is_behind_acks(self, frame: memoryview) -> bool:
        """Whether Produce requests are to be answered before this one, which is then served later."""
        self._write_gathered()
        if not len(self._acks):
            return False
        self._in_hand = self._kept(frame)
        self._job = self._wait_for_acks
        return True

    async def _wait_for_acks(self) -> None:
        """Wait until all Produce requests are answered: responses have the order of requests."""
        await self._sender.flush()
        await self._acks.wait_empty()

    async def _serve_slowly(self, api: Api, header: RequestHeader, request: Request) -> None:
        await self._sender.flush()
        assert api.handle is not None
        try:
            response = await api.handle(self._context(header), request)
        except Exception as error:  # noqa: BLE001 - logged; those before it are answered
            self._give_up(api.name, error)
            self._room.close()
        else:
            await self._send_response(header, response)

    async def _serve_waiting(self, api: Api, header: RequestHeader, request: Request) -> None:
        """Serve a request that may wait for minutes: until its peer leaves, or the connection is to end."""
        await self._sender.flush()
        assert api.handle is not None
        assert api.refuse is not None
        response: Response | None = None
        if not self._stopping:
            watching = trio.CancelScope()
            self._waiting = waiting = trio.CancelScope()
            with waiting:
                self.start_soon(partial(self._watch_peer, waiting.cancel, watching))
                try:
                    response = await api.handle(self._context(header), request)
                except Exception as error:  # noqa: BLE001 - logged; those before it are answered
                    self._give_up(api.name, error)
                    return
                finally:
                    self._waiting = None
                    watching.cancel()
        if response is not None:
            await self._send_response(header, response)
        elif self._stopping:
            refusal = CoordinatorNotAvailableError("the broker is stopping")
            self._queue_response(header, api.refuse(self._context(header), request, refusal))
        else:
            self._has_left = self._is_over = True

    def _give_up(self, api: str, error: Exception) -> None:
        """End the connection when those before it are answered: there is no response to a request that failed so."""
        failure = as_seglog_error(error, api)
        self._engine.metrics.request_errors[failure.code] += 1
        self._log.error("connection_refused", reason=f"{api} failed: {failure.message}")
        self._is_over = True

    def _queue_response(self, header: RequestHeader, response: Response) -> None:
        """Send a response with the next flush, or, if it is large, by a job."""
        writing = write_response_in_pieces(header.correlation_id, response, header.version)
        next(writing)
        try:
            next(writing)
        except StopIteration as done:
            self._sender.queue(b"".join(done.value))
            self._room.close()
        else:
            self._job = partial(self._send_response, header, response)

    async def _send_response(self, header: RequestHeader, response: Response) -> None:
        """Write a response in turns and send it. One that is too large becomes an error."""
        try:
            try:
                chunks = await self._written(write_response_in_pieces(header.correlation_id, response, header.version))
            except Exception as error:  # noqa: BLE001 - logged; those before it are answered
                self._give_up(apis.accepted(header).name, error)
                return
            if chunks is None:
                self._engine.metrics.request_errors["INVALID_REQUEST"] += 1
                chunks = write_response(header.correlation_id, apis.too_large(response, header.version), header.version)
            await self._take_apart(response)
            await self._send_large(chunks)
        finally:
            self._room.close()

    async def _take_apart(self, response: Response) -> None:
        """Free the parts of a large response in turns: all at once holds up others as long as making them."""
        if self._room.used <= APART_BYTES:
            return
        fields: Sequence[str] = response.__slots__
        for field in fields:
            parts = getattr(response, field)
            if isinstance(parts, list):
                at_once = 1 + APART_BYTES * len(parts) // self._room.used
                while parts:
                    del parts[-at_once:]
                    await self._engine.turn()

    async def _written(self, writing: Generator[int, None, Sequence[Chunk]]) -> Sequence[Chunk] | None:
        """The frame of a response, written in turns; None if it is too large."""
        next(writing)
        try:
            while True:
                size = next(writing)
                if size > self._room.used and not self._room.add(size - self._room.used):
                    return None
                await self._engine.turn()
                await self._room.wait()
        except StopIteration as done:
            chunks: Sequence[Chunk] = done.value
            return chunks
        finally:
            writing.close()

    async def _send_large(self, chunks: Sequence[Chunk]) -> None:
        """Send a response that may be large. Its peer is cut off if it takes it too slowly while others wait."""
        with self._room.sending(lambda: self._sender.taken) as scope:
            await self._sender.send_frame(chunks)
        if scope.cancelled_caught:
            raise CutError("others wait for the memory of a response that it takes too slowly")

    # --- Fetch --------------------------------------------------------------------------------------------------------

    def _fetch(self, header: RequestHeader, request: messages.FetchRequest) -> None:
        """Answer a fetch now, or have the task wait for its records."""
        if sum([len(topic.partitions) for topic in request.topics]) > fetch.PARTITIONS_MAX:
            raise RemoteProtocolError(f"a Fetch request for more than {fetch.PARTITIONS_MAX} partitions")
        asked = fetch.Fetch(self._context(header), request)
        self._effort += asked.effort
        if asked.is_large:
            self._job = partial(self._fetch_in_turns, header, asked)
            return
        run_out(asked.read())
        if asked.has_only_errors:
            self._job = partial(self._send_errors, header, asked)
            return
        try:
            answer = self._engine.fetch_now(asked.request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self._effort = EFFORT_A_TURN
            self._queue_response(header, asked.failed_response(as_seglog_error(error, "Fetch")))
            return
        if answer is None:
            self._job = partial(self._fetch_slowly, header, asked)
            return
        try:
            run_out(asked.found(answer))
            self._count_found(answer)
            if asked.has_only_errors:
                answer.close()
                self._job = partial(self._send_errors, header, asked)
                return
            chunks = write_response(header.correlation_id, asked.response, header.version)
            left = self._sender.begin_frame(chunks)
        except BaseException:
            answer.close()
            raise
        if left == 0:
            answer.close()
        else:
            self._job = partial(self._send_rest, answer, chunks, left)

    def _count_found(self, answer: Answer) -> None:
        self._engine.metrics.fetch_bytes += answer.size
        count_errors(self._engine.metrics.request_errors, answer.reply)

    async def _fetch_in_turns(self, header: RequestHeader, asked: fetch.Fetch) -> None:
        """Serve a fetch from many partitions, some of them at a time."""
        await self._sender.flush()
        await in_turns_of(asked.read(), self._engine.turn)
        if asked.has_only_errors:
            await self._send_errors(header, asked)
        else:
            await self._fetch_slowly(header, asked)

    async def _send_rest(self, answer: Answer, chunks: Sequence[Chunk], left: int | None) -> None:
        with answer:
            if left is None:
                await self._sender.send_frame(chunks)
            else:
                await self._sender.end_frame(chunks, left)

    async def _send_errors(self, header: RequestHeader, asked: fetch.Fetch) -> None:
        """Send a response of nothing but errors, a little later."""
        await self._sender.flush()
        await asked.hold_errors()
        await self._send_response(header, asked.response)

    async def _fetch_slowly(self, header: RequestHeader, asked: fetch.Fetch) -> None:
        """Wait for the answer to a fetch and send it."""
        await self._sender.flush()
        self._waiter = waiter = Waiter()
        if self._stopping:
            waiter.end()
        watching = trio.CancelScope()
        self.start_soon(partial(self._watch_peer, waiter.end, watching))
        try:
            answer = await self._engine.fetch(asked.request, waiter)
        except RequestCancelledError:
            if self._stopping:
                await self._send_response(header, asked.empty_response())
            else:
                self._has_left = self._is_over = True
            return
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            await self._send_response(header, asked.failed_response(as_seglog_error(error, "Fetch")))
            return
        finally:
            self._waiter = None
            watching.cancel()
        with answer:
            await in_turns_of(asked.found(answer), self._engine.turn)
            self._count_found(answer)
            if asked.has_only_errors:
                await asked.hold_errors()
            await self._send_response(header, asked.response)

    async def _watch_peer(self, end: Callable[[], None], scope: trio.CancelScope) -> None:
        """End the wait of a request when its peer leaves."""
        with scope:
            await wait_until_left(self._sock)
            end()


def _host(peer: str) -> str:
    """The host of ``HOST:PORT``."""
    try:
        return split_address(peer)[0]
    except ValueError:
        return peer  # "gone"
