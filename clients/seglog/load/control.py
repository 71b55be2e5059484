"""How a run ends before it is through: an interrupt asks for its end, a second one insists."""

import signal
from typing import Final

import trio

from seglog.load.schedule import Ended

INTERRUPT_WAIT_SECONDS: Final = 1.0
"""How long to wait, after an interrupt, for what is on the way."""


class Control:
    """Whether a run is to end, and why. ``scope`` encloses all of it."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.ended_by: Ended | None = None
        self.is_measuring = False
        self._ended = trio.Event()

    def end(self, why: Ended) -> None:
        """Begin nothing new; the first reason stands."""
        self.ended_by = self.ended_by or why
        self._ended.set()

    async def ended(self) -> None:
        """Wait for the end."""
        await self._ended.wait()

    def interrupt(self) -> None:
        """Once: end in good order, where there is something measured. Before that, or a second time: leave."""
        if not self.is_measuring or self.ended_by == "interrupt":
            self.scope.cancel()
        # Also when it was over anyhow and only waits for answers: then these are not waited for any longer.
        self.ended_by = "interrupt"
        self._ended.set()

    async def watch(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The task that hears Ctrl-C and SIGTERM; without signals where this is not the main thread."""
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
