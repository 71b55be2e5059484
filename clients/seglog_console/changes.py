"""Changes: each is a command of ``seglog``, which is shown first, as it may be copied, and runs when it is confirmed.

The page that confirms and the run make the command of the same fields, by the same text.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from jinja2 import pass_context
from jinja2.runtime import Context, Macro
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from seglog_console.commands import BusyError, Outcome, options_of, shell_text, words_of
from seglog_console.entrance import ForbiddenError, checked, enter, found
from seglog_console.pages import BadInputError, Endpoint, View, answer

BACK: Final = "back"
"""The field with the address of the page that shows what came of the change."""
_CONFIRMED: Final = "confirmed"
_OF_CONFIRMING: Final = {_CONFIRMED, "secret", "again"}
"""Fields of the page that confirms, beside those of the change."""


class Fields:
    """The fields of a form. Lines end as in Unix, whatever the browser makes of them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

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


_TOKEN: Final = re.compile(r"(\[?)(--[\w-]+)?=?([^\]|.]*)(?:\.\.\.)?(?:\|(--[\w-]+))?\]?")
_FIELD: Final = re.compile(r"\{(\w+)\}")


def argv_of(command: str, fields: Fields) -> list[str]:
    """The words of a command as ``Change`` has it. Raises BadInputError for a field that is missing."""
    words: list[str] = []
    names: list[str] = []
    place = None
    for token in command.split():
        found = _TOKEN.fullmatch(token)
        assert found is not None, token
        may_lack, option, value, otherwise = found.groups()
        named = _FIELD.findall(value)
        if not named:
            if not may_lack or fields.get(option.strip("-").replace("-", "_")):
                words.append(token.strip("[]"))
            continue
        said = fields.words(named[0]) if "..." in token else list(filter(None, [fields.get(named[0])]))
        if not said and not may_lack:
            said = [fields[named[0]]]
        given = [value.format_map({name: fields.get(name) for name in named} | {named[0]: one}) for one in said]
        if option is not None:
            words += [word for each in given for word in (option, each)]
        else:
            place = len(words) if place is None else place
            names += given
        words += [otherwise] if otherwise and not said else []
    return words_of(words[:place], names, words[place or len(words) :])


@dataclass(frozen=True, slots=True)
class Change:
    """One kind of change.

    ``command`` is typed with the fields of its forms in braces. In brackets is what is left out where its first field
    says nothing, ``[--config={key}={value}]``, or its box is not ticked, ``[--deny]``; with ``...`` it is there for
    each word of the field, and behind ``|`` is what stands there for none.

    ``warning`` says what cannot be undone, ``look`` is the command that shows beforehand what there is, or a dry run.
    ``given`` makes the standard input; where that is a secret, the page that confirms ``asks`` for it, with this as the
    label, and no page shows it.
    """

    name: str
    title: str
    command: str
    warning: str = ""
    look: str = ""
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
        named = {name: value for name, value in request.query_params.items() if name != BACK}
        typed = {name: value for name, value in form.items() if name not in _OF_CONFIRMING}
        fields = Fields({"local": "yes" if console.is_local else "", **named, **typed})
        back = _local(request.query_params.get(BACK, "/"))
        front = options_of(console.server, session.account, console.security)
        words = [*front, *argv_of(change.command, fields)]
        if _CONFIRMED in form:
            outcome = await _run(view, words, _given(change, fields, form))
            session.outcomes = {quote(unquote(urlsplit(back).path)): outcome}
            session.viewer.renew()
            return found(back)
        look = await _run(view, [*front, *argv_of(change.look, fields)]) if change.look else None
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
