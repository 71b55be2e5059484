"""A connection to a Kafka, or to seglog, on which somebody logs in or tries otherwise; it remembers what was said.

What is random is checked here and replaced in what is told: the broker's half of a nonce, salts, and signatures.
"""

import base64
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn, Self

from seglog_protocol.kafka import Request, messages, read_response, write_request
from tests.interop.kafka_wire import Plain, plain, read_exactly, request
from tests.interop.sasl_client import NONCE, client_final, client_first_bare

USERS: Final[Mapping[str, str]] = {
    "alice": "alice-secret",
    "bob": "bob-secret",
    "weird,=name": "p\N{LATIN SMALL LETTER A WITH DIAERESIS}ss=,word",
}
"""Accounts and their passwords."""

_SILENCE_SECONDS: Final = 2.0

_LIFETIMES: Final = (2, 3, 60, 3600)
"""Of sessions, in seconds, as stories have them."""


class Step(NamedTuple):
    """What was sent, in words, and what came."""

    sent: str
    came: Plain


class ClosedError(Exception):
    """The connection has been closed: the story is over."""


class Conversation:
    """One connection to one of ``ports``, which remembers what was said. A context manager.

    ``pause`` are the seconds that a change of accounts takes to be in force.
    """

    def __init__(self, ports: Mapping[str, int], listener: str, pause: float = 0) -> None:
        self._ports = ports
        self._pause = pause
        self._socket = socket.create_connection(("127.0.0.1", ports[listener]), timeout=10)
        self._asked = 0
        self.steps: list[Step] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def beside(self, listener: str) -> "Conversation":
        """Another connection, of which nothing is told."""
        return Conversation(self._ports, listener, self._pause)

    def ask(
        self,
        api: str,
        version: int,
        fields: Mapping[str, Plain],
        *,
        says: str = "",
        expects: Mapping[str, str] | None = None,
    ) -> Any:
        """The response, which is told; ``expects`` are texts of it and what stands in their place.

        Raises ClosedError.
        """
        asked = request(api, fields)
        self._send(asked, version)
        return self._response(asked, version, self._asked, says or f"{api} v{version}", expects or {})

    def ask_together(self, *asked: tuple[Request, int]) -> None:
        """Send requests before the first is answered."""
        first = self._asked + 1
        for one, version in asked:
            self._send(one, version)
        for number, (one, version) in enumerate(asked):
            self._response(one, version, first + number, f"{one.API_KEY} v{version} among others", {})

    def _send(self, asked: Request, version: int) -> None:
        self._asked += 1
        with suppress(ConnectionError):  # nothing comes then, which is told
            self._socket.sendall(b"".join(write_request(self._asked, "seglog", asked, version)))

    def _response(self, asked: Request, version: int, number: int, says: str, expects: Mapping[str, str]) -> Any:
        frame = self._frame(says)
        correlation_id, response = read_response(asked.API_KEY, version, memoryview(frame))
        assert correlation_id == number
        self.steps.append(Step(says, _told(response, expects)))
        return response

    def token(self, data: bytes, says: str, expects: Mapping[str, str] | None = None) -> bytes:
        """Send a bare token behind its length, as after SaslHandshake v0, and give the one that comes back."""
        self._socket.sendall(struct.pack(">i", len(data)) + data)
        frame = self._frame(says)
        self.steps.append(Step(says, {"token": _text(frame, expects or {})}))
        return frame

    def send(self, data: bytes, says: str) -> bytes:
        """Send any bytes; a frame that comes back is told in hex."""
        with suppress(ConnectionError):  # nothing comes then
            self._socket.sendall(data)
        frame = self._frame(says)
        self.steps.append(Step(says, {"frame": frame.hex()}))
        return frame

    def settle(self) -> None:
        """Wait until a change of accounts is in force."""
        time.sleep(self._pause)

    def wait(self, seconds: float, says: str) -> None:
        """Let time pass, and see whether the connection is closed meanwhile."""
        self._socket.settimeout(seconds)
        try:
            came = self._socket.recv(1)
        except TimeoutError:
            self.steps.append(Step(says, "silence"))
            return
        except ConnectionError:
            came = b""
        assert not came
        self._over(says, "closed")

    def _over(self, says: str, came: str) -> NoReturn:
        self.steps.append(Step(says, came))
        raise ClosedError

    def _frame(self, says: str) -> bytes:
        self._socket.settimeout(_SILENCE_SECONDS)
        try:
            [size] = struct.unpack(">i", read_exactly(self._socket, 4))
            return read_exactly(self._socket, size)
        except ConnectionError:
            self._over(says, "closed")
        except TimeoutError:
            self._over(says, "silence")

    # --- What most stories do

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        """SaslHandshake."""
        return self.ask(
            "SaslHandshake", version, {"mechanism": mechanism}, says=f"SaslHandshake v{version} {mechanism!r}"
        )

    def authenticate(
        self, token: bytes | str, says: str, *, version: int = 2, expects: Mapping[str, str] | None = None
    ) -> Any:
        """SaslAuthenticate."""
        data = token.encode() if isinstance(token, str) else token
        says = f"SaslAuthenticate v{version}: {says}"
        return self.ask("SaslAuthenticate", version, {"auth_bytes": data.hex()}, says=says, expects=expects)

    def plain_login(self, name: str = "alice", password: str | None = None, *, version: int = 2) -> Any:
        """Handshake and token of PLAIN."""
        self.handshake("PLAIN")
        secret = USERS[name] if password is None else password
        return self.authenticate(f"\0{name}\0{secret}", f"PLAIN as {name}", version=version)

    def scram_first(self, mechanism: str, name: str = "alice", header: str = "n,,", more: str = "") -> tuple[str, str]:
        """SCRAM's first message: what it says behind its header, and the broker's answer."""
        bare = client_first_bare(name) + more
        answer = self.authenticate(header + bare, f"{header}{bare}")
        if answer.error_code:
            self.wait(1, "and then")
            raise ClosedError
        return bare, bytes(answer.auth_bytes).decode()

    def scram_login(self, mechanism: str, name: str = "alice", password: str | None = None, more: str = "") -> Any:
        """Handshake, and both messages of SCRAM."""
        self.handshake(mechanism)
        bare, first = self.scram_first(mechanism, name, more=more)
        final, verifier = client_final(mechanism, bare, first, USERS.get(name, "") if password is None else password)
        return self.authenticate(final, "the proof", expects={verifier: "v=(as it should be)"})

    def is_served(self) -> None:
        """Ask for what only those may who are let in."""
        self.ask("Metadata", 9, {"topics": []})


def _told(response: Any, expects: Mapping[str, str]) -> Plain:
    match response:
        case messages.MetadataResponse() if response.brokers:
            return "answered"
        case messages.ApiVersionsResponse() if response.api_keys:
            return f"answered with error {response.error_code}"
        case messages.SaslHandshakeResponse():
            return plain(response) | {"mechanisms": sorted(response.mechanisms)}
        case messages.DescribeUserScramCredentialsResponse() if not response.error_code:
            return sorted(_account(plain(result)) for result in response.results)
        case messages.AlterUserScramCredentialsResponse():
            results = (plain(result) for result in response.results)
            return sorted([_short(result["user"]), result["error_code"], result["error_message"]] for result in results)
    told = plain(response)
    if isinstance(response, messages.SaslAuthenticateResponse):
        told["auth_bytes"] = _text(bytes(response.auth_bytes), expects)
        told["session_lifetime_ms"] = _lifetime(told["session_lifetime_ms"])
    return told


def _lifetime(ms: int) -> Plain:
    """The largest of what it may be after some time has passed."""
    return f"at most {next(most for most in _LIFETIMES if ms <= most * 1000)} s" if ms else 0


def _account(told: Plain) -> list[Plain]:
    credentials = sorted([info["mechanism"], info["iterations"]] for info in told["credential_infos"])
    return [_short(told["user"]), told["error_code"], told["error_message"], credentials]


def _short(name: str) -> str:
    return name if len(name) < 100 else f"{name[:3]}… ({len(name)})"


def _text(data: bytes, expects: Mapping[str, str]) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex()
    if text.startswith(f"r={NONCE}"):
        attributes = [part.split("=", 1) for part in text.split(",")]
        assert len(base64.b64decode(attributes[1][1], validate=True)) >= 8  # it is a salt
        assert len(attributes[0][1]) > len(NONCE) + 15
        return ",".join(f"{name}={_FIRST.get(name, value)}" for name, value in attributes)
    return expects.get(text, text)


_FIRST: Final = {"r": "(the client's nonce and more)", "s": "(a salt)"}
