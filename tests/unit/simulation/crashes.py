"""A crash before each file operation, and what is asked of the disk that it leaves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from seglog_broker.testing.forgetful import ForgetfulFileSystem, Operation


@dataclass
class CrashPoints:
    visited: int = 0


@contextmanager
def crash_points(fs: ForgetfulFileSystem, check: Callable[[], object], every: int = 1) -> Iterator[CrashPoints]:
    """Have ``check`` called before each ``every``-th operation in the block; its errors say where."""
    points = CrashPoints()

    def crash_here(operation: Operation) -> None:
        points.visited += 1
        if points.visited % every:
            return
        try:
            check()
        except BaseException as error:
            error.add_note(f"at crash point {points.visited}, before {operation}")
            raise

    fs.on_operation = crash_here
    yield points
    fs.on_operation = None
