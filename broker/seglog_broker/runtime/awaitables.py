"""Coroutines of compiled modules: they stay interpreted (docs/decisions/0018)."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


@coroutine
def pause() -> Generator[None, None, None]:
    """Return when what has ``Begun`` is gone on with."""
    yield


@coroutine
def nothing() -> Generator[None, None, None]:
    """Return at once."""
    yield from ()


async def result_after(event: Awaitable[None], result: Callable[[], ResultT]) -> ResultT:
    """Return what ``result`` returns, or raise what it raises, after ``event``."""
    await event
    return result()


async def run_to_end(
    work: Coroutine[Any, Any, ResultT], note: Callable[[ResultT | None, Exception | None], None]
) -> None:
    """Run what has begun to its end; ``note`` gets its result, or its error."""
    try:
        result = await _rest(work)
    except Exception as error:  # noqa: BLE001 - it is told
        note(None, error)
    else:
        note(result, None)


@coroutine
def _rest(work: Coroutine[Any, Any, ResultT]) -> Generator[Any, Any, ResultT]:
    result: ResultT = yield from work
    return result


@coroutine
def in_steps(work: Coroutine[Any, Any, ResultT], during: Callable[..., Any]) -> Generator[Any, Any, ResultT]:
    """Run a coroutine to its end, each of its steps ``during`` its owner's time."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            wanted = during(step, value)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        try:
            step, value = work.send, (yield wanted)
        except BaseException as error:  # noqa: BLE001 - the coroutine raises it, or handles it
            step, value = work.throw, error
