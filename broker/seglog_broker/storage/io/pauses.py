"""Long walks over a file, done a part at a time so that the loop can run other tasks in between.

A walk stops with TurnWantedError and saves its state here. The caller lets other tasks run and calls again, and the
walk continues from its saved state.
"""

from typing import Any, Final

from seglog_broker.storage.io.handle_pool import OnlyWarm, TurnWantedError

HEADERS_A_TURN: Final = 1_000
"""Batch headers read in one turn of the loop; they take a few milliseconds."""

PAUSES_MAX: Final = 1_000
"""Saved states of one file. When there are more, the oldest is dropped, and its walk begins from the start."""


class Pauses:
    """The saved states of the walks over one file, by question: a tuple of the arguments of the look-up.

    The owner calls ``forget`` when bytes of the file change.
    """

    def __init__(self, only_warm: OnlyWarm) -> None:
        self._only_warm = only_warm
        self._states: dict[tuple[Any, ...], Any] = {}

    @property
    def are_wanted(self) -> bool:
        """Whether walks must stop for other tasks. Not during a start or in a worker process: no task waits there."""
        return self._only_warm.is_on

    def resume(self, question: tuple[Any, ...], start: Any) -> Any:
        """The saved state of the walk for ``question``, or ``start`` if there is none."""
        return self._states.get(question, start) if self.are_wanted else start

    def pause(self, question: tuple[Any, ...], state: Any) -> None:
        """Save ``state`` and raise TurnWantedError, if walks must stop for other tasks; else return."""
        if self.are_wanted:
            self._states.pop(question, None)
            while len(self._states) >= PAUSES_MAX:
                del self._states[next(iter(self._states))]
            self._states[question] = state
            raise TurnWantedError

    def forget(self) -> None:
        """Drop all states: the bytes, or the known damage in them, have changed."""
        self._states.clear()
