"""Answers to requests for pages: a status, a body, headers; and who may see metrics and problems, which name topics."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from seglog_broker.api.broker import Broker
from seglog_broker.listeners.session import Listener
from seglog_broker.listeners.transport import Transport
from seglog_broker.logger import get_logger

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class Answer(NamedTuple):
    """A whole answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    """Beside those that every answer has."""
    is_last: bool = False
    """Whether the connection ends with it: what follows the request is not to be read."""


def text(status: HTTPStatus, sentence: str, *headers: tuple[str, str], is_last: bool = False) -> Answer:
    """A sentence for people."""
    return Answer(status, f"{sentence}\n".encode(), TEXT, headers, is_last)


def json_object(status: HTTPStatus, value: dict[str, Any]) -> Answer:
    """An object for programs."""
    return Answer(status, f"{json.dumps(value, indent=2)}\n".encode(), JSON)


_CHALLENGE: Final = ("WWW-Authenticate", 'Bearer realm="seglog"')

log = get_logger()


class Access:
    """Judges the requests of one listener.

    Where there is a token, it is wanted everywhere. Else these may see everything: clients of a listener on a loopback
    address, those that have shown a certificate, and all where the broker is open to everyone.
    """

    def __init__(self, broker: Broker, kind: Listener) -> None:
        self._broker = broker
        self._kind = kind

    def refusal(self, headers: Sequence[tuple[bytes, bytes]], transport: Transport) -> Answer | None:
        """The answer to a client that may not see a page of which it asks; None if it may. ``headers`` as of h11."""
        token = self._broker.http_token
        if token.is_wanted:
            shown = [value for name, value in headers if name == b"authorization"]
            scheme, _, proof = shown[0].partition(b" ") if len(shown) == 1 else (b"", b"", b"")
            if scheme.lower() == b"bearer" and token.is_proven_by(proof.strip(b" ")):
                return None
            if shown:
                self._note_failure(transport)
            return text(
                HTTPStatus.UNAUTHORIZED,
                "This page wants the token of seglog.http.token.file, as Authorization: Bearer TOKEN."
                if not shown
                else "The token is not that of seglog.http.token.file.",
                _CHALLENGE,
            )
        if (
            self._kind.is_loopback
            or self._broker.config.seglog_open_to_everyone
            or transport.peer_certificate is not None
        ):
            return None
        return text(
            HTTPStatus.FORBIDDEN,
            "seglog.http.listen is an address that other machines reach, and nothing says who may see this page there: "
            "not even clients of this machine do. Have the broker's configuration name a file with a token "
            "(seglog.http.token.file), or want certificates of clients (SSL:// in seglog.http.listen, and "
            "ssl.client.auth=required); seglog.open.to.everyone=true shows it to all. /livez and /readyz answer "
            "anybody.",
        )

    def _note_failure(self, transport: Transport) -> None:
        self._broker.metrics.listener(self._kind.label).authentication_failures["BEARER"] += 1
        log.warning(
            "authentication_failed",
            peer=transport.peer,
            listener="http",
            host=transport.host,
            mechanism="BEARER",
            reason="not the token of seglog.http.token.file",
        )
