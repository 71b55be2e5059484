"""Room on the disk: how much is left, when that is too little to append, and a ballast to be given up then.

A disk that is full to the last byte cannot even be emptied in good order: checkpoints and the registry are written
before anything is deleted. So appends stop while some room is left, and a ballast file is kept for the case that
somebody else uses that up: without it there is room again, if only a little. Whoever has to write before something can
be deleted does so ``with_ballast`` to fall back on, for nobody may have looked at the disk yet.

Appends stop when less than ``hard`` bytes are free and go on when ``soft`` are: one mark for both would have the broker
refuse and take records in turn. Bytes that the ballast lacks count as used, so that giving it up ends no shortage.
"""

import contextlib
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from seglog_broker.config import BrokerConfig
from seglog_broker.storage import filenames
from seglog_broker.storage.failures import NO_ROOM
from seglog_broker.storage.filesystem import FileSystem, write_all
from seglog_protocol.errors import DiskFullError

MIB: Final = 1024 * 1024

HARD_BYTES_MAX: Final = 256 * MIB
HARD_SHARE: Final = 20
SOFT_BYTES_MAX: Final = 512 * MIB
SOFT_SHARE: Final = 10
BALLAST_BYTES_MAX: Final = 16 * MIB
BALLAST_SHARE: Final = 100
"""What the marks are unless they are set: the smaller of a size and, for small disks, one part in so many."""

_ZEROS: Final = bytes(MIB)

T = TypeVar("T")


class SpaceLevel(StrEnum):
    """How much room there is."""

    ENOUGH = "enough"
    LOW = "low"
    """Below the soft mark: time to warn."""
    FULL = "full"
    """Below the hard mark, and not above the soft one since."""


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
    """The room on the disk of one log directory. ``look`` first; times are nobody's business here."""

    def __init__(self, fs: FileSystem, directory: str, config: BrokerConfig) -> None:
        self.path = directory
        self.level = SpaceLevel.ENOUGH
        self.free = 0  # bytes, at the last look
        self.marks = Marks(0, 0, 0)
        self.ballast = 0  # bytes of the file that is there
        self._fs = fs
        self._config = config
        self._ballast_path = f"{directory}/{filenames.BALLAST_FILE}"
        self._room = 0  # bytes to be appended before the next look is due

    def begin(self) -> None:
        """Find out how it stands, and be ready for what a start writes."""
        self.marks = marks_of(self._config, self._fs.total_bytes(self.path))
        if self._fs.exists(self._ballast_path):
            self.ballast = self._fs.stat(self._ballast_path).size
        self.make_ready()

    def make_ready(self) -> None:
        """Before a start or a stop, which have to write: gives up the ballast at once if the disk is full."""
        self.look()
        if self.is_full or self.free < self.ballast:  # the latter where no mark is set
            self.give_up_ballast()

    @property
    def is_full(self) -> bool:
        """Whether to append nothing."""
        return self.level is SpaceLevel.FULL

    def look(self) -> None:
        """Ask the file system how much is free. OSError leaves everything as it was."""
        self.note(self._fs.free_bytes(self.path))

    def note(self, free: int) -> None:
        """Take note that ``free`` bytes are free now."""
        self.free = free
        usable = max(0, free - max(0, self.marks.ballast - self.ballast))
        if usable < self.marks.hard:
            self.level = SpaceLevel.FULL
        elif usable >= self.marks.soft:
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

    def refusal(self, what: str) -> DiskFullError:
        """The error that says so, and how it stands; ``what`` begins the sentence."""
        marks = (
            f"; below {self.marks.hard:,} (seglog.disk.free.hard.bytes) nothing is written until {self.marks.soft:,} "
            "are free (seglog.disk.free.soft.bytes)"
        )
        return DiskFullError(
            f"{what}: {self.free:,} bytes are free{marks if self.marks.hard else ''}",
            free=self.free,
            hard=self.marks.hard,
            soft=self.marks.soft,
        )

    def problem(self) -> str | None:
        """A sentence for an operator, or None when there is room enough."""
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
            with contextlib.suppress(FileNotFoundError):  # somebody else was quicker: another thread, or an operator
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
