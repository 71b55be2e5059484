"""Names of topics that Kafka takes for the same, because its metrics cannot tell them apart."""

from collections.abc import Iterable


def colliding_topic(name: str, topics: Iterable[str]) -> str | None:
    """A topic whose name differs from ``name`` in dots and underscores only."""
    if "." not in name and "_" not in name:
        return None
    same = plain_name(name)
    return next((other for other in topics if other != name and plain_name(other) == same), None)


def plain_name(name: str) -> str:
    """The name that all colliding ones have in common."""
    return name.replace(".", "_")
