"""Changes: each is a command of ``seglog``, which is shown first, as it may be copied, and runs when it is confirmed.

The page that confirms and the run make the command of the same fields, by the same function.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from jinja2 import pass_context
from jinja2.runtime import Context, Macro
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from seglog_console.commands import BusyError, Outcome, options_of, shell_text
from seglog_console.entrance import ForbiddenError, checked, enter, found
from seglog_console.pages import BadInputError, Endpoint, View, answer

BACK: Final = "back"
"""The field with the address of the page that shows what came of the change."""
_CONFIRMED: Final = "confirmed"


class Fields:
    """The fields of a form. Lines end as in Unix, whatever the browser makes of them."""

    def __init__(self, given: Mapping[str, str], *, is_local: bool = False) -> None:
        self._given = given
        self.zone = ["--local"] if is_local else []
        """The option by which times that were typed are read as pages show them."""

    def __getitem__(self, name: str) -> str:
        """Raises BadInputError where nothing is said."""
        if not (text := self.get(name)):
            raise BadInputError(f"{name.replace('_', ' ')} is missing: go back, and fill it in")
        return text

    def get(self, name: str) -> str:
        """The same; "" where nothing is said."""
        text = self._given.get(name, "").replace("\r\n", "\n")
        if "\0" in text:
            raise BadInputError(f"{name.replace('_', ' ')} has a character that no command can have, \\0")
        return text

    def words(self, name: str) -> list[str]:
        """Words between spaces and line ends."""
        return self.get(name).split()

    def lines(self, name: str) -> list[str]:
        """Lines that are not empty."""
        return [line.strip() for line in self.get(name).splitlines() if line.strip()]

    def options(self, **names: str) -> list[str]:
        """``--option value`` for each field that says something, by the name of its option."""
        return [word for name in names if (value := self.get(name)) for word in (names[name], value)]

    def flags(self, **names: str) -> list[str]:
        """The options of the boxes that are ticked."""
        return [option for name, option in names.items() if self.get(name)]


def each(option: str, values: Iterable[str]) -> list[str]:
    """An option that is repeated for each value."""
    return [word for value in values for word in (option, value)]


class Words(NamedTuple):
    """A command as it is typed: ``names`` are its arguments, which others may have chosen."""

    command: str
    names: Sequence[str] = ()
    options: Sequence[str] = ()

    @property
    def argv(self) -> list[str]:
        """All words; a name that begins with ``-`` is no option."""
        if any(name.startswith("-") for name in self.names):
            return [*self.command.split(), *self.options, "--", *self.names]
        return [*self.command.split(), *self.names, *self.options]


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of change.

    ``fields`` are those of its forms, ``words`` makes the command of them. ``warning`` says what cannot be undone, and
    ``look`` makes the command that shows beforehand what there is, or a dry run. ``given`` makes its standard input;
    where that is a secret, the page that confirms ``asks`` for it, with this as the label, and no page shows it.
    """

    name: str
    title: str
    fields: tuple[str, ...]
    words: Callable[[Fields], Words]
    warning: str = ""
    look: Callable[[Fields], Words] | None = None
    given: Callable[[Fields], str] | None = None
    asks: str = ""


def by_name(*rooms: Iterable[Change]) -> dict[str, Change]:
    """All changes that the modules of pages have."""
    return {change.name: change for room in rooms for change in room}


def changing(changes: Mapping[str, Change]) -> Endpoint:
    """The endpoint of all forms: what one would do, and what came of it when that was confirmed."""

    async def endpoint(request: Request) -> Response:
        console = request.app.state.console
        session = await enter(console, request)
        if isinstance(session, Response):
            return session
        view = View(request, console, session)
        form = await checked(view.request, view.session)
        if console.is_read_only:
            raise ForbiddenError("this console is read-only: it changes nothing")
        change = changes.get(request.path_params["name"])
        if change is None:
            raise HTTPException(404, "there is no such change")
        named = {name: value for name, value in request.query_params.items() if name in change.fields}
        typed = {name: value for name, value in form.items() if name in change.fields}
        fields = Fields(named | typed, is_local=console.is_local)
        back = _local(request.query_params.get(BACK, "/"))
        front = options_of(console.server, session.account, console.security)
        words = [*front, *change.words(fields).argv]
        if _CONFIRMED in form:
            outcome = await _run(view, words, _given(change, fields, form))
            session.outcomes = {quote(unquote(urlsplit(back).path)): outcome}
            session.viewer.renew()
            return found(back)
        look = None if change.look is None else await _run(view, [*front, *change.look(fields).argv])
        shown = {
            "change": change,
            "command": _with_input(change, fields, shell_text(["seglog", *words])),
            "look": look,
            "typed": typed,
            "action": f"{request.url.path}?{urlencode({**named, BACK: back})}",
            "back": back,
        }
        return answer(view, "confirm.html", shown)

    return endpoint


async def _run(view: View, words: Sequence[str], given: str = "") -> Outcome:
    session = view.session
    try:
        return await view.console.commands.run(session.id, words, given.encode(), session.password)
    except BusyError as error:
        raise HTTPException(429, str(error), {"retry-after": "1"}) from error
    except OSError as error:  # its words are too long for a process, or there can be no more processes
        raise HTTPException(400, f"the command cannot be started: {error.strerror}; nothing was done") from error


def _given(change: Change, fields: Fields, form: Mapping[str, str]) -> str:
    """Its standard input. Raises BadInputError where a secret was typed in two ways."""
    if not change.asks:
        return "" if change.given is None else change.given(fields)
    if form.get("secret", "") != form.get("again", ""):
        raise BadInputError(f"{change.asks}: what you typed is not the same twice; go back, and type it again")
    return form.get("secret", "")


def _with_input(change: Change, fields: Fields, command: str) -> str:
    """The command with its standard input in front, unless that is a secret."""
    if change.asks or change.given is None:
        return command
    return f"printf %s {shell_text([change.given(fields)])} | {command}"


def _local(address: str) -> str:
    """An address of the console. Raises BadInputError for one elsewhere."""
    if not address.startswith("/") or address.startswith("//") or "\\" in address:
        raise BadInputError("back is an address of this console")
    return address


@pass_context
def change_form(
    context: Context,
    name: str,
    label: str,
    /,
    *,
    back: str = "",
    look: str = "row",
    caller: Macro | None = None,
    **named: Any,
) -> Markup:
    """A form for a change, whose fields are what the template has between ``call`` and ``endcall``; none if read-only.

    ``named`` are fields that the page knows: they are in the form's address, as they are. ``back`` is the page that
    shows what came of it, by default this one; ``look`` is the style of the form.
    """
    if context["read_only"]:
        return Markup()
    query = urlencode([(key, value) for key, value in context["query"].multi_items() if key != "live"])
    back = back or f"{context['path']}?{query}".rstrip("?")
    shown = {
        "action": f"/change/{name}?{urlencode({**named, BACK: back})}",
        "csrf": context["csrf"],
        "label": label,
        "look": look,
        "inputs": "" if caller is None else caller(),
    }
    return Markup(context.environment.get_template("change.html").render(shown))  # noqa: S704 - it escapes
