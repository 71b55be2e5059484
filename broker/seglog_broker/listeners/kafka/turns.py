"""Turns for other tasks between the parts of a request about many topics."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Final, TypeVar

from seglog_broker.listeners.kafka.context import RequestContext

EFFORT_A_TURN: Final = 500
"""Partitions that are described, or topics named, before other tasks run; a topic counts as ten."""

EFFORT_OF_CHANGE: Final = 100
"""Of a topic that is created or enlarged, or refused."""

_EFFORT_OF_TOPIC: Final = 10

ItemT = TypeVar("ItemT")


async def in_turns(context: RequestContext, items: Iterable[ItemT]) -> AsyncIterator[ItemT]:
    """The items, each of which is little work; other tasks run in between."""
    for number, item in enumerate(items, start=1):
        if number % EFFORT_A_TURN == 0:
            await context.turn()
        yield item


def run_out(steps: Iterator[None]) -> None:
    """Run ``steps`` to their end without a pause."""
    for _ in steps:
        pass


async def in_turns_of(steps: Iterator[None], turn: Callable[[], Awaitable[None]]) -> None:
    """Run ``steps`` to their end, with a ``turn`` wherever they yield."""
    for _ in steps:
        await turn()


class Turns:
    """Lets other tasks run between the parts of a request with much work."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._effort = 0

    async def work(self, effort: int) -> None:
        """Wait for a turn, if what was done in this one would become too much with ``effort`` more."""
        effort += _EFFORT_OF_TOPIC
        self._effort += effort
        if self._effort > EFFORT_A_TURN:
            self._effort = effort
            await self._context.turn()
