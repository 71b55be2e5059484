"""Kafka's words for arguments and results: an error for one of them names the client's own."""

from collections.abc import Callable, Collection
from functools import wraps
from types import FunctionType
from typing import Final, ParamSpec, TypeVar, cast

from seglog.core.security import hidden

_ParamsT = ParamSpec("_ParamsT")
_ResultT = TypeVar("_ResultT")

_SECRETS: Final = {"password", "token"}
OURS: Final = {
    "bootstrap_servers": "the address, the first argument of connect()",
    "security_protocol": "tls of connect(), True or the file of an authority",
    "ssl_cafile": "tls of connect(), the file of an authority",
    "sasl_plain_username": "user of connect()",
    "sasl_plain_password": "password or password_file of connect()",
    "acks": 'ack of producer(), "none", "os" or "disk"',
    "batch_size": "batch_bytes of producer()",
    "buffer_memory": "buffer_bytes of producer()",
    "enable_idempotence": "idempotent of producer()",
    "transactional_id": "the first argument of transaction()",
    "group_id": "group of consumer()",
    "auto_offset_reset": "start of consumer()",
    "partition_assignment_strategy": "assignors of consumer()",
}
"""Arguments that do not look like ours, or belong to another function; the others are found by their likeness."""


def unknown_argument(function: str, name: str, known: Collection[str]) -> TypeError:
    """The error for an argument that a function does not have."""
    from difflib import get_close_matches  # noqa: PLC0415 - for a mistake

    name = name.replace(".", "_")
    found = [f"here it is {OURS[name]}"] if name in OURS else []
    for near in get_close_matches(name, known, 1, 0.75):
        unit = ", in seconds" if name.endswith("_ms") and not near.endswith("_ms") else ""
        found.append(f"did you mean {near}{unit}?")
    return TypeError("; ".join([f"{function}() has no argument {name!r}", *found[:1]]))


def in_our_words(function: Callable[_ParamsT, _ResultT]) -> Callable[_ParamsT, _ResultT]:
    """A function that raises ``unknown_argument``, and whose secrets no traceback shows with its variables."""
    code = cast("FunctionType", function).__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def called(*arguments: _ParamsT.args, **keywords: _ParamsT.kwargs) -> _ResultT:
        for name in _SECRETS & keywords.keys():
            keywords[name] = hidden(cast("str | None", keywords[name]))  # first, before anything can fail
        for name in keywords.keys() - known:
            raise unknown_argument(code.co_name, name, known)
        return function(*arguments, **keywords)

    return called
