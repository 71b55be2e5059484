"""What the members of groups and their watcher tell, a line of JSON each.

Times are seconds of the one monotonic clock that all processes of a machine have.
"""

from pathlib import Path

import msgspec


class Line(msgspec.Struct, frozen=True, tag_field="told"):
    """``who`` of which group told it: a process, or the watcher."""

    group: str
    who: str


class Assigned(Line, frozen=True, tag="assigned"):
    """A member reads these partitions from now on; ``generation`` is None where its client does not tell it."""

    at: float
    member: str
    generation: int | None
    partitions: list[int]


class Handled(Line, frozen=True, tag="handled"):
    """The record at ``offset`` is done; it is committed later."""

    partition: int
    offset: int


class Committed(Line, frozen=True, tag="committed"):
    """A commit of {partition: offset of the next record} that was answered; it took effect between the two times.

    ``member`` and ``generation`` are those of the last `Assigned`.
    """

    begun: float
    ended: float
    member: str
    generation: int | None
    offsets: dict[int, int]


class Described(Line, frozen=True, tag="described"):
    """A group as the broker described it between two times; ``owners`` has the members of each partition."""

    begun: float
    ended: float
    state: str
    generation: int
    members: list[str]
    owners: dict[int, list[str]]


class Looked(Line, frozen=True, tag="looked"):
    """What the broker had as committed, {partition: offset}, at some moment between two times."""

    begun: float
    ended: float
    offsets: dict[int, int]


AnyLine = Assigned | Handled | Committed | Described | Looked

_DECODER = msgspec.json.Decoder(AnyLine)


class Told:
    """All lines in the files of a folder, read as they come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[AnyLine] = []
        self._read: dict[Path, int] = {}

    def read(self) -> list[AnyLine]:
        """The lines that are new. The end of a line that a kill cut off never comes."""
        fresh: list[AnyLine] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole) + len(newline)
            fresh += _DECODER.decode_lines(whole)
        self.lines += fresh
        return fresh
