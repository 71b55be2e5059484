"""Kafka's requests within native ones: the handlers of the Kafka listener, run behind a native connection.

The payload of a native request is one of Kafka's wire, that of its reply the response. It is read, admitted, served and
written as on Kafka's wire; what is no response is a native error. A request that waits holds up no other one.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.kafka import apis
from seglog_broker.listeners.kafka.context import Api, Endpoint, RequestContext
from seglog_broker.listeners.kafka.error_responses import error_response
from seglog_broker.listeners.kafka.slow_requests import Responses, SlowRequests
from seglog_broker.listeners.native.replies import queue_reply
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.listeners.sending import flush
from seglog_broker.listeners.transport import shown_host
from seglog_broker.runtime import budget
from seglog_protocol import errors
from seglog_protocol.frame_receiver import LENGTH_SIZE
from seglog_protocol.frames import encode_packed_prefix
from seglog_protocol.kafka import RequestHeader, UnsupportedVersion, WireError, read_request_header
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request, Response
from seglog_protocol.messages import KafkaReply, pack_reply

APIS: Final = MappingProxyType({key: api for key, api in apis.APIS.items() if api.is_carried})
"""Those that are served so, by api key."""

WAITING_BYTES_MAX: Final = 64 * 1024
"""The requests of one connection that wait have so many bytes together. One alone is always let in."""

WAITING_BYTES_LEAST: Final = 1024
"""Each of them counts for so many at least: it has a task."""


class Carried:
    """Serves such requests of ``connection``."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self.apis: Mapping[int, Api] = APIS
        self.waiting: dict[CarriedRequest, trio.CancelScope] = {}
        """Those that wait, each with what ends its wait."""
        self.stop_reason = ""
        """Why requests wait for nothing any more; empty while they do."""
        self._broker = broker
        self._connection = connection

    def stop(self, reason: str) -> None:
        """Answer those that wait at once."""
        self.stop_reason = reason
        self.drop()

    def drop(self) -> None:
        """Drop those that wait."""
        for scope in self.waiting.values():
            scope.cancel()

    def serve(self, request_id: int, frame: memoryview, size: int) -> None:
        """Have a job serve the request in a payload, which is kept. Its native frame has ``size`` bytes.

        Raises InvalidRequestError, UnsupportedApiError or UnsupportedVersionError for what is not served so.
        """
        connection = self._connection
        try:
            header = read_request_header(frame)
            api = apis.accepted(self.apis, header)
        except UnsupportedVersion as error:
            raise self._unsupported(error) from None
        except WireError as error:
            raise _malformed(error) from None
        connection.counts.of(api.name).note_request(size)
        connection.spent = budget.TURN
        request = CarriedRequest(self._broker, connection, self, request_id, api, header)
        connection.job = partial(request.serve, frame)

    def _unsupported(self, error: UnsupportedVersion) -> errors.SeglogError:
        api = self.apis.get(error.api_key)
        if api is None:
            names = ", ".join([f"{api.name} ({api.key})" for api in self.apis.values()])
            told = f"no request of Kafka's with the key {error.api_key} is taken within native ones; there are {names}"
            return errors.UnsupportedApiError(told, api=str(error.api_key))
        lowest, highest = api.versions.start, api.versions.stop - 1
        told = f"{api.name} is spoken in versions {lowest} to {highest}, not {error.version}"
        return errors.UnsupportedVersionError(told, api=api.name, minimum=lowest, maximum=highest)


class CarriedRequest(Responses):
    """One request, and the sending of its response."""

    def __init__(
        self, broker: Broker, connection: Connection, beside: Carried, request_id: int, api: Api, header: RequestHeader
    ) -> None:
        """``beside`` are those of the same connection."""
        super().__init__(broker, connection, broker.response_memory.room(connection.transport.host))
        self.begin(connection.counts.of(api.name), api, None, None)
        self.size = WAITING_BYTES_LEAST
        """Its bytes, as far as they count while it waits."""
        self._beside = beside
        self._request_id = request_id
        self._kind = api
        self._header = header
        address, host = Endpoint(*connection.transport.local), shown_host(connection.transport.host)
        self._context = RequestContext(
            broker,
            address,
            header.version,
            header.client_id,
            host,
            self.room,
            connection.session,
            connection.usage,
            is_carried=True,
        )

    def framed(self, chunks: Sequence[Any]) -> Sequence[Any]:
        """The frame of the native reply."""
        first, *others = chunks
        head = pack_reply(self._request_id, KafkaReply())
        prefix = encode_packed_prefix(head, sum(map(len, chunks)) - LENGTH_SIZE)
        return [prefix, memoryview(first)[LENGTH_SIZE:], *others]

    def give_up(self, api: str, error: Exception) -> None:
        """Answer with a native error; the connection goes on."""
        failure = as_seglog_error(error, api)
        queue_reply(self._connection.sender, self._counts, self._began, self._request_id, failure)
        self.room.close()

    async def serve(self, frame: memoryview) -> None:
        """Read it in turns, and serve it."""
        self.size = max(self.size, len(frame))
        slow = SlowRequests(self._broker, self._connection, self)
        try:
            await slow.read(self._header, frame, partial(self._serve, slow))
        except errors.RemoteProtocolError as error:
            self.give_up(self._kind.name, _malformed(error))

    def _serve(self, slow: SlowRequests, request: Request) -> None:
        api, header, context, connection = self._kind, self._header, self._context, self._connection
        if (refusal := api.refusal_of(connection.session, request)) is not None:
            connection.job = partial(slow.refuse, header, request, *refusal)
            return
        try:
            response = None if api.handle_now is None else api.handle_now(context, request)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self.give_up(api.name, error)
            return
        if response is not None:
            self.queue(header, response)
        elif not api.waits:
            connection.job = partial(slow.handle, api, context, header, request)
        else:
            connection.job = partial(self._begin_wait, request)

    async def _begin_wait(self, request: Request) -> None:
        """Have a task serve it; what came behind it is served when its handler has begun, up to its first wait."""
        waiting = self._beside.waiting
        if waiting and sum(each.size for each in waiting) + self.size > WAITING_BYTES_MAX:
            told = f"{len(waiting)} requests wait on this connection already; with one more they would be too many"
            self.give_up(self._kind.name, errors.InvalidRequestError(told, field=""))
            return
        begun = trio.Event()
        waiting[self] = scope = trio.CancelScope()
        if self._beside.stop_reason:
            scope.cancel()
        self._connection.start_soon(partial(self._wait, request, scope, begun))
        await begun.wait()

    async def _wait(self, request: Request, scope: trio.CancelScope, begun: trio.Event) -> None:
        """Serve it until its peer leaves, or the connection is to end."""
        api = self._kind
        assert api.handle is not None
        response: Response | None = None
        begun.set()
        try:
            with scope:
                response = await api.handle(self._context, request)
            if response is None and self._beside.stop_reason:
                code, why = ErrorCode.COORDINATOR_NOT_AVAILABLE, self._beside.stop_reason
                response = error_response(request, self._header.version, code, why)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self.give_up(api.name, error)
            await flush(self._connection.sender)
        finally:
            del self._beside.waiting[self]
            if response is None:
                self.room.close()
        if response is not None:
            await self.send(self._header, response)


def _malformed(error: Exception) -> errors.InvalidRequestError:
    return errors.InvalidRequestError(f"the payload is no request of Kafka's wire: {error}", field="payload")
