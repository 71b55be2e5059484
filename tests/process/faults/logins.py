"""Logins as bytes, on both wires: good ones, and those of whoever does not know the password."""

import base64
import hashlib
import random
import socket
import ssl
from collections.abc import Generator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, Self

from seglog_protocol.frames import FrameReader, encode_frame
from seglog_protocol.kafka import messages, read_response, write_request
from tests.interop import sasl_client
from tests.interop.sasl_client import NONCE, SCRAM, client_final, unsecured_token
from tests.process.faults.hostile_kafka_peer import Peer as KafkaPeer
from tests.process.faults.hostile_peer import Peer as NativePeer
from tests.process.faults.raw_peer import RawPeer

Tokens = Generator[bytes, bytes, None]
"""A client's tokens of one exchange; it gets the broker's."""

MECHANISMS: Final = (*SCRAM, "PLAIN", "OAUTHBEARER")


def plain(user: str, password: str) -> Tokens:
    """PLAIN."""
    yield f"\0{user}\0{password}".encode()


def scram(mechanism: str, user: str, password: str | None) -> Tokens:
    """SCRAM; without a password, whose keys take milliseconds to derive, with a proof that proves nothing."""
    bare = f"n={user},r={NONCE}"
    first = (yield f"n,,{bare}".encode()).decode()
    if password is not None:
        yield client_final(mechanism, bare, first, password)[0].encode()
        return
    proof = base64.b64encode(hashlib.new(SCRAM[mechanism][1], first.encode()).digest()).decode()
    yield f"c=biws,{first.partition(',')[0]},p={proof}".encode()


def bearer(token: str) -> Tokens:
    """OAUTHBEARER; after a refusal it says that it has understood."""
    yield sasl_client.bearer(token)
    yield b"\x01"


def failing(mechanism: str, mark: str, dice: random.Random) -> Tokens:
    """A login that fails, of a known or an unknown user; ``mark`` is in what nobody may read in the log."""
    user = dice.choice(["alice", f"nobody-{dice.randrange(10**6)}"])
    if mechanism == "PLAIN":
        return plain(user, f"{mark}-{dice.randrange(100)}")
    if mechanism == "OAUTHBEARER":
        claims: dict[str, object] = {"sub": user, "exp": dice.choice([1, 10**9]), "jti": mark}
        return bearer(
            dice.choice([unsecured_token(**claims), f"{unsecured_token(**claims)}{mark}", f"{mark}.{mark}", mark])
        )
    return scram(mechanism, user, None)


def kafka_frame(request: Any, version: int) -> bytes:
    """A request as a frame."""
    return b"".join(write_request(1, "peer", request, version))


class Talk(Protocol):
    """How one wire carries an exchange."""

    def opening(self, mechanism: str) -> bytes:
        """What comes before the first token."""

    def step(self, mechanism: str, token: bytes) -> bytes:
        """A token."""

    def answer(self, frame: memoryview) -> tuple[str, bytes]:
        """Of a frame: what went wrong, empty if nothing did, and the broker's token."""


class OnKafkasWire:
    """SaslHandshake and SaslAuthenticate."""

    def opening(self, mechanism: str) -> bytes:
        """See Talk."""
        return kafka_frame(messages.SaslHandshakeRequest(mechanism=mechanism), 1)

    def step(self, mechanism: str, token: bytes) -> bytes:
        """See Talk."""
        return kafka_frame(messages.SaslAuthenticateRequest(auth_bytes=token), 2)

    def answer(self, frame: memoryview) -> tuple[str, bytes]:
        """See Talk."""
        _, response = read_response(messages.SaslAuthenticateRequest.API_KEY, 2, frame)
        assert isinstance(response, messages.SaslAuthenticateResponse)
        error = f"{response.error_code}: {response.error_message}" if response.error_code else ""
        return error, bytes(response.auth_bytes)


class OnTheNativeWire:
    """Authenticate."""

    def opening(self, mechanism: str) -> bytes:
        """See Talk."""
        return b""

    def step(self, mechanism: str, token: bytes) -> bytes:
        """See Talk."""
        return encode_frame({"id": 1, "v": 1, "api": "authenticate", "mechanism": mechanism, "token": token})

    def answer(self, frame: memoryview) -> tuple[str, bytes]:
        """See Talk."""
        reader = FrameReader()
        reader.receive_data(len(frame).to_bytes(4, "big") + bytes(frame))
        found = reader.next_frame()
        assert found is not None
        error = found.header.get("error")
        return ("", found.header["token"]) if error is None else (f"{error['code']}: {error['message']}", b"")


KAFKA: Final = OnKafkasWire()
NATIVE: Final = OnTheNativeWire()


def received_frame(sock: socket.socket) -> memoryview | None:
    """The next frame of either wire, without its length; None at the end of the connection."""
    head = _received(sock, 4)
    content = None if head is None else _received(sock, int.from_bytes(head, "big"))
    return None if content is None else memoryview(content)


def _received(sock: socket.socket, size: int) -> bytes | None:
    got = bytearray()
    while len(got) < size:
        try:
            data = sock.recv(size - len(got))
        except (ConnectionResetError, ssl.SSLError):
            return None
        if not data:
            return None
        got += data
    return bytes(got)


def log_in(sock: socket.socket, talk: Talk, mechanism: str, tokens: Tokens) -> tuple[str, list[bytes]]:
    """Go through an exchange: what went wrong, empty if nothing did, and the broker's tokens."""
    got: list[bytes] = []
    opening = talk.opening(mechanism)
    if opening:
        sock.sendall(opening)
        assert received_frame(sock) is not None
    token = next(tokens)
    while True:
        sock.sendall(talk.step(mechanism, token))
        frame = received_frame(sock)
        if frame is None:
            return "closed", got
        error, answer = talk.answer(frame)
        got.append(answer)
        if error:
            return error, got
        try:
            token = tokens.send(answer)
        except StopIteration:
            return "", got


# --- Peers that have logged in ----------------------------------------------------------------------------------------


class Login(NamedTuple):
    """How to come in: what is trusted, and an account."""

    context: ssl.SSLContext
    user: str
    password: str

    def into(self, sock: socket.socket, talk: Talk, mechanism: str) -> socket.socket:
        """The same connection within TLS, logged in."""
        secured = self.context.wrap_socket(sock, server_hostname="localhost")
        exchange = plain if mechanism == "PLAIN" else partial(scram, mechanism)
        error, _ = log_in(secured, talk, mechanism, exchange(self.user, self.password))
        assert not error, error
        return secured


class _SecurePeer(RawPeer):
    """It is within TLS, and has logged in."""

    TALK: Talk
    MECHANISM: str

    def __init__(self, port: int, context: ssl.SSLContext, user: str, password: str) -> None:
        super().__init__(port)
        self._login = Login(context, user, password)

    def open(self) -> socket.socket:
        """See RawPeer."""
        return self._login.into(super().open(), self.TALK, self.MECHANISM)

    def another(self) -> Self:
        """See RawPeer."""
        return type(self)(self.port, *self._login)


class SecureKafkaPeer(_SecurePeer, KafkaPeer):
    """It speaks Kafka's protocol within TLS, and has logged in by PLAIN."""

    TALK, MECHANISM = KAFKA, "PLAIN"


class SecureNativePeer(_SecurePeer, NativePeer):
    """It speaks the native protocol within TLS, and has logged in by SCRAM."""

    TALK, MECHANISM = NATIVE, "SCRAM-SHA-256"
