"""How far a partition is mirrored, and how that stands in the target as the metadata of a committed offset."""

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self


class Partition(NamedTuple):
    """A partition, which has the same name on both sides."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Which topic of which cluster records come from, and the id of its copy: a topic made again has another one."""

    cluster: str
    topic_id: str
    copy_id: str


@dataclass(frozen=True, slots=True)
class Position:
    """Everything below ``source`` of the source is in the target, below ``target``.

    From ``straight_from`` of the source on no offset was missing, so that the distance of the two logs is constant.
    ``filling``: records are written before ``target`` that only bring its log to that offset, and are deleted then.
    """

    origin: Origin
    source: int
    target: int
    straight_from: int
    filling: bool = False

    @property
    def distance(self) -> int:
        """By how much an offset of the source is larger, from ``straight_from`` on."""
        return self.source - self.target

    def encode(self) -> str:
        """The metadata of the committed offset ``target``."""
        fields = asdict(self.origin) | {"source": self.source, "straight_from": self.straight_from}
        return json.dumps(fields | ({"filling": True} if self.filling else {}), separators=(",", ":"))

    @classmethod
    def decode(cls, target: int, metadata: str) -> Self | None:
        """The reverse; None where it is not a mirror's."""
        try:
            found = json.loads(metadata)
            origin = Origin(str(found["cluster"]), str(found["topic_id"]), str(found["copy_id"]))
            filling = bool(found.get("filling"))
            return cls(origin, int(found["source"]), target, int(found["straight_from"]), filling)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
