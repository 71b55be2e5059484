"""What Kafka's clients send to log in, sent to a daemon as it was captured: each is let in.

PLAIN and OAUTHBEARER are sent byte by byte. Of SCRAM the last message is the client's but for the nonce and the proof,
which depend on what the broker has drawn.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from seglog_protocol.kafka import Response, messages, read_request, read_request_header, read_response, write_request
from tests.interop.client_programs import KAFKA_CLIENTS
from tests.interop.kafka_login_captures import AUTHENTICATE, CAPTURES, HANDSHAKE, api_of
from tests.interop.sasl_client import MECHANISMS, SCRAM, client_final
from tests.interop.sasl_conversation import USERS, Conversation
from tests.process.kafka.test_kafka_logins import listening
from tests.support import each_case

KEPT: Final = json.loads(CAPTURES.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with listening(tmp_path_factory.mktemp("captures") / "data", 0) as (running, ports):
        yield ports["SASL"]
        assert "Traceback" not in running.log_text()


class Replay:
    """A connection on which captured frames are sent."""

    def __init__(self, talk: Conversation, mechanism: str) -> None:
        self._talk = talk
        self._mechanism = mechanism
        self._tokens: list[tuple[str, str]] = []  # the client's and the broker's
        self._verifier = ""

    def send(self, frame: bytes) -> Response:
        """The response, which is right as far as SCRAM goes."""
        api, version = api_of(frame)
        if api != AUTHENTICATE:
            return self._answered(frame, api, version)
        header = read_request_header(memoryview(frame))
        request = read_request(header, memoryview(frame))
        assert isinstance(request, messages.SaslAuthenticateRequest)
        if self._mechanism in SCRAM and self._tokens:
            request.auth_bytes = self._proof(bytes(request.auth_bytes).decode()).encode()
            frame = b"".join(write_request(header.correlation_id, header.client_id, request, version))[4:]
        response = self._answered(frame, api, version)
        assert isinstance(response, messages.SaslAuthenticateResponse)
        self._keep(bytes(request.auth_bytes).decode(), bytes(response.auth_bytes).decode())
        return response

    def _answered(self, frame: bytes, api: int, version: int) -> Response:
        return read_response(api, version, memoryview(self._talk.token(frame, f"{api} v{version}")))[1]

    def _proof(self, captured: str) -> str:
        ((first, server_first),) = self._tokens
        bare = first.split(",", 2)[2]
        right, self._verifier = client_final(self._mechanism, bare, server_first, USERS["alice"])
        assert [part[:2] for part in captured.split(",")] == [part[:2] for part in right.split(",")]
        assert captured.startswith("c=biws,")
        return right

    def _keep(self, token: str, answer: str) -> None:
        if self._mechanism in SCRAM:
            nonce = token.partition("r=")[2]
            assert answer == self._verifier if self._tokens else answer.startswith(f"r={nonce}")
            self._tokens.append((token, answer))


@contextmanager
def replay(port: int, mechanism: str) -> Iterator[Replay]:
    with Conversation({"SASL": port}, "SASL") as talk:
        yield Replay(talk, mechanism)


def test_every_client_and_mechanism_is_captured() -> None:
    assert {client: [*kept] for client, kept in KEPT.items()} == {client: [*MECHANISMS] for client in KAFKA_CLIENTS}


@each_case("mechanism", MECHANISMS)
@each_case("client", KAFKA_CLIENTS)
def test_a_client_is_let_in_by_what_it_sent(port: int, client: str, mechanism: str) -> None:
    frames = [bytes.fromhex(frame) for frame in KEPT[client][mechanism]]
    apis = [api_of(frame)[0] for frame in frames]
    assert apis.count(HANDSHAKE) == 1
    assert apis.count(AUTHENTICATE) == (2 if mechanism in SCRAM else 1)
    with replay(port, mechanism) as connection:
        for frame in frames:
            response = connection.send(frame)
            match response:
                case messages.ApiVersionsResponse():
                    assert response.error_code == 0
                    assert response.api_keys
                case messages.SaslHandshakeResponse() | messages.SaslAuthenticateResponse():
                    assert response.error_code == 0, response
                case messages.MetadataResponse():
                    assert response.brokers
                case _:
                    raise AssertionError(response)
