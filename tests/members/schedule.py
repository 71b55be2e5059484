"""What happens to members and to the broker: the same again from the same dice."""

import random
from collections.abc import Sequence
from itertools import cycle
from typing import Final, Literal, NamedTuple

Do = Literal["kill member", "stop member", "kill broker"]

PAUSE_SECONDS_MAX: Final = 2.0
_FAULTS: Final[Sequence[tuple[Do, ...]]] = (("kill member",), ("stop member",), ("kill member", "stop member"))


class Step(NamedTuple):
    """One fault, so many seconds after the one before; ``number`` is that of the member in its group.

    A member that is stopped is resumed as soon as it has been thrown out, or (``is_late``) when others have worked on
    what it had.
    """

    do: Do
    group: str
    number: int
    pause_seconds: float
    is_late: bool


def rounds_of(dice: random.Random, groups: Sequence[str], *, members: int, rounds: int) -> list[list[Step]]:
    """The faults of each round, in any order: the broker is killed; members are killed or stopped."""
    faults = {group: cycle(dice.sample(_FAULTS, len(_FAULTS))) for group in groups}
    made = []
    for _ in range(rounds):
        found: list[tuple[Do, str, int]] = [("kill broker", "", 0)]
        for group in groups:
            numbers = dice.sample(range(members), members)
            found += [(do, group, number) for do, number in zip(next(faults[group]), numbers, strict=False)]
        dice.shuffle(found)
        made.append([Step(*step, dice.uniform(0, PAUSE_SECONDS_MAX), dice.random() < 0.5) for step in found])
    return made
