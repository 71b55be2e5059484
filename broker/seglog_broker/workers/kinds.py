"""Kinds of jobs and of workers, the same on the loop and in the process, and what jobs work with."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from seglog_broker.storage.io.clock import Clock
from seglog_broker.storage.io.filesystem import Buffer, FileSystem
from seglog_broker.storage.io.throttle import Throttle

NICENESS: Final = 5
"""How much a worker stands back when there is not processor time for all."""

Progress = Callable[[int], None]
"""Told now and then by how much a job has come on; the job says in which unit."""


class Tools:
    """What jobs work with: files, time, and a throttle that the jobs of one process share."""

    def __init__(self, fs: FileSystem, clock: Clock, *, is_throttled: bool = True) -> None:
        self.fs = fs
        self.clock = clock
        self._is_throttled = is_throttled
        self._throttle = Throttle(None, time.monotonic, time.sleep)
        self._rate: float | None = None

    def throttle(self, bytes_per_second: float | None) -> Throttle:
        """That of the job before, unless its rate was another; None is no limit."""
        rate = bytes_per_second if self._is_throttled else None
        if rate != self._rate:
            self._rate, self._throttle = rate, Throttle(rate, time.monotonic, time.sleep)
        return self._throttle


JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class JobKind(Generic[JobT, AnswerT]):
    """A kind of job. Jobs and answers are dataclasses that ``json_values.decoded`` can take out of JSON again.

    ``run`` does a job, given the bytes sent with it. It imports what only the process needs when it is called. It
    raises OSError or SeglogError for what went wrong; any other exception is a bug.
    """

    name: str
    job: type[JobT]
    answer: type[AnswerT]
    run: Callable[[Tools, JobT, Buffer, Progress], AnswerT]


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """A kind of process. Its ``name`` is the argument it is started with, and its module's in ``workers.jobs``."""

    name: str
    jobs: tuple[JobKind[Any, Any], ...]
    niceness: int = NICENESS
