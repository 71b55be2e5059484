"""The fake broker with TLS, accounts, or both: what the client's side of them is tested against without a daemon."""

import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import trustme
from scramp import ScramException, ScramMechanism

from seglog_protocol import messages
from seglog_protocol.errors import (
    AuthenticationError,
    AuthenticationRequiredError,
    UnsupportedMechanismError,
)
from seglog_protocol.frames import FrameReader
from tests.unit.clients.fake_broker import Answer, FakeBroker


class Exchange:
    """One exchange of the server's side; ``user`` is set when it has ended well."""

    def __init__(self, mechanism: str, passwords: dict[str, str]) -> None:
        self.user = ""
        self._passwords = passwords
        self._answer: Callable[[bytes], bytes] = self._plain
        if mechanism == "OAUTHBEARER":
            self._answer = self._bearer
        elif mechanism != "PLAIN":
            self._scram = ScramMechanism(mechanism)
            self._server = self._scram.make_server(self._credential)
            self._answer = self._first

    def respond(self, token: bytes) -> messages.AuthenticateReply:
        try:
            answer = self._answer(token)
        except (ScramException, KeyError, AssertionError) as error:
            raise AuthenticationError("authentication failed") from error
        return messages.AuthenticateReply(answer, bool(self.user), f"User:{self.user}" if self.user else "")

    def _credential(self, user: str) -> Any:
        if user not in self._passwords:
            return None
        salt, stored, server, iterations = self._scram.make_auth_info(self._passwords[user], 4096)
        return salt, stored, server, iterations

    def _plain(self, token: bytes) -> bytes:
        _, user, password = token.decode().split("\0")
        assert self._passwords[user] == password
        self.user = user
        return b""

    def _bearer(self, token: bytes) -> bytes:
        if token == b"\x01":
            raise AuthenticationError("authentication failed")
        if token != b"n,,\x01auth=Bearer a-token\x01\x01":
            return b'{"status":"invalid_token"}'
        self.user = "bearer"
        return b""

    def _first(self, token: bytes) -> bytes:
        self._server.set_client_first(token.decode())
        self._answer = self._final
        self._claimed = token.decode().split(",")[2].removeprefix("n=").replace("=2C", ",").replace("=3D", "=")
        return str(self._server.get_server_first()).encode()

    def _final(self, token: bytes) -> bytes:
        self._server.set_client_final(token.decode())
        self.user = self._claimed
        return str(self._server.get_server_final()).encode()


class SecureBroker(FakeBroker):
    """``context`` None: without TLS; ``passwords`` None: without accounts."""

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        passwords: dict[str, str] | None = None,
        mechanisms: tuple[str, ...] = ("SCRAM-SHA-256", "SCRAM-SHA-512"),
        session_ms: int | None = None,
        **options: Any,
    ) -> None:
        self.context = context
        self.passwords = passwords
        self.mechanisms = mechanisms
        self.session_ms = session_ms
        self.exchanges: dict[socket.socket, Exchange] = {}
        self.logins: list[tuple[str, str]] = []
        super().__init__(**options)

    def _serve(self, connection: socket.socket) -> None:
        if self.context is None:
            super()._serve(connection)
            return
        try:
            wrapped = self.context.wrap_socket(connection, server_side=True)
        except OSError:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
            return
        with self.changed:
            self._connections.append(wrapped)
        super()._serve(wrapped)

    def _usual(self, request: messages.Request, payload: memoryview, connection: socket.socket) -> Answer:
        if isinstance(request, messages.AuthenticateRequest):
            return self._authenticate(request, connection)
        exchange = self.exchanges.get(connection)
        if self.passwords is not None and (exchange is None or not exchange.user):
            return AuthenticationRequiredError("authenticate first", mechanisms=list(self.mechanisms))
        answer = super()._usual(request, payload, connection)
        if exchange is not None and isinstance(answer, messages.HelloReply):
            return msgspec.structs.replace(answer, principal=f"User:{exchange.user}")
        return answer

    def _authenticate(self, request: messages.AuthenticateRequest, connection: socket.socket) -> Answer:
        if self.passwords is None:
            return UnsupportedMechanismError("there are no accounts", mechanisms=[])
        if request.mechanism not in self.mechanisms:
            return UnsupportedMechanismError("not that one", mechanisms=list(self.mechanisms))
        exchange = self.exchanges.get(connection)
        if exchange is None or exchange.user:
            self.exchanges[connection] = exchange = Exchange(request.mechanism, self.passwords)
        try:
            reply = exchange.respond(request.token)
        except AuthenticationError as error:
            del self.exchanges[connection]
            return error
        if reply.is_done:
            self.logins.append((reply.principal, request.mechanism))
            return messages.AuthenticateReply(reply.token, True, reply.principal, self.session_ms)
        return reply


class SecureFront(SecureBroker):
    """TLS and accounts in front of a daemon that has neither: what comes behind a login is passed on to it."""

    def __init__(self, behind: str, **options: Any) -> None:
        host, _, port = behind.rpartition(":")
        self._behind = (host, int(port))
        super().__init__(**options)

    def _serve(self, connection: socket.socket) -> None:
        assert self.context is not None
        with suppress(OSError), self.context.wrap_socket(connection, server_side=True) as wrapped:
            with self.changed:
                self._connections.append(wrapped)
            frames = FrameReader()
            while not self._is_known(wrapped):
                data = wrapped.recv(65536)
                if not data:
                    return
                frames.receive_data(data)
                while (frame := frames.next_frame()) is not None:
                    self._answer(wrapped, frame)
            with socket.create_connection(self._behind) as behind:
                behind.sendall(frames.peek(1 << 20))
                _pass_on(wrapped, behind)

    def _is_known(self, connection: socket.socket) -> bool:
        exchange = self.exchanges.get(connection)
        return exchange is not None and bool(exchange.user)


def _pass_on(client: ssl.SSLSocket, behind: socket.socket) -> None:
    """Pass bytes on in both directions until one side ends, in one thread: a TLS connection takes no two."""
    client.settimeout(30)
    while True:
        ready = [client] if client.pending() else select.select([client, behind], [], [])[0]
        for source, target in ((client, behind), (behind, client)):
            if source in ready:
                data = source.recv(1 << 18)
                if not data:
                    return
                target.sendall(data)


class Authority:
    """An authority for tests; ``folder`` gets the files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.folder = folder
        self.file = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.file)

    def context(self, *names: str, wants_certificate: bool = False, **options: Any) -> ssl.SSLContext:
        """A server's context, with a certificate for ``names``."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert(*(names or ("127.0.0.1", "localhost")), **options).configure_cert(context)
        if wants_certificate:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_files(self, name: str = "client") -> tuple[str, str]:
        """The files of a client's certificate and its key."""
        issued = self.authority.issue_cert(f"{name}@tests.example")
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return str(certificate), str(key)


@contextmanager
def secure_front(behind: str, **options: Any) -> Iterator[SecureFront]:
    front = SecureFront(behind, **options)
    try:
        yield front
    finally:
        front.stop()


@contextmanager
def secure_broker(**options: Any) -> Iterator[SecureBroker]:
    broker = SecureBroker(**options)
    try:
        yield broker
    finally:
        broker.stop()
