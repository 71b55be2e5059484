"""What a look-up on the loop does not do: wait for the disk, open a large batch, walk far.

It raises an error instead. A long walk over a file is done a part at a time: it stops with TurnWantedError and saves
its state (``Pauses``). The caller lets other tasks run and calls again, and the walk continues from there.
"""

from typing import Any, Final

HEADERS_A_TURN: Final = 1_000
"""Batch headers read in one turn of the loop; they take a few milliseconds."""

PAUSES_MAX: Final = 1_000
"""Saved states of one file. When there are more, the oldest is dropped, and its walk begins from the start."""


class ColdReadError(Exception):
    """Bytes [position, position + size) of ``path`` are not in memory, and the loop must not wait for the disk.

    No state has changed: read the bytes into memory in a thread, and call again.
    """

    def __init__(self, path: str, position: int, size: int) -> None:
        super().__init__(path, position, size)
        self.path = path
        self.position = position
        self.size = size


class RecordsWantedError(Exception):
    """A look-up by timestamp needs the records of a batch that is too large to open on the loop.

    The batch is ``size`` bytes at ``position`` of ``path``. ``question`` names batch, timestamp and offset. The caller
    finds the record elsewhere, stores it in ``OnlyWarm.found`` under ``question``, and calls again.
    """

    def __init__(self, path: str, position: int, size: int, question: tuple[int, ...]) -> None:
        super().__init__(path)
        self.path = path
        self.position = position
        self.size = size
        self.question = question


class TurnWantedError(Exception):
    """A look-up has taken as long as it may without letting other tasks run. Called again, it continues."""


class OnlyWarm:
    """Within ``with pool.only_warm:`` a seek raises an error instead of blocking the loop. Not to be nested.

    It raises ColdReadError instead of waiting for the disk; RecordsWantedError instead of opening a large batch, unless
    ``found`` has the answer; TurnWantedError instead of a long walk. Within ``with pool.only_warm.waiting():`` it waits
    for the disk, and raises the other two.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.may_wait = False
        self.found: dict[tuple[int, ...], tuple[int, int, int] | None] = {}

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_error: object) -> None:
        self.is_on = self.may_wait = False

    def waiting(self) -> "OnlyWarm":
        """Allow waiting for the disk, for a seek that reading bytes into memory beforehand did not help."""
        self.may_wait = True
        return self


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
