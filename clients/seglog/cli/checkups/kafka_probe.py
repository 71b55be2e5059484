"""One Metadata request to a listener of Kafka's clients, with their TLS and their login: what they are told."""

import socket
import ssl
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from seglog.core.authentication import Authentication
from seglog.core.connection import Reply
from seglog.core.conversations import Ask, converse
from seglog.core.dialing import Address
from seglog.core.security import SCRAM_MECHANISMS, Account, Identity, Target
from seglog_protocol.errors import AuthenticationError, SeglogError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.codec import read_response, write_request
from seglog_protocol.kafka.errors import Malformed
from seglog_protocol.kafka.structs import Request, Response
from seglog_protocol.messages import AuthenticateReply, AuthenticateRequest

ANSWER_BYTES_MAX: Final = 1 << 20
_METADATA_VERSION: Final = 5  # the cluster's id since 2, and no tagged fields, which tell us nothing
_SASL_VERSION: Final = 1  # SaslAuthenticate instead of bare tokens
_CLIENT: Final = "seglog-doctor"
_FOREIGN: Final = "what answers there does not speak Kafka's protocol"
_SIZE: Final = struct.Struct(">i")

ResponseT = TypeVar("ResponseT", bound=Response)


class Way(NamedTuple):
    """How clients come to a listener."""

    tls: ssl.SSLContext | None = None
    identity: Identity | None = None
    """Whom to log in as; None for a listener without SASL."""


class Answer(NamedTuple):
    """What a listener answers."""

    cluster_id: str
    brokers: list[Address]


def way_of(protocol: str, security: Mapping[str, Any]) -> Way:
    """The way to a listener of a security protocol, by the options of the command line.

    Raises OSError and ValueError for files that cannot be used, and ValueError where an account is missing.
    """
    context = None
    if protocol.endswith("SSL"):
        from seglog.core.security import Tls
        from seglog.tls_contexts import context_of

        tls = security.get("tls")
        context = context_of(tls if isinstance(tls, Tls) else Tls())
    return Way(context, _identity(security) if protocol.startswith("SASL") else None)


def _identity(security: Mapping[str, Any]) -> Account:
    from seglog.secret_files import secret_in

    user, password = security.get("user"), security.get("password")
    if password is None and security.get("password_file") is not None:
        password = secret_in(security["password_file"])
    if user is None or password is None:
        raise ValueError("no account was given")
    return Account(user, password, security.get("mechanism"))


def why_unreachable(address: Address, seconds: float) -> str | None:
    """Why nothing can be reached at an address from here; None where something takes connections."""
    try:
        socket.create_connection(address, seconds).close()
    except OSError as error:
        return _reason(error)
    return None


def ask_metadata(address: Address, way: Way, seconds: float) -> Answer:
    """Ask what a Kafka client would, as it would.

    Raises OSError, with a sentence, where the listener cannot be reached, does not answer as Kafka's do, or refuses the
    login.
    """
    try:
        if way.identity is not None and way.identity.mechanism is None:
            way = way._replace(identity=_with_mechanism(way.identity, address, way.tls, seconds))
        with _connected(address, way.tls, seconds) as connection:
            if way.identity is not None:
                target = Target(address, way.tls, way.identity)
                converse(Authentication(target).exchange(), _Login(connection).answer)
            request = messages.MetadataRequest(topics=[], allow_auto_topic_creation=False)
            response = connection.ask(request, _METADATA_VERSION, messages.MetadataResponse)
    except Malformed as error:
        raise OSError(_FOREIGN) from error
    except SeglogError as error:
        raise OSError(error.message) from error
    except OSError as error:
        raise OSError(_reason(error)) from error
    return Answer(response.cluster_id or "", [Address(broker.host, broker.port) for broker in response.brokers])


class _Connection:
    """One connection, on which each request waits for its response."""

    def __init__(self, connected: socket.socket, received: BinaryIO) -> None:
        self._socket = connected
        self._received = received
        self._correlation_id = 0

    def ask(self, request: Request, version: int, response_type: type[ResponseT]) -> ResponseT:
        self._correlation_id += 1
        self._socket.sendall(b"".join(write_request(self._correlation_id, _CLIENT, request, version)))
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        if not 0 < size <= ANSWER_BYTES_MAX:
            raise OSError(_FOREIGN)
        _, response = read_response(request.API_KEY, version, memoryview(self._read(size)))
        assert isinstance(response, response_type)
        return response

    def _read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        data = self._received.read(size)
        if len(data) < size:
            raise OSError("the connection was closed without an answer")
        return data


@contextmanager
def _connected(address: Address, context: ssl.SSLContext | None, seconds: float) -> Iterator[_Connection]:
    with (
        socket.create_connection(address, seconds) as plain,
        plain if context is None else context.wrap_socket(plain, server_hostname=address.host) as connected,
        connected.makefile("rb") as received,
    ):
        yield _Connection(connected, received)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted here: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return error.strerror or str(error)


# --- Logins -----------------------------------------------------------------------------------------------------------


def _with_mechanism(identity: Identity, address: Address, context: ssl.SSLContext | None, seconds: float) -> Identity:
    """With the best of the listener's mechanisms, which it names, and closes the connection, when asked for none."""
    assert isinstance(identity, Account)
    with _connected(address, context, seconds) as connection:
        named = connection.ask(
            messages.SaslHandshakeRequest(mechanism=""), _SASL_VERSION, messages.SaslHandshakeResponse
        )
    return identity._replace(mechanism=next((m for m in SCRAM_MECHANISMS if m in named.mechanisms), "PLAIN"))


class _Login:
    """Answers the steps of an exchange by what Kafka's wire answers: a handshake, then tokens."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._is_begun = False

    def answer(self, question: Ask) -> Reply:
        """Raises AuthenticationError."""
        request = question.request
        assert isinstance(request, AuthenticateRequest)
        if not self._is_begun:
            handshake = messages.SaslHandshakeRequest(mechanism=request.mechanism)
            taken = self._connection.ask(handshake, _SASL_VERSION, messages.SaslHandshakeResponse)
            if taken.error_code:
                raise AuthenticationError(f"it does not take {request.mechanism}, but {', '.join(taken.mechanisms)}")
            self._is_begun = True
        step = messages.SaslAuthenticateRequest(auth_bytes=request.token)
        found = self._connection.ask(step, _SASL_VERSION, messages.SaslAuthenticateResponse)
        if found.error_code:
            raise AuthenticationError(found.error_message or f"the login failed (error {found.error_code})")
        is_done = request.mechanism == "PLAIN" or found.auth_bytes.startswith(b"v=")  # SCRAM's last word
        return Reply(0, AuthenticateReply(bytes(found.auth_bytes), is_done, "").to_wire(), memoryview(b""))
