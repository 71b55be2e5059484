"""Walks over a file that take more than one turn of the loop: where each stopped, so that it can continue there.

A walk whose result does not change needs no task of its own. It stops with TurnWantedError; the caller lets other tasks
run and calls it again, and it continues where it stopped.
"""

from typing import Any, Final

from seglog_broker.storage.io.handle_pool import OnlyWarm, TurnWantedError

HEADERS_A_TURN: Final = 1_000
"""Batch headers read in one turn: a few milliseconds."""

PAUSES_MAX: Final = 1_000
"""Of one file. The walk that waits for longest begins from the start then."""


class Pauses:
    """Of one file, by question, a tuple of what was asked. True while the bytes before them stay as they are."""

    def __init__(self, only_warm: OnlyWarm) -> None:
        self._only_warm = only_warm
        self._states: dict[tuple[Any, ...], Any] = {}

    @property
    def are_wanted(self) -> bool:
        """Whether others wait for their turn: at a start, and in a process beside the loop, they do not."""
        return self._only_warm.is_on

    def resume(self, question: tuple[Any, ...], start: Any) -> Any:
        """Where the walk for ``question`` stopped; ``start`` if it did not."""
        return self._states.get(question, start) if self.are_wanted else start

    def pause(self, question: tuple[Any, ...], state: Any) -> None:
        """Stop here if others wait for their turn: TurnWantedError."""
        if self.are_wanted:
            self._states.pop(question, None)
            while len(self._states) >= PAUSES_MAX:
                del self._states[next(iter(self._states))]
            self._states[question] = state
            raise TurnWantedError

    def forget(self) -> None:
        """The bytes have changed, or what is known of them."""
        self._states.clear()
