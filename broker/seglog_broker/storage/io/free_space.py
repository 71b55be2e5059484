"""Free space on the disk: when it is too little for appends, and a ballast file that is deleted then.

A full disk cannot even be emptied in order: checkpoints and the registry are written before anything is deleted. So
appends stop while some space is left, and a ballast file is kept for the case that other programs use that up: deleting
it frees a little. Code that has to write before it can delete does so ``with_ballast``, because the free space may not
have been looked at yet.

Appends stop when less than ``hard`` bytes are free and continue when ``soft`` are: with one mark for both, the broker
would alternate between refusing and accepting records. Bytes that the ballast lacks count as used, so that deleting it
does not end a shortage.
"""

import contextlib
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from seglog_broker.config import BrokerConfig
from seglog_broker.storage.io import filenames
from seglog_broker.storage.io.filesystem import FileSystem, Inodes, write_all
from seglog_broker.storage.io.os_errors import NO_ROOM
from seglog_protocol.errors import DiskFullError

MIB: Final = 1024 * 1024

HARD_BYTES_MAX: Final = 256 * MIB
HARD_SHARE: Final = 20
SOFT_BYTES_MAX: Final = 512 * MIB
SOFT_SHARE: Final = 10
BALLAST_BYTES_MAX: Final = 16 * MIB
BALLAST_SHARE: Final = 100
"""What the marks are unless they are set: the smaller of a size and, for small disks, one part in so many."""

INODES_MAX: Final = 100
INODES_SHARE: Final = 100
"""Appends stop when fewer inodes are free: a roll takes four, and each file that is replaced takes one for a moment.
They go on when twice as many are."""

_ZEROS: Final = bytes(MIB)

T = TypeVar("T")


class SpaceLevel(StrEnum):
    """How much room there is."""

    ENOUGH = "enough"
    LOW = "low"
    """Below the soft mark: time to warn."""
    FULL = "full"
    """Below the hard mark, and not above the soft one since."""


class Room(NamedTuple):
    """What is left on a disk: bytes, and files that can still be made, None where the file system has no such limit."""

    free: int
    inodes: Inodes | None

    @property
    def inodes_free(self) -> int:
        """As a number in any case."""
        return sys.maxsize if self.inodes is None else self.inodes.free

    def least(self, other: "Room") -> "Room":
        """The smaller of each number."""
        fewer = self if self.inodes_free <= other.inodes_free else other
        return Room(min(self.free, other.free), fewer.inodes)


class Marks(NamedTuple):
    """Bytes, decided."""

    soft: int
    hard: int
    ballast: int


def marks_of(config: BrokerConfig, total: int) -> Marks:
    """The marks for a disk of ``total`` bytes; the soft one is never below the hard one."""

    def decide(wanted: int, size_max: int, share: int) -> int:
        return min(size_max, total // share) if wanted < 0 else wanted

    hard = decide(config.seglog_disk_free_hard_bytes, HARD_BYTES_MAX, HARD_SHARE)
    soft = decide(config.seglog_disk_free_soft_bytes, SOFT_BYTES_MAX, SOFT_SHARE)
    return Marks(max(soft, hard), hard, decide(config.seglog_disk_ballast_bytes, BALLAST_BYTES_MAX, BALLAST_SHARE))


class FreeSpace:
    """The free space on the disk of one log directory. The caller decides when to ``look`` again."""

    def __init__(self, fs: FileSystem, directory: str, config: BrokerConfig) -> None:
        """Looks, and gives up the ballast if a start has no other room to write."""
        self.path = directory
        self.level = SpaceLevel.ENOUGH
        self.free = 0  # bytes, at the last look
        self.inodes: Inodes | None = None  # at the last look
        self._fs = fs
        self._config = config
        self._ballast_path = f"{directory}/{filenames.BALLAST_FILE}"
        self._room = 0  # bytes to be appended before the next look is due
        self._total = fs.total_bytes(directory)  # bytes of the disk
        self.marks = marks_of(config, self._total)
        self.ballast = fs.stat(self._ballast_path).size if fs.exists(self._ballast_path) else 0  # bytes of the file
        self.make_ready()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Take other marks; the ballast stays as large as it is."""
        self._config = config
        with contextlib.suppress(OSError):  # the size of the disk is not known: the marks stay as they are
            self.marks = marks_of(config, self._fs.total_bytes(self.path))._replace(ballast=self.marks.ballast)
            self.look()

    def make_ready(self) -> None:
        """Before a start or a stop, which have to write: gives up the ballast at once if the disk is full."""
        self.look()
        if self.is_full or self.free < self.ballast:  # the latter where no mark is set
            self.give_up_ballast()

    @property
    def is_full(self) -> bool:
        """Whether to append nothing."""
        return self.level is SpaceLevel.FULL

    @property
    def is_short(self) -> bool:
        """Whether what can be removed is to be removed at once: also where no marks are set."""
        return self.is_full or self.free < min(MIB, self._total // BALLAST_SHARE) or self.lacks_inodes

    @property
    def lacks_inodes(self) -> bool:
        """Whether it is files that the disk can hold no more of, or hardly, whatever the bytes."""
        return self.inodes is not None and self.inodes.free < max(1, self._inodes_hard)

    @property
    def _inodes_hard(self) -> int:
        """As ``marks.hard``, for inodes; those who set no mark for bytes get none here either."""
        return min(INODES_MAX, self.inodes.total // INODES_SHARE) if self.inodes and self.marks.hard else 0

    def ask(self) -> Room:
        """What the file system says, for ``note``. In any thread."""
        return Room(self._fs.free_bytes(self.path), self._fs.inodes(self.path))

    def look(self) -> None:
        """Ask the file system how much is free. OSError leaves everything as it was."""
        self.note(*self.ask())

    def note(self, free: int, inodes: Inodes | None = None) -> None:
        """Take note that so many bytes and inodes are free now."""
        self.free, self.inodes = free, inodes
        inodes_hard = self._inodes_hard
        inodes_free = inodes_hard * 2 if inodes is None else inodes.free
        usable = max(0, free - max(0, self.marks.ballast - self.ballast))
        if usable < self.marks.hard or inodes_free < inodes_hard:
            self.level = SpaceLevel.FULL
        elif usable >= self.marks.soft and inodes_free >= inodes_hard * 2:
            self.level = SpaceLevel.ENOUGH
        elif not self.is_full:
            self.level = SpaceLevel.LOW
        self._room = usable - self.marks.hard

    def check(self, size: int) -> None:
        """Raise DiskFullError unless ``size`` bytes may be written. No system call as long as there is plenty."""
        if not self.is_full:
            self._room -= size
            if self._room >= 0 or not self.marks.hard:
                return
            with contextlib.suppress(OSError):
                self.look()
                self._room -= size
            if not self.is_full:
                return
        raise self.refusal("the disk is full")

    def refusal_now(self, what: str) -> DiskFullError:
        """As ``refusal``, of how full the disk is now."""
        with contextlib.suppress(OSError):
            self.look()
        return self.refusal(what)

    def refusal(self, what: str) -> DiskFullError:
        """The error that says so, and how it stands; ``what`` begins the sentence."""
        if self.lacks_inodes:
            return self._full(f"{what}: {self._inodes_told()}")
        marks = (
            f"; below {self.marks.hard:,} (seglog.disk.free.hard.bytes) nothing is written until {self.marks.soft:,} "
            "are free (seglog.disk.free.soft.bytes)"
        )
        return self._full(f"{what}: {self.free:,} bytes are free{marks if self.marks.hard else ''}")

    def _full(self, message: str) -> DiskFullError:
        return DiskFullError(message, free=self.free, hard=self.marks.hard, soft=self.marks.soft)

    def _inodes_told(self) -> str:
        """The end of a message where ``lacks_inodes``."""
        inodes = self.inodes or Inodes(0, 0)
        until = f"; nothing is appended until {self._inodes_hard * 2} are free" if self._inodes_hard else ""
        return (
            f"its file system has {inodes.free:,} of {inodes.total:,} inodes left and can hold no more files, although "
            f"{self.free:,} bytes are free{until}. Delete topics or files, or make the file system with more inodes"
        )

    def problem(self) -> str | None:
        """A sentence for an operator, or None when there is room enough."""
        if self.lacks_inodes:
            return f"the disk of {self.path} is full: {self._inodes_told()}; reading, expiring and deleting go on"
        if self.is_full:
            return (
                f"the disk of {self.path} is full ({self.free:,} bytes are free): nothing is appended until "
                f"{self.marks.soft:,} are; reading, expiring and deleting go on"
            )
        if self.level is SpaceLevel.LOW:
            return (
                f"the disk of {self.path} is filling up: {self.free:,} bytes are free, and appends stop below "
                f"{self.marks.hard:,}"
            )
        return None

    # --- The ballast, off the loop ------------------------------------------------------------------------------------

    @property
    def lacks_ballast(self) -> bool:
        """Whether it should be made now: there is room for it."""
        missing = self.marks.ballast - self.ballast
        return 0 < missing <= self.free and self.level is SpaceLevel.ENOUGH

    def give_up_ballast(self) -> None:
        """Remove the file, if there is one."""
        if self.ballast:
            with contextlib.suppress(FileNotFoundError):  # another thread, or an operator, has removed it
                self._fs.unlink(self._ballast_path)
            self.ballast = 0

    def with_ballast(self, work: Callable[[], T]) -> T:
        """What ``work()`` returns; where it finds no room, the ballast is given up and it is tried once more.

        For what makes room, and the little that has to be written first; not for what only fills the disk. ``work``
        must bear to be called again after an error. In any thread; raises what the last attempt raised.
        """
        had_ballast = self.ballast > 0
        try:
            return work()
        except DiskFullError:
            if not had_ballast:
                raise
        except OSError as error:
            if error.errno not in NO_ROOM or not had_ballast:
                raise
        self.give_up_ballast()
        with contextlib.suppress(OSError):
            self.look()  # now, so that appends do not take the room that was meant for something else
        return work()

    def make_ballast(self) -> None:
        """Write the file. OSError leaves none."""
        file = self._fs.open(self._ballast_path, create=True)
        try:
            for position in range(0, self.marks.ballast, len(_ZEROS)):
                write_all(file, [memoryview(_ZEROS)[: self.marks.ballast - position]], position)
            file.fdatasync()  # some file systems find out only now that there is no room
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.unlink(self._ballast_path)
            raise
        finally:
            file.close()
        self.ballast = self.marks.ballast
