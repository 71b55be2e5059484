"""Kafka's protocol on one connection: requests in their order, responses in the same order.

As in Kafka, a request is served when those before it are: one that waits, such as a long poll, holds up what follows on
its connection. Only Produce requests are served before earlier ones are answered: each is written in its turn, together
with those of other connections, and answered in order when its ack is reached. A fetch that waits has no task.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Final

from seglog_broker.api.broker import Broker
from seglog_broker.api.pending_appends import Acknowledged
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.context import Api, Endpoint, RequestContext
from seglog_broker.listeners.kafka.handlers import fetch
from seglog_broker.listeners.kafka.handlers.produce import (
    PARTITIONS_MAX,
    Append,
    Part,
    Produce,
    ResultPart,
    encode_responses,
    partitions_of,
)
from seglog_broker.listeners.kafka.produce_templates import ProduceTemplates
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error, count_errors
from seglog_broker.listeners.sender import Chunk
from seglog_broker.listeners.transport import shown_host
from seglog_broker.listeners.wire import Wire
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime import budget
from seglog_broker.runtime.slow_readers import CutError
from seglog_protocol.errors import (
    CoordinatorNotAvailableError,
    RemoteProtocolError,
    RequestCancelledError,
    SeglogError,
)
from seglog_protocol.frame_receiver import Buffer, has_own_buffer
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
from seglog_protocol.steps import finished, in_turns_of

REQUEST_COST: Final = 250
"""Microseconds for any request but Produce, without that for what it names."""

READ_AT_ONCE_BYTES: Final = 16 * 1024
"""A larger request, if it is not to produce, is read in turns."""

APART_BYTES: Final = 1024 * 1024
"""Of a response that are freed before other tasks run."""

APPENDS_AT_ONCE: Final = budget.items_of(budget.BATCH)
"""Partitions of a Produce request that are written before other connections have their turn."""

REFUSED_AT_ONCE: Final = budget.items_of(cost=4)
"""Partitions of a Produce request that are looked at, and perhaps refused, before other connections have their turn."""


class KafkaWire(Wire):
    """Serves the requests of one connection."""

    is_ordered = True

    def __init__(self, broker: Broker, advertised: Endpoint, connection: Connection) -> None:
        """``advertised`` is the address that clients of this port are to connect to."""
        self.apis = apis.APIS
        self._broker = broker
        self._connection = connection
        memory = broker.request_memory
        self._frames = KafkaFrameReader(
            memory.request_bytes_max, receive_buffer=connection.run_of_appends.buffer, pool=memory.pool, asks=True
        )
        self.reader = self._frames
        self._headers = RequestHeaderReader()
        self.templates = ProduceTemplates()
        host = connection.transport.host
        self._room = broker.response_memory.room(host)
        self._advertised = advertised
        self._client_address = shown_host(host)
        self._latest_context: RequestContext | None = None
        self._waiter: Waiter | None = None  # of the fetch that waits for records
        self._stop_reason: str | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a fetch waits."""
        return self._waiter is not None

    def stop(self, reason: str) -> None:
        """Answer waiting fetches at once."""
        self._stop_reason = reason
        if self._waiter is not None:
            self._waiter.end()

    def drop(self) -> None:
        """Drop waiting fetches."""
        if self._waiter is not None:
            self._waiter.unwatch()  # else it would be answered
            self._waiter.end()

    def detach(self) -> None:
        """Forget the connection, and give back the place of its response."""
        self._room.close()
        del self._connection

    def last_frame(self, _error: SeglogError) -> bytes:
        """None: in Kafka's protocol there is no answer to what cannot be understood."""
        return b""

    def encode_appended(self, request_ids: Sequence[Part], outcomes: Sequence[AppendOutcome]) -> Buffer:
        """Replies in the order of their appends."""
        return encode_responses(request_ids, outcomes, self._broker.metrics.request_errors)

    # --- Requests -----------------------------------------------------------------------------------------------------

    def serve_next(self) -> bool:
        """Serve the next request."""
        frame: memoryview | None = None
        try:
            if self._connection.waiting_request is not None:
                frame = self._connection.take_waiting()
            else:
                frame = self._frames.next_frame()
            if frame is None:
                return False
            repeated = self.templates.appends_of(frame)
            if repeated is not None and self._gather(repeated, frame):
                return True
            header = self._headers.read(frame)
            if header.api_key == PRODUCE:
                self._produce(header, frame)
            elif self._may_serve(frame):
                self._serve(header, frame)
        except UnsupportedVersion as error:
            if error.api_key != apis.API_VERSIONS:
                raise RemoteProtocolError(str(error)) from None
            if frame is not None and self._may_serve(frame):
                response = apis.unsupported_api_versions()
                self._connection.sender.queue(b"".join(write_response(error.correlation_id, response, 0)))
        except (WireError, RemoteProtocolError) as error:
            raise RemoteProtocolError(str(error)) from None
        except OSError:
            raise  # the connection is lost
        except Exception as error:  # noqa: BLE001 - logged; those before it are answered
            self._give_up("Kafka request", error)
        return True

    def _may_serve(self, frame: memoryview) -> bool:
        """Whether a request that does not produce may be served now; if not, it is kept."""
        if self._connection.may_serve():
            return True
        kept = self._kept(frame)
        self._connection.serve_later(kept, kept, len(kept))
        return False

    def _kept(self, frame: memoryview) -> memoryview:
        """The frame in memory that stays as it is when the turn is over."""
        return memoryview(bytearray(frame)) if self._connection.run_of_appends.buffer.has(frame) else frame

    def _context(self, header: RequestHeader) -> RequestContext:
        latest = self._latest_context
        if latest is None or latest.client_id != header.client_id or latest.version != header.version:
            latest = self._latest_context = RequestContext(
                self._broker, self._advertised, header.version, header.client_id, self._client_address, self._room
            )
        return latest

    # --- Produce ------------------------------------------------------------------------------------------------------

    def _produce(self, header: RequestHeader, frame: memoryview) -> None:
        connection = self._connection
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
        if appends and self._gather(appends, frame):
            self.templates.add(self._context(header), header, frame, request)
            return
        connection.write_gathered()
        self._note_refused(produce)
        if appends:
            parts, requests, payloads = zip(*appends, strict=True)
            connection.append(parts, requests, payloads, frame)
        else:
            connection.spent += REQUEST_COST
            self._answer_refused(produce)

    def _gather(self, appends: Sequence[Append], frame: memoryview) -> bool:
        """Have appends written together with those of other connections; False if they have to be written alone."""
        connection = self._connection
        if connection.intake.has_share and has_own_buffer(frame):
            return False
        is_plain = self._broker.is_plain
        for _, append, records in appends:
            if not is_plain(append, records):
                return False
        for part, append, records in appends:
            connection.run_of_appends.add(connection, part, append, records)
        connection.note_gathered(len(appends), len(appends), len(frame))
        return True

    def _begin_produce_in_turns(self, header: RequestHeader, frame: memoryview) -> None:
        self._connection.write_gathered()
        self._connection.spent = budget.TURN
        self._connection.job = partial(self._produce_in_turns, header, self._kept(frame))

    async def _produce_in_turns(self, header: RequestHeader, frame: memoryview) -> None:
        """Serve a Produce request for many partitions, some of them at a time."""
        request = await self._read_in_turns(header, frame)
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
                    await self._broker.turn()
        appends = produce.take_appends()
        self._note_refused(produce)
        if not appends:
            self._answer_refused(produce)
        while appends:
            await self._broker.turn()
            some, appends = appends[:APPENDS_AT_ONCE], appends[APPENDS_AT_ONCE:]
            parts = [part for part, _, _ in some]
            outcome: Acknowledged | list[AppendOutcome]
            self._broker.metrics.requests[AppendRequest.api] += 1
            try:
                outcome = pending = self._broker.append([asked for _, asked, _ in some], [data for _, _, data in some])
                await pending.write_rest()
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                outcome = [as_seglog_error(error, AppendRequest.api)] * len(parts)
            self._connection.answer_appends(parts, some[0][1].ack, outcome, sum([len(data) for _, _, data in some]))
        self._connection.intake.give_back(frame)

    def _note_refused(self, produce: Produce) -> None:
        """End the connection if a batch was refused that gets no response: that is how its sender learns of it."""
        if produce.is_silent and produce.problem is not None:
            self._connection.log.warning("append_failed", ack="none", error=produce.problem)
            self._connection.end()

    def _answer_refused(self, produce: Produce) -> None:
        """Answer a request of which nothing is to be appended."""
        self._connection.answer_appends([ResultPart(produce, None)], produce.ack, [AppendReply([])], 0)

    # --- Other requests -----------------------------------------------------------------------------------------------

    def _serve(self, header: RequestHeader, frame: memoryview) -> None:
        """Serve anything but Produce: at once if possible, else it is a job of the task."""
        api = apis.accepted(self.apis, header)
        if len(frame) > READ_AT_ONCE_BYTES:
            self._connection.job = partial(self._read_slowly, api, header, self._kept(frame))
            return
        self._serve_request(api, header, read_request(header, frame))

    async def _read_slowly(self, api: Api, header: RequestHeader, frame: memoryview) -> None:
        """Read a large request in turns, and serve it."""
        self._serve_request(api, header, await self._read_in_turns(header, frame))

    async def _read_in_turns(self, header: RequestHeader, frame: memoryview) -> Request:
        """Read a request, some of it in a turn of the loop. Raises RemoteProtocolError if it is malformed."""
        await self._connection.take_memory_for(frame)
        await self._connection.sender.flush()
        reading = read_request_in_pieces(header, frame)
        while True:
            try:
                next(reading)
            except StopIteration as done:
                request: Request = done.value
                return request
            except WireError as error:
                raise RemoteProtocolError(str(error)) from None
            await self._broker.turn()

    def _serve_request(self, api: Api, header: RequestHeader, request: Request) -> None:
        connection = self._connection
        self._broker.metrics.requests[apis.counter_name(api.name)] += 1
        connection.spent += REQUEST_COST
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
        connection.spent = budget.TURN
        connection.job = partial(self._handle if api.refuse is None else self._handle_waiting, api, header, request)

    async def _handle(self, api: Api, header: RequestHeader, request: Request) -> None:
        await self._connection.sender.flush()
        assert api.handle is not None
        try:
            response = await api.handle(self._context(header), request)
        except Exception as error:  # noqa: BLE001 - logged; those before it are answered
            self._give_up(api.name, error)
            self._room.close()
        else:
            await self._send_response(header, response)

    async def _handle_waiting(self, api: Api, header: RequestHeader, request: Request) -> None:
        """Serve a request that may wait for minutes: until its peer leaves, or the connection is to end."""
        await self._connection.sender.flush()
        assert api.handle is not None
        assert api.refuse is not None
        context = self._context(header)
        try:
            response = await self._connection.wait_for(partial(api.handle, context, request), until_stop=True)
        except Exception as error:  # noqa: BLE001 - logged; those before it are answered
            self._give_up(api.name, error)
            return
        if response is not None:
            await self._send_response(header, response)
        elif self._stop_reason is not None:
            refusal = CoordinatorNotAvailableError(self._stop_reason)
            self._queue_response(header, api.refuse(context, request, refusal))

    def _give_up(self, api: str, error: Exception) -> None:
        """End the connection when those before it are answered: there is no response to a request that failed so."""
        failure = as_seglog_error(error, api)
        self._broker.metrics.request_errors[failure.code] += 1
        self._connection.log.error("connection_refused", reason=f"{api} failed: {failure.message}")
        self._connection.end()

    # --- Responses ----------------------------------------------------------------------------------------------------

    def _queue_response(self, header: RequestHeader, response: Response) -> None:
        """Send a response with the next flush, or, if it is large, by a job."""
        writing = write_response_in_pieces(header.correlation_id, response, header.version)
        next(writing)
        try:
            next(writing)
        except StopIteration as done:
            self._connection.sender.queue(b"".join(done.value))
            self._room.close()
        else:
            self._connection.job = partial(self._send_response, header, response)

    async def _send_response(self, header: RequestHeader, response: Response) -> None:
        """Write a response in turns and send it. One that is too large becomes an error."""
        try:
            try:
                chunks = await self._written(write_response_in_pieces(header.correlation_id, response, header.version))
            except Exception as error:  # noqa: BLE001 - logged; those before it are answered
                self._give_up(apis.accepted(self.apis, header).name, error)
                return
            if chunks is None:
                self._broker.metrics.request_errors["INVALID_REQUEST"] += 1
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
                    await self._broker.turn()

    async def _written(self, writing: Generator[int, None, Sequence[Chunk]]) -> Sequence[Chunk] | None:
        """The frame of a response, written in turns; None if it is too large."""
        next(writing)
        try:
            while True:
                size = next(writing)
                if size > self._room.used and not self._room.add(size - self._room.used):
                    return None
                await self._broker.turn()
                await self._room.wait()
        except StopIteration as done:
            chunks: Sequence[Chunk] = done.value
            return chunks
        finally:
            writing.close()

    async def _send_large(self, chunks: Sequence[Chunk]) -> None:
        """Send a response that may be large. Its peer is cut off if it takes it too slowly while others wait."""
        sender = self._connection.sender
        with self._room.sending(lambda: sender.taken) as scope:
            await sender.send_frame(chunks)
        if scope.cancelled_caught:
            raise CutError("others wait for the memory of a response that it takes too slowly")

    # --- Fetch --------------------------------------------------------------------------------------------------------

    def _fetch(self, header: RequestHeader, request: messages.FetchRequest) -> None:
        """Answer a fetch now, let it wait without a task, or leave it to a job."""
        connection = self._connection
        if sum([len(topic.partitions) for topic in request.topics]) > fetch.PARTITIONS_MAX:
            raise RemoteProtocolError(f"a Fetch request for more than {fetch.PARTITIONS_MAX} partitions")
        asked = fetch.Fetch(self._context(header), request)
        connection.spent += asked.count * 2 * budget.BATCH
        if asked.is_large:
            connection.job = partial(self._fetch_in_turns, header, asked)
            return
        finished(asked.read())
        if asked.has_only_errors:
            connection.job = partial(self._send_errors, header, asked)
            return
        try:
            answer = self._broker.fetch_now(asked.request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            connection.spent = budget.TURN
            self._queue_response(header, asked.failed_response(as_seglog_error(error, "Fetch")))
            return
        if answer is not None:
            connection.job = self._begin_answer(header, asked, answer)
            return
        waiter = Waiter(partial(self._retry_fetch, header, asked))
        if self._stop_reason is not None or not self._broker.wait_for(asked.request, waiter):
            connection.job = partial(self._fetch_slowly, header, asked)
            return
        self._waiter = waiter
        connection.hold()

    def _begin_answer(
        self, header: RequestHeader, asked: fetch.Fetch, answer: FetchAnswer
    ) -> Callable[[], Awaitable[None]] | None:
        """Send what the socket takes of an answer now; what a task has to do to end it, None if nothing.

        Closes the answer after an error, and when it is sent.
        """
        try:
            finished(asked.found(answer))
            self._count_found(answer)
            if asked.has_only_errors:
                answer.close()
                return partial(self._send_errors, header, asked)
            chunks = write_response(header.correlation_id, asked.response, header.version)
        except BaseException:
            answer.close()
            raise
        return self._connection.sender.begin_answer(answer, chunks)

    def _retry_fetch(self, header: RequestHeader, asked: fetch.Fetch, waiter: Waiter) -> None:
        """Answer a fetch that has waited, and go on with the requests behind it.

        What cannot be done at once is left to a task, which also handles errors.
        """
        answer: FetchAnswer | None = None
        rest: Callable[[], Awaitable[None]] | None = None
        try:
            if not waiter.is_ended and self._connection.sender.is_free:
                answer = self._broker.fetch_now(asked.request, waiter)
        except Exception:  # noqa: BLE001 - the task gets the same one
            answer = None
        if answer is None:
            fetching = partial(self._broker.fetch, asked.request, waiter)
            rest = partial(self._answer_fetch, header, asked, fetching)
        else:
            try:
                rest = self._begin_answer(header, asked, answer)
            except Exception as error:  # noqa: BLE001 - one connection must not end the others
                rest = partial(_raise, error)
        if rest is None:
            self._end_wait()
        else:
            self._connection.start_soon(partial(self._finish_wait, rest))

    async def _finish_wait(self, rest: Callable[[], Awaitable[None]]) -> None:
        await rest()
        self._end_wait()

    def _end_wait(self) -> None:
        self._waiter = None
        self._connection.release()

    def _count_found(self, answer: FetchAnswer) -> None:
        self._broker.metrics.fetch_bytes += answer.size
        count_errors(self._broker.metrics.request_errors, answer.reply)

    async def _fetch_in_turns(self, header: RequestHeader, asked: fetch.Fetch) -> None:
        """Serve a fetch from many partitions, some of them at a time."""
        await self._connection.sender.flush()
        await in_turns_of(asked.read(), self._broker.turn)
        if asked.has_only_errors:
            await self._send_errors(header, asked)
        else:
            await self._fetch_slowly(header, asked)

    async def _send_errors(self, header: RequestHeader, asked: fetch.Fetch) -> None:
        """Send a response of nothing but errors, a little later."""
        await self._connection.sender.flush()
        await asked.hold_errors()
        await self._send_response(header, asked.response)

    async def _fetch_slowly(self, header: RequestHeader, asked: fetch.Fetch) -> None:
        """Wait for the answer to a fetch, in the task of the connection, and send it."""
        await self._connection.sender.flush()
        self._waiter = waiter = Waiter()
        if self._stop_reason is not None:
            waiter.end()
        fetching = partial(self._broker.fetch, asked.request, waiter)
        await self._answer_fetch(header, asked, partial(self._connection.wait_for, fetching))
        self._waiter = None

    async def _answer_fetch(
        self, header: RequestHeader, asked: fetch.Fetch, fetching: Callable[[], Awaitable[FetchAnswer | None]]
    ) -> None:
        """Wait for what ``fetching`` finds and send it; nothing if the peer leaves first."""
        try:
            answer = await fetching()
        except RequestCancelledError:
            if self._stop_reason is not None:
                await self._send_response(header, asked.empty_response())
            return
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            await self._send_response(header, asked.failed_response(as_seglog_error(error, "Fetch")))
            return
        if answer is None:
            return
        with answer:
            await in_turns_of(asked.found(answer), self._broker.turn)
            self._count_found(answer)
            if asked.has_only_errors:
                await asked.hold_errors()
            await self._send_response(header, asked.response)


async def _raise(error: BaseException) -> None:
    raise error
