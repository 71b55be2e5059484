"""Requests that the task of a connection serves: large ones in turns, those whose handlers wait, and slow fetches.

The responses of one connection are counted, each, against the memory for responses; a large one is written in turns.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.engine.pending_appends import Acknowledged
from seglog_broker.listeners.admission import take_share
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.connection_task import take_memory_for, wait_for
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.error_responses import count_errors, error_response_in_steps
from seglog_broker.listeners.kafka.handlers.fetch import Fetch
from seglog_broker.listeners.kafka.handlers.produce import APPENDS_AT_ONCE, PARTITIONS_MAX, Produce, ResultPart
from seglog_broker.listeners.kafka.templates import SHARED_BYTES_MAX, Repeated, Templates
from seglog_broker.listeners.kafka.transactional_produce import admit, batches_of
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error
from seglog_broker.listeners.sender import Chunk
from seglog_broker.listeners.sending import flush, send_within
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime import budget
from seglog_broker.runtime.metrics import UNKNOWN, ApiMetrics
from seglog_broker.runtime.request_memory import DECODED_BYTES_MAX, Share
from seglog_broker.runtime.response_memory import Room
from seglog_protocol import errors, kafka
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request, Response
from seglog_protocol.messages import AppendReply, AppendRequest
from seglog_protocol.steps import finished, in_turns_of

APART_BYTES: Final = 1024 * 1024
"""Of a response that are freed before other tasks run."""


class Responses:
    """Writes and sends responses, of which ``room`` is the memory."""

    def __init__(self, broker: Broker, connection: Connection, room: Room) -> None:
        self.room = room
        self.templates = Templates()
        self.stop_reason: str | None = None
        """Why requests wait for nothing any more; None while they do."""
        self._counts = connection.counts.of(UNKNOWN)  # of the request that is being served, of which there is one
        self._api: Api | None = None
        self._request: Request | None = None
        self._template: Repeated | None = None
        self._began = 0.0  # when that was taken up
        self._is_throttled = False  # its client
        self._broker = broker
        self._connection = connection

    def begin(self, counts: ApiMetrics, api: Api | None, request: Request | None, template: Repeated | None) -> None:
        """A request is being served, which has this ``template``; the response is added to ``counts``.

        ``request`` is None where it is too large for a template, and is not kept.
        """
        self._counts, self._api, self._request, self._template = counts, api, request, template
        self._began = self._connection.began

    def refuse(self, counts: ApiMetrics, header: kafka.RequestHeader, response: Response) -> None:
        """Send the response to a request that is not served; it is added to ``counts``."""
        self.begin(counts, None, None, None)
        self.queue(header, response)

    def give_up(self, api: str, error: Exception) -> None:
        """End the connection when those before it are answered: there is no response to a request that failed so."""
        failure = as_seglog_error(error, api)
        self._counts.errors[ErrorCode(failure.kafka_code).name] += 1
        self._connection.log.error("connection_refused", reason=f"{api} failed: {failure.message}")
        self._connection.end(EndReason.REQUEST_FAILED)

    def framed(self, chunks: Sequence[Any]) -> Sequence[Any]:
        """The frame of a response as it is sent, of the one that Kafka's wire has."""
        return chunks

    def queue(self, header: kafka.RequestHeader, response: Response) -> None:
        """Send a response with the next flush, or, if it is large, by a job."""
        self._note_throttle(response)
        repeated = self._write_again(header, response)
        if repeated is not None:
            self._queue_small(response, repeated)
            return
        writing = kafka.write_response_in_pieces(header.correlation_id, response, header.version)
        next(writing)
        try:
            next(writing)
        except StopIteration as done:
            self._queue_small(response, done.value)
            self._learn(header, response, done.value)
        else:
            self._connection.job = partial(self.send, header, response)

    def _note_throttle(self, response: Any) -> None:
        """Put into a response for how long its connection is not read."""
        usage = self._connection.usage
        usage.note_time()
        self._is_throttled = usage.muted_until > 0
        if self._is_throttled and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = usage.throttle_ms

    def _queue_small(self, response: Response, chunks: Sequence[Buffer]) -> None:
        frame = b"".join(self.framed(chunks))
        finished(count_errors(self._counts.errors, response))
        self._counts.note_answers(1, len(frame), self._began)
        self._connection.sender.queue(frame)
        self.room.close()

    def write(self, header: kafka.RequestHeader, response: kafka.messages.FetchResponse) -> kafka.Chunks:
        """The frame of the response to a fetch that is not large but for its records."""
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.error_code:
                    self._counts.errors[ErrorCode(partition.error_code).name] += 1
        self._note_throttle(response)
        chunks = self._write_again(header, response)
        if chunks is None:
            chunks = kafka.write_response(header.correlation_id, response, header.version)
            self._learn(header, response, chunks)
        self._counts.note_answers(1, sum(map(len, chunks)), self._began)
        return chunks

    def _write_again(self, header: kafka.RequestHeader, response: Response) -> kafka.Chunks | None:
        """The frame of a response, by its template; None if it has to be written in the ordinary way."""
        if self._template is None or self._is_throttled or not self._template.has_responses:
            return None
        chunks = self._template.write(header.correlation_id, response)
        if chunks is None:
            self.templates.remove(self._template)
        return chunks

    def _learn(self, header: kafka.RequestHeader, response: Response, chunks: Sequence[Chunk]) -> None:
        """Make a template of the request that is being served, whose ``response`` is written and needed no more."""
        api, request = self._api, self._request
        if self._template is not None and not self._template.has_responses:
            return
        if api is None or request is None or api.repeats is None or self._is_throttled or not self.templates.is_due():
            return
        if sum([len(chunk) for chunk in chunks if isinstance(chunk, bytearray)]) > SHARED_BYTES_MAX:
            return
        template = Repeated(api, header, request, response)
        if template.is_small:
            self.templates.add(template)

    async def send(self, header: kafka.RequestHeader, response: Response) -> None:
        """Write a response in turns and send it. One that is too large becomes an error."""
        self._note_throttle(response)
        try:
            repeated = self._write_again(header, response)
            if repeated is not None:
                await self._count(response, repeated)
                await send_within(self.room, self._connection.sender, repeated)
                return
            try:
                chunks = await self._written(
                    kafka.write_response_in_pieces(header.correlation_id, response, header.version)
                )
            except Exception as error:  # noqa: BLE001 - logged; those before it are answered
                self.give_up(apis.APIS[header.api_key].name, error)
                return
            if chunks is None:
                small = apis.too_large(response, header.version)
                chunks = kafka.write_response(header.correlation_id, small, header.version)
                await self._count(small, chunks)
            else:
                await self._count(response, chunks)
                if len(chunks) == 1:  # without records
                    self._learn(header, response, chunks)
            await self._take_apart(response)
            await send_within(self.room, self._connection.sender, self.framed(chunks))
        finally:
            self.room.close()

    async def _count(self, response: Response, chunks: Sequence[Chunk]) -> None:
        """Add a response to the metrics before it is sent, and its errors."""
        self._counts.note_answers(1, sum(map(len, chunks)), self._began)
        await in_turns_of(count_errors(self._counts.errors, response), self._broker.turn)

    async def _take_apart(self, response: Response) -> None:
        """Free the parts of a large response in turns: all at once holds up others as long as making them."""
        if self.room.used <= APART_BYTES:
            return
        fields: Sequence[str] = response.__slots__
        for field in fields:
            parts = getattr(response, field)
            if isinstance(parts, list):
                at_once = 1 + APART_BYTES * len(parts) // self.room.used
                while parts:
                    del parts[-at_once:]
                    await self._broker.turn()

    async def _written(self, writing: Generator[int, None, Sequence[Chunk]]) -> Sequence[Chunk] | None:
        """The frame of a response, written in turns; None if it is too large."""
        next(writing)
        try:
            while True:
                size = next(writing)
                if size > self.room.used and not self.room.add(size - self.room.used):
                    return None
                await self._broker.turn()
                await self.room.wait()
        except StopIteration as done:
            chunks: Sequence[Chunk] = done.value
            return chunks
        finally:
            writing.close()


REFUSED_AT_ONCE: Final = budget.items_of(cost=4)
"""Partitions of a Produce request that are looked at, and perhaps refused, before other connections have their turn."""

PRODUCED_BYTES_MAX: Final = 500 * PARTITIONS_MAX
"""Of memory for a Produce request beside its frame: of partitions, each in a topic of its own."""


class SlowRequests:
    """Serves requests of ``connection`` as long as it takes."""

    def __init__(self, broker: Broker, connection: Connection, responses: Responses) -> None:
        self._broker = broker
        self._connection = connection
        self._responses = responses
        self._decoded: Share | None = None  # of the memory for large requests that are read

    async def read(self, header: kafka.RequestHeader, frame: memoryview, serve: Callable[[Request], None]) -> None:
        """Read a large request in turns, and ``serve`` it."""
        serve(await self._read_in_turns(header, frame))
        job = self._connection.job
        if not isinstance(job, partial) or job.func not in (self.handle, self.refuse):
            self.free_decoded()

    def free_decoded(self, request: Request | None = None) -> None:
        """Give back the memory of a large request that was read, of which ``request`` keeps its arrays no more."""
        if self._decoded is not None:
            fields: Sequence[str] = () if request is None else request.__slots__
            for field in fields:
                if isinstance(getattr(request, field), list):
                    setattr(request, field, [])
            self._decoded.close()
            self._decoded = None

    async def _read_in_turns(
        self, header: kafka.RequestHeader, frame: memoryview, size_max: int = DECODED_BYTES_MAX
    ) -> Request:
        """Read a request, some of it in a turn of the loop. Raises RemoteProtocolError if it is malformed.

        ``free_decoded`` must follow; it takes ``size_max`` bytes when it is read, or fewer.
        """
        await take_memory_for(self._connection, frame)
        await flush(self._connection.sender)
        self._decoded = self._broker.decoded_memory.begin()
        await take_share(self._decoded, min(kafka.decoded_bytes_max(len(frame)), size_max))
        reading = kafka.read_request_in_pieces(header, frame)
        while True:
            try:
                next(reading)
            except StopIteration as done:
                request: Request = done.value
                return request
            except kafka.WireError as error:
                self.free_decoded()
                raise errors.RemoteProtocolError(str(error)) from None
            await self._broker.turn()

    async def produce(self, context: RequestContext, header: kafka.RequestHeader, frame: memoryview) -> None:
        """Serve a Produce request for many partitions, some of them at a time, or one that adds to a transaction."""
        request = await self._read_in_turns(header, frame, PRODUCED_BYTES_MAX)
        assert isinstance(request, kafka.messages.ProduceRequest)
        produce = Produce.of(context, header.correlation_id, request)
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
        refusal = await admit(context, request.transactional_id, batches_of(context, request))
        appends = produce.take_appends()
        self.note_refused(produce)
        if not appends:
            self.answer_refused(produce)
        while appends:
            await self._broker.turn()
            some, appends = appends[:APPENDS_AT_ONCE], appends[APPENDS_AT_ONCE:]
            parts = [part for part, _, _ in some]
            outcome: Acknowledged | list[AppendOutcome]
            if refusal is not None:
                outcome = [refusal] * len(parts)
            else:
                try:
                    outcome = pending = self._broker.append(
                        [each for _, each, _ in some], [data for _, _, data in some]
                    )
                    await pending.write_rest()
                except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                    outcome = [as_seglog_error(error, AppendRequest.api)] * len(parts)
            self._connection.answer_appends(parts, some[0][1].ack, outcome, sum([len(data) for _, _, data in some]))
        self._connection.intake.give_back(frame)
        self.free_decoded()

    def note_refused(self, produce: Produce) -> None:
        """End the connection if a batch was refused that gets no response: that is how its sender learns of it."""
        if produce.is_silent and produce.problem is not None:
            self._connection.log.warning("append_failed", ack="none", error=produce.problem)
            self._connection.end(EndReason.APPEND_FAILED)

    def answer_refused(self, produce: Produce) -> None:
        """Answer a request of which nothing is to be appended."""
        self._connection.answer_appends([ResultPart(produce, None)], produce.ack, [AppendReply([])], 0)

    async def handle(self, api: Api, context: RequestContext, header: kafka.RequestHeader, request: Request) -> None:
        """Serve a request whose handler waits for turns, for the disk, or for what it changes to be durable."""
        await flush(self._connection.sender)
        assert api.handle is not None
        try:
            response = await api.handle(context, request)
        except Exception as error:  # noqa: BLE001 - logged; those before it are answered
            self._responses.give_up(api.name, error)
            self._responses.room.close()
        else:
            self.free_decoded(request)
            await self._responses.send(header, response)
            if context.session.has_failed:
                self._connection.end(EndReason.AUTHENTICATION_FAILED)

    async def refuse(self, header: kafka.RequestHeader, request: Request, code: ErrorCode, message: str | None) -> None:
        """Answer a request with an error, for each thing that it names."""
        await flush(self._connection.sender)
        steps = error_response_in_steps(request, header.version, code, message)
        response = await in_turns_of(steps, self._broker.turn)
        self.free_decoded(request)
        await self._responses.send(header, response)

    async def handle_waiting(
        self, api: Api, context: RequestContext, header: kafka.RequestHeader, request: Request
    ) -> None:
        """Serve a request that may wait for minutes: until its peer leaves, or the connection is to end."""
        await flush(self._connection.sender)
        assert api.handle is not None
        try:
            response = await wait_for(self._connection, partial(api.handle, context, request), until_stop=True)
        except Exception as error:  # noqa: BLE001 - logged; those before it are answered
            self._responses.give_up(api.name, error)
            return
        if response is not None:
            await self._responses.send(header, response)
        elif self._responses.stop_reason is not None:
            await self.refuse(header, request, ErrorCode.COORDINATOR_NOT_AVAILABLE, self._responses.stop_reason)


ERRORS_HELD_SECONDS: Final = 0.1
"""A response of nothing but errors is held for so long: some clients ask again at once, thousands of times a second."""


class SlowFetches:
    """Serves fetches of ``connection`` as long as it takes."""

    def __init__(self, broker: Broker, connection: Connection, responses: Responses) -> None:
        self._broker = broker
        self._connection = connection
        self._responses = responses

    async def serve_in_turns(self, header: kafka.RequestHeader, asked: Fetch, waiter: Waiter) -> None:
        """Serve a fetch from many partitions, some of them at a time."""
        await flush(self._connection.sender)
        await in_turns_of(asked.read(), self._broker.turn)
        if asked.has_only_errors:
            await self.send_errors(header, asked)
        else:
            await self.serve(header, asked, waiter)

    async def send_errors(self, header: kafka.RequestHeader, asked: Fetch) -> None:
        """Send a response of nothing but errors, a little later."""
        await flush(self._connection.sender)
        await self._hold_errors(asked)
        await self._responses.send(header, asked.response)

    async def serve(self, header: kafka.RequestHeader, asked: Fetch, waiter: Waiter) -> None:
        """Wait for the answer to a fetch, and send it."""
        await flush(self._connection.sender)
        fetching = partial(self._broker.fetch, asked.request, waiter)
        await self._answer(header, asked, partial(wait_for, self._connection, fetching))

    async def serve_waiting(self, header: kafka.RequestHeader, asked: Fetch, waiter: Waiter) -> None:
        """As ``serve``, for a fetch that has waited without a task."""
        await self._answer(header, asked, partial(self._broker.fetch, asked.request, waiter))

    async def _answer(
        self, header: kafka.RequestHeader, asked: Fetch, fetching: Callable[[], Awaitable[FetchAnswer | None]]
    ) -> None:
        """Wait for what ``fetching`` finds and send it; nothing if the peer leaves first."""
        try:
            answer = await fetching()
        except errors.RequestCancelledError:
            if self._responses.stop_reason is not None:
                await self._responses.send(header, asked.empty_response())
            return
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            await self._responses.send(header, asked.failed_response(as_seglog_error(error, "Fetch")))
            return
        if answer is None:
            return
        with answer:
            await in_turns_of(asked.found(answer), self._broker.turn)
            if asked.has_only_errors:
                await self._hold_errors(asked)
            await self._responses.send(header, asked.response)

    async def _hold_errors(self, asked: Fetch) -> None:
        await trio.sleep(min(ERRORS_HELD_SECONDS, asked.max_wait_ms / 1000))


async def then(serve: Callable[[], Awaitable[None]], end: Callable[[], None]) -> None:
    """``serve``, then ``end``."""
    await serve()
    end()


async def fail(error: BaseException) -> None:
    """Raise ``error`` in the task."""
    raise error
