"""Faults and crashes for a run on ``forgetful``, and the record of its operations."""

import errno
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class SimulatedCrash(BaseException):
    """The machine stopped here. Not an ``Exception``, so that no handler of the engine takes it for a failure."""


class Operation(NamedTuple):
    """A requested change, even if a fault prevented it.

    ``name`` is the method of the file system. ``detail`` is (position, size) of a pwritev, (size,) of a truncate, (new
    path,) of a rename or link, (ms,) of a set_mtime, else (). ``remove_tree`` counts once per entry removed: it is not
    one system call.
    """

    number: int
    name: str
    path: str
    detail: tuple[int | str, ...]


class Read(NamedTuple):
    """A read of the disk: open, lock, pread, map, stat, exists or list_directory; ``size`` is the bytes returned."""

    name: str
    path: str
    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of one kind of operation: a method of the file system, reads included.

    ``path`` is a suffix or a predicate. ``error`` is the errno to raise; or ``short`` the bytes that a pwritev writes
    before it returns. It affects the ``nth`` match after its injection; if ``sticky``, all later ones too.
    """

    operation: str
    path: str | Callable[[str], bool] = ""
    error: int | None = None
    short: int | None = None
    nth: int = 1
    sticky: bool = False

    def __post_init__(self) -> None:
        if (self.error is None) == (self.short is None):
            raise ValueError("A fault has either an error or a short count.")
        if self.short is not None and self.operation != "pwritev":
            raise ValueError(f"Only a pwritev can be short, not {self.operation}.")

    def matches(self, operation: str, path: str) -> bool:
        """Whether the fault is for this operation."""
        if operation != self.operation:
            return False
        return path.endswith(self.path) if isinstance(self.path, str) else self.path(path)


class Script:
    """Numbers and records the operations on a file system, and makes them fail or crash as configured.

    ``operations`` and ``reads`` may be cleared at any time; numbers begin at 1 and continue. They stay empty unless
    ``is_recorded``. ``on_operation`` is called before each operation takes effect.
    """

    def __init__(self, *, is_recorded: bool = True) -> None:
        self._is_recorded = is_recorded
        self.operations: list[Operation] = []
        self.reads: list[Read] = []
        self.on_operation: Callable[[Operation], None] | None = None
        self._faults: list[tuple[Fault, itertools.count[int]]] = []
        self._numbers = itertools.count(1)  # counters, not sums: a fdatasync may begin beside another operation
        self._last_number = 0
        self._crash_after: int | None = None
        self._torn_bytes = 0
        self._stopped = False

    def inject(self, fault: Fault) -> None:
        """Add a fault; if several match, the first one injected takes effect."""
        self._faults.append((fault, itertools.count(1)))

    def heal(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def crash_after(self, number: int | None, *, torn_bytes: int = 0) -> None:
        """Stop the machine before the operation that follows ``number`` (0: before the first). None cancels that.

        If that operation is a pwritev, its first ``torn_bytes`` still reach the page cache.
        """
        self._crash_after, self._torn_bytes = number, torn_bytes

    def stop(self) -> None:
        """Stop the machine now."""
        self._stopped = True

    def check_running(self) -> None:
        """SimulatedCrash when the machine has stopped."""
        if self._stopped:
            raise SimulatedCrash("the machine has stopped")

    def torn_bytes(self) -> int:
        """How many bytes of a write that begins now reach the page cache."""
        return self._torn_bytes if self._crash_after is not None and self._last_number >= self._crash_after else 0

    def begin(self, name: str, path: str, *detail: int | str) -> int | None:
        """Number and record an operation; then crash, fail, or return the count at which a write stops short."""
        self.check_running()
        self._last_number = number = next(self._numbers)
        operation = Operation(number, name, path, detail)
        if self._crash_after is not None and number > self._crash_after:
            self.stop()
            raise SimulatedCrash(operation)
        if self.on_operation:
            self.on_operation(operation)
        if self._is_recorded:
            self.operations.append(operation)
        return self._strike(name, path)

    def look(self, name: str, path: str, position: int = 0, size: int = 0) -> None:
        """Record a read; fail if a fault matches."""
        self.check_running()
        if self._is_recorded:
            self.reads.append(Read(name, path, position, size))
        self._strike(name, path)

    def _strike(self, name: str, path: str) -> int | None:
        striking: Fault | None = None
        for fault, matches in self._faults:
            if fault.matches(name, path):
                nth = next(matches)  # every fault counts its matches, whichever takes effect
                if striking is None and (nth == fault.nth or (fault.sticky and nth > fault.nth)):
                    striking = fault
        if striking is None:
            return None
        if striking.error is not None:
            raise os_error(striking.error, path)
        return striking.short


def os_error(code: int, path: str) -> OSError:
    """The OSError for an errno, as a subclass such as FileNotFoundError if Python has one."""
    return OSError(code, errno.errorcode.get(code, "error"), path)
