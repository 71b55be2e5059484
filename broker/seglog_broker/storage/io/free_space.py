"""Free space on the disk: when appends must stop for lack of it, and a ballast file that is deleted then.

Deleting needs space too: checkpoints and the registry are written before any file is deleted. So appends stop while
some space is left. If other programs use that up as well, deleting the ballast file frees a little. Code that has to
write before it can delete does so ``with_ballast``, because the free space may not have been measured yet.

A file system can run out of inodes as well, and each file that is replaced takes one for a moment. Where their number
is limited, a few empty files beside the ballast, the spare files, keep some. They are not given up when appends stop,
because other programs would take their inodes, but by the work that needs one, and by a stop.

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
from seglog_broker.storage.io.os_errors import NO_ROOM, is_no_room, storage_error, why
from seglog_protocol.errors import DiskFullError, StorageError

MIB: Final = 1024 * 1024

HARD_BYTES_MAX: Final = 256 * MIB
HARD_SHARE: Final = 20
SOFT_BYTES_MAX: Final = 512 * MIB
SOFT_SHARE: Final = 10
BALLAST_BYTES_MAX: Final = 16 * MIB
BALLAST_SHARE: Final = 100
"""The default marks: the smaller of a size in bytes and, on small disks, the disk's size divided by the share."""

INODES_MAX: Final = 100
INODES_SHARE: Final = 100
"""Appends stop when fewer inodes than this are free, or than the disk's inodes divided by the share. They continue when
twice as many are free. A roll takes four inodes, and each file that is replaced takes one for a moment."""

SPARES_OF_A_STOP: Final = 6
"""Spare files that are given up by a stop alone: for the checkpoints, the marker, and one that is replaced."""

INODES_LEFT: Final = 2
"""Inodes that making spare files leaves free."""

_ZEROS: Final = bytes(MIB)

T = TypeVar("T")


class SpaceLevel(StrEnum):
    """How much space is free, compared with the marks."""

    ENOUGH = "enough"
    LOW = "low"
    """Below the soft mark: a warning is logged."""
    FULL = "full"
    """Below the hard mark, and since then not yet above the soft one."""


class Room(NamedTuple):
    """What is free on a disk: bytes, and inodes, None where the file system has no limit on them."""

    free: int
    inodes: Inodes | None

    @property
    def inodes_free(self) -> int:
        """The number of free inodes; ``sys.maxsize`` where there is no limit."""
        return sys.maxsize if self.inodes is None else self.inodes.free

    def minimum(self, other: "Room") -> "Room":
        """The smaller number of bytes and the smaller number of inodes of the two."""
        fewer = self if self.inodes_free <= other.inodes_free else other
        return Room(min(self.free, other.free), fewer.inodes)


class Marks(NamedTuple):
    """The soft and the hard mark and the size of the ballast, in bytes."""

    soft: int
    hard: int
    ballast: int


def marks_of(config: BrokerConfig, total: int) -> Marks:
    """The marks for a disk of ``total`` bytes; the soft mark is never below the hard one."""

    def or_default(configured: int, size_max: int, share: int) -> int:
        return min(size_max, total // share) if configured < 0 else configured

    hard = or_default(config.seglog_disk_free_hard_bytes, HARD_BYTES_MAX, HARD_SHARE)
    soft = or_default(config.seglog_disk_free_soft_bytes, SOFT_BYTES_MAX, SOFT_SHARE)
    ballast = or_default(config.seglog_disk_ballast_bytes, BALLAST_BYTES_MAX, BALLAST_SHARE)
    return Marks(max(soft, hard), hard, ballast)


class FreeSpace:
    """The free space on the disk of one log directory, as last measured; the caller decides when to measure again."""

    def __init__(self, fs: FileSystem, directory: str, config: BrokerConfig) -> None:
        """Measures the free space, and removes the ballast if a start has no other room to write. Raises OSError."""
        self.path = directory
        self.level = SpaceLevel.ENOUGH
        self.free = 0  # bytes, as last measured
        self.inodes: Inodes | None = None  # as last measured
        self._fs = fs
        self._config = config
        self._ballast_path = f"{directory}/{filenames.BALLAST_FILE}"
        self._spares = [path for name in filenames.SPARE_FILES if fs.exists(path := f"{directory}/{name}")]
        self._room = 0  # bytes that may be appended before the free space is measured again
        self.total = fs.total_bytes(directory)  # bytes of the disk
        self.marks = marks_of(config, self.total)
        # Bytes of the ballast file, 0 when there is none.
        self.ballast = fs.stat(self._ballast_path).size if fs.exists(self._ballast_path) else 0
        self.make_ready()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use the marks of another configuration; the size of the ballast does not change."""
        self._config = config
        with contextlib.suppress(OSError):  # the size of the disk is unknown: the marks stay
            self.marks = marks_of(config, self._fs.total_bytes(self.path))._replace(ballast=self.marks.ballast)
            self.refresh()

    def make_ready(self) -> None:
        """Measure the free space before a start or a stop, which write files; on a full disk remove the ballast."""
        self.refresh()
        if self.is_full or self.free < self.ballast:  # the second test is for marks of 0
            self.give_up_ballast()

    def make_ready_to_stop(self) -> None:
        """As ``make_ready``. Where inodes are short, remove the spare files as well, and measure again."""
        self.make_ready()
        if self.lacks_inodes_for(len(filenames.SPARE_FILES)):
            self.give_up_spares()
            self.refresh()

    @property
    def is_full(self) -> bool:
        """Whether appends must be refused."""
        return self.level is SpaceLevel.FULL

    @property
    def is_short(self) -> bool:
        """Whether files that wait for their removal must be removed at once; meaningful also with marks of 0."""
        return self.is_full or self.free < min(MIB, self.total // BALLAST_SHARE) or self.lacks_inodes

    @property
    def lacks_inodes(self) -> bool:
        """Whether too few inodes are free, however many bytes are."""
        return self.inodes is not None and self.inodes.free < max(1, self._inodes_hard)

    def hold_inodes(self) -> None:
        """Where inodes are short, make the spare files of what is left, for the next stop.

        For a start after a clean stop, which needs none of them. An error is ignored: the files are made later.
        """
        if self.lacks_inodes_for(INODES_MAX):
            with contextlib.suppress(OSError):
                self.make_spares(left=0)

    def lacks_inodes_for(self, needed: int) -> bool:
        """Whether fewer than ``needed`` inodes are free, as last measured."""
        return self.inodes is not None and self.inodes.free < needed

    @property
    def _inodes_hard(self) -> int:
        """The hard mark for inodes; 0 if the one for bytes is 0."""
        return min(INODES_MAX, self.inodes.total // INODES_SHARE) if self.inodes and self.marks.hard else 0

    @property
    def _free_wanted(self) -> int:
        """Free bytes with which a full disk has room again: the soft mark, and what the ballast still takes."""
        return self.marks.soft + max(0, self.marks.ballast - self.ballast)

    def measure(self) -> Room:
        """Ask the file system how much is free; changes nothing. Raises OSError. For any thread."""
        return Room(self._fs.free_bytes(self.path), self._fs.inodes(self.path))

    def refresh(self) -> None:
        """Measure the free space and ``update`` the level. An OSError leaves everything unchanged."""
        self.update(*self.measure())

    def update(self, free: int, inodes: Inodes | None = None) -> None:
        """Set the level from so many free bytes and inodes."""
        self.free, self.inodes = free, inodes
        inodes_hard = self._inodes_hard
        inodes_free = inodes_hard * 2 if inodes is None else inodes.free - self._spares_missing
        usable = max(0, free - max(0, self.marks.ballast - self.ballast))
        if usable < self.marks.hard or inodes_free < inodes_hard:
            self.level = SpaceLevel.FULL
        elif usable >= self.marks.soft and inodes_free >= inodes_hard * 2:
            self.level = SpaceLevel.ENOUGH
        elif not self.is_full:
            self.level = SpaceLevel.LOW
        self._room = usable - self.marks.hard

    def check(self, size: int) -> None:
        """Raise DiskFullError unless ``size`` bytes may be appended. Without a system call while there is plenty."""
        if not self.is_full:
            self._room -= size
            if self._room >= 0 or not self.marks.hard:
                return
            with contextlib.suppress(OSError):
                self.refresh()
                self._room -= size
            if not self.is_full:
                return
        raise self.refusal("the disk is full")

    def check_inodes(self, what: str, needed: int) -> None:
        """Raise DiskFullError if fewer than ``needed`` inodes are free now; ``what`` begins its message."""
        with contextlib.suppress(OSError):
            self.refresh()
        if self.inodes is not None and self.lacks_inodes_for(needed):
            raise self._full(
                f"{what}: its files need {needed:,} inodes, and the file system of {self.path} has "
                f"{self.inodes.free:,} of {self.inodes.total:,} inodes left"
            )

    def why_not_written(self, what: str, error: OSError, advice: str) -> DiskFullError | StorageError:
        """The error to raise for a file that could not be written: of a full disk, or with the cause and ``advice``."""
        return self.refusal_now(what) if is_no_room(error) else storage_error(f"{what}: {why(error)}; {advice}", error)

    def refusal_now(self, what: str) -> DiskFullError:
        """As ``refusal``, with the free space measured now."""
        with contextlib.suppress(OSError):
            self.refresh()
        return self.refusal(what)

    def refusal(self, what: str) -> DiskFullError:
        """The error for a full disk, with the free space and the marks; ``what`` begins its message."""
        if self.lacks_inodes:
            return self._full(f"{what}: {self._inode_shortage()}")
        marks = (
            f"; below {self.marks.hard:,} (seglog.disk.free.hard.bytes) nothing is written until "
            f"{self._free_wanted:,} are free (seglog.disk.free.soft.bytes, and room for the ballast)"
        )
        return self._full(f"{what}: {self.free:,} bytes are free{marks if self.marks.hard else ''}")

    def _full(self, message: str) -> DiskFullError:
        return DiskFullError(message, free=self.free, hard=self.marks.hard, soft=self.marks.soft)

    def _inode_shortage(self) -> str:
        """The end of a message about too few inodes."""
        inodes = self.inodes or Inodes(0, 0)
        until = f"; nothing is appended until {self._inodes_hard * 2} are free" if self._inodes_hard else ""
        return (
            f"its file system has {inodes.free:,} of {inodes.total:,} inodes left and can hold no more files, although "
            f"{self.free:,} bytes are free{until}. Delete topics or files, or make the file system with more inodes"
        )

    def problem(self) -> str | None:
        """A sentence for the operator, or None when enough space is free."""
        if self.lacks_inodes:
            return f"the disk of {self.path} is full: {self._inode_shortage()}; reading, expiring and deleting continue"
        if self.is_full:
            return (
                f"the disk of {self.path} is full ({self.free:,} bytes are free): nothing is appended until "
                f"{self._free_wanted:,} are; reading, expiring and deleting continue"
            )
        if self.level is SpaceLevel.LOW:
            return (
                f"the disk of {self.path} is filling up: {self.free:,} bytes are free, and appends stop below "
                f"{self.marks.hard:,}"
            )
        return None

    # --- The ballast; in a thread -------------------------------------------------------------------------------------

    @property
    def lacks_ballast(self) -> bool:
        """Whether the ballast is missing or too small, and there is room to make it."""
        missing = self.marks.ballast - self.ballast
        return 0 < missing <= self.free and self.level is SpaceLevel.ENOUGH

    @property
    def lacks_spares(self) -> bool:
        """Whether spare files are missing, and there are inodes for some of them."""
        return bool(self._spares_missing) and not self.lacks_inodes_for(INODES_LEFT + 1)

    @property
    def _spares_missing(self) -> int:
        """How many spare files are to be made; none where inodes are not limited, or there is to be no ballast."""
        is_wanted = self.inodes is not None and self.marks.ballast > 0
        return len(filenames.SPARE_FILES) - len(self._spares) if is_wanted else 0

    def give_up_ballast(self) -> None:
        """Remove the ballast file, if there is one. Raises OSError."""
        if self.ballast:
            with contextlib.suppress(FileNotFoundError):  # another thread, or an operator, has removed it
                self._fs.unlink(self._ballast_path)
            self.ballast = 0

    def give_up_spares(self, keep: int = 0) -> None:
        """Remove the spare files, but for ``keep``. Raises OSError."""
        while len(self._spares) > keep:
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(self._spares[-1])
            self._spares.pop()

    def with_ballast(self, work: Callable[[], T]) -> T:
        """Return ``work()``. If the disk is full, remove the ballast and some spare files, and call it once more.

        Spare files are made again of the inodes that ``work`` took for a moment only.

        For work that frees space, with the little that it has to write first; not for work that only fills the disk.
        ``work`` must be safe to call again after an error. For any thread. Raises what the last call raised.
        """
        had_ballast = self.ballast > 0 or len(self._spares) > SPARES_OF_A_STOP
        try:
            return work()
        except DiskFullError:
            if not had_ballast:
                raise
        except OSError as error:
            if error.errno not in NO_ROOM or not had_ballast:
                raise
        self.give_up_ballast()
        self.give_up_spares(keep=SPARES_OF_A_STOP)
        with contextlib.suppress(OSError):
            self.refresh()  # now, so that appends do not take the space that ``work`` needs
        try:
            return work()
        finally:
            with contextlib.suppress(OSError):
                self.make_spares(left=0)

    def make_ballast(self) -> None:
        """Write the ballast file. Raises OSError; no file is left then."""
        try:
            with self._fs.open(self._ballast_path, create=True) as file:
                for position in range(0, self.marks.ballast, len(_ZEROS)):
                    write_all(file, [memoryview(_ZEROS)[: self.marks.ballast - position]], position)
                file.fdatasync()  # some file systems find out only now that there is no room
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.unlink(self._ballast_path)
            raise
        self.ballast = self.marks.ballast

    def make_spares(self, left: int = INODES_LEFT) -> None:
        """Make the spare files that are missing, as far as ``left`` inodes stay free. Raises OSError."""
        self.refresh()
        if self.inodes is None or not self.marks.ballast:
            return
        missing = [path for name in filenames.SPARE_FILES if (path := f"{self.path}/{name}") not in self._spares]
        for path in missing[: max(0, self.inodes.free - left)]:
            self._fs.open(path, create=True).close()
            self._spares.append(path)
