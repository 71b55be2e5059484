"""Which topics and groups have samples of their own, where there are more of them than may have."""

from collections.abc import Iterable, Mapping
from typing import Final

SAMPLES_MAX: Final = 2_000
"""Partitions of topics, and committed offsets of groups, that have samples: so many samples has a family at most."""

NAME_CHARACTERS_MAX: Final = 249
"""Groups with longer names have no samples; names of topics are never longer. It bounds the bytes of a family."""


def select(sizes: Mapping[str, int], samples: Mapping[str, int], count_max: int) -> list[str]:
    """The names with the largest ``sizes``, at most ``count_max``, whose ``samples`` together are few enough.

    One that has too many for what is left does not keep smaller ones out.
    """
    selected: list[str] = []
    left = SAMPLES_MAX
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if len(selected) == count_max:
            break
        if samples[name] <= left and len(name) <= NAME_CHARACTERS_MAX:
            selected.append(name)
            left -= samples[name]
    return selected


def within(names: Iterable[tuple[str, int]]) -> Iterable[str]:
    """Those of ``names``, each with the number of its samples, that have room, in their order."""
    left = SAMPLES_MAX
    for name, samples in names:
        if samples <= left and len(name) <= NAME_CHARACTERS_MAX:
            left -= samples
            yield name
