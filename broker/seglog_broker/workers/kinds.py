"""The types ``JobKind`` and ``WorkerKind``, which the loop and the worker process share, and the tools of jobs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from seglog_broker.storage.io.clock import Clock, Throttle
from seglog_broker.storage.io.filesystem import Buffer, FileSystem

NICENESS: Final = 5
"""The niceness of workers, so that the loop gets processor time first."""

Progress = Callable[[int], None]
"""Called now and then with the progress of a job since the last call, in the job's unit."""


class Tools:
    """What jobs use: files, a clock, and a throttle that the jobs of one process share."""

    def __init__(self, fs: FileSystem, clock: Clock, *, is_throttled: bool = True) -> None:
        self.fs = fs
        self.clock = clock
        self._is_throttled = is_throttled
        self._throttle = Throttle(None, time.monotonic, time.sleep)
        self._rate: float | None = None

    def throttle(self, bytes_per_second: float | None) -> Throttle:
        """The throttle of the previous job if it has the same rate, else a new one; None is no limit."""
        rate = bytes_per_second if self._is_throttled else None
        if rate != self._rate:
            self._rate, self._throttle = rate, Throttle(rate, time.monotonic, time.sleep)
        return self._throttle


JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class JobKind(Generic[JobT, AnswerT]):
    """A kind of job. ``job`` and ``answer`` are the dataclasses of both, as ``messages.decoded`` can read them.

    An answer that is many bytes has them in a field ``payload``, a bytearray, which does not go through JSON.
    ``run`` does a job with its payload, and returns the answer. Modules that only the process needs are imported in it.
    It raises OSError or SeglogError if the job fails; any other exception is a bug.
    """

    name: str
    job: type[JobT]
    answer: type[AnswerT]
    run: Callable[[Tools, JobT, Buffer, Progress], AnswerT]


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """A kind of process; ``name`` is its argument."""

    name: str
    jobs: tuple[JobKind[Any, Any], ...]
    niceness: int = NICENESS
