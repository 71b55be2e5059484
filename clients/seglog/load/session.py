"""The shared state of a run: connections, topic, measurements, its early end; and a precise sleep."""

import signal
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from seglog.core.retries import backoff_seconds
from seglog.load.measurement import Measurement
from seglog.load.plan import Ended, Plan
from seglog.trio import Client
from seglog_protocol.errors import ClientError, ClientTimeoutError, DiskFullError, NotReachableError, SeglogError
from seglog_protocol.messages import TopicDescription

ACKNOWLEDGED = "acknowledged"
LATE = "late to send"
FETCH = "fetch"
END_TO_END = "end to end"
"""Names of latencies in reports."""

INTERRUPT_WAIT_SECONDS: Final = 1.0
"""How long to wait, after an interrupt, for requests in flight."""

SleepUntil = Callable[[float], Awaitable[None]]

_BY_ALARM_SECONDS: Final = 0.004
"""The last part of a sleep, timed by SIGALRM; the loop's own timer is used before."""


class Control:
    """Whether a run is to end, and why. ``scope`` encloses the whole run."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
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
        # Also when the run only waits for answers: then it stops waiting.
        self.ended_by = "interrupt"
        self._ended.set()

    async def watch(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The task that handles Ctrl-C and SIGTERM; it ends at once outside the main thread."""
        try:
            receiver = trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM)
            signals = receiver.__enter__()
        except RuntimeError:
            task_status.started()
            return
        try:
            task_status.started()
            async for _ in signals:
                self.interrupt()
        finally:
            receiver.__exit__(None, None, None)


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


@contextmanager
def alarm_clock() -> Generator[SleepUntil, None, None]:
    """Yields a ``sleep_until`` in ``trio.current_time``, typically late by 0.1 ms; for one task at a time.

    An event loop rounds its timers up to a millisecond, which is longer than most answers take. This one uses SIGALRM;
    outside the main thread it is ``trio.sleep_until``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield trio.sleep_until
        return
    token = trio.lowlevel.current_trio_token()
    rung = trio.Event()

    def ring() -> None:
        nonlocal rung
        rung.set()
        rung = trio.Event()

    async def sleep_until(due: float) -> None:
        await trio.sleep_until(due - _BY_ALARM_SECONDS)
        while (remaining := due - trio.current_time()) > 0:
            signal.setitimer(signal.ITIMER_REAL, remaining)
            with trio.move_on_at(due):  # in case the alarm is lost
                await rung.wait()

    previous = signal.signal(signal.SIGALRM, lambda *_: token.run_sync_soon(ring))
    try:
        yield sleep_until
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
