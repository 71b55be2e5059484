"""Why a map is no message: the sentence of msgspec, which names the place, in words of the wire."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any, Final

from seglog_protocol.errors import InvalidRequestError


def refusal(error: Exception) -> InvalidRequestError:
    """What is wrong, by msgspec: "Expected `str`, got `int` - at `$.partitions[3].topic`"."""
    what, at, path = str(error).rpartition(" - at ")
    if not at:
        what, path = path, ""
    named = _FIELD.search(what)
    field = named[2] if named else (_NAME.findall(path) or [""])[-1]
    place = f" at {cut(path.replace('`', ''))}" if path else ""
    too_many = _TOO_MANY.match(what)
    if too_many:
        sentence = f"field {shown(field)} has more than {too_many[1]} items, one request takes that many: send several"
    elif named:
        sentence = f"{named[1]} field {shown(field)}{place}"
    else:
        reason = _KIND.sub(lambda kind: " or ".join(_KINDS.get(each, each) for each in kind[1].split(" | ")), what)
        about = f"field {shown(field)}{place}: " if field else ""
        sentence = about + reason[:_REASON_CHARACTERS]
    return InvalidRequestError(sentence, field=cut(field))


_REASON_CHARACTERS: Final = 100
_FIELD: Final = re.compile(r"(unknown|missing) (?:required )?field `(.*)`$", re.DOTALL)
_NAME: Final = re.compile(r"\.(\w+)")
_TOO_MANY: Final = re.compile(r"Expected `(?:array|object)` of length <= (\d+)")
_KIND: Final = re.compile(r"`([\w| ]{1,60})`")
_KINDS: Final[Mapping[str, str]] = {
    "object": "a map",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "None": "nothing",
}


def shown(value: Any) -> str:
    """The repr of a peer's value for an error message: short, and limited in depth."""
    return cut(_SHORT.repr(value))


def cut(value: Any) -> str:
    """A peer's name as a fact of an error, cut to 60 characters; the repr if it is not text."""
    text = value if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxstring = _SHORT.maxother = 60
