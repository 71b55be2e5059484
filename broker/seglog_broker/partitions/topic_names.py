"""Names of topics: which one an unknown name was perhaps meant to be, and which ones collide.

Two names collide if they differ in dots and underscores only: Kafka's metrics cannot tell them apart. Suggestions take
bounded work for any names.

A request may have thousands of unknown topics, and a broker thousands of known ones. So only one unknown name of a
request is compared, with a few candidates of about the same length, and only in the short part in which they differ.
"""

from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice
from typing import Final

NAMES_MAX: Final = 20_000
"""The most known names that are considered."""

NEAR_MAX: Final = 1_000
"""The most of these, with the same beginning or end as the unknown name, that are considered further."""

CANDIDATES_MAX: Final = 16
"""The most of these that are compared letter by letter."""

NAME_MAX: Final = 255
"""A longer name gets no suggestion, because no known name is so long."""

DIFFERING_MAX: Final = 24
"""The most letters between the common beginning and the common end of two similar names."""

LENGTHS_APART_MAX: Final = 6
"""The largest difference in length of two similar names."""


class Suggestions:
    """Suggestions for the names of one request, which begins with ``renew``."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._found = ""

    def renew(self) -> None:
        """Begin another request."""
        self._name = None

    def nearest(self, name: str, known: Iterable[str]) -> str:
        """The known name most similar to ``name``; empty if none is, or this request had another name before."""
        if self._name is None:
            self._name, self._found = name, nearest_name(name, known)
        return self._found if name == self._name else ""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name most similar to ``name``, or empty: at most a third of the letters may differ."""
    size = len(name)
    if not 0 < size <= NAME_MAX:
        return ""
    known = list(islice(known, NAMES_MAX))
    begin, end = name[: (size + 1) // 2], name[size // 2 :]
    near = [
        other for other in known if other.startswith(begin) or other.endswith(end)
    ]  # a single error leaves one half unchanged
    if not near:
        first = name[0].lower()
        near = [other for other in known if other[:1].lower() == first]
    near = [other for other in near[:NEAR_MAX] if abs(len(other) - size) <= LENGTHS_APART_MAX]
    letters = set(name)
    candidates = nsmallest(CANDIDATES_MAX, near, key=lambda other: len(letters.symmetric_difference(other)))
    best, best_distance = "", size // 3 + 1
    for other in candidates:
        distance = _distance(name, other)
        if distance is not None and distance < best_distance:
            best, best_distance = other, distance
    return best


def _distance(one: str, other: str) -> int | None:
    """Letters to be inserted, left out, replaced, or swapped with the next; None for too many."""
    start = _alike(one, other)
    one, other = one[start:], other[start:]
    end = _alike(one[::-1], other[::-1])
    one, other = one[: len(one) - end], other[: len(other) - end]
    if max(len(one), len(other)) > DIFFERING_MAX:
        return None
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one):
        earlier, before, row = before, row, [i + 1]
        for j, another in enumerate(other):
            cost = min(before[j] + (letter != another), before[j + 1] + 1, row[j] + 1)
            if i and j and letter == other[j - 1] and one[i - 1] == another:
                cost = min(cost, earlier[j - 1] + 1)
            row.append(cost)
    return row[-1]


def _alike(one: str, other: str) -> int:
    """How many letters both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class TopicNames:
    """Names of topics, to be searched for one that differs from another in dots and underscores only."""

    def __init__(self, topics: Iterable[str]) -> None:
        self._names = set(topics)
        self._by_plain_name = {_plain(topic): topic for topic in self._names}

    def colliding(self, name: str) -> str | None:
        """The topic whose name collides with ``name``, or None; a name that a topic has collides with none."""
        if name in self._names:
            return None
        other = self._by_plain_name.get(_plain(name), name)
        return None if other == name else other

    def add(self, name: str) -> None:
        """There is another topic."""
        self._names.add(name)
        self._by_plain_name[_plain(name)] = name


def _plain(name: str) -> str:
    """The name that all colliding ones have in common."""
    return name.replace(".", "_")
