"""Errors for a use as of another face of the client, or as of Kafka's: they name what to use instead.

Type checkers do not see the methods that refuse, so that they report such a use as well.
"""

from collections.abc import Callable, Collection
from functools import wraps
from types import FunctionType
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, cast

from seglog.core.security import hidden
from seglog_protocol.errors import ClientError


def refuse_async_block(blocking: Any, *_: object) -> NoReturn:
    """Stands for ``__aenter__`` and ``__aexit__`` of what blocks and holds a connection, which is closed."""
    blocking.close()
    refuse_async(blocking)


def refuse_async(_blocking: object, *_: object) -> NoReturn:
    """Stands for ``__aenter__``, ``__aexit__``, ``__aiter__`` and ``__await__`` of what blocks."""
    raise ClientError(
        "seglog.connect() blocks and is for `with` and `for`, not for `async with`, `async for` or `await`: on asyncio "
        "use seglog.asyncio.connect(), on trio seglog.trio.connect()"
    )


def refuse_with(_awaited: object, *_: object) -> NoReturn:
    """Stands for ``__enter__``, ``__exit__`` and ``__iter__`` of what is awaited."""
    raise ClientError(
        "seglog.asyncio and seglog.trio are for `async with` and `async for`, not for `with` and `for`: where no loop "
        "runs use seglog.connect()"
    )


def refuse_await(_client: object, *_: object) -> NoReturn:
    """Stands for ``__await__`` of a client that connects by ``async with``."""
    raise ClientError(
        "a client connects by `async with`, not by `await`: where it begins in one function and ends in another, "
        "enter it by contextlib.AsyncExitStack"
    )


def refuse_unopened(_opening: object) -> NoReturn:
    """Stands for ``__aiter__`` of a consumer that is not open yet."""
    raise ClientError(
        "there are no records yet: a consumer is opened by `async with`, or by `await` and closed by `close()`"
    )


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
