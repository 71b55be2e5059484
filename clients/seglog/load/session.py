"""The shared state of a run: connections, topic, measurements; and the handling of errors."""

from dataclasses import dataclass

import trio

from seglog.core.retries import backoff_seconds
from seglog.load.control import Control
from seglog.load.measurement import Measurement
from seglog.load.plan import Plan
from seglog.load.waking import SleepUntil
from seglog.trio.client import Client
from seglog_protocol.errors import ClientError, ClientTimeoutError, NotReachableError, SeglogError
from seglog_protocol.messages import TopicDescription

ACKNOWLEDGED = "acknowledged"
LATE = "late to send"
FETCH = "fetch"
END_TO_END = "end to end"
"""Names of latencies in reports."""


@dataclass(slots=True)
class Session:
    """A running load test."""

    plan: Plan
    clients: list[Client]
    topic: TopicDescription
    control: Control
    measurement: Measurement
    sleep_until: SleepUntil

    async def failed(self, error: SeglogError, attempts: int) -> bool:
        """Count an error. Returns False when it ends the run; else True, after a backoff for ``attempts``."""
        self.count(error)
        if not (error.retriable or isinstance(error, ClientTimeoutError | NotReachableError)):
            self.control.end("error")
            return False
        await trio.sleep(backoff_seconds(attempts))
        return True

    def count(self, error: SeglogError) -> None:
        """Count an error, and its time as part of the run."""
        self.measurement.errors[error_name(error)] += 1
        self.measurement.touch()


def error_name(error: SeglogError) -> str:
    """The broker's code of an error; for the client's own errors the class name."""
    return type(error).__name__ if isinstance(error, ClientError) else error.code
