"""How much work about a group is one step: topics and partitions counted, or a piece of a large message."""

from collections.abc import Generator
from typing import Final, TypeVar

from seglog_protocol.steps import Steps

ResultT = TypeVar("ResultT")

ITEMS_A_STEP: Final = 1_000
"""Topics or partitions that are handled in one step, a few milliseconds of work."""


def steps_of(pieces: Generator[int, None, ResultT]) -> Steps[ResultT]:
    """A message that is read or written in pieces, each of which is a step."""
    next(pieces)  # which begins the first
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: ResultT = done.value
            return result
        yield


class Pace:
    """Counts the topics or partitions of a step."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = 0

    def is_due(self, items: int = 1) -> bool:
        """Whether a step is over with these items."""
        self._done += items
        if self._done < ITEMS_A_STEP:
            return False
        self._done = 0
        return True
