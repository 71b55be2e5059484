"""What comes before the requests of a client that has to authenticate, on Kafka's wire.

It asks for ApiVersions, if it likes, chooses a mechanism by SaslHandshake, and sends its tokens: in SaslAuthenticate
requests, or behind version 0 of SaslHandshake as frames of nothing else. Anything else closes the connection, as in
Kafka.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners import admission
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.connection_task import meets_fault, receive_first
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.hangup import wait_until_left
from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.context import RequestContext
from seglog_broker.listeners.kafka.error_responses import count_errors
from seglog_broker.listeners.kafka.first_bytes import answer_to_http, native_client
from seglog_broker.listeners.kafka.handlers import sasl
from seglog_broker.listeners.sending import flush
from seglog_broker.listeners.session import EXCHANGE_SECONDS
from seglog_broker.runtime.metrics import UNKNOWN
from seglog_protocol import errors, kafka
from seglog_protocol.frame_receiver import LENGTH_SIZE
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.frames import KafkaFrameReader
from seglog_protocol.kafka.structs import Response
from seglog_protocol.steps import finished

FRAMES_MAX: Final = 20
"""Frames before a client is authenticated. A login takes four."""


READ_SECONDS: Final = 0.1
"""How long a client has to read why its login failed, before the connection ends."""


@dataclass(eq=False, repr=False)
class Greeting:
    """The exchange before the first request of a connection; ``context_of`` makes the context of a request.

    ``native_port`` is for seglog's own clients, which may have come here.
    """

    _broker: Broker
    _connection: Connection
    _frames: KafkaFrameReader
    _native_port: int
    _context_of: Callable[[kafka.RequestHeader], RequestContext]

    def __post_init__(self) -> None:
        self._counts = self._connection.counts.of(UNKNOWN)  # of the request that is served
        self._began = 0.0  # when that was taken up
        self._has_versions = False
        self._is_raw = False  # whether frames are tokens and nothing else

    async def greet(self) -> bool:
        """Read until the client is authenticated; False if the connection is to end instead."""
        connection, frames = self._connection, self._frames
        limits = frames.frame_bytes_max, frames.frame_bytes_min
        frames.frame_bytes_max = self._broker.config.sasl_server_max_receive_size
        reason, counted = f"it was not authenticated within {EXCHANGE_SECONDS} s", EndReason.NOT_GREETED
        answer = b""
        try:
            with trio.move_on_after(EXCHANGE_SECONDS):
                for _ in range(FRAMES_MAX):
                    frame = await self._next_frame()
                    if frame is None:
                        return False
                    if not self._is_raw and await meets_fault(connection, frame):
                        continue
                    await self._broker.turn()  # many may connect at once
                    await (self._take_token(frame) if self._is_raw else self._answer(frame))
                    await flush(connection.sender)
                    if connection.session.has_failed:
                        # Some clients take the end of the connection for an answer that they miss.
                        with trio.move_on_after(READ_SECONDS):
                            await wait_until_left(self._connection.transport)
                        return False
                    if connection.session.is_open:
                        return True
                reason = f"it was not authenticated after {FRAMES_MAX} requests"
        except errors.WrongPortError as error:
            connection.end_by(error)
            return False
        except (errors.SeglogError, kafka.WireError) as error:
            reason, counted = str(error), EndReason.PROTOCOL_ERROR
            answer = b"" if self._has_versions or isinstance(error, kafka.WireError) else answer_to_http(error)
        finally:
            frames.frame_bytes_max, frames.frame_bytes_min = limits
        connection.log.warning("connection_refused", reason=reason)
        connection.end(counted, answer)
        return False

    async def _next_frame(self) -> memoryview | None:
        """The next frame, in memory of its own; None at the end of the connection."""
        connection = self._connection
        while (frame := self._frames.next_frame()) is None:
            if self._frames.wanted and not connection.intake.take_memory():
                await admission.wait_for_memory(connection.intake)
            received = await receive_first(connection)
            if received is not None and not received:
                return None
        frame = memoryview(bytes(frame))
        connection.settle()
        connection.intake.free_unused()
        return frame

    async def _answer(self, frame: memoryview) -> None:
        """Answer a request. Raises RemoteProtocolError, or WireError, for one that has no place here.

        Of that, WrongPortError is for a seglog client.
        """
        try:
            header = kafka.RequestHeaderReader().read(frame)
        except kafka.UnsupportedVersion as error:
            if error.api_key != apis.API_VERSIONS or self._has_versions:
                raise native_client(frame, self._native_port) or errors.RemoteProtocolError(str(error)) from None
            self._begin("ApiVersions", frame)
            self._send(
                kafka.RequestHeader(apis.API_VERSIONS, 0, error.correlation_id, None, 0),
                apis.unsupported_api_versions(),
            )
            return
        api = apis.accepted(apis.APIS, header)
        self._begin(api.name, frame)
        session = self._connection.session
        if session.is_in_exchange:
            if header.api_key == sasl.SASL_AUTHENTICATE:
                request: Any = kafka.read_request(header, frame)
                self._send(header, await sasl.authenticate(self._context_of(header), request))
                return
            self._send(header, sasl.out_of_place(header, frame))
            await flush(self._connection.sender)
            raise errors.RemoteProtocolError(f"{api.name} came in the middle of an exchange of SASL")
        if header.api_key == apis.API_VERSIONS and not self._has_versions:
            request = kafka.read_request(header, frame)
            versions = apis.api_versions(self._context_of(header), request)
            self._has_versions = versions.error_code == ErrorCode.NONE
            self._send(header, versions)
        elif header.api_key == sasl.SASL_HANDSHAKE:
            request = kafka.read_request(header, frame)
            self._send(header, sasl.handshake(self._context_of(header), request))
            if header.version == 0 and not session.has_failed:
                self._is_raw, self._frames.frame_bytes_min = True, 0
        else:
            raise errors.RemoteProtocolError(
                f"{api.name} came before SaslHandshake: the listener wants clients to authenticate"
            )

    async def _take_token(self, token: memoryview) -> None:
        """One step of an exchange without requests: a failure has no answer."""
        try:
            step = await self._connection.session.respond(bytes(token))
        except errors.AuthenticationError:
            return
        self._connection.sender.queue(len(step.token).to_bytes(LENGTH_SIZE, "big") + step.token)

    def _begin(self, api: str, frame: memoryview) -> None:
        """Count a request."""
        self._began = perf_counter()
        self._counts = self._connection.counts.of(api)
        self._counts.note_request(LENGTH_SIZE + len(frame))

    def _send(self, header: kafka.RequestHeader, response: Response) -> None:
        frame = b"".join(kafka.write_response(header.correlation_id, response, header.version))
        finished(count_errors(self._counts.errors, response))
        self._counts.note_answers(1, len(frame), self._began)
        self._connection.sender.queue(frame)
