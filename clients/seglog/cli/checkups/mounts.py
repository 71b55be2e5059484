"""The file system of a directory, by ``/proc/self/mountinfo`` (proc(5)): its kind, where it is mounted, and how."""

import os
import re
from typing import Final, NamedTuple

MOUNTINFO: Final = "/proc/self/mountinfo"


class Mount(NamedTuple):
    """A mount; ``options`` are those of the mount and of its file system."""

    place: str
    kind: str
    source: str
    options: frozenset[str]


def mount_of(path: str, mountinfo: str) -> Mount | None:
    """The mount that holds ``path``, which is absolute and without links; None if the text names none.

    Of several at one place the last covers the others.
    """
    found: Mount | None = None
    for line in mountinfo.splitlines():
        mount = _parsed(line)
        if mount is not None and _holds(mount.place, path) and (found is None or len(mount.place) >= len(found.place)):
            found = mount
    return found


def _parsed(line: str) -> Mount | None:
    head, separator, tail = line.partition(" - ")
    before, behind = head.split(" "), tail.split(" ")
    if not separator or len(before) < 6 or len(behind) < 3:
        return None
    options = frozenset([*before[5].split(","), *behind[2].split(",")])
    return Mount(_unescaped(before[4]), behind[0], _unescaped(behind[1]), options)


def _holds(place: str, path: str) -> bool:
    return path == place or path.startswith(place if place.endswith(os.sep) else f"{place}/")


def _unescaped(text: str) -> str:
    r"""Blanks and backslashes are written as ``\040``, in octal."""
    return re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), text)
