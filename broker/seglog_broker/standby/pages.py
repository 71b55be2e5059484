"""The pages of a standby: ``/livez``, ``/readyz``, which is 503 always, and ``/metrics``.

None names a topic, so anybody may see them. Each is made at once, and ends its connection.
"""

import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import h11
import trio

from seglog_broker.api.monitoring.families import STANDBY_FAMILIES
from seglog_broker.api.monitoring.samples import Sample, Slice
from seglog_broker.backup.promoting import Following
from seglog_broker.listeners.http.answers import Answer, text
from seglog_broker.listeners.http.exposition import Exposition, Format

CONNECTIONS_MAX: Final = 100
"""At a time; further ones are closed at once."""

REQUEST_SECONDS: Final = 10.0
"""Of a connection, from its beginning to its end."""

_READ_BYTES: Final = 8192
"""Of a read, and most of a request's line and headers together."""

_HAS_LEFT: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def page_of(path: str, status: Following, sentence: str) -> Answer:
    """The page of a path; ``sentence`` says how far the standby is."""
    match path:
        case "/livez":
            return text(HTTPStatus.OK, "ok")
        case "/readyz":
            return text(HTTPStatus.SERVICE_UNAVAILABLE, sentence)
        case "/metrics":
            lag = float("nan") if status.lag_ms is None else status.lag_ms / 1000
            values = (status.applied_ms / 1000, lag, status.received, status.trouble is not None)
            writer = Exposition(Format.TEXT)
            found = zip(STANDBY_FAMILIES, values, strict=True)
            body = b"".join(writer.encode(Slice.of(family, [Sample((), float(value))])) for family, value in found)
            return Answer(HTTPStatus.OK, body + writer.end(), Format.TEXT.value)
    return text(HTTPStatus.NOT_FOUND, "This is a standby. It has /livez, /readyz and /metrics.")


async def serve_pages(
    listeners: Sequence[trio.SocketListener], page: Callable[[str], Answer], tls: ssl.SSLContext | None
) -> None:
    """Answer GET and HEAD with the page of a path, until cancelled. Closes the listeners."""
    served = 0

    async def serve(plain: trio.SocketStream) -> None:
        nonlocal served
        served += 1
        stream = plain if tls is None else trio.SSLStream(plain, tls, server_side=True, https_compatible=True)
        try:
            with trio.move_on_after(REQUEST_SECONDS if served <= CONNECTIONS_MAX else 0), suppress(*_HAS_LEFT):
                await stream.send_all(await _answer(stream, page))
                await stream.aclose()
            await trio.aclose_forcefully(stream)
        finally:
            served -= 1

    await trio.serve_listeners(serve, list(listeners))


async def _answer(stream: trio.abc.ReceiveStream, page: Callable[[str], Answer]) -> bytes:
    """The bytes of the answer to one request; none where there was none."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=_READ_BYTES)
    is_head = False
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(_READ_BYTES)))
        if not isinstance(event, h11.Request):
            return b""
        is_head = event.method == b"HEAD"
        if is_head or event.method == b"GET":
            answer = page(event.target.partition(b"?")[0].decode("latin-1"))
        else:
            answer = text(HTTPStatus.METHOD_NOT_ALLOWED, "There are pages to read here: use GET or HEAD.")
    except h11.RemoteProtocolError as error:
        answer = text(HTTPStatus(error.error_status_hint), "This is no request of HTTP that can be served.")
    headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
    headers.append(("Connection", "close"))
    head = http.send(h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase)) or b""
    return head if is_head else head + answer.body
