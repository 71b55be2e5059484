"""What an object of one face of the client raises when it is used as one of another face: which one to use instead.

Type checkers do not see these methods, so that they report such a use as well.
"""

from typing import NoReturn, Protocol

from seglog_protocol.errors import ClientError


class Closable(Protocol):
    """What holds a connection."""

    def close(self) -> None:
        """Close it."""
        ...


def refuse_async_block(blocking: Closable, *_: object) -> NoReturn:
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
