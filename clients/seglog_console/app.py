"""The web application: which address shows what, who is let in, and what an error looks like."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import seglog
from seglog.asyncio import Client, connect
from seglog.cli.pictures.svg import picture_style
from seglog_console import (
    changes,
    groups,
    guard,
    overview,
    produce,
    queues,
    records,
    search,
    seek,
    segment,
    settings,
    topic,
    topics,
)
from seglog_console.commands import Commands
from seglog_console.pages import BadInputError, ForbiddenError, Templates, View, checked, found, page, status_of
from seglog_console.sessions import Session, Sessions
from seglog_console.viewer import Viewer
from seglog_protocol.errors import AuthenticationError, SeglogError

CLIENT_ID: Final = "seglog-console"
_LOGINS_AT_ONCE: Final = 4
_SEARCHES_AT_ONCE: Final = 4
_DAY_SECONDS: Final = 24 * 3600
_CHANGES: Final = changes.by_name(settings.CHANGES, produce.CHANGES)


@dataclass
class Console:
    """How pages come to the broker, and who may see them.

    ``security`` are keywords of ``seglog.connect``: the account in them, if any, is for pages of a console that is
    read-only. ``has_token`` is False where anybody who reaches the console may see what the broker shows to anybody.
    ``hosts`` are the names that it answers to; ``announce`` is called with each token that the next browser needs.
    """

    server: str
    security: Mapping[str, Any] = field(default_factory=dict)
    hosts: frozenset[str] = frozenset({"localhost", "127.0.0.1", "::1"})
    port: int = 0
    has_token: bool = True
    has_tls: bool = False
    is_read_only: bool = False
    is_local: bool = False
    announce: Callable[[str], None] = lambda _: None
    version: str = seglog.__version__

    def __post_init__(self) -> None:
        self.sessions = Sessions()
        self.templates = Templates({"change": changes.change_form})
        self.commands = Commands()
        self.tasks: asyncio.TaskGroup
        self._shared: Viewer | None = None
        self._opening = asyncio.Lock()
        self.searches = asyncio.Semaphore(_SEARCHES_AT_ONCE)
        self._logins = asyncio.Semaphore(_LOGINS_AT_ONCE)

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers share cookies between the ports of a host."""
        return f"seglog-console-{self.port}"

    def client(self, **account: Any) -> Client:
        """A client that is not connected yet, of an account or of none."""
        ways = {name: value for name, value in self.security.items() if name in {"tls", "mechanism"}}
        return connect(self.server, client_id=CLIENT_ID, **ways | account)

    async def shared(self) -> Viewer:
        """The viewer of all browsers that need no account of their own. Raises what connecting raises."""
        async with self._opening:
            if self._shared is None:
                account = dict(self.security) if self.is_read_only else {}
                self._shared = await Viewer.opened(self.tasks, lambda: self.client(**account))
            return self._shared

    # --- Who is let in ------------------------------------------------------------------------------------------------

    async def enter(self, request: Request) -> Session | Response:
        """The browser's session, or where it has to go first. Raises SeglogError where the broker does not answer."""
        session = self.sessions.find(request.cookies.get(self.cookie, ""))
        if session is not None:
            return session
        try:
            viewer = await self.shared()
        except AuthenticationError:
            if self.is_read_only and "user" in self.security:
                raise
            return found("/login") if "live" not in request.query_params else Response(status_code=401)
        if self.has_token or request.method != "GET":
            return _no_entry(self)
        return self._with_cookie(found(str(request.url)), self.sessions.open(viewer, is_own_viewer=False))

    async def enter_by_token(self, request: Request) -> Response:
        """Let in the browser that brings the token, once."""
        if not self.sessions.is_token(request.query_params.get("token", "")):
            return _no_entry(self)
        self.announce(self.sessions.token)
        try:
            viewer = await self.shared()
        except AuthenticationError:
            return found("/login")
        return self._with_cookie(found("/"), self.sessions.open(viewer, is_own_viewer=False))

    async def log_in(self, request: Request) -> Response:
        """The form for an account, and what comes of it."""
        problem, name = "", ""
        if request.method == "POST":
            form = await request.form()
            name, password = str(form.get("account", "")), str(form.get("password", ""))
            try:
                async with self._logins:
                    viewer = await Viewer.opened(self.tasks, lambda: self.client(user=name, password=password))
            except (SeglogError, ValueError) as error:
                problem = str(error)
            else:
                return self._with_cookie(found("/"), self.sessions.open(viewer, name, password))
        shown = {"problem": problem, "name": name, "server": self.server, "version": self.version}
        return HTMLResponse(self.templates.whole("login.html", shown), 401 if problem else 200)

    async def log_out(self, request: Request) -> Response:
        """Forget the browser."""
        session = self.sessions.find(request.cookies.get(self.cookie, ""))
        if session is not None:
            await checked(View(request, self, session))
            self.sessions.close(session)
        response = found("/login" if session is not None and session.account else "/")
        response.delete_cookie(self.cookie)
        return response

    def close(self) -> None:
        """End the commands that run, and let all clients go."""
        self.commands.close()
        self.sessions.close_all()
        if self._shared is not None:
            self._shared.close()

    def _with_cookie(self, response: Response, session: Session) -> Response:
        response.set_cookie(self.cookie, session.id, httponly=True, samesite="strict", secure=self.has_tls)
        return response


def _no_entry(console: Console) -> Response:
    return HTMLResponse(console.templates.whole("token.html", {"version": console.version}), 401)


# --- Errors -----------------------------------------------------------------------------------------------------------


async def _failed(request: Request, error: Exception) -> Response:
    """What is wrong, whose fault it is, and what now."""
    console: Console = request.app.state.console
    status = error.status_code if isinstance(error, HTTPException) else status_of(error)
    message = error.detail if isinstance(error, HTTPException) else getattr(error, "message", str(error))
    session = console.sessions.find(request.cookies.get(console.cookie, ""))
    if session is not None and isinstance(error, AuthenticationError):
        console.sessions.close(session)  # an account that is gone stays gone
        return found("/login")
    shown = {"status": status, "message": message, "server": console.server, "version": console.version}
    return HTMLResponse(console.templates.whole("error.html", shown), status)


class _Name(PathConvertor):
    """The rest of an address as a name that others chose: it may have slashes and line ends."""

    regex = r"[\s\S]+"


register_url_convertor("name", _Name())


# --- The application --------------------------------------------------------------------------------------------------


def application(console: Console) -> Starlette:
    """The console as a web application."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as console.tasks:
            yield
            console.close()

    def form(endpoint: Callable[[Request], Awaitable[Response]], path: str) -> Route:
        return Route(path, endpoint, methods=["GET", "POST"])

    app = Starlette(
        routes=[
            Route("/", page("overview.html", overview.context)),
            Route("/topics/{topic}/records", page("records.html", records.context, interval=records.INTERVAL_SECONDS)),
            Route("/topics/{topic}/produce", page("produce.html", produce.context)),
            Route("/topics/{topic}/search", page("search.html", search.context)),
            Route("/topics/{topic}/{partition}/records/{offset}", page("record.html", records.record_context)),
            Route("/topics", page("topics.html", topics.context, interval=topics.INTERVAL_SECONDS)),
            Route("/topics/{topic}", page("topic.html", topic.context)),
            Route("/topics/{topic}/{partition}/segments/{base}", page("segment.html", segment.context)),
            Route("/topics/{topic}/{partition}/seek", page("seek.html", seek.context)),
            Route("/pictures.css", _pictures_style),
            Route("/groups", page("groups.html", groups.context)),
            Route("/groups/{group:name}", page("group.html", groups.group_context)),
            Route("/queues/{group:name}", page("queue.html", queues.context)),
            Route("/enter", console.enter_by_token),
            form(console.log_in, "/login"),
            Route("/logout", console.log_out, methods=["POST"]),
            Route(
                "/change/{name}",
                changes.changing(changes.by_name(groups.CHANGES, produce.CHANGES, queues.CHANGES, settings.CHANGES)),
                methods=["POST"],
            ),
            Mount("/static", _Static(packages=[("seglog_console", "static")])),
        ],
        middleware=[Middleware(guard.Guard, hosts=console.hosts)],
        exception_handlers=dict.fromkeys(
            (SeglogError, BadInputError, ForbiddenError, HTTPException, ExceptionGroup), _failed
        ),
        lifespan=lifespan,
    )
    app.state.console = console
    return app


async def _pictures_style(_: Request) -> Response:
    """The style of pictures, which are made by other modules than pages are."""
    headers = {"cache-control": f"max-age={_DAY_SECONDS}"}
    return Response(picture_style(), media_type="text/css", headers=headers)


class _Static(StaticFiles):
    """Styles and scripts, whose addresses have the version."""

    def file_response(self, *arguments: Any, **keywords: Any) -> Response:
        """The file, for a day."""
        response = super().file_response(*arguments, **keywords)
        response.headers["cache-control"] = f"max-age={_DAY_SECONDS}"
        return response
