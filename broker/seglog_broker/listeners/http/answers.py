"""Answers to requests for pages: a status, a body, headers; and who may see metrics and problems, which name topics."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from seglog_broker.listeners.connection import Connection

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


def refusal(connection: Connection, headers: Sequence[tuple[bytes, bytes]]) -> Answer | None:
    """The answer to a client that may not see a page of which it asks; None if it may. ``headers`` as of h11.

    Where there is a token, it is wanted everywhere. Else these may see everything: clients of a listener on a loopback
    address, those that have shown a certificate, and all where the broker is open to everyone.
    """
    broker = connection.broker
    if broker.http_token.is_wanted:
        shown = [value for name, value in headers if name == b"authorization"]
        scheme, _, proof = shown[0].partition(b" ") if len(shown) == 1 else (b"", b"", b"")
        if scheme.lower() == b"bearer" and broker.http_token.is_proven_by(proof.strip(b" ")):
            return None
        if not shown:
            sentence = "This page wants the token of seglog.http.token.file, as Authorization: Bearer TOKEN."
            return text(HTTPStatus.UNAUTHORIZED, sentence, _CHALLENGE)
        connection.counts.authentication_failures["BEARER"] += 1
        connection.log.warning(
            "authentication_failed",
            host=connection.transport.host,
            mechanism="BEARER",
            reason="not the token of seglog.http.token.file",
        )
        return text(HTTPStatus.UNAUTHORIZED, "The token is not that of seglog.http.token.file.", _CHALLENGE)
    if (
        connection.session.listener.is_loopback
        or broker.config.seglog_open_to_everyone
        or connection.transport.peer_certificate is not None
    ):
        return None
    return text(
        HTTPStatus.FORBIDDEN,
        "seglog.http.listen is an address that other machines reach, and nothing says who may see this page there: not "
        "even clients of this machine do. Have the broker's configuration name a file with a token "
        "(seglog.http.token.file), or want certificates of clients (SSL:// in seglog.http.listen, and "
        "ssl.client.auth=required); seglog.open.to.everyone=true shows it to all. /livez and /readyz answer anybody.",
    )
