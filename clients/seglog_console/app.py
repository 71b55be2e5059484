"""The web application: which address shows what, who is let in, and what an error looks like."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from seglog.cli.pictures.svg import picture_style
from seglog_console import (
    access,
    broker,
    changes,
    entrance,
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
    transactions,
)
from seglog_console.console import Console
from seglog_console.entrance import found
from seglog_console.pages import SHOWN, message_of, page, status_of
from seglog_console.templating import Templates
from seglog_protocol.errors import AuthenticationError

_DAY_SECONDS: Final = 24 * 3600


# --- Errors -----------------------------------------------------------------------------------------------------------


async def _failed(request: Request, error: Exception) -> Response:
    """The page of an error: whose fault it is, and what now."""
    console: Console = request.app.state.console
    session = console.sessions.find(request.cookies.get(console.cookie, ""))
    if session is not None and isinstance(error, AuthenticationError):
        console.sessions.close(session)  # an account that is gone stays gone
        return found("/login")
    status = status_of(error)
    shown = {"status": status, "message": message_of(error), "server": console.server, "version": console.version}
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
            Route("/topics/{topic}/settings", page("settings.html", settings.context)),
            Route("/transactions", page("transactions.html", transactions.context)),
            Route("/broker", page("broker.html", broker.context, interval=broker.INTERVAL_SECONDS)),
            Route("/access", page("access.html", access.context)),
            Route("/enter", entrance.enter_by_token),
            form(entrance.log_in, "/login"),
            Route("/logout", entrance.log_out, methods=["POST"]),
            Route(
                "/change/{name}",
                changes.changing(
                    changes.by_name(
                        access.CHANGES,
                        groups.CHANGES,
                        produce.CHANGES,
                        queues.CHANGES,
                        settings.CHANGES,
                        transactions.CHANGES,
                    )
                ),
                methods=["POST"],
            ),
            Mount("/static", _Static(packages=[("seglog_console", "static")])),
        ],
        middleware=[Middleware(guard.Guard, hosts=console.hosts)],
        exception_handlers=dict.fromkeys((*SHOWN, ClientDisconnect), _failed),
        lifespan=lifespan,
    )
    console.templates = Templates({"change": changes.change_form})
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
