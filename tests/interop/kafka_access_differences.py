"""Where seglog's answers about permissions are not a real Kafka's, and why. Nothing else may differ."""

from typing import Final, NamedTuple

OPEN: Final[frozenset[str]] = frozenset()
"""Apis that do not ask for permission yet."""


class Difference(NamedTuple):
    """Why a part of the answers to some requests is another: those whose titles begin so, in json."""

    why: str
    titles: str
    kafka: str
    ours: str


DIFFERENCES: Final[tuple[Difference, ...]] = ()
