"""The reply to a native request that fails, of any api.

The error stands with each thing that the request names, where its reply has results one by one, as the broker's own
errors do; else it is that of the request as a whole.
"""

from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from seglog_protocol import messages
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import Message, Request

_KEYS: Final = ("topic", "partition", "group", "member_id", "instance_id")
"""Fields of results that say what they are about."""

_ASKED: Final = {"committed_offsets": "partitions"}
"""By api: the list of the request that the results answer, where it has another name."""


class _Results(NamedTuple):
    """The results of a reply."""

    reply: type[Message]
    name: str
    """The list of the reply that they stand in."""
    item: type[Message]
    keys: tuple[str, ...]
    """The fields of ``item`` that say what a result is about."""
    asked: str
    """The list of the request that they answer."""
    numbers: tuple[str, ...]
    """Other fields that the reply must have."""


def error_reply(request: Request, error: SeglogError) -> Message | SeglogError:
    """The reply that answers ``request`` with ``error``."""
    results = _results_of(type(request).api)
    things = None if results is None else getattr(request, results.asked)
    if results is None or not things:
        return error
    items = [results.item(**{key: _key(thing, key) for key in results.keys}, error=error) for thing in things]
    return results.reply(**dict.fromkeys(results.numbers, 0), **{results.name: items})


def _key(thing: Any, key: str) -> Any:
    """What a result says of a thing that was named by ``key``, or by a text alone."""
    found = thing if isinstance(thing, str) else getattr(thing, key)
    if found is None and key != "instance_id":
        return -1 if key == "partition" else ""  # all of a topic; a static member
    return found


@cache
def _results_of(api: str) -> _Results | None:
    """The results in the reply to an api; None if it has none with errors of their own, for one list of the request."""
    asked = messages.REQUESTS[api]
    name = asked.__name__
    reply: type[Message] = getattr(messages, name.removesuffix("Request") + "Reply")
    for field in msgspec.structs.fields(reply):
        [item] = get_args(field.type)[:1] if get_origin(field.type) is list else [None]
        if isinstance(item, type) and issubclass(item, Message):
            names = [inner.name for inner in msgspec.structs.fields(item)]
            if "error" in names and _ASKED.get(api, field.name) in asked.__struct_fields__:
                keys = tuple(key for key in _KEYS if key in names)
                others = [
                    other for other in msgspec.structs.fields(reply) if other.required and other.name != field.name
                ]
                numbers = tuple(other.name for other in others)
                return _Results(reply, field.name, item, keys, _ASKED.get(api, field.name), numbers)
    return None
