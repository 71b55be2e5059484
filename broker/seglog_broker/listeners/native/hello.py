"""The first exchange of a native connection: hello, and hints for peers that speak something else."""

from collections.abc import Sequence
from time import perf_counter
from typing import Final

import msgspec
import trio

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.connection_task import meets_fault, receive_first
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.native.first_bytes import hint_for
from seglog_broker.listeners.native.replies import queue_reply
from seglog_broker.listeners.request_errors import as_seglog_error
from seglog_broker.listeners.sending import flush
from seglog_broker.runtime.metrics import UNKNOWN
from seglog_broker.security.principals import ANONYMOUS
from seglog_protocol import errors, messages
from seglog_protocol.access import Kind, Operation
from seglog_protocol.frames import Frame, FrameReader
from seglog_protocol.messages.base import INT32_MAX

SECONDS: Final = 10
"""A connection without a valid hello after this time is closed."""

BYTES_MAX: Final = 64 * 1024
"""Largest frame before hello. A larger size most likely comes from another protocol, and closes the connection."""

TRIES_MAX: Final = 20
"""Requests before the connection is closed: an authentication takes three or four, and hellos may be refused."""

_FIRST: Final = frozenset({messages.HelloRequest.api, messages.AuthenticateRequest.api})

FIRST_BYTES: Final = 16
"""First bytes that are kept, to recognise the protocol of a peer that is not a seglog client."""


async def greet(broker: Broker, connection: Connection, frames: FrameReader, kafka: Sequence[str]) -> bool:
    """Read up to the first valid hello and answer it; False when the connection is to end instead.

    ``kafka`` are the addresses for Kafka's clients, for one that has come here.
    """
    first, refused = b"", ""
    try:
        with trio.move_on_after(SECONDS):
            for _ in range(TRIES_MAX):
                while (frame := frames.next_frame()) is None:
                    received = await receive_first(connection)
                    if received is None:
                        continue
                    if not received:
                        return False
                    first += bytes(received[: FIRST_BYTES - len(first)])
                frame = Frame(memoryview(bytes(frame.packed)), memoryview(bytearray(frame.payload)))
                connection.settle()
                if await meets_fault(connection, frame):
                    continue
                reply = await _answer(broker, connection, frame)
                if isinstance(reply, messages.HelloReply):
                    frames.frame_bytes_max = broker.request_memory.request_bytes_max
                await flush(connection.sender)
                if isinstance(reply, messages.HelloReply):
                    return True
                if isinstance(reply, messages.AuthenticateReply):
                    continue
                if connection.session.has_failed:
                    return False
                if getattr(reply, "field", "") in {"api", "protocol"}:
                    return False
                refused = reply.message
            return False
    except errors.RemoteProtocolError:
        hint = hint_for(first, kafka)
        reason = hint.reason
    else:
        hint = hint_for(first)
        if refused:
            reason = f"no other hello came within {SECONDS} s: {refused}"
        else:
            reason = f"no whole hello came within {SECONDS} s" if first else f"it sent nothing for {SECONDS} s"
    connection.log.info("connection_refused", reason=reason, kind=hint.kind, first=first.hex(" "))
    connection.end(EndReason.NOT_GREETED, b"" if refused else hint.answer)
    return False


async def _answer(
    broker: Broker, connection: Connection, frame: Frame
) -> messages.HelloReply | messages.AuthenticateReply | errors.SeglogError:
    """Answer what should be a hello, or comes before one; the answer. After most errors the peer may try again."""
    opened = messages.open_request(frame.packed)
    counts, began = connection.counts.of(api_label(opened)), perf_counter()
    counts.note_request(frame.size)
    reply: messages.HelloReply | messages.AuthenticateReply | errors.SeglogError
    try:
        request = _first_request(opened, frame)
        if isinstance(request, messages.AuthenticateRequest):
            reply = await authenticate(connection, request)
        else:
            reply = await reply_to(broker, connection, request)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        reply = as_seglog_error(error, messages.HelloRequest.api)
    queue_reply(connection.sender, counts, began, opened.request_id, reply)
    return reply


async def authenticate(connection: Connection, request: messages.AuthenticateRequest) -> messages.AuthenticateReply:
    """One step of an exchange, which the first one begins. Raises AuthenticationError."""
    session = connection.session
    if not session.is_in_exchange:
        session.begin(request.mechanism, is_alone=False)  # if it is not offered, the client learns what it may choose
    step = await session.respond(request.token)
    return messages.AuthenticateReply(
        step.token,
        is_done=step.is_done,
        principal=session.principal if step.is_done else "",
        session_ms=None if step.session_ms is None else min(step.session_ms, INT32_MAX),
    )


async def reply_to(broker: Broker, connection: Connection, request: messages.HelloRequest) -> messages.HelloReply:
    """The reply to a hello.

    Raises AuthenticationRequiredError if the client has to authenticate first, InvalidRequestError if it is not for us.
    """
    if request.protocol != messages.PROTOCOL_NAME:
        raise errors.InvalidRequestError(
            f"this broker speaks the protocol {messages.PROTOCOL_NAME!r}, not {request.protocol!r}", field="protocol"
        )
    session = connection.session
    if not session.is_open:
        raise errors.AuthenticationRequiredError(
            f"this listener wants clients to authenticate, by {' or '.join(session.mechanisms)}: connect with an "
            "account (user and password)",
            mechanisms=list(session.mechanisms),
        )
    connection.usage.client_id = request.client
    principal = None if session.principal == ANONYMOUS else session.principal
    hides = broker.authority.is_enforced and not session.sees(Operation.DESCRIBE, Kind.CLUSTER)  # problems name topics
    reply = broker.hello([] if hides else await broker.find_problems())
    if hides:
        reply = msgspec.structs.replace(reply, log_dir="", backup=None)
    return msgspec.structs.replace(reply, principal=principal)


def _first_request(
    opened: messages.OpenedRequest, frame: Frame
) -> messages.HelloRequest | messages.AuthenticateRequest:
    if opened.api not in _FIRST:
        raise errors.InvalidRequestError(
            f"the first request of a connection must be hello, not {opened.api!r}", field="api"
        )
    request = without_payload(opened, frame)
    assert isinstance(request, (messages.HelloRequest, messages.AuthenticateRequest))
    return request


def api_label(opened: messages.OpenedRequest) -> str:
    """The api of a request as it is counted: a client may ask for any other."""
    api = opened.api
    return api if isinstance(api, str) and api in messages.REQUESTS else UNKNOWN


def without_payload(opened: messages.OpenedRequest, frame: Frame) -> messages.Request:
    """The request of a frame that may have no payload. Raises InvalidRequestError."""
    request = opened.accepted()
    if len(frame.payload):
        raise errors.InvalidRequestError(f"a request to {request.api} carries no payload", field="")
    return request
