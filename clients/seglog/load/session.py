"""The shared state of a run: connections, topic, measurements, and its early end."""

import signal
import threading
from dataclasses import dataclass
from typing import Final

import trio

from seglog.core.retries import backoff_seconds
from seglog.load.measurement import Measurement
from seglog.load.plan import Ended, Plan
from seglog.trio import Client
from seglog_protocol.errors import ClientError, ClientTimeoutError, DiskFullError, NotReachableError, SeglogError
from seglog_protocol.messages import TopicDescription

INTERRUPT_WAIT_SECONDS: Final = 1.0
"""How long to wait, after an interrupt, for requests in flight."""


class Control:
    """The end of a run, and its reason. ``scope`` encloses the whole run, ``answers`` what is measured."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.answers = trio.CancelScope()
        self.ended_by: Ended | None = None
        self.is_measuring = False
        self._ended = trio.Event()

    def end(self, why: Ended) -> None:
        """Start no new request; the first reason counts."""
        self.ended_by = self.ended_by or why
        self._ended.set()

    async def ended(self) -> None:
        """Wait for the end."""
        await self._ended.wait()

    def interrupt(self) -> None:
        """End cleanly while measuring; cancel at once before that, or at the second interrupt."""
        if not self.is_measuring or self.ended_by == "interrupt":
            self.scope.cancel()
        self.answers.deadline = min(self.answers.deadline, trio.current_time() + INTERRUPT_WAIT_SECONDS)
        self.ended_by = "interrupt"  # also when the run only waits for answers
        self._ended.set()

    async def watch(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The task that handles Ctrl-C and SIGTERM; it ends at once outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            task_status.started()
            return
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self.interrupt()


@dataclass(slots=True)
class Session:
    """A running load test."""

    plan: Plan
    clients: list[Client]
    topic: TopicDescription
    control: Control
    measurement: Measurement

    async def failed(self, error: SeglogError, attempts: int) -> bool:
        """Count an error. Returns False when it ends the run; else True, after a backoff for ``attempts``."""
        self.count(error)
        is_full = isinstance(error, DiskFullError)  # nobody frees it while a load waits
        if is_full or not (error.retriable or isinstance(error, ClientTimeoutError | NotReachableError)):
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
