"""Who a client is: SaslHandshake chooses a mechanism, SaslAuthenticate has the tokens of the exchange.

SaslHandshake
  1   tokens come in SaslAuthenticate; before, they are frames of their own

SaslAuthenticate
  1   the answer has the length of the session
  2   flexible
"""

from typing import Final

from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.error_responses import error_response
from seglog_protocol.errors import (
    AuthenticationError,
    AuthenticationRequiredError,
    RemoteProtocolError,
    UnsupportedMechanismError,
)
from seglog_protocol.kafka import RequestHeader, messages, read_request
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Response

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36

OUT_OF_PLACE: Final = "Unexpected Kafka request during SASL authentication."
"""What a request is told that comes between those two."""

OUT_OF_PLACE_BYTES_MAX: Final = 4 * 1024
"""A larger one is not read, and gets no response: it may name tens of thousands of things."""


def out_of_place(header: RequestHeader, frame: memoryview) -> Response:
    """The response to a request that comes between those two. Raises RemoteProtocolError, WireError without one."""
    if len(frame) > OUT_OF_PLACE_BYTES_MAX:
        raise RemoteProtocolError("a large request came in the middle of an exchange of SASL")
    return error_response(read_request(header, frame), header.version, ErrorCode.ILLEGAL_SASL_STATE, OUT_OF_PLACE)


def handshake(context: RequestContext, request: messages.SaslHandshakeRequest) -> messages.SaslHandshakeResponse:
    """Begin an exchange."""
    session = context.session
    response = messages.SaslHandshakeResponse(mechanisms=list(session.mechanisms))
    try:
        session.begin(request.mechanism, is_alone=True)
    except UnsupportedMechanismError:
        session.has_failed = True
        response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    except AuthenticationRequiredError:
        return messages.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    return response


async def authenticate(
    context: RequestContext, request: messages.SaslAuthenticateRequest
) -> messages.SaslAuthenticateResponse:
    """One step of the exchange."""
    try:
        step = await context.session.respond(bytes(request.auth_bytes))
    except AuthenticationError as error:
        return messages.SaslAuthenticateResponse(
            error_code=ErrorCode(error.kafka_code), error_message=error.message, auth_bytes=b""
        )
    return messages.SaslAuthenticateResponse(
        error_message=None, auth_bytes=step.token, session_lifetime_ms=step.session_ms or 0
    )


APIS: Final = (
    Api(SASL_HANDSHAKE, "SaslHandshake", range(2), handshake),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", range(3), handle=authenticate),
)
