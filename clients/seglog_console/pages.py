"""Pages: a template and a function that gives what it shows; with ``?live`` its block ``live``, again and again.

A page is whole without JavaScript. With it, console.js asks for the stream of the same page and puts what comes in
place of the element ``data-live``.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from seglog.asyncio import Client
from seglog.core.moments import format_time
from seglog_console.console import Console
from seglog_console.entrance import ForbiddenError, enter, path_of
from seglog_console.sessions import STREAMS_MAX, Session
from seglog_protocol import errors
from seglog_protocol.texts import printable

INTERVAL_SECONDS: Final = 2.0
ROWS: Final = 50
"""Of a table on one page."""
PING_SECONDS: Final = 20.0
"""How long a stream says nothing before it says that: proxies close what is silent."""

T = TypeVar("T")

_UNKNOWN: Final = (
    errors.UnknownTopicError,
    errors.UnknownPartitionError,
    errors.UnknownGroupError,
    errors.UnknownUserError,
    errors.UnknownTransactionalIdError,
)


class BadInputError(Exception):
    """An address or a form that asks for what there cannot be; the message says what there can."""


SHOWN: Final = (errors.SeglogError, BadInputError, ForbiddenError, HTTPException, ExceptionGroup)
"""Errors that pages and streams tell."""


@dataclass(frozen=True, slots=True)
class View:
    """One request of one browser, for the function of a page."""

    request: Request
    console: Console
    session: Session

    @property
    def client(self) -> Client:
        """The broker, with the permissions of the browser's account."""
        return self.session.viewer.client

    @property
    def zone(self) -> tzinfo | None:
        """UTC, or the console's own zone."""
        return None if self.console.is_local else UTC

    def text(self, name: str, default: str = "") -> str:
        """A part of the address behind ``?``."""
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """A whole number of the address. Raises BadInputError."""
        text = self.request.path_params.get(name, self.text(name))
        if text == "":
            return default
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise BadInputError(f"{name} is {text!r}; it is a whole number from {least:,} to {most:,}")
        return number


class Part(NamedTuple):
    """Some rows of many, and the addresses of the page with those before and behind them; "" where there are none."""

    rows: Sequence[Any]
    first: int
    total: int
    before: str
    behind: str


def part_of(view: View, rows: Sequence[Any], name: str = "page", size: int = ROWS) -> Part:
    """The ``size`` rows that the part ``name`` of the address asks for. Raises BadInputError."""
    number = view.number(name, 0)

    def address(other: int) -> str:
        query = {key: value for key, value in view.request.query_params.items() if key not in {"live", name}}
        return f"{path_of(view.request)}?{urlencode({**query, name: other})}"

    before = address(number - 1) if number else ""
    behind = address(number + 1) if (number + 1) * size < len(rows) else ""
    return Part(rows[number * size :][:size], number * size, len(rows), before, behind)


def before(prefix: str) -> str:
    """A text behind which the names with this beginning come next."""
    return f"{prefix[:-1]}{chr(ord(prefix[-1]) - 1)}\U0010ffff" if prefix.isprintable() and prefix else ""


async def unless_refused(asked: Awaitable[T], otherwise: T) -> tuple[T, str]:
    """The broker's answer, or ``otherwise`` and the sentence by which it refuses this account that part of a page."""
    try:
        return await asked, ""
    except errors.AuthorizationError as error:
        return otherwise, error.message


Context = Callable[[View], Awaitable[dict[str, Any]]]
Endpoint = Callable[[Request], Awaitable[Response]]


def page(name: str, context: Context, *, interval: float = INTERVAL_SECONDS) -> Endpoint:
    """An endpoint that shows ``context`` in the template ``name``; its stream looks again each ``interval`` seconds."""

    async def endpoint(request: Request) -> Response:
        console: Console = request.app.state.console
        session = await enter(console, request)
        if isinstance(session, Response):
            return session
        view = View(request, console, session)
        if "live" in request.query_params:
            return _stream(view, name, context, interval)
        return answer(view, name, await context(view))

    return endpoint


def answer(view: View, name: str, shown: dict[str, Any], status: int = 200) -> HTMLResponse:
    """A page that is shown once, with what came of the change before it."""
    shown = common(view) | {"outcome": view.session.outcomes.pop(path_of(view.request), None)} | shown
    return HTMLResponse(view.console.templates.whole(name, shown), status)


def common(view: View) -> dict[str, Any]:
    """The names that each template may use."""
    return {
        "request": view.request,
        "path": path_of(view.request),
        "query": view.request.query_params,
        "csrf": view.session.csrf,
        "account": view.session.account,
        "principal": view.client.principal,
        "server": view.client.server,
        "broker": view.client.broker,
        "read_only": view.console.is_read_only,
        "version": view.console.version,
        "time": lambda ms: "-" if ms is None else format_time(ms, view.zone),
    }


def _stream(view: View, name: str, context: Context, interval: float) -> Response:
    """Server-sent events: the block ``live`` whenever it has changed, and an error where there is one."""

    async def events() -> AsyncIterator[str]:
        shown, silent = "", 0.0
        try:
            while view.session.is_open:
                try:
                    html = view.console.templates.live(name, common(view) | await context(view))
                    event = f"data: {json.dumps(html)}\n\n"
                except errors.AuthenticationError:
                    view.console.sessions.close(view.session)  # the next request of the browser leads to the login
                    return
                except SHOWN as error:
                    event = f"event: trouble\ndata: {json.dumps(printable(message_of(error)))}\n\n"
                silent += interval
                if event != shown or silent >= PING_SECONDS:
                    yield event if event != shown else ": still\n\n"
                    shown, silent = event, 0.0
                if await view.console.is_ending(interval):
                    return
        finally:
            view.session.streams -= 1

    if view.session.streams >= STREAMS_MAX:
        return Response(f"a browser has at most {STREAMS_MAX} live pages", 429, {"retry-after": "5"})
    view.session.streams += 1
    return StreamingResponse(events(), media_type="text/event-stream")


def message_of(error: Exception) -> str:
    """The sentence of an error."""
    return error.detail if isinstance(error, HTTPException) else getattr(error, "message", str(error))


def status_of(error: Exception) -> int:
    """The status that says whose fault it is."""
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, BadInputError):
        return 400
    if isinstance(error, errors.AuthorizationError | ForbiddenError):
        return 403
    if isinstance(error, _UNKNOWN):
        return 404
    return 400 if isinstance(error, errors.RequestError) and not error.retriable else 502
