"""The responses of one connection: each counted against the memory for responses, a large one written in turns."""

from collections.abc import Generator, Sequence
from functools import partial
from typing import Final

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.context import Api
from seglog_broker.listeners.kafka.error_responses import count_errors
from seglog_broker.listeners.kafka.templates import SHARED_BYTES_MAX, Repeated, Templates
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.listeners.sender import Chunk
from seglog_broker.listeners.sending import send_within
from seglog_broker.runtime.metrics import UNKNOWN, ApiMetrics
from seglog_broker.runtime.response_memory import Room
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.kafka import Chunks, RequestHeader, messages, write_response, write_response_in_pieces
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request, Response
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
        self._broker = broker
        self._connection = connection

    def begin(self, counts: ApiMetrics, api: Api, request: Request | None, template: Repeated | None) -> None:
        """A request is being served, which has this ``template``; the response is added to ``counts``.

        ``request`` is None where it is too large for a template, and is not kept.
        """
        self._counts, self._api, self._request, self._template = counts, api, request, template

    def refuse(self, counts: ApiMetrics, header: RequestHeader, response: Response) -> None:
        """Send the response to a request that is not served; it is added to ``counts``."""
        self._counts, self._api, self._request, self._template = counts, None, None, None
        self.queue(header, response)

    def give_up(self, api: str, error: Exception) -> None:
        """End the connection when those before it are answered: there is no response to a request that failed so."""
        failure = as_seglog_error(error, api)
        self._counts.errors[ErrorCode(failure.kafka_code).name] += 1
        self._connection.log.error("connection_refused", reason=f"{api} failed: {failure.message}")
        self._connection.end(EndReason.REQUEST_FAILED)

    def queue(self, header: RequestHeader, response: Response) -> None:
        """Send a response with the next flush, or, if it is large, by a job."""
        repeated = self._write_again(header, response)
        if repeated is not None:
            self._queue_small(response, repeated)
            return
        writing = write_response_in_pieces(header.correlation_id, response, header.version)
        next(writing)
        try:
            next(writing)
        except StopIteration as done:
            self._queue_small(response, done.value)
            self._learn(header, response, done.value)
        else:
            self._connection.job = partial(self.send, header, response)

    def _queue_small(self, response: Response, chunks: Sequence[Buffer]) -> None:
        frame = b"".join(chunks)
        finished(count_errors(self._counts.errors, response))
        self._counts.note_answers(1, len(frame), self._connection.began)
        self._connection.sender.queue(frame)
        self.room.close()

    def write(self, header: RequestHeader, response: messages.FetchResponse) -> Chunks:
        """The frame of the response to a fetch that is not large but for its records."""
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.error_code:
                    self._counts.errors[ErrorCode(partition.error_code).name] += 1
        chunks = self._write_again(header, response)
        if chunks is None:
            chunks = write_response(header.correlation_id, response, header.version)
            self._learn(header, response, chunks)
        self._counts.note_answers(1, sum(map(len, chunks)), self._connection.began)
        return chunks

    def _write_again(self, header: RequestHeader, response: Response) -> Chunks | None:
        """The frame of a response, by its template; None if it has to be written in the ordinary way."""
        if self._template is None:
            return None
        chunks = self._template.write(header.correlation_id, response)
        if chunks is None:
            self.templates.remove(self._template)
        return chunks

    def _learn(self, header: RequestHeader, response: Response, chunks: Sequence[Chunk]) -> None:
        """Make a template of the request that is being served, whose ``response`` is written and needed no more."""
        api, request = self._api, self._request
        if api is None or request is None or api.repeats is None or not self.templates.is_due():
            return
        if sum([len(chunk) for chunk in chunks if isinstance(chunk, bytearray)]) > SHARED_BYTES_MAX:
            return
        template = Repeated(api, header, request, response)
        if template.is_small:
            self.templates.add(template)

    async def send(self, header: RequestHeader, response: Response) -> None:
        """Write a response in turns and send it. One that is too large becomes an error."""
        try:
            repeated = self._write_again(header, response)
            if repeated is not None:
                await self._count(response, repeated)
                await send_within(self.room, self._connection.sender, repeated)
                return
            try:
                chunks = await self._written(write_response_in_pieces(header.correlation_id, response, header.version))
            except Exception as error:  # noqa: BLE001 - logged; those before it are answered
                self.give_up(apis.APIS[header.api_key].name, error)
                return
            if chunks is None:
                small = apis.too_large(response, header.version)
                chunks = write_response(header.correlation_id, small, header.version)
                await self._count(small, chunks)
            else:
                await self._count(response, chunks)
                if len(chunks) == 1:  # without records
                    self._learn(header, response, chunks)
            await self._take_apart(response)
            await send_within(self.room, self._connection.sender, chunks)
        finally:
            self.room.close()

    async def _count(self, response: Response, chunks: Sequence[Chunk]) -> None:
        """Add a response to the metrics before it is sent, and its errors."""
        self._counts.note_answers(1, sum(map(len, chunks)), self._connection.began)
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
