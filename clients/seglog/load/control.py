"""Early end of a run: the first interrupt ends it cleanly, the second one at once."""

import signal
from typing import Final

import trio

from seglog.load.schedule import Ended

INTERRUPT_WAIT_SECONDS: Final = 1.0
"""How long to wait, after an interrupt, for requests in flight."""


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
