"""The jobs of fetchers and their results: for the loop, which loads nothing of backups, and for the worker.

``key_file`` is empty where the backup is not encrypted, ``bytes_per_second`` 0 where nothing limits it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BeginJob:
    """Make ``log_dir``, which is empty or not there, of the backup in ``place``, without the older segments.

    The state is the newest one, or the newest that is not after ``until_ms``. With ``takes_over`` the place is that of
    the new directory then.
    """

    place: str
    key_file: str
    bytes_per_second: int
    log_dir: str
    until_ms: int | None
    takes_over: bool
    new_id: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A directory that serves: the id of its backup, bytes that are there, segments and bytes that are awaited."""

    id: str
    size: int
    awaited: int
    awaited_size: int


@dataclass(frozen=True, slots=True)
class FetchJob:
    """Fetch the ``.log`` of an awaited segment of the partition in ``directory``, to its name with ``.tmp``."""

    place: str
    key_file: str
    bytes_per_second: int
    directory: str
    base_offset: int


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The file is whole and synced; ``size`` is in bytes."""

    size: int
