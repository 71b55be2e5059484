"""How much may be done on the loop in a row, in microseconds of processor time.

Every request of a client, and every turn of a connection, ends or lets others run when what it did has cost so much.
Costs are estimates, measured once on a small machine and rounded up; they are added before or while the work is done,
because to ask the clock after each step would cost more than most steps. Each cost stands beside the work it is of.
Storage, which knows no requests, bounds its walks by counts of its own (``storage.io.pauses``).
"""

from collections.abc import Awaitable, Callable
from typing import Final

TURN: Final = 2_000.0
"""What one connection, or one request, may cost before others have their turn."""

BATCH: Final = 30.0
"""To append a small batch alone, or to look a partition up."""


def items_of(cost: float) -> int:
    """How many things of this cost may be done in a row."""
    return max(1, int(TURN / cost))


class Turns:
    """Lets others run between the parts of a request with much work."""

    def __init__(self, turn: Callable[[], Awaitable[None]]) -> None:
        """``turn`` waits until others have run."""
        self._turn = turn
        self._spent = 0.0

    async def spend(self, cost: float) -> None:
        """Wait for a turn, if this one would become too long with what is done next."""
        self._spent += cost
        if self._spent > TURN:
            self._spent = cost
            await self._turn()
