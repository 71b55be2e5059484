"""Work in steps: a generator that pauses wherever an event loop may serve others, for long work without I/O."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeVar

ResultT = TypeVar("ResultT")

Steps = Generator[Any, None, ResultT]
"""Yields wherever other tasks may run, and returns a result. What belongs together changes between two yields."""

ITEMS_A_STEP: Final = 1_000
"""Items, such as topics or partitions of a group, that are handled in one step: a few milliseconds of work."""


def finished(steps: Steps[ResultT]) -> ResultT:
    """The result of ``steps``, without a pause, whatever they yield."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result


def no_steps() -> Steps[None]:
    """Work that is done."""
    yield from ()


async def in_turns_of(steps: Steps[ResultT], turn: Callable[[], Awaitable[None]]) -> ResultT:
    """The result of ``steps``, with a ``turn`` wherever they yield."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        await turn()


def steps_of(pieces: Generator[int, None, ResultT]) -> Steps[ResultT]:
    """A message that is read or written in pieces, each of which is a step."""
    next(pieces)  # which begins the first
    return (yield from pieces)


class Pace:
    """Counts the items of a step."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    def is_due(self, items: int = 1) -> bool:
        """True if a step is over with these items."""
        self._done += items
        if self._done < ITEMS_A_STEP:
            return False
        self._done = 0
        return True
