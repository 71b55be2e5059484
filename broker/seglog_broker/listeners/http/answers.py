"""Answers to requests for pages: a status, a body, headers; and who may see metrics and problems, which name topics.

A long page is coded as it is, or by gzip, as the client's headers that begin with Accept have it. Lines of metrics
repeat each other, so a page becomes some twentieth. To compress it costs less processor time than the kernel would need
for the rest, and the scraper is woken for some twenty pieces in place of hundreds.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
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


GZIP: Final = "gzip"

LEVEL: Final = 1
"""zlib's quickest; the slowest would make a page of metrics a tenth smaller, and take twice as long."""

_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
"""zlib's number for gzip; it keeps 256 KiB for that."""


class Plain:
    """Codes nothing."""

    name: str | None = None
    """For the header Content-Encoding; None: it has none."""

    def add(self, data: bytes) -> bytes:
        """What is to be sent now that ``data`` has come: nothing as long as more has to come first."""
        return data

    def end(self, data: bytes) -> bytes:
        """What is to be sent when ``data`` is the last."""
        return data


class Gzip(Plain):
    """Codes one page by gzip. Without its end a client notices that the page is not whole."""

    name = GZIP

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_WINDOW)

    def add(self, data: bytes) -> bytes:
        """As that of ``Plain``."""
        return self._compressor.compress(data)

    def end(self, data: bytes) -> bytes:
        """As that of ``Plain``."""
        return self._compressor.compress(data) + self._compressor.flush()


def coding_of(accept_encoding: str) -> type[Plain]:
    """The coding for a client with this header Accept-Encoding: gzip if it names it."""
    takes_gzip = any(entry.value == GZIP and entry.quality > 0 for entry in accepted(accept_encoding))
    return Gzip if takes_gzip else Plain


class Accepted(NamedTuple):
    """An entry of such a header, in small letters."""

    value: str
    parameters: dict[str, str]
    quality: float
    """From 0, not at all, to 1, best."""


def accepted(header: str) -> Iterator[Accepted]:
    """The entries of the header, whatever is in it: a quality that is none counts as 0."""
    for entry in header.split(","):
        value, *rest = (part.strip().lower() for part in entry.split(";"))
        parameters = {name.strip(): word.strip() for name, _, word in (part.partition("=") for part in rest)}
        yield Accepted(value, parameters, _quality(parameters.pop("q", "1")))


def _quality(written: str) -> float:
    try:
        quality = float(written)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
