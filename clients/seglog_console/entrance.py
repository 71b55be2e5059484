"""Who is let in: by the token that the console has printed, or by an account of the broker; and who leaves."""

import hmac
from collections.abc import Mapping
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from seglog_console.console import Console
from seglog_console.sessions import Session
from seglog_console.viewer import Viewer
from seglog_protocol.errors import AuthenticationError, SeglogError


class ForbiddenError(Exception):
    """A change by a form that is not ours, or of a console that is read-only."""


async def enter(console: Console, request: Request) -> Session | Response:
    """The browser's session, or where it has to go first. Raises SeglogError where the broker does not answer."""
    session = console.sessions.find(request.cookies.get(console.cookie, ""))
    if session is not None:
        return session
    try:
        viewer = await console.shared()
    except AuthenticationError:
        if console.is_read_only and "user" in console.security:
            raise
        return found("/login") if "live" not in request.query_params else Response(status_code=401)
    if console.has_token or request.method == "POST":
        return _no_entry(console)
    here = found(f"{path_of(request)}?{request.url.query}".rstrip("?"))
    return _with_cookie(console, request, here, console.sessions.open(viewer, is_own_viewer=False))


async def enter_by_token(request: Request) -> Response:
    """Let in the browser that brings the token, once."""
    console: Console = request.app.state.console
    if not console.sessions.is_token(request.query_params.get("token", "")):
        return _no_entry(console)
    console.announce(console.sessions.token)
    try:
        viewer = await console.shared()
    except AuthenticationError:
        return found("/login")
    return _with_cookie(console, request, found("/"), console.sessions.open(viewer, is_own_viewer=False))


async def log_in(request: Request) -> Response:
    """The form for an account, and what comes of it."""
    console: Console = request.app.state.console
    problem, name = "", ""
    if request.method == "POST":
        form = await request.form()
        name, password = str(form.get("account", "")), str(form.get("password", ""))
        try:
            async with console.logins:
                viewer = await Viewer.opened(console.tasks, lambda: console.client(user=name, password=password))
        except (SeglogError, ValueError) as error:
            problem = f"The broker has not let {name!r} in with this password: {error}"
        else:
            return _with_cookie(console, request, found("/"), console.sessions.open(viewer, name, password))
    shown = {"problem": problem, "name": name, "server": console.server, "version": console.version}
    return HTMLResponse(console.templates.whole("login.html", shown), 401 if problem else 200)


async def log_out(request: Request) -> Response:
    """Forget the browser."""
    console: Console = request.app.state.console
    session = console.sessions.find(request.cookies.get(console.cookie, ""))
    if session is not None:
        await checked(request, session)
        console.sessions.close(session)
    response = found("/login" if session is not None and session.account else "/")
    response.delete_cookie(console.cookie)
    return response


async def checked(request: Request, session: Session) -> Mapping[str, str]:
    """The fields of a form, that of our own page. Raises ForbiddenError."""
    form = {name: str(value) for name, value in (await request.form()).items()}
    if not hmac.compare_digest(form.pop("csrf", "").encode(), session.csrf.encode()):
        raise ForbiddenError("this form is not of this browser's session: load the page again, and send it from there")
    return form


def path_of(request: Request) -> str:
    """The address up to ``?``, quoted: names may have any characters, also ``%`` and line ends."""
    return quote(request.scope["path"])


def found(path: str) -> RedirectResponse:
    """Go there by GET."""
    return RedirectResponse(path, 303)


def _with_cookie(console: Console, request: Request, response: Response, session: Session) -> Response:
    before = console.sessions.find(request.cookies.get(console.cookie, ""))
    if before is not None:  # the browser forgets its cookie, so nobody else would forget the password
        console.sessions.close(before)
    response.set_cookie(console.cookie, session.id, httponly=True, samesite="strict", secure=console.has_tls)
    return response


def _no_entry(console: Console) -> Response:
    return HTMLResponse(console.templates.whole("token.html", {"version": console.version}), 401)
