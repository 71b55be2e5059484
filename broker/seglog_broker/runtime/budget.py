"""How much may be done on the loop in a row, in microseconds of processor time.

Every request of a client, and every turn of a connection, ends or lets others run when what it did has cost so much.
Costs are estimates, measured once on a small machine and rounded up; they are added before or while the work is done,
because to ask the clock after each step would cost more than most steps. Each cost stands beside the work it is of.
"""

from typing import Final

TURN: Final = 2_000
"""What one connection, or one request, may cost before others have their turn."""

BATCH: Final = 30
"""To append a small batch alone, or to look a partition up."""
