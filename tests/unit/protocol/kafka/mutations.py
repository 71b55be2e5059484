"""Bytes of messages, changed as an enemy or a broken wire would."""

from random import Random
from typing import Final

HOSTILE: Final = [
    bytes.fromhex(text)
    for text in (
        "7fffffff",
        "ffffffff",
        "80000000",
        "7fff",
        "ffff",
        "ffffffff0f",
        "ffffffff7f",
        "ffffffffffffffffffff01",
    )
]
"""Counts, lengths and varints that are as large as can be, or negative."""


def mutated(random: Random, data: bytes) -> bytes:
    """Some of its bytes changed, left out, or replaced by hostile ones."""
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5])):
        at = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0:
                changed[at : at + 1] = random.randbytes(1)
            case 1:
                hostile = random.choice(HOSTILE)
                changed[at : at + random.choice([0, len(hostile)])] = hostile
            case 2:
                del changed[at : at + random.randrange(1, 8)]
            case 3:
                changed[at:at] = random.randbytes(random.randrange(8))
    return bytes(changed)
