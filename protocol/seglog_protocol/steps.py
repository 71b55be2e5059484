"""Work in steps: a generator that pauses wherever an event loop may serve others, for long work without I/O."""

from collections.abc import Generator
from typing import TypeVar

ResultT = TypeVar("ResultT")

Steps = Generator[None, None, ResultT]
"""Yields wherever other tasks may run, and returns a result. What belongs together changes between two yields."""


def finished(steps: Steps[ResultT]) -> ResultT:
    """The result of ``steps``, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: ResultT = done.value
            return result
