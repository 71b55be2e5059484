"""Rules for each request and each answer, whatever the page: against DNS rebinding, forgery and scripts."""

from collections.abc import Awaitable, Callable, Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer browsers send forms with "Origin: null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The policy has neither inline scripts nor inline styles, and nothing of another host: a value of a record that became
part of a page could do nothing."""

BODY_BYTES_MAX: Final = 1 << 20
"""Of a form: a record that is produced is its largest part."""


class Guard:
    """Lets requests through that name one of ``hosts``; those that change something must come from our own pages."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower().strip("[]") for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 421 to another host, and 403 to a form of another page."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if (problem := self._problem(scope, headers)) is not None:
            await problem(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    said[name] = value
                said.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, _bounded(receive), answer)

    def _problem(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        try:
            host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        except ValueError:  # of brackets
            host = ""
        if host not in self._hosts:
            return PlainTextResponse(
                f"This console does not answer to the name {host!a}. If that is its own, start it with --host-name.\n",
                421,
            )
        if scope["method"] in {"GET", "HEAD"}:
            return None
        url = HTTPConnection(scope).base_url
        if headers.get("origin") not in {f"{url.scheme}://{url.netloc}", f"https://{url.netloc}"}:  # behind a proxy
            return PlainTextResponse("This form did not come from a page of this console: nothing was done.\n", 403)
        if int(headers.get("content-length") or 0) > BODY_BYTES_MAX:
            return PlainTextResponse(f"A form has at most {BODY_BYTES_MAX:,} bytes: nothing was done.\n", 413)
        return None


def _bounded(receive: Receive) -> Callable[[], Awaitable[Message]]:
    """``receive`` that refuses, behind BODY_BYTES_MAX, what is sent without a length."""
    left = BODY_BYTES_MAX

    async def receive_some() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"a form has at most {BODY_BYTES_MAX:,} bytes: nothing was done")
        return message

    return receive_some
