"""The small files of a log directory: what there is, and how large; checkpoints, registry and markers. Never records.

Files are taken by a list of names, so that one which comes later, or is somebody else's, is left out: the accounts and
the segments most of all.
"""

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NAMES: Final = (
    "meta.properties",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
    ".kafka_cleanshutdown",
    "seglog-clean-partitions",
    "seglog-topics.json",
    "seglog-creation.json",
    "seglog-format",
    "seglog-producer-ids.json",
    "seglog-clock.json",
    "seglog-configs.json",
)
"""In the directory itself."""

PARTITION_NAMES: Final = ("leader-epoch-checkpoint", "partition.metadata", "seglog-partition.json")

BYTES_MAX: Final = 1 << 20
"""Of one file; of a larger one its beginning is kept."""

PARTITIONS_MAX: Final = 200
"""Whose small files are kept."""

LISTED_MAX: Final = 20_000
"""Files that are listed."""


def small_files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each, relative to the directory. One that cannot be read is left out."""
    for name in NAMES:
        yield from _content(directory, name)
    for partition in _partitions(directory)[:PARTITIONS_MAX]:
        for name in PARTITION_NAMES:
            yield from _content(directory, f"{partition}/{name}")


def listing(directory: Path) -> str:
    """A line for each file: mode, owner, size, when it was changed, and its name."""
    lines: list[str] = []
    for folder, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            if len(lines) == LISTED_MAX:
                lines.append(f"and more than {LISTED_MAX:,} files")
                return "\n".join(lines) + "\n"
            path = Path(folder) / name
            try:
                found = path.lstat()
            except OSError as error:
                lines.append(f"{path.relative_to(directory)}: {error.strerror}")
                continue
            changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.st_mtime))
            mode = stat.filemode(found.st_mode)
            lines.append(f"{mode} {found.st_uid} {found.st_size:>14,} {changed} {path.relative_to(directory)}")
    return "\n".join(lines) + "\n"


def _partitions(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir() if "-" in entry.name and entry.is_dir())
    except OSError:
        return []


def _content(directory: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """A regular file, not a link to one elsewhere."""
    try:
        descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with open(descriptor, "rb") as file:  # noqa: PTH123 - opened already
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            yield name, file.read(BYTES_MAX)
