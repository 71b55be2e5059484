"""What all queues share."""

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from benchmarks.batches import RECORD_BYTES
from benchmarks.peers.jobs import LoadProcess
from benchmarks.peers.results import Measure
from benchmarks.peers.sides import KafkaServer, talked

QUEUE: Final = "bench-jobs"
JOB: Final = b"x" * RECORD_BYTES
NOT_YET: Final = 15
"""An error that passes, for ``when_loaded``."""


def group_of(run: int) -> str:
    """The group of one measurement, which gets all jobs."""
    return f"{QUEUE}-{run}"


class Queue(ABC):
    """A queue of ``jobs``, for workers that speak as ``talk`` says."""

    talk: ClassVar[str]

    def __init__(self, server: KafkaServer, load: LoadProcess, jobs: int) -> None:
        self.server = server
        self.jobs = jobs
        self._load = load
        self._run = 0

    @abstractmethod
    def begin(self, group: str) -> None:
        """See that all jobs are there for the workers of a run."""

    def work(self, workers: int, at_once: int, seconds: float) -> Measure:
        """Jobs acknowledged a second, by workers that take so many at once."""
        self._run += 1
        self.begin(group_of(self._run))
        return talked(self._load, self.talk, self.server, workers, seconds, self._run, at_once)
