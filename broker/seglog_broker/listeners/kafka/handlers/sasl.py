"""Logins and accounts: SASL's mechanisms and tokens, and SCRAM credentials, described and altered.

SaslHandshake
  1   tokens come in SaslAuthenticate; before, they are frames of their own

SaslAuthenticate
  1   the answer has the length of the session
  2   flexible

DescribeUserScramCredentials, AlterUserScramCredentials
  0   flexible
"""

from collections import Counter
from typing import Final

from seglog_broker.api.users import AlteredUser, UserDeletion, UserUpsertion
from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.error_responses import error_response
from seglog_broker.listeners.kafka.errors import MESSAGE_CHARACTERS_MAX, failure_of
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol import errors
from seglog_protocol.access import Kind, Operation
from seglog_protocol.kafka import RequestHeader, messages, read_request
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Response
from seglog_protocol.scram import NUMBERS

_NAMES: Final = {number: name for name, number in NUMBERS.items()}


async def describe_users(
    context: RequestContext, request: messages.DescribeUserScramCredentialsRequest
) -> messages.DescribeUserScramCredentialsResponse:
    """The mechanisms and iterations of each user; of all, where none is named."""
    cls = messages.DescribeUserScramCredentialsResponse
    response = cls(error_message="")
    users = context.broker.users
    counts = Counter(user.name for user in request.users or ()) or Counter(users.names())
    async for name, times in in_turns(context, counts.items()):
        context.reserve(PART_BYTES + 4 * len(name))
        result = cls.DescribeUserScramCredentialsResult(user=name, error_message="", credential_infos=[])
        response.results.append(result)
        result.credential_infos = [
            cls.CredentialInfo(mechanism=NUMBERS[each.mechanism], iterations=each.iterations)
            for each in users.credentials_of(name)
        ]
        code, why = ErrorCode.NONE, ""
        if times > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            why = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
            result.credential_infos = []
        elif not result.credential_infos:
            code = ErrorCode.RESOURCE_NOT_FOUND
            why = f"Attempt to describe a user credential that does not exist: {name}"
        result.error_code, result.error_message = code, why[:MESSAGE_CHARACTERS_MAX]
    return response


async def alter_users(
    context: RequestContext, request: messages.AlterUserScramCredentialsRequest
) -> messages.AlterUserScramCredentialsResponse:
    """Sets and deletes credentials, each user once; within a native request each credential once."""
    deletions = [
        UserDeletion(deletion.name, _NAMES.get(deletion.mechanism, ""))
        async for deletion in in_turns(context, request.deletions)
    ]
    upsertions = [
        UserUpsertion(
            each.name, _NAMES.get(each.mechanism, ""), each.iterations, bytes(each.salt), bytes(each.salted_password)
        )
        async for each in in_turns(context, request.upsertions)
    ]
    try:
        altered = await context.broker.users.change(
            deletions, upsertions, context.session.principal, once=not context.is_carried
        )
    except errors.SeglogError as error:
        names = dict.fromkeys([*(each.name for each in deletions), *(each.name for each in upsertions)])
        altered = [AlteredUser(name, error) for name in names]
    cls = messages.AlterUserScramCredentialsResponse
    response = cls()
    async for one in in_turns(context, altered):
        result = cls.AlterUserScramCredentialsResult(user=one.user, error_message=None)
        response.results.append(result)
        if one.error is not None:
            result.error_code, result.error_message = failure_of(one.error, "AlterUserScramCredentials")
    return response


SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36

OUT_OF_PLACE: Final = "Unexpected Kafka request during SASL authentication."
"""What a request is told that comes between those two."""

OUT_OF_PLACE_BYTES_MAX: Final = 4 * 1024
"""A larger one is not read, and gets no response: it may name tens of thousands of things."""


def out_of_place(header: RequestHeader, frame: memoryview) -> Response:
    """The response to a request that comes between those two. Raises RemoteProtocolError, WireError without one."""
    if len(frame) > OUT_OF_PLACE_BYTES_MAX:
        raise errors.RemoteProtocolError("a large request came in the middle of an exchange of SASL")
    return error_response(read_request(header, frame), header.version, ErrorCode.ILLEGAL_SASL_STATE, OUT_OF_PLACE)


def handshake(context: RequestContext, request: messages.SaslHandshakeRequest) -> messages.SaslHandshakeResponse:
    """Begin an exchange."""
    session = context.session
    response = messages.SaslHandshakeResponse(mechanisms=list(session.mechanisms))
    try:
        session.begin(request.mechanism, is_alone=True)
    except errors.UnsupportedMechanismError:
        session.has_failed = True
        response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    except errors.AuthenticationRequiredError:
        return messages.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    return response


async def authenticate(
    context: RequestContext, request: messages.SaslAuthenticateRequest
) -> messages.SaslAuthenticateResponse:
    """One step of the exchange."""
    try:
        step = await context.session.respond(bytes(request.auth_bytes))
    except errors.AuthenticationError as error:
        return messages.SaslAuthenticateResponse(
            error_code=ErrorCode(error.kafka_code), error_message=error.message, auth_bytes=b""
        )
    return messages.SaslAuthenticateResponse(
        error_message=None, auth_bytes=step.token, session_lifetime_ms=step.session_ms or 0
    )


_DESCRIBE: Final = Operation.DESCRIBE, Kind.CLUSTER
_ALTER: Final = Operation.ALTER, Kind.CLUSTER

APIS: Final = (
    Api(SASL_HANDSHAKE, "SaslHandshake", range(2), handshake),
    Api(SASL_AUTHENTICATE, "SaslAuthenticate", range(3), handle=authenticate),
    Api(50, "DescribeUserScramCredentials", range(1), handle=describe_users, needs=_DESCRIBE, is_carried=True),
    Api(51, "AlterUserScramCredentials", range(1), handle=alter_users, needs=_ALTER, is_carried=True),
)
