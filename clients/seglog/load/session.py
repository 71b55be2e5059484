"""What the parts of a run share: the connections, the topic, the counts; and what an error means for the run."""

from dataclasses import dataclass

import trio

from seglog.dialing import backoff_seconds
from seglog.load.control import Control
from seglog.load.measurement import Measurement
from seglog.load.plan import Plan
from seglog.load.waking import SleepUntil
from seglog.trio.client import Client
from seglog_protocol.errors import ClientTimeoutError, NotReachableError, SeglogError
from seglog_protocol.messages import TopicDescription

ACKNOWLEDGED = "acknowledged"
LATE = "late to send"
FETCH = "fetch"
END_TO_END = "end to end"
"""What latencies are called in reports."""


@dataclass(slots=True)
class Session:
    """A run under way."""

    plan: Plan
    clients: list[Client]
    topic: TopicDescription
    control: Control
    measurement: Measurement
    sleep_until: SleepUntil

    async def failed(self, error: SeglogError, attempts: int) -> bool:
        """Count an error; False when it ends the run, else after a pause that grows with ``attempts`` in a row."""
        self.measurement.errors[error_name(error)] += 1
        if not (error.retriable or isinstance(error, ClientTimeoutError | NotReachableError)):
            self.control.end("error")
            return False
        with trio.move_on_after(backoff_seconds(attempts)):
            await self.control.ended()
        return True


def error_name(error: SeglogError) -> str:
    """The broker's code of an error; for one that never travels, because it is the client's own, its class."""
    return error.code if error.code != SeglogError.code else type(error).__name__
