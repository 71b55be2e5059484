"""Sweeps over the state of a coordinator, which remove what has expired or is orphaned."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from seglog_broker.logger import get_logger
from seglog_broker.partitions.scheduler import Scheduler
from seglog_protocol.errors import SeglogError

LINES_MAX: Final = 100
"""Coordinator keys of one sweep that are logged one by one."""

log = get_logger()


class SweepLines:
    """The lines of a sweep in the log: at most LINES_MAX about single keys, then one about all of them."""

    def __init__(self, write: Callable[..., None], event: str, keys: str, items: str) -> None:
        """``write`` is a method of a logger; ``keys`` and ``items`` name the numbers in the line about all."""
        self._write = write
        self._event = event
        self._names = keys, items
        self._counts = 0, 0

    def note(self, items: int, **facts: object) -> None:
        """One key was cleaned up: ``items`` of what it had."""
        self._counts = self._counts[0] + 1, self._counts[1] + items
        if self._counts[0] <= LINES_MAX:
            self._write(self._event, **facts)

    def end(self) -> None:
        """The sweep is over."""
        if self._counts[0] > LINES_MAX:
            self._write(f"{self._event}_total", **dict(zip(self._names, self._counts, strict=True)))
        self._counts = 0, 0


class Sweep:
    """A sweep over all coordinator keys, in turns with other tasks."""

    def __init__(
        self,
        keys: Callable[[], Iterable[str]],
        clean: Callable[[str], Awaitable[None]],
        scheduler: Scheduler,
        lines: SweepLines | None = None,
    ) -> None:
        """``clean`` removes what is over of one key. It may raise SeglogError; the next sweep tries again."""
        self._keys = keys
        self._clean = clean
        self._scheduler = scheduler
        self._lines = lines
        self._wanted = trio.Event()

    def want(self) -> None:
        """Wake ``run`` for another sweep."""
        self._wanted.set()

    async def run(self) -> None:
        """Sweep whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self.sweep()

    async def sweep(self) -> None:
        """Sweep once."""
        for key in list(self._keys()):
            await self._scheduler.turn()
            try:
                await self._clean(key)
            except SeglogError as error:
                log.warning("coordinator_key_not_swept", key=key, reason=error.message)
        if self._lines is not None:
            self._lines.end()
